"""Rows of pieces → arrays. Each token is copied once, when its row is laid out. Pure.

One C call per array: concatenating views costs 0.23 µs a piece against 0.45 for slice assignments, and segments and
positions are `np.repeat` over parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zephon_jax.columns import Column, Laid
from zephon_jax.deferred import Piece
from zephon_jax.types import Int32s, Int64s

__all__ = ["Lay", "PackedRow", "laid_columns"]


@dataclass(frozen=True, slots=True, eq=False)
class PackedRow:
    """One row, not yet laid out: its pieces in order, their lengths, and the room left for padding behind them."""

    pieces: list[Any]
    lengths: list[int]
    room: int

    def detached(self) -> PackedRow:
        """The same row without views of blocks that were read with it: for a buffer that keeps rows."""
        pieces = [p.copy() if isinstance(p, np.ndarray) and p.base is not None else p for p in self.pieces]
        return PackedRow(pieces, self.lengths, self.room)


@dataclass(frozen=True, slots=True)
class Lay:
    """Turns rows into the (rows, capacity) int32 array of one field; equal by field and capacity."""

    field: str
    capacity: int

    def __call__(self, rows: list[PackedRow]) -> Int32s:
        return _FIELDS[self.field](rows, self.capacity).reshape(len(rows), self.capacity)


def laid_columns(rows: list[PackedRow], capacity: int) -> dict[str, Column]:
    """`tokens`, `segment_ids` (from 1 in each row) and `positions` (from 0 in each segment); zeros where there is padding."""
    return {field: Laid(rows, Lay(field, capacity)) for field in _FIELDS}


def _tokens(rows: Sequence[PackedRow], capacity: int) -> Int32s:
    blank = _zeros(capacity)
    parts: list[Int32s] = []
    for row in rows:
        parts += [piece.tokens() if isinstance(piece, Piece) else piece for piece in row.pieces]
        parts.append(blank[: row.room])  # one padding part per row, maybe empty
    return np.concatenate(parts)


def _lengths(rows: Sequence[PackedRow]) -> Int64s:
    """Of the parts: each row's pieces, then its padding."""
    out: list[int] = []
    for row in rows:
        out += row.lengths
        out.append(row.room)
    return np.array(out, np.int64)


def _segment_ids(rows: Sequence[PackedRow], capacity: int) -> Int32s:
    segment: list[int] = []
    for row in rows:
        segment += range(1, len(row.lengths) + 1)
        segment.append(0)
    return np.array(segment, np.int32).repeat(_lengths(rows))


def _positions(rows: Sequence[PackedRow], capacity: int) -> Int32s:
    lengths = _lengths(rows)
    starts = (np.cumsum(lengths) - lengths).astype(np.int32)
    positions = _ramp(len(rows) * capacity) - starts.repeat(lengths)
    end = 0
    for row in rows:
        end += capacity
        if row.room:
            positions[end - row.room : end] = 0
    return positions


_FIELDS: Final[dict[str, Callable[[Sequence[PackedRow], int], NDArray[np.int32]]]] = {
    "tokens": _tokens,
    "segment_ids": _segment_ids,
    "positions": _positions,
}


@lru_cache(maxsize=8)
def _ramp(n: int) -> Int32s:
    ramp = np.arange(n, dtype=np.int32)
    ramp.flags.writeable = False
    return ramp


@lru_cache(maxsize=8)
def _zeros(n: int) -> Int32s:
    zeros = np.zeros(n, np.int32)
    zeros.flags.writeable = False
    return zeros
