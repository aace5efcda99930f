"""split: long records → several of bounded length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zephon_jax.columns import Column, Ragged, take
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import OpTraits, RecordOperator, checked_field, checked_int
from zephon_jax.ops.fields import field_of, int32_ragged
from zephon_jax.types import Int64s

__all__ = ["Split", "cut_lists"]


def cut_lists(lists: Ragged, max_length: int) -> tuple[Int64s, Ragged]:
    """Cut each list into pieces of at most `max_length`: how many pieces each gives, and the pieces.

    No value is copied: only the splits change. An empty list stays one empty piece.
    """
    lengths = lists.lengths
    counts = np.maximum(-(-lengths // max_length), 1)
    ends = np.cumsum(counts)
    child = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    starts = np.repeat(lists.splits[:-1], counts) + child * max_length
    return counts, Ragged(lists.values, np.append(starts, lists.splits[-1]))


class Split(RecordOperator):
    """Cut the int field `field` into pieces of at most `max_length`, one record each; other fields are copied to each."""

    traits = OpTraits(expands=True)

    def __init__(self, max_length: int, *, field: str = "tokens"):
        self._max_length, self._field = checked_int("split", "max_length", max_length, 1), checked_field("split", field)
        self.name = f"split({max_length})"

    def identity(self) -> Mapping[str, Any]:
        return {"op": "split", "max_length": self._max_length, "field": self._field}

    def process(self, batch: MicroBatch) -> MicroBatch:
        if not len(batch):
            return batch
        lists = int32_ragged(field_of(batch, self._field, self.name), self.name, self._field)
        counts, pieces = cut_lists(lists, self._max_length)
        if len(pieces.splits) == len(lists.splits):
            return self._spanned(batch.repeat(counts, {**batch.columns, self._field: lists}), lists, None)
        index = np.repeat(np.arange(len(batch)), counts)
        columns: dict[str, Column] = {
            name: pieces if name == self._field else take(column, index) for name, column in batch.columns.items()
        }
        shift = pieces.splits[:-1] - np.repeat(lists.splits[:-1], counts)
        return self._spanned(batch.repeat(counts, columns), pieces, shift)

    def _spanned(self, batch: MicroBatch, pieces: Ragged, shift: Int64s | None) -> MicroBatch:
        return batch.spanned(pieces.lengths, shift) if self._field == "tokens" else batch
