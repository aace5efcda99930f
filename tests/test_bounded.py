"""Bounded recovery: a checkpoint and a resume cost the same at batch 100 and at batch 20,000 of the same pipeline (C7)."""

from __future__ import annotations

import random

import pytest

import zephon_jax as zj
from tests.oracle import tokenize
from tests.pipelines import long_enough
from zephon_jax.checkpoint.codec import encode


class Counting:
    """A source that counts what is read from it."""

    def __init__(self, samples):
        self.samples, self.reads = samples, 0

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        self.reads += 1
        return self.samples[index]


def build(reads_per_sample=None, **settings):
    rng = random.Random(1)
    web = Counting([{"text": "abcdefgh"[: rng.randint(1, 8)] * rng.randint(0, 5)} for _ in range(700)])
    code = Counting([{"text": "xyz" * rng.randint(1, 9)} for _ in range(300)])
    datasets = [zj.Dataset.from_source(n, s, fingerprint=n) for n, s in (("web", web), ("code", code))]
    work = zj.StaticMixtureWorkSource(
        datasets, {"web": 0.7, "code": 0.3}, chunk_size=16, shuffle_block_size=4, exhausted_policy="repeat"
    )
    pipeline = (
        zj.Pipeline(work).filter(long_enough).tokenize(tokenize).split(20).pack(24, num_bins=4).shuffle(8).batch(2)
        .options(executor="inline", canonical_replicas=2, flush_every_k_chunks=2, **settings)
    )  # fmt: skip
    return pipeline, (web, code)


def measure(it, sources, cuts=40):
    """Over successive cuts: the largest state, the most chunks kept, replayed and read until the first batch."""
    size = pointers = replayed = reads = 0
    for _ in range(cuts):
        state = it.checkpoint()
        size = max(size, len(encode(state)))
        pointers = max(pointers, sum(it.stats().chunks_in_flight.values()))
        pipeline, fresh = build()
        again = iter(pipeline)
        again.restore(state)
        for _ in range(2):  # a batch of each lane
            next(again)
        replayed = max(replayed, again.stats().chunks_replayed)
        reads = max(reads, sum(s.reads for s in fresh))
        next(it)
    return size, pointers, replayed, reads


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_cost_of_recovery_does_not_grow_with_the_step():
    pipeline, sources = build(micro_batch_records=16)
    it = iter(pipeline)
    found, at = {}, 0
    for batch in (100, 1_000, 20_000):
        while at < batch:
            next(it)
            at += 1
        found[batch] = measure(it, sources)
        at += 40
    shallow, middle, deep = found[100], found[1_000], found[20_000]
    print(
        {
            n: dict(zip(("bytes", "chunks in flight", "chunks replayed", "reads"), f, strict=True))
            for n, f in found.items()
        }
    )
    assert shallow[1] == middle[1] == deep[1]  # chunks in flight
    assert shallow[2] == middle[2] == deep[2]  # chunks replayed
    # Reads stop with the first batch, wherever in a chunk that falls; bytes vary with the digits of counters and how
    # well the pointers of 40 particular cuts compress.
    assert abs(deep[3] - shallow[3]) <= 2 * 16
    assert abs(deep[0] - shallow[0]) <= 0.06 * shallow[0]


@pytest.mark.parametrize("seed", range(3))
def test_nothing_delivered_is_read_or_tokenized_again(seed):
    """C7: a restore reads what is still to be delivered of the samples in flight, and what lies beyond the cut."""
    rng = random.Random(seed)
    texts = [f"{i:04d} " + "abcdefgh"[: rng.randint(1, 8)] * rng.randint(0, 30) for i in range(600)]
    source, tokenized = Counting([{"text": t} for t in texts]), []

    def tokens(text):
        tokenized.append(text)
        return [int(text[:4]) + 1] * len(text)  # so that a row tells which documents are in it

    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", source, fingerprint="d"), chunk_size=32, seed=seed)
    pipeline = (
        zj.Pipeline(work).tokenize(tokens, name="tokens").split(100).pack(128).shuffle(16).batch(2, drop_last=False)
    )
    pipeline = pipeline.options(executor="inline", micro_batch_records=8)
    whole = [batch["tokens"] for batch in pipeline]
    last = {}  # document → the batch that delivers its last piece
    for t, batch in enumerate(whole):
        last.update(dict.fromkeys((batch[batch > 0] - 1).tolist(), t))
    it = iter(pipeline)
    for cut in range(len(whole)):
        if cut % 5 == seed:
            again = iter(pipeline)
            again.restore(it.checkpoint())
            tokenized.clear()
            source.reads = 0
            rest = [batch["tokens"] for batch in again]
            assert all((a == b).all() for a, b in zip(rest, whole[cut:], strict=True))
            wasted = [i for i in (int(t[:4]) for t in tokenized) if last.get(i, cut) < cut]
            assert wasted == []
            assert source.reads == len(tokenized)
        next(it)
