"""Bytes that are counted, and how many records a call may have, by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from zephon_jax.columns import columns_from_rows
from zephon_jax.engine.sizes import RecordSizes, UnderWay, batch_bytes, cut_to_size, held_bytes
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
    sizes.saw(3_000, 3, 0.0)
    assert sizes.records == 10
    sizes.saw(1_000_000, 1, 0.0)
    assert sizes.records == 1
    seen = []
    for _ in range(500):
        sizes.saw(8, 1, 0.0)
        seen.append(sizes.records)
    assert seen == sorted(seen)  # down slowly
    assert seen[0] == 1
    assert seen[-1] == 100


@pytest.mark.parametrize(
    ("each", "lanes", "seconds", "records"),
    [
        (10, 1, 1e-6, 1024),
        (2560, 1, 1e-6, 256),
        (2560, 128, 1e-6, 204),
        (2560, 100_000, 1e-6, 128),
        (100_000, 1, 1e-6, 64),
        (1 << 20, 1, 1e-6, 16),  # 16 MiB
        (36 << 20, 1, 1e-6, 1),
        (10, 1, 1e-4, 300),  # 30 ms
        (10, 1, 1.0, 128),
        (100_000, 1, 1.0, 64),
    ],
)
def test_without_a_number_records_make_a_good_size(each, lanes, seconds, records):
    sizes = RecordSizes(1e12, None, lanes)
    assert (sizes.records, sizes.known) == (4, False)  # an operator may make pictures of file names
    steps = []
    for _ in range(6):
        n = sizes.records
        sizes.saw(n * each, n, n * seconds)
        steps.append(sizes.records)
    assert steps[-1] == records
    assert steps[0] <= 16  # four times what there was, whatever the first ones were
    assert sizes.known


def test_the_ceiling_holds_for_a_good_size_as_well():
    sizes = RecordSizes(100_000, None)
    for _ in range(4):
        sizes.saw(2000 * sizes.records, sizes.records, 0.0)
    assert sizes.records == 50


def test_micro_batches_are_cut_to_size():
    """What leaves a buffer at a flush may be all that it held."""
    whole = micro_batch([{"x": np.arange(i)} for i in range(10)])
    whole = replace(whole, closed=whole.origin.slice(0, 2).table, skipped=np.array([[1], [2]], np.int32))
    sizes = RecordSizes(1e9, 4)
    first, second, third, end = cut_to_size(iter([whole, "control"]), sizes)
    assert [len(part) for part in (first, second, third)] == [4, 4, 2]
    assert [len(row["x"]) for part in (first, second, third) for row in part.rows()] == list(range(10))
    assert [part.closed.shape[1] for part in (first, second, third)] == [2, 0, 0]
    assert [part.skipped.shape[1] for part in (first, second, third)] == [1, 0, 0]
    assert end == "control"
    assert list(cut_to_size(iter([first]), sizes)) == [first]


def test_bytes_under_way():
    held = UnderWay()
    held.begun(10)
    held.begun(5)
    held.ended(10, 40)
    assert (held.bytes, held.most_bytes) == (5, 45)
