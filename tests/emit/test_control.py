"""Provenance of rows, and passing over steps."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import zephon_jax as zj
from zephon_jax.checkpoint.codec import decode, encode

TEXTS = {
    name: [f"{name}{i:03d}" + "abcdefg"[: i % 7] * (i % 11) for i in range(n)] for name, n in (("a", 300), ("b", 90))
}


def codes(text):
    return [ord(c) for c in text]


def build(lanes=4, executor="threads"):
    datasets = [zj.Dataset.from_source(name, [{"text": t} for t in texts]) for name, texts in TEXTS.items()]
    work = zj.StaticMixtureWorkSource(datasets, {"a": 2, "b": 1}, chunk_size=8, shuffle_block_size=2, seed=4)
    p = zj.Pipeline(work).tokenize(codes).split(20).pack(32, num_bins=3).shuffle(5).batch(global_batch_size=8)
    return p.options(canonical_replicas=lanes, executor=executor)


def on(devices):
    return NamedSharding(Mesh(np.array(jax.devices()[:devices]), ("data",)), P("data"))


def check_provenance(it, batch, rows):
    found = it.provenance()
    assert sorted(found) == sorted(rows)
    for i, row in enumerate(sorted(rows)):
        tokens, segments = np.asarray(batch["tokens"])[i], np.asarray(batch["segment_ids"])[i]
        assert segments.max() == len(found[row])
        for number, (dataset, shard, sample, start, stop) in enumerate(found[row], 1):
            assert shard == dataset
            assert tokens[segments == number].tolist() == codes(TEXTS[dataset][sample])[start:stop]


def test_provenance_names_the_tokens_of_every_segment():
    with build().to_global(on(4)) as it:
        assert it.provenance() == {}
        for batch in it:
            check_provenance(it, batch, range(8))


def test_provenance_after_a_resume_and_of_one_lane():
    """Replayed on lengths, the spans are the same; `iter` gives the rows of the lane whose batch it was."""
    pipeline = build(executor="inline")
    with iter(pipeline) as it:
        for _ in range(9):
            next(it)
        state = it.checkpoint()
    with iter(pipeline) as it:
        it.restore(state)
        for turn in range(9, 30):
            batch = next(it)
            lane = turn % 4
            check_provenance(it, batch, range(2 * lane, 2 * lane + 2))


def test_provenance_without_tokens():
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("n", range(20)), shuffle_shards=False)
    it = iter(zj.Pipeline(work).batch(3).options(executor="inline"))
    next(it)
    assert it.provenance() == {i: [("n", "n", i, 0, None)] for i in range(3)}


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_skipped_steps_count_as_delivered(executor):
    with build(executor=executor).to_global(on(2)) as it:
        whole = [np.asarray(b["tokens"]) for b in it]
        prints = it.lane_fingerprints()
    with build(executor=executor).to_global(on(4)) as it:
        for t in range(3):
            assert np.array_equal(np.asarray(next(it)["tokens"]), whole[t])
        assert it.skip(2) == 2
        assert it.step == 5
        assert it.provenance() == {}
        assert np.array_equal(np.asarray(next(it)["tokens"]), whole[5])
        assert it.skip(1) == 1
        assert it.skip(1) == 1  # joined with the one before
        state = decode(encode(it.checkpoint()))
    assert all(lane["passed_over"] == [[6, 10], [12, 16]] for lane in state["lanes"])
    with build(executor=executor).to_global(on(1)) as it:  # another topology
        it.restore(state)
        assert encode(it.checkpoint()) == encode(state)
        assert np.array_equal(np.asarray(next(it)["tokens"]), whole[8])
        assert it.skip(10_000) == len(whole) - 9
        assert next(it, None) is None
        assert it.skip(1) == 0
        assert it.lane_fingerprints() == prints


def test_skip_right_after_a_restore_and_before_anything():
    with build(executor="inline").to_global(on(2)) as it:
        assert it.skip(0) == 0
        assert it.skip(4) == 4
        state = it.checkpoint()
        following = np.asarray(next(it)["tokens"])
    with build().to_global(on(2)) as it:
        it.restore(state)
        assert np.array_equal(np.asarray(next(it)["tokens"]), following)
    with build().to_global(on(2)) as it, pytest.raises(zj.ConfigurationError, match=r"skip\(steps=-1\)"):
        it.skip(-1)
