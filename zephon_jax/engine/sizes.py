"""Bytes that records and batches hold, roughly: what the ceilings on waiting data are measured with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zephon_jax.columns import Binary, Column, Dense, Laid, Objects, Ragged
from zephon_jax.microbatch import MicroBatch

__all__ = ["RecordSizes", "batch_bytes", "held_bytes"]

_FIRST, _LEAST, _MOST = 128, 64, 1024
"""Records of a call whose size is not given: at first, and the limits of what a good size comes to."""
_GOOD_BYTES, _ALL_LANES_BYTES = 640 << 10, 64 << 20
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


class RecordSizes:
    """How many records go into one call: `most`, or if that is None as many as make a good size; and no more than keep all
    calls under way below a ceiling.

    A call costs a fraction of a millisecond whatever is in it, and what is in it should stay in a processor's cache. A process
    of many lanes holds a micro-batch of each. Follows the largest records of late: up at once, down slowly. Micro-batch sizes
    never change what is delivered.
    """

    def __init__(self, ceiling_bytes: float, most: int | None, lanes: int = 1):
        self._ceiling, self._given = ceiling_bytes, most
        self._good_bytes = min(_GOOD_BYTES, max(_GOOD_BYTES // 2, _ALL_LANES_BYTES // lanes))
        self._per_record = self._seconds = 0.0
        self.under_way_bytes = self.most_under_way_bytes = 0
        """Of the tasks that were submitted and not taken yet, as their records were last seen; and the most there was."""

    def saw(self, batch: MicroBatch) -> int:
        """A micro-batch as it was at its largest; its bytes."""
        if not len(batch):
            return 0
        held = batch_bytes(batch)
        self._per_record = max(held / len(batch), _FORGET * self._per_record)
        return held

    def took(self, seconds: float, records: int) -> None:
        """Calls of operators for so many records."""
        if records:
            self._seconds = seconds / records

    def begun(self, records: int) -> int:
        """A task with so many records is under way; the bytes to give back in `ended`."""
        held = int(records * self._per_record)
        self.under_way_bytes += held
        self.most_under_way_bytes = max(self.most_under_way_bytes, self.under_way_bytes)
        return held

    def ended(self, held: int, found: int = 0) -> None:
        """It was taken; `found` are the bytes that it really had at its largest."""
        self.under_way_bytes -= held
        self.most_under_way_bytes = max(self.most_under_way_bytes, self.under_way_bytes + found)

    @property
    def records(self) -> int:
        """At least one."""
        most = self._given or self._good()
        if self._per_record * most <= self._ceiling:
            return most
        return max(1, int(self._ceiling / self._per_record))

    def _good(self) -> int:
        if not self._per_record:
            return _FIRST
        good = max(_LEAST, min(_MOST, int(self._good_bytes / self._per_record)))
        return good if good * self._seconds <= _SLOW_S else max(min(good, _FIRST), int(_SLOW_S / self._seconds))

    @property
    def calls(self) -> int:
        """How many calls one task may make, so that the same ceiling holds; at least one."""
        if not self._per_record:
            return _MOST
        return max(1, int(self._ceiling / (self._per_record * self.records)))
