"""More small inputs from the field, on resuming; the numbers are those of the project's list of cases."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest

import zephon_jax as zj
from tests.oracle import tokenize
from zephon_jax.checkpoint.codec import decode, encode


def rows_of(batches):
    return [row for batch in batches for row in np.asarray(batch["tokens"]).tolist()]


def text_pipeline(lanes=1, batch=2, seed=0, **options):
    rng = random.Random(3)
    samples = [{"text": "abcdefgh"[: rng.randint(1, 8)] * rng.randint(1, 6)} for _ in range(50)]
    code = [{"text": "xyz" * rng.randint(1, 8)} for _ in range(50)]
    datasets = [zj.Dataset.from_source(n, s, fingerprint=n) for n, s in (("web", samples), ("code", code))]
    work = zj.StaticMixtureWorkSource(datasets, {"web": 1, "code": 1}, chunk_size=4, seed=seed, stop_after_passes=2)
    p = zj.Pipeline(work).tokenize(tokenize).pack(24, num_bins=3).shuffle(4).batch(batch)
    return p.options(canonical_replicas=lanes, flush_every_k_chunks=2, **options)


# -- 3 -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("taken", [0, 1, 2])
def test_case_3_three_lanes_of_which_some_have_moved(taken):
    p = text_pipeline(lanes=3, executor="inline")
    whole = list(p)
    it = iter(p)
    for _ in range(7):
        next(it)
    first = it.checkpoint()
    again = iter(p)
    again.restore(first)
    for _ in range(taken):
        next(again)
        next(it)
    assert encode(again.checkpoint()) == encode(it.checkpoint())
    assert (encode(again.checkpoint()) == encode(first)) == (taken == 0)
    third = iter(p)
    third.restore(again.checkpoint())
    assert rows_of(third) == rows_of(whole[7 + taken :])


# -- 5 -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cut", ["before", "ten", "pass"])
def test_case_5_two_datasets_of_fifty_with_four_workers(cut):
    p = text_pipeline(executor="threads", max_workers=4)
    with iter(p) as it:
        whole = rows_of(it)
    with iter(p) as it:
        n = {"before": 0, "ten": 10, "pass": 10**6}[cut]
        head = []
        for batch in it if n else ():
            head.append(batch)
            if len(head) == n:
                break
        state = it.checkpoint()
    with iter(p) as it:
        it.restore(state)
        assert rows_of(head) + rows_of(it) == whole


# -- 6 -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("batch", [1, 31, 32, 33])
def test_case_6_a_dataset_shorter_than_a_batch_after_two_passes(batch):
    work = zj.StaticMixtureWorkSource(
        zj.Dataset.from_source("n", [{"tokens": [i + 1]} for i in range(32)]), chunk_size=5, exhausted_policy="repeat"
    )
    p = zj.Pipeline(work).shuffle(6).batch(batch).options(executor="inline", flush_every_k_chunks=3)
    it = iter(p)
    steps = 70 // batch + 1
    for _ in range(steps):
        next(it)
    state = decode(encode(it.checkpoint()))
    following = [next(it)["tokens"].ravel().tolist() for _ in range(4)]
    again = iter(p)
    again.restore(state)
    assert [next(again)["tokens"].ravel().tolist() for _ in range(4)] == following


# -- 7 -------------------------------------------------------------------------------------------------------------
def files(folder, order=(0, 1), byte=b"a"):
    paths = []
    for i in range(2):
        path = folder / f"{i}.jsonl"
        path.write_bytes(b"".join(b'{"text": "%c%d"}\n' % (byte if n == 3 and i == 1 else b"a", n) for n in range(12)))
        paths.append(path)
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_path("f", [paths[i] for i in order]), chunk_size=4)
    return iter(zj.Pipeline(work).tokenize(tokenize).pack(8).batch(1).options(executor="inline"))


def test_case_7_one_byte_of_one_file_and_the_order_of_files(tmp_path):
    it = files(tmp_path)
    next(it)
    state = it.checkpoint()
    files(tmp_path).restore(state)
    for changed in (files(tmp_path, order=(1, 0), byte=b"b"), files(tmp_path, byte=b"b")):
        with pytest.raises(zj.CheckpointMismatch, match="dataset 'f': its content changed"):
            changed.restore(state)


def test_case_7_a_tokenizer_of_other_content_under_the_same_name():
    tokenizers = pytest.importorskip("tokenizers")

    def trained(text):
        made = tokenizers.Tokenizer(tokenizers.models.BPE())
        made.train_from_iterator([text], tokenizers.trainers.BpeTrainer(vocab_size=40, show_progress=False))
        return made

    def build(tokenizer):
        work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("t", [{"text": "abab"}] * 20), chunk_size=4)
        return iter(zj.Pipeline(work).tokenize(tokenizer).pack(16).batch(1).options(executor="inline"))

    it = build(trained("abab cdcd abab"))
    next(it)
    build(trained("abab cdcd abab")).restore(it.checkpoint())
    with pytest.raises(zj.CheckpointMismatch, match=r"operators\[0\]\(tokenize\)\.content"):
        build(trained("abab cdcd abcd")).restore(it.checkpoint())


# -- 8 -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lane", [0, 1, 2])
def test_case_8_a_lane_removed_from_a_checkpoint_is_named(lane):
    p = text_pipeline(lanes=3, executor="inline")
    it = iter(p)
    for _ in range(5):
        next(it)
    state = copy.deepcopy(it.checkpoint())
    del state["lanes"][lane]
    with pytest.raises(zj.CheckpointMismatch, match=rf"lanes \[{lane}\] are missing"):
        iter(p).restore(state)


# -- 11 ------------------------------------------------------------------------------------------------------------
def test_case_11_two_groups_of_lanes_then_one_give_the_uninterrupted_union():
    """Each process's half is saved, the halves together are one state, and one process goes on from it."""
    whole = {lane: [] for lane in range(4)}
    single = iter(text_pipeline(lanes=4, executor="inline"))
    rounds = dict.fromkeys(range(4), 0)
    for batch in single:
        now = single.stats().rounds
        (lane,) = [x for x in now if now[x] != rounds[x]]
        rounds = dict(now)
        whole[lane].append(np.asarray(batch["tokens"]).tolist())
    halves, delivered = [], {lane: [] for lane in range(4)}
    for group in range(2):
        it = iter(text_pipeline(lanes=4, executor="inline", dp_degree=2, dp_group_id=group))
        for turn in range(6):
            delivered[2 * group + turn % 2].append(np.asarray(next(it)["tokens"]).tolist())
        halves.append(it.get_state())
    merged = {**halves[0], "lanes": [*halves[0]["lanes"], *halves[1]["lanes"]]}
    one = iter(text_pipeline(lanes=4, executor="threads"))
    with one:
        one.restore(merged)
        assert set(one.stats().rounds.values()) == {3}
        rounds = dict(one.stats().rounds)
        for batch in one:
            now = one.stats().rounds
            (lane,) = [x for x in now if now[x] != rounds[x]]
            rounds = dict(now)
            delivered[lane].append(np.asarray(batch["tokens"]).tolist())
    assert delivered == whole
