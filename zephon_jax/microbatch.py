"""What flows between operators: some records of one lane, as columns, with their identity.

An operator turns a micro-batch into another with the verbs below; they keep identity and columns in step and remember
what was finished without leaving a record, so that no operator writes contributor rules by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon_jax.columns import (
    Column,
    Objects,
    column_length,
    columns_from_rows,
    concat_columns,
    row_values,
    rows_of,
    slice_rows,
    take,
)
from zephon_jax.deferred import DEFERRED, Deferred
from zephon_jax.errors import ContractViolation
from zephon_jax.origin import Origin, Weight, no_contributors, weight_of
from zephon_jax.types import Int32s, Int64s

__all__ = ["MicroBatch"]


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Records of one lane.

    `columns`: field name → column of n records. `origin`: their identity. `closed`: contributors finished on the way
    without a record (tombstones); it travels along and may overtake records. `skipped` (2, k): chunk and offset of
    samples skipped as unreadable, a subset of `closed`. `level`: the lineage index that `repeat` numbers children at,
    set by the engine for each operator that expands, and -1 for the others. `operator`: the index in the pipeline of the
    operator that is given this, set by the engine as well; randomness is keyed by it.
    """

    lane: int
    columns: Mapping[str, Column]
    origin: Origin
    closed: Int32s
    skipped: Int32s
    level: int = 0
    operator: int = 0

    def __len__(self) -> int:
        return len(self.origin)

    @property
    def depth(self) -> int:
        """The number of expanding operators in the pipeline."""
        return self.closed.shape[0] - len(no_contributors(0))

    def weight(self) -> Weight:
        """What an operator must conserve: of the records and of what was finished, together."""
        a, b = weight_of(self.origin.table), weight_of(self.closed)
        return Weight(a.last + b.last, a.net + b.net)

    def ragged_text(self) -> str | None:
        """What is wrong if a column has not one row per record."""
        for name, column in self.columns.items():
            if column_length(column) != len(self):
                return f"field {name!r} has {column_length(column)} rows for {len(self)} records"
        return None

    def token_lengths(self) -> Int64s:
        """How many `tokens` each record has; known also in a replay on lengths, where there is no such column."""
        handles = self.columns.get(DEFERRED)
        known = handles.items if isinstance(handles, Objects) else [None] * len(self)
        column = self.columns.get("tokens")
        values = row_values(column) if column is not None else [()] * len(self)
        each = [h.length if isinstance(h, Deferred) else len(v) for h, v in zip(known, values, strict=True)]
        return np.array(each, np.int64)

    def rows(self) -> list[dict[str, Any]]:
        """The records as dicts; arrays are views and must not be written to."""
        return rows_of(self.columns, len(self))

    # -- the verbs -------------------------------------------------------------------------------------------------
    def with_columns(self, columns: Mapping[str, Column]) -> MicroBatch:
        """The same records with other fields."""
        return replace(self, columns=columns)

    def with_rows(self, rows: Sequence[Mapping[str, Any]]) -> MicroBatch:
        """The same records with other fields, given as dicts."""
        if len(rows) != len(self):
            raise ValueError(f"with_rows needs one row for each of {len(self)} records, got {len(rows)}")
        return replace(self, columns=columns_from_rows(rows))

    def keep(self, mask: NDArray[np.bool_]) -> MicroBatch:
        """Only the records where `mask` (n,) is true; the others are finished."""
        if mask.all():
            return self
        index = np.flatnonzero(mask)
        origin, dropped = self.origin.keep(mask)
        columns = {name: take(column, index) for name, column in self.columns.items()}
        return replace(self, columns=columns, origin=origin, closed=_join(self.closed, dropped))

    def take(self, index: NDArray[np.integer[Any]]) -> MicroBatch:
        """The records in another order; `index` must be a permutation, or records are lost."""
        columns = {name: take(column, index) for name, column in self.columns.items()}
        return replace(self, columns=columns, origin=self.origin.take(index))

    def repeat(self, counts: NDArray[np.integer[Any]], columns: Mapping[str, Column] | None = None) -> MicroBatch:
        """Record i becomes counts[i] children, in place; 0 finishes it. Fields are copied to each child, or given."""
        if self.level < 0:
            raise ContractViolation("repeat() needs OpTraits(expands=True), or the children would have no identity")
        origin, dropped = self.origin.repeat(counts, self.level)
        if columns is None:
            index = np.repeat(np.arange(len(self)), counts)
            columns = {name: take(column, index) for name, column in self.columns.items()}
        return replace(self, columns=columns, origin=origin, closed=_join(self.closed, dropped))

    def spanned(self, tokens: NDArray[np.integer[Any]], shift: NDArray[np.integer[Any]] | None = None) -> MicroBatch:
        """The same records, known to have so many tokens; for provenance. See `Origin.spanned`."""
        return self if self.origin.splits is not None else replace(self, origin=self.origin.spanned(tokens, shift))

    def group(self, splits: Int64s, columns: Mapping[str, Column]) -> MicroBatch:
        """Records splits[i] to splits[i + 1] become record i, whose fields are given."""
        return replace(self, columns=columns, origin=self.origin.group(splits))

    def slice(self, start: int, stop: int) -> MicroBatch:
        """Records start to stop as views, with nothing closed: for taking a micro-batch apart, see `without_records`."""
        columns = {name: slice_rows(column, start, stop) for name, column in self.columns.items()}
        return MicroBatch(
            self.lane, columns, self.origin.slice(start, stop), self.closed[:, :0], self.skipped[:, :0], self.level
        )

    def without_records(self) -> MicroBatch:
        """No records, but what was closed and skipped: what an accumulator passes on at once."""
        return replace(self.slice(0, 0), closed=self.closed, skipped=self.skipped)

    @staticmethod
    def concat(parts: Sequence[MicroBatch]) -> MicroBatch:
        """Records after records, and all that was closed."""
        if len(parts) == 1:
            return parts[0]
        filled = [p for p in parts if len(p)] or [parts[0]]
        return replace(
            parts[0],
            columns=concat_columns([p.columns for p in filled], [len(p) for p in filled]),
            origin=Origin.concat([p.origin for p in filled]),
            closed=np.concatenate([p.closed for p in parts], axis=1),
            skipped=np.concatenate([p.skipped for p in parts], axis=1),
        )


def _join(a: Int32s, b: Int32s) -> Int32s:
    if not b.shape[1]:
        return a
    return b if not a.shape[1] else np.concatenate([a, b], axis=1)
