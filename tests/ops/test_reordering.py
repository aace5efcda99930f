"""bucket_by_length and ensure_mixture: the order that a few lines of Python give, whatever the micro-batches."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zephon_jax as zj
from tests.ops import PROPERTY, accumulated, cut, sizes
from zephon_jax.errors import ConfigurationError
from zephon_jax.ops import BucketByLength, EnsureMixture
from zephon_jax.ops.base import RecordFailure
from zephon_jax.testing import check_operator, check_resume
from zephon_jax.types import LaneContext

lengths = st.lists(st.integers(0, 12), max_size=50)


# -- buckets ------------------------------------------------------------------------------------------------------------------
def bucketed(lengths: list[int], boundaries: list[int], rows: int) -> list[int]:
    buckets: list[list[int]] = [[] for _ in range(len(boundaries) + 1)]
    out = []
    for i, n in enumerate(lengths):
        bucket = next((b for b, limit in enumerate(boundaries) if n <= limit), len(boundaries))
        buckets[bucket].append(i)
        if len(buckets[bucket]) == rows:
            out += buckets[bucket]
            buckets[bucket] = []
    return out + [i for bucket in buckets for i in bucket]


@PROPERTY
@given(lengths, sizes, st.sampled_from([[4], [2, 5, 9]]), st.integers(1, 4), st.sampled_from(["tokens", "text"]))
def test_records_of_like_length_go_together(lengths, parts, boundaries, rows, field):
    records = [{"i": i, field: [1] * n if field == "tokens" else "x" * n} for i, n in enumerate(lengths)]
    got, of, closed = accumulated(BucketByLength(boundaries, rows, field=field), cut(records, parts))
    want = bucketed(lengths, boundaries, rows)
    assert [int(r["i"]) for r in got] == want
    assert [len(r[field]) for r in got] == [lengths[i] for i in want]
    assert [identity[0][3] for identity in of] == want
    assert closed == []


def test_the_contract_of_buckets():
    records = [{"tokens": [1] * (i * 7 % 13), "text": "a" * (i % 5)} for i in range(60)]
    check_operator(BucketByLength([3, 8], 4), records)
    check_operator(BucketByLength([1, 2], 3, field="text"), records)
    assert BucketByLength([1], 3).traits.replays_on_lengths
    assert not BucketByLength([1], 3, field="text").traits.replays_on_lengths


def test_batches_of_one_bucket_are_padded_to_its_boundary():
    docs = [{"tokens": [1] * (1 + i * 7 % 12)} for i in range(200)]
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", docs), seed=1, chunk_size=16)
    boundaries = [4, 8, 12]
    pipeline = (
        zj.Pipeline(work).bucket_by_length(boundaries, 8).batch(8, drop_last=False).pad_rows(boundaries).lm_targets()
    )
    pipeline = pipeline.options(executor="inline", flush_every_k_chunks=8)
    shapes = Counter(batch["inputs"].shape for batch in pipeline)
    assert {shape[1] + 1 for shape in shapes} <= set(boundaries)
    assert sum(rows * n for (rows, _), n in shapes.items()) == 200
    tokens = sum(len(d["tokens"]) for d in docs)
    padded = sum(rows * (width + 1) * n for (rows, width), n in shapes.items())
    unsorted = 200 * 12
    assert padded - tokens < 0.5 * (unsorted - tokens)
    check_resume(pipeline, batches=10)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([], 3), "must be a list of lengths"),
        ((3, 3), "must be a list of lengths"),
        (([3, 3], 3), r"bucket_by_length\(boundaries=\[3, 3\]\) must ascend"),
        (([0], 3), "must be at least 1"),
        (([3], 0), r"bucket_by_length\(rows=0\) must be at least 1"),
    ],
    ids=str,
)
def test_buckets_that_cannot_work(arguments, text):
    with pytest.raises(ConfigurationError, match=text):
        BucketByLength(*arguments)


def test_a_record_without_a_length_is_named():
    with pytest.raises(RecordFailure) as caught:
        accumulated(BucketByLength([3], 2, field="n"), cut([{"n": [1]}, {"n": 2}], []))
    assert caught.value.index == 1
    assert "needs a list or text in 'n', got int64" in str(caught.value.__cause__)
    with pytest.raises(zj.DataError, match=r"needs the field 'tokens', but the records have \['text'\]"):
        accumulated(BucketByLength([3], 2), cut([{"text": "a"}], []))


# -- ensure_mixture -----------------------------------------------------------------------------------------------------------
def ensured(stream, shares: dict[int, float], size: int, share_of_half=None) -> tuple[list[int], int]:
    """(dataset, tokens) of each record → the order in which they leave, and how many out of turn."""
    waiting = {d: [] for d in shares}
    given_ = dict.fromkeys(shares, 0)
    out, forced = [], 0

    def behind(d):
        return sum(given_.values()) * shares[d] / sum(shares.values()) - given_[d], -d

    def go(full):
        nonlocal forced
        d = max(shares, key=behind)
        if not waiting[d]:
            if not full:
                return False
            d = max((d for d in shares if waiting[d]), key=behind)
            forced += 1
        i, n = waiting[d].pop(0)
        given_[d] += n
        out.append(i)
        return True

    most = size
    for i, (d, n) in enumerate(stream):
        if d not in shares:
            out.append(i)
            continue
        waiting[d].append((i, n))
        if share_of_half is not None and most == size:
            most = max(1, min(size, int(sum(map(len, waiting.values())) * share_of_half)))
            share_of_half = None
        while any(waiting.values()) and go(sum(map(len, waiting.values())) >= most):
            pass
    while any(waiting.values()):
        go(True)
    return out, forced


def context(stream):
    return LaneContext(0, 0, 3, lambda chunks, offsets: np.array([stream[i][0] for i in offsets.tolist()], np.int32))


streams = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=60)


@PROPERTY
@given(streams, sizes, st.sampled_from([{0: 1, 1: 1, 2: 2}, {0: 4, 1: 1}, {1: 1}]), st.integers(1, 9), st.booleans())
def test_the_dataset_that_lags_goes_first(stream, parts, shares, size, by_tokens):
    names = {0: "a", 1: "b", 2: "c"}
    op = EnsureMixture(shares, names, weight_by="tokens" if by_tokens else "samples", max_buffer_size=size)
    records = [{"tokens": [1] * n, "i": i} for i, (_, n) in enumerate(stream)]
    counted = [(d, n if by_tokens else 1) for d, n in stream]
    want, _ = ensured(counted, shares, size)
    got, of, closed = accumulated(op, cut(records, parts), context(stream))
    assert [int(r["i"]) for r in got] == want
    assert [identity[0][3] for identity in of] == want
    assert closed == []


@PROPERTY
@given(streams, st.integers(1, 9), st.integers(1, 6))
def test_fewer_records_are_held_towards_the_end_of_an_epoch(stream, size, chunks):
    """Records of chunk 0 in the harness: the epoch of so many chunks began so many chunks ago."""
    for ago in range(chunks):
        ctx = context(stream)._replace(epoch=-ago, epoch_chunks=chunks)
        left = chunks - ago
        late = 2 * left / (chunks + 2) if 2 * left <= chunks else None
        shares = {0: 1, 1: 1, 2: 2}
        op = EnsureMixture(shares, {0: "a", 1: "b", 2: "c"}, max_buffer_size=size)
        got, _, _ = accumulated(op, cut([{"tokens": [1] * n, "i": i} for i, (_, n) in enumerate(stream)], [3]), ctx)
        assert [int(r["i"]) for r in got] == ensured(stream, shares, size, late)[0]


def test_figures_say_what_went_and_what_was_out_of_turn():
    stream = [(0, 3)] * 10 + [(1, 5)] * 2
    op = EnsureMixture({0: 1, 1: 1}, {0: "a", 1: "b"}, max_buffer_size=4)
    state = op.init_state(context(stream))
    for batch in cut([{"tokens": [1] * n} for _, n in stream], [5]):
        op.push(state, batch)
    op.flush(state)
    assert op.figures(state) == {
        "tokens_of_a": 30, "tokens_of_b": 10, "out_of_turn": ensured(stream, {0: 1, 1: 1}, 4)[1],
    }  # fmt: skip


def test_the_contract_of_ensure_mixture():
    records = [{"tokens": [1] * (1 + i * 7 % 11)} for i in range(60)]
    for weight_by in ("tokens", "samples"):
        check_operator(EnsureMixture({0: 3, 1: 1}, {0: "a", 1: "b"}, weight_by=weight_by, max_buffer_size=9), records)


def two_datasets(n=4000):
    return [
        zj.Dataset.from_source("short", [{"tokens": [1] * 40}] * n),
        zj.Dataset.from_source("long", [{"tokens": [2] * 400}] * n),
    ]


def test_shares_of_tokens_are_kept_everywhere():
    """Two datasets with documents of 40 and 400 tokens, 1 : 1 by tokens: within 1 % over 1,000 rows, and bounded locally."""
    work = zj.StaticMixtureWorkSource(
        two_datasets(), {"short": 10, "long": 1}, seed=3, chunk_size=64, exhausted_policy="repeat"
    )
    pipeline = zj.Pipeline(work).ensure_mixture(mixture={"short": 1, "long": 1}, max_buffer_size=100).pack(512).batch(8)
    with iter(pipeline.options(executor="inline")) as batches:
        tokens = np.concatenate([next(batches)["tokens"] for _ in range(125)])
    short, long = (int((tokens == value).sum()) for value in (1, 2))
    assert abs(short / (short + long) - 0.5) < 0.01
    for window in np.split(tokens, 25):  # of 40 rows
        assert abs((window == 1).sum() / (window > 0).sum() - 0.5) < 0.05


def test_resumes_exactly_on_any_lanes():
    work = zj.StaticMixtureWorkSource(two_datasets(90), {"short": 1, "long": 1}, seed=3, chunk_size=8)
    pipeline = zj.Pipeline(work).ensure_mixture(max_buffer_size=12).pack(512, separate_datasets=True).batch(2)
    check_resume(pipeline.options(canonical_replicas=2, executor="inline"), batches=8)
    assert "lengths" in pipeline.explain()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mixture": {"web": 1}}, r"names \['web'\], but the datasets are \['long', 'short'\]"),
        ({"mixture": {}}, "names no dataset"),
        ({"mixture": {"short": 0}}, "weights are positive numbers"),
        ({"mixture": {"short": True}}, "weights are positive numbers"),
        ({"weight_by": "bytes"}, "must be 'tokens' or 'samples'"),
        ({"max_buffer_size": 0}, r"ensure_mixture\(max_buffer_size=0\) must be at least 1"),
    ],
    ids=str,
)
def test_what_cannot_be_ensured_is_refused(options, text):
    pipeline = zj.Pipeline(zj.StaticMixtureWorkSource(two_datasets(3)))
    with pytest.raises(ConfigurationError, match=text):
        pipeline.ensure_mixture(**{"mixture": {"short": 1, "long": 1}, **options})


def test_the_work_source_says_what_to_ensure():
    pipeline = zj.Pipeline(zj.StaticMixtureWorkSource(two_datasets(3), {"short": 3, "long": 1})).ensure_mixture()
    identity = pipeline.operators[0].identity()
    assert identity is not None
    assert identity["shares"] == {"short": "3/4", "long": "1/4"}
