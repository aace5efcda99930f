"""What a running pipeline holds, and the ceiling of each of it, with records of a megabyte."""

from __future__ import annotations

import time

import numpy as np
import pytest

import zephon_jax as zj
from zephon_jax.metrics.stats import Buffer

SLOW = pytest.mark.slow
MB = 1 << 20


def large(record):
    return {"x": np.full(MB, int(record["value"]), np.uint8)}


def pipeline(n=200, **options):
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", range(n)), shuffle_shards=False)
    return zj.Pipeline(work).map(large, name="large").batch(2).options(max_workers=2, prefetch=50, **options)


def most(it: zj.PipelineIterator, name: str) -> int:
    found = it.stats().buffers[name].most_bytes
    assert found is not None
    return found


@pytest.mark.parametrize("executor", ["threads", pytest.param("processes", marks=SLOW)])
def test_batches_ahead_and_records_under_way_keep_below_their_halves(executor):
    with iter(pipeline(executor=executor, prefetch_bytes=32 * MB, micro_batch_records=4)) as it:
        for _ in range(60):
            next(it)
            time.sleep(0.002)
            buffers = it.stats().buffers
            for name in ("batches ahead", "records under way"):
                assert 0 <= buffers[name].bytes <= 16 * MB, name
                assert buffers[name].ceiling_bytes == 16 * MB
                assert most(it, name) <= 16 * MB, name
        assert most(it, "batches ahead") >= 4 * MB  # it was put to use
        assert most(it, "records under way") >= 4 * MB
    assert it.stats().buffers["batches ahead"].bytes == 0  # nothing is held by one that is closed
    assert it.stats().buffers["records under way"].bytes == 0


def test_the_ceiling_holds_for_all_lanes_together():
    lanes = {"canonical_replicas": 4, "micro_batch_records": 2}  # of four lanes two micro-batches each
    with iter(pipeline(executor="threads", prefetch_bytes=32 * MB, **lanes)) as it:
        for _ in range(60):
            next(it)
        assert 8 * MB <= most(it, "records under way") <= 16 * MB


def test_more_than_the_ceiling_is_seen_and_answered():
    """The first micro-batches are made before anyone knows how large records are."""
    with iter(pipeline(executor="threads", prefetch_bytes=32 * MB, micro_batch_records=16)) as it:
        next(it)
        assert most(it, "records under way") >= 16 * MB
        for _ in range(60):
            next(it)
        assert it.stats().buffers["records under way"].bytes <= 16 * MB


@SLOW
def test_memory_shared_with_processes_is_the_same_for_all_records():
    with iter(pipeline(executor="processes")) as it:
        next(it)
        shared = 2 * (32 * MB + 64)
        assert it.stats().buffers["memory shared with processes"] == Buffer(shared, shared, shared)


def test_decoded_blocks_have_a_budget_for_the_whole_process():
    with iter(pipeline()) as it:
        next(it)
        found = it.stats().buffers["decoded blocks"]
    assert found.ceiling_bytes == 256 * MB
    assert found.bytes <= 256 * MB


def test_inline_holds_nothing_ahead():
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", range(20)))
    with iter(zj.Pipeline(work).map(large, name="large").batch(2).options(executor="inline")) as it:
        next(it)
        buffers = it.stats().buffers
    assert (buffers["batches ahead"].most_bytes, buffers["records under way"].bytes) == (0, 0)


def picture(row):
    return {"x": np.ones(8 * MB, np.uint8)}


@pytest.mark.parametrize("executor", ["inline", "threads", pytest.param("processes", marks=SLOW), "auto"])
@pytest.mark.parametrize("buffer", [0, 500])
def test_small_records_that_become_large_never_gather(executor, buffer):
    """As file names that are decoded, also behind a shuffle that lets go of all that it held at once."""
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("n", range(2000)), chunk_size=64)
    pipeline = zj.Pipeline(work)
    pipeline = (pipeline.shuffle(buffer) if buffer else pipeline).map(picture, name="picture").batch(2)
    with iter(pipeline.options(executor=executor, max_workers=2, prefetch_bytes=64 * MB)) as it:
        for _ in range(40):
            assert next(it)["x"].shape == (2, 8 * MB)
        assert most(it, "records under way") <= 64 * MB  # a first call has four, each later one what the ceiling allows
