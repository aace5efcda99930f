"""Bytes that records and batches hold, roughly: what the ceilings on waiting data are measured with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from zephon_jax.columns import Binary, Column, Dense, Laid, Objects, Ragged
from zephon_jax.microbatch import MicroBatch

__all__ = ["RecordSizes", "UnderWay", "batch_bytes", "cut_to_size", "held_bytes"]

_FIRST, _GROWTH = 4, 4
"""Records of a first call whose size is not given, and how much larger than any before the next one may be."""
_LEAST, _USUAL, _MOST = 64, 128, 1024
"""What a good size comes to: at least, unless that were more than _FEW_BYTES; where operators are slow; and at most."""
_GOOD_BYTES, _FEW_BYTES, _ALL_LANES_BYTES = 640 << 10, 16 << 20, 64 << 20
_SLOW_S = 0.03
"""A call that takes longer gains nothing from more records, and who waits for it loses."""
_OBJECT_BYTES = 56
_FORGET = 0.98


def held_bytes(value: Any) -> int:
    """Of what `next` returns: arrays of any kind by their `nbytes`, in dicts and sequences of any depth."""
    if isinstance(value, (str, bytes)):  # first, as there are the most of them
        return len(value) + _OBJECT_BYTES
    if isinstance(value, Mapping):
        return sum(held_bytes(one) for one in value.values())
    if isinstance(value, (list, tuple)):
        return _held_by(value)
    if not getattr(value, "is_fully_addressable", True):  # an array over several processes: this one's part of it
        return sum(int(shard.data.nbytes) for shard in value.addressable_shards)
    nbytes = getattr(value, "nbytes", _OBJECT_BYTES)
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        nbytes += _held_by(value.ravel().tolist())
    return int(nbytes)


def _held_by(items: Sequence[Any]) -> int:
    if {bytes, str}.issuperset(map(type, items)):  # counted without a step of Python for each
        return sum(map(len, items)) + _OBJECT_BYTES * len(items)
    return sum(held_bytes(one) for one in items)


def batch_bytes(batch: MicroBatch) -> int:
    """Of a micro-batch's columns; packed rows count by what they will be."""
    return sum(_column_bytes(column) for column in batch.columns.values())


def _column_bytes(column: Column) -> int:
    match column:
        case Dense(values):
            return values.nbytes
        case Ragged(values, splits) | Binary(values, splits):
            return values.nbytes + splits.nbytes
        case Objects(items):
            return _held_by(items)
        case Laid(items):
            return _OBJECT_BYTES * len(items)


class UnderWay:
    """Bytes of the tasks that were submitted and not taken yet, as their records were last seen."""

    def __init__(self) -> None:
        self.bytes = self.most_bytes = 0

    def begun(self, held: int) -> None:
        """A task of about so many bytes."""
        self.bytes += held
        self.most_bytes = max(self.most_bytes, self.bytes)

    def ended(self, held: int, found: int = 0) -> None:
        """It was taken; `found` are the bytes that it really had at its largest."""
        self.bytes -= held
        self.most_bytes = max(self.most_bytes, self.bytes + found)


class RecordSizes:
    """How many records go into one call of a stage: `most`, or if that is None as many as make a good size; and no more than
    keep all calls under way below a ceiling.

    A call costs a fraction of a millisecond whatever is in it, and what is in it should stay in a processor's cache. A process
    of many lanes holds a micro-batch of each. The first calls are small, since an operator may make pictures of file names;
    from then on the largest records of late are followed: up at once, down slowly. Sizes never change what is delivered.
    """

    def __init__(self, ceiling_bytes: float, most: int | None, lanes: int = 1):
        self._ceiling, self._given = ceiling_bytes, most
        self._good_bytes = min(_GOOD_BYTES, max(_GOOD_BYTES // 2, _ALL_LANES_BYTES // lanes))
        self._per_record = self._seconds = 0.0
        self._had = 0  # the most records that a call has had

    @property
    def known(self) -> bool:
        """Whether records have been seen. Until then one call at a time should be under way."""
        return self._had > 0

    def saw(self, held: int, records: int, seconds: float) -> None:
        """A call, for so many records, held so many bytes at its largest and took so long."""
        if records:
            self._per_record = max(held / records, _FORGET * self._per_record)
            self._seconds = seconds / records
            self._had = max(self._had, records)

    def expected(self, records: int) -> int:
        """Bytes that a call for so many records will hold at its largest."""
        return int(records * self._per_record)

    @property
    def records(self) -> int:
        """At least one."""
        most = self._given or self._good()
        if self._per_record * most <= self._ceiling:
            return most
        return max(1, int(self._ceiling / self._per_record))

    def _good(self) -> int:
        if not self.known:
            return _FIRST
        per_record = max(self._per_record, 1.0)
        least = max(1, min(_LEAST, int(_FEW_BYTES / per_record)))
        good = min(max(least, min(_MOST, int(self._good_bytes / per_record))), _GROWTH * self._had)
        return good if good * self._seconds <= _SLOW_S else max(min(good, _USUAL), int(_SLOW_S / self._seconds))

    @property
    def calls(self) -> int:
        """How many calls one task may make, so that the same ceiling holds; at least one."""
        if not self._per_record:
            return _MOST
        return max(1, int(self._ceiling / (self._per_record * self.records)))


def cut_to_size(items: Iterator[Any], sizes: RecordSizes) -> Iterator[Any]:
    """The same records in micro-batches of the size that is good now: what leaves a buffer may be all that it held."""
    for item in items:
        if not isinstance(item, MicroBatch) or len(item) <= sizes.records:
            yield item
            continue
        start = 0
        while start < len(item):
            stop = min(len(item), start + sizes.records)
            part = item.slice(start, stop)
            yield part if start else replace(part, closed=item.closed, skipped=item.skipped)
            start = stop
