"""The engine against the plain interpreter: uninterrupted, and resumed after every batch, three resumes deep."""

from __future__ import annotations

import random
import warnings
from unittest import mock

import numpy as np
import pytest

from tests.oracle import interpret
from tests.pipelines import Case, random_case
from zephon_jax.checkpoint.codec import decode, encode
from zephon_jax.engine import chain


def expected(case: Case):
    return list(interpret(case.spec, case.work, case.samples, case.lanes, case.flush))


def drain(it, n=None):
    out = []
    for batch in it:
        out.append(batch)
        if n is not None and len(out) == n:
            break
    return out


def require_equal(got, want, where):
    assert len(got) == len(want), (where, len(got), len(want))
    for t, (batch, (_, other)) in enumerate(zip(got, want, strict=True)):
        assert set(batch) == set(other), (where, t, sorted(batch), sorted(other))
        for name in batch:
            a, b = batch[name], other[name]
            assert a.dtype == b.dtype and a.shape == b.shape, (where, t, name, a.dtype, b.dtype, a.shape, b.shape)
            if a.dtype == object:
                same = all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
            else:
                same = np.array_equal(a, b)
            assert same, (where, t, name)


def check_every_cut(case: Case, seed: int) -> int:
    """All of the stream, and three resumes chained from every cut. Returns the number of cuts.

    For half of the seeds receipts are reported without a batch at every chance, not only when much has gathered.
    """
    with mock.patch.object(chain, "_PROGRESS_BULK", (0, 8192)[seed % 2]):
        return _check_every_cut(case, random.Random(seed))


def _check_every_cut(case: Case, rng: random.Random) -> int:
    want = expected(case)
    whole = case.pipeline()
    it = iter(whole)
    got = []
    for cut in range(len(want) + 1):
        state = decode(encode(it.checkpoint()))
        at, ends = cut, []
        for _ in range(3):
            settings = {
                "micro_batch_records": rng.choice([1, 2, 7, 128]),
                "executor": rng.choice(["inline", "inline", "inline", "threads"]),
                "prefetch": rng.choice([1, 3]),
            }
            with iter(case.pipeline(**settings)) as resumed:
                resumed.restore(state)
                assert encode(resumed.checkpoint()) == encode(state), (case.spec, cut, "restore then checkpoint")
                more = drain(resumed, rng.randint(1, 4))
                require_equal(more, want[at : at + len(more)], (case.spec, cut, at, settings))
                at += len(more)
                state = decode(encode(resumed.checkpoint()))
                ends.append(at)
        # The last of the chain runs to the end from here for some of the cuts; every cut reaches at least three batches.
        if cut % 7 == 0 or cut == len(want):
            with iter(case.pipeline()) as resumed:
                resumed.restore(state)
                require_equal(drain(resumed), want[at:], (case.spec, cut, ends, "to the end"))
        if cut < len(want):
            got.append(next(it))
    require_equal(got, want, (case.spec, "uninterrupted"))
    assert next(it, None) is None
    return len(want) + 1


def check(seed, lanes=None):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="pack.* drops the fields")
        return check_every_cut(random_case(seed, lanes), seed)


@pytest.mark.parametrize("lanes", [1, 2, 3, 8])
def test_random_pipelines_resume_at_every_cut(lanes):
    """O1, O2 (state and draws per lane and epoch), O3, O8 (batch is not flushed), C3, C4, C5."""
    assert sum(check(100 * lanes + seed, lanes) for seed in range(6)) > 50


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_more_random_pipelines_resume_at_every_cut(seed):
    assert check(seed) >= 1


@pytest.mark.parametrize("seed", range(40, 48))
def test_a_checkpoint_is_a_function_of_the_cut(seed):
    """C9: executor, workers, prefetch and micro-batches leave no trace, nor does how the run came to the cut."""
    case = random_case(seed)
    ways = [
        {"executor": "inline", "micro_batch_records": 1},
        {"executor": "inline", "micro_batch_records": 128},
        {"executor": "auto"},
        {"executor": "threads", "prefetch": 1, "max_workers": 1},
        {"executor": "threads", "prefetch": 5, "max_workers": 3, "micro_batch_records": 3},
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="pack.* drops the fields")
        runs = [iter(case.pipeline(**way)) for way in ways]
        resumed = None
        for cut in range(60):
            states = [encode(it.checkpoint()) for it in runs]
            assert len(set(states)) == 1, (case.spec, cut)
            if cut == 5:
                resumed = iter(case.pipeline())
                resumed.restore(decode(states[0]))
            if resumed is not None:
                assert encode(resumed.checkpoint()) == states[0]
                next(resumed, None)
            if [next(it, None) is None for it in runs][0]:
                break
        for it in runs:
            it.close()
