"""bucket_by_length: records of like length next to each other, so that batches need little padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zephon_jax.columns import row_values
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import Accumulator, Fields, OpTraits, RecordFailure, checked_field, checked_int
from zephon_jax.ops.fields import field_of, token_lengths
from zephon_jax.ops.holding import Held
from zephon_jax.types import Int64s, LaneContext

__all__ = ["BucketByLength", "checked_boundaries"]


@dataclass(slots=True)
class _State:
    buckets: list[list[int]]  # numbers of the records held, per bucket, in order of arrival
    held: Held = field(default_factory=Held)


class BucketByLength(Accumulator[_State]):
    """Lets records go in runs of `rows` whose lengths lie in one bucket.

    Bucket i has the lengths up to `boundaries[i]`, and beyond the boundary before; longer ones have a last bucket. With
    `rows` equal to the rows of a lane's batch, batches are of one bucket. At a flush what is left leaves bucket by bucket,
    so that a batch now and then is of several. `pad_rows(boundaries)` behind `batch` pads each to its boundary.

    Lengths are those of `field` along its first axis. At most `rows - 1` records are held in each bucket.
    """

    def __init__(self, boundaries: Sequence[int], rows: int, *, field: str = "tokens"):
        self._boundaries = checked_boundaries("bucket_by_length", boundaries)
        self._rows = checked_int("bucket_by_length", "rows", rows, 1)
        self._field = checked_field("bucket_by_length", field)
        by_tokens = field == "tokens"
        self.traits = OpTraits(
            preserves_cursor_order=False,
            buffer_records=self._rows * (len(self._boundaries) + 1),
            keeps_count=True,
            replays_on_lengths=by_tokens,
            uses_lengths=by_tokens,
        )
        self.name = "bucket_by_length"

    def identity(self) -> Mapping[str, Any]:
        return {"op": self.name, "boundaries": list(self._boundaries), "rows": self._rows, "field": self._field}

    def fields(self, before: Fields | None) -> Fields | None:
        return before

    def init_state(self, ctx: LaneContext) -> _State:
        return _State([[] for _ in range(len(self._boundaries) + 1)])

    def push(self, state: _State, batch: MicroBatch) -> MicroBatch:
        if not len(batch):
            return batch
        of = np.searchsorted(np.array(self._boundaries), self._lengths(batch), "left").tolist()
        leaving: list[int] = []
        for number, bucket in enumerate(of, len(state.held)):
            waiting = state.buckets[bucket]
            waiting.append(number)
            if len(waiting) == self._rows:
                leaving += waiting
                state.buckets[bucket] = []
        staying = sorted(number for bucket in state.buckets for number in bucket)
        renamed = {number: i for i, number in enumerate(staying)}
        state.buckets = [[renamed[number] for number in bucket] for bucket in state.buckets]
        return state.held.exchange(batch, leaving, staying)

    def flush(self, state: _State) -> MicroBatch | None:
        return state.held.release([number for bucket in state.buckets for number in bucket])

    def _lengths(self, batch: MicroBatch) -> Int64s:
        if self._field == "tokens":
            return token_lengths(batch, self.name)
        lengths: list[int] = []
        for i, value in enumerate(row_values(field_of(batch, self._field, self.name))):
            if not hasattr(value, "__len__"):
                raise RecordFailure(i) from DataError(
                    f"{self.name} needs a list or text in {self._field!r}, got {type(value).__name__}"
                )
            lengths.append(len(value))
        return np.array(lengths, np.int64)


def checked_boundaries(operator: str, boundaries: Sequence[int]) -> tuple[int, ...]:
    """Ascending lengths."""
    found = list(boundaries) if isinstance(boundaries, (list, tuple, np.ndarray)) else []  # pyright: ignore[reportUnnecessaryIsInstance]
    if not found:
        raise ConfigurationError(f"{operator}(boundaries={boundaries!r}) must be a list of lengths")
    checked = tuple(checked_int(operator, "boundaries", one, 1) for one in found)
    if sorted(set(checked)) != list(checked):
        raise ConfigurationError(f"{operator}(boundaries={found}) must ascend")
    return checked
