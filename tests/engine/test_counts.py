"""What flushes cost is counted (P7)."""

from __future__ import annotations

import numpy as np

import zephon_jax as zj


def test_flushes_of_a_packer_and_a_shuffle():
    docs = [{"tokens": [1] * n} for n in (3, 4, 2, 5, 1, 3, 4, 4)]
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", docs), chunk_size=2, shuffle_shards=False)
    pipeline = zj.Pipeline(work).shuffle(3).pack(8, num_bins=2).batch(1)
    it = iter(pipeline.options(executor="inline", flush_every_k_chunks=2))
    rows = np.concatenate([b["segment_ids"] for b in it])
    counts = it.stats().operators
    shuffle, pack = counts["shuffle(3)"], counts["pack(8)"]
    assert (shuffle.records_in, shuffle.records_out, shuffle.left_by_flush) == (
        8,
        8,
        6,
    )  # 3 held at each of two flushes
    assert pack.padding_tokens == int((rows == 0).sum())
    assert (pack.records_out, pack.left_by_flush, pack.padding_tokens, pack.padding_by_flush_tokens) == (5, 4, 14, 11)


def test_padding_of_full_bins_is_not_the_flushes():
    docs = [{"tokens": [1] * n} for n in (5, 5, 5, 5)]
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", docs), chunk_size=4, shuffle_shards=False)
    it = iter(zj.Pipeline(work).pack(8, num_bins=1).batch(1).options(executor="inline"))
    assert len(list(it)) == 4
    pack = it.stats().operators["pack(8)"]
    assert (pack.padding_tokens, pack.padding_by_flush_tokens, pack.left_by_flush) == (12, 3, 1)
