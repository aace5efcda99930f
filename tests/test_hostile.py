"""P5: what a checkpoint holds, and what the books hold in memory, stays bounded whatever the stream."""

from __future__ import annotations

import threading
import time
from unittest import mock

import numpy as np
import pytest

import zephon_jax as zj
from zephon_jax.checkpoint.codec import encode
from zephon_jax.engine.lane import LaneBooks


class Watched:
    """The most epochs that any lane's books held, and the most chunks in flight."""

    def __init__(self):
        self.epochs = self.chunks = 0

    def __enter__(self):
        settle = LaneBooks.settle

        def watching(books, receipt, **kw):
            settle(books, receipt, **kw)
            self.epochs = max(self.epochs, len(books._epochs))
            self.chunks = max(self.chunks, books.chunks_in_flight)

        self.patch = mock.patch.object(LaneBooks, "settle", watching)
        self.patch.start()
        return self

    def __exit__(self, *_):
        self.patch.stop()


def value_batches(it):
    return [np.asarray(b["value"]).tolist() for b in it]


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("kind", ["shuffle", "monotone"])
def test_a_filter_that_drops_all_but_one_in_ten_thousand(executor, kind):
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("n", range(120_000)), chunk_size=64, seed=2)
    p = zj.Pipeline(work).filter(lambda r: r["value"] % 10_000 == 77, name="rare")
    p = (p.shuffle(4) if kind == "shuffle" else p).batch(2, drop_last=False)
    p = p.options(executor=executor, canonical_replicas=2, **({"flush_every_k_chunks": 4} if kind == "shuffle" else {}))
    with Watched() as seen, iter(p) as it:
        whole, states = [], [it.checkpoint()]
        for batch in it:
            whole.append(batch["value"].tolist())
            states.append(it.checkpoint())
    assert sorted(v for b in whole for v in b) == list(range(77, 120_000, 10_000))
    # The epoch of the last row, those of rows that wait in a batch, and the one or two that are under way.
    assert seen.epochs <= 8
    assert seen.chunks <= 4
    assert max(len(encode(s)) for s in states) < 1_500
    with iter(p) as it:
        it.restore(states[2])
        assert value_batches(it) == whole[2:]


@pytest.mark.parametrize("kind", ["shuffle", "monotone"])
def test_a_hundred_chunks_of_which_every_record_is_dropped(kind):
    """Also while one row waits in a batch, which holds the sentinels back."""
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("n", range(4_000)), chunk_size=16, shuffle_shards=False)
    p = zj.Pipeline(work).filter(lambda r: r["value"] < 40 or r["value"] >= 3_900, name="ends")
    p = (p.shuffle(4) if kind == "shuffle" else p).batch(9).options(executor="inline", micro_batch_records=16)
    if kind == "shuffle":
        p = p.options(flush_every_k_chunks=2)
    with Watched() as seen, iter(p) as it, mock.patch("zephon_jax.engine.chain._PROGRESS_BULK", 64):
        whole, states = [], [it.checkpoint()]
        for batch in it:
            whole.append(batch["value"].tolist())
            states.append(it.checkpoint())
    assert len(whole) == 140 // 9
    assert seen.epochs <= 12
    assert seen.chunks <= 2
    for cut in (4, 5, 6):  # four rows wait behind batch 4, and 3,860 records are dropped before the next
        it = iter(p)
        it.restore(states[cut])
        assert value_batches(it) == whole[cut:]


def test_a_document_with_ten_thousand_children():
    docs = [[1, 2, 3], list(range(10_000)), [4, 5]] * 3
    work = zj.StaticMixtureWorkSource(
        zj.Dataset.from_source("d", [{"tokens": d} for d in docs]), chunk_size=3, shuffle_shards=False
    )
    p = zj.Pipeline(work).split(1).shuffle(50).batch(100, drop_last=False)
    p = p.options(executor="inline", flush_every_k_chunks=1)
    with Watched() as seen, iter(p) as it:
        whole, states = [], [it.checkpoint()]
        for batch in it:
            whole.append(batch["tokens"].ravel().tolist())
            states.append(it.checkpoint())
    assert sorted(t for b in whole for t in b) == sorted(t for d in docs for t in d)
    assert seen.chunks == 1
    sizes = [len(encode(s)) for s in states]
    assert max(sizes) < 2_000  # ten thousand children of one sample are known as a run
    for cut in (1, 50, 101, 102, 250, len(whole)):
        it = iter(p)
        it.restore(states[cut])
        assert [b["tokens"].ravel().tolist() for b in it] == whole[cut:]


class SlowLane(zj.RecordOperator):
    """Lane 1 waits at every micro-batch until it is let go; lane 0 never does. Counts what each was given."""

    name = "slow"

    def __init__(self):
        self.given = {0: 0, 1: 0}
        self.most_ahead = 0
        self.lock = threading.Lock()

    def process(self, batch):
        if batch.lane == 1:
            time.sleep(0.002)
        with self.lock:
            self.given[batch.lane] += len(batch)
            self.most_ahead = max(self.most_ahead, self.given[0] - self.given[1])
        return batch


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_lane_far_slower_than_the_other_does_not_make_it_run_ahead(executor):
    """A lane is advanced when its batch is due: what the fast one may be ahead does not depend on how slow the other is."""
    slow = SlowLane()
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("n", range(3_000)), chunk_size=10, seed=1)
    p = zj.Pipeline(work).apply(slow).shuffle(5).batch(10)
    p = p.options(executor=executor, canonical_replicas=2, micro_batch_records=5, prefetch=2, max_workers=2)
    with Watched() as seen, iter(p) as it:
        for _ in range(200):
            next(it)
    # Both windows of the stage, one batch, the shuffle's buffer, and one micro-batch.
    assert slow.most_ahead <= 100
    assert seen.epochs <= 4
