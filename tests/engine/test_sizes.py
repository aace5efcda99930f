"""Bytes that are counted, and how many records a call may have, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from zephon_jax.columns import columns_from_rows
from zephon_jax.engine.sizes import RecordSizes, batch_bytes, held_bytes
from zephon_jax.microbatch import MicroBatch
from zephon_jax.origin import Origin, no_contributors


def micro_batch(rows):
    origin = Origin.of_chunk(0, np.arange(len(rows)), 0)
    return MicroBatch(0, columns_from_rows(rows), origin, no_contributors(0), np.empty((2, 0), np.int32))


def test_bytes_of_batches():
    objects = np.empty(2, object)
    objects[:] = ["x" * 1000, np.zeros(100)]
    assert held_bytes({"a": np.zeros((4, 8), np.int32)}) == 128
    assert held_bytes(({"a": np.zeros(3)}, {"b": [np.zeros(2), np.zeros(1)]})) == 48
    assert 1800 < held_bytes({"o": objects}) < 2000
    shards = [SimpleNamespace(data=np.zeros(10, np.int8)), SimpleNamespace(data=np.zeros(5, np.int8))]
    assert held_bytes(SimpleNamespace(nbytes=1000, is_fully_addressable=False, addressable_shards=shards)) == 15


def test_bytes_of_micro_batches():
    assert batch_bytes(micro_batch([{"x": np.zeros(4)}, {"x": np.zeros(4)}])) == 64
    ragged = micro_batch([{"x": np.zeros(4)}, {"x": np.zeros(2)}])
    assert batch_bytes(ragged) == 48 + 24
    assert 300 < batch_bytes(micro_batch([{"t": "a" * 100}, {"t": "b" * 100}])) < 400


def test_records_a_call():
    sizes = RecordSizes(10_000, 100)
    assert sizes.records == 100
    sizes.saw(micro_batch([{"x": np.zeros(125)}] * 3))  # 1,000 bytes each
    assert sizes.records == 10
    sizes.saw(micro_batch([{"x": np.zeros(125_000)}]))
    assert sizes.records == 1
    seen = []
    for _ in range(500):
        sizes.saw(micro_batch([{"x": np.zeros(1)}]))
        seen.append(sizes.records)
    assert seen == sorted(seen)  # down slowly
    assert seen[0] == 1
    assert seen[-1] == 100


def test_without_a_number_records_make_a_good_size():
    def records(bytes_each: int, lanes: int = 1, seconds: float = 1e-6) -> int:
        sizes = RecordSizes(1e12, None, lanes)
        assert sizes.records == 128  # nothing is known yet
        sizes.saw(micro_batch([{"x": np.zeros(bytes_each, np.uint8)}] * 2))
        sizes.took(seconds, 1)
        return sizes.records

    assert records(10) == 1024
    assert records(2560) == 256
    assert records(2560, lanes=128) == 204
    assert records(2560, lanes=100_000) == 128
    assert records(1 << 20) == 64
    assert records(10, seconds=1e-4) == 300  # 30 ms
    assert records(10, seconds=1) == 128
    assert records(1 << 20, seconds=1) == 64


def test_the_ceiling_holds_for_a_good_size_as_well():
    sizes = RecordSizes(100_000, None)
    sizes.saw(micro_batch([{"x": np.zeros(2000, np.uint8)}]))
    assert sizes.records == 50
