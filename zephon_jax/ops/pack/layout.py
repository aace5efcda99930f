"""Rows of pieces → arrays. Each token is copied once. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zephon_jax.columns import Column, Dense
from zephon_jax.types import Int32s

__all__ = ["lay_out"]


def lay_out(rows: Sequence[Sequence[Int32s]], room: Sequence[int], capacity: int) -> dict[str, Column]:
    """`tokens`, `segment_ids` (from 1 in each row) and `positions` (from 0 in each segment), (rows, capacity) int32.

    Zeros where there is padding, behind the pieces. One C call per array: concatenating views costs 0.23 µs a piece
    against 0.45 for slice assignments, and segments and positions are `np.repeat` over parts.
    """
    blank = np.zeros(max(room, default=0), np.int32)
    parts: list[Int32s] = []
    segment: list[int] = []
    for pieces, left in zip(rows, room, strict=True):
        parts += pieces
        parts.append(blank[:left])  # one padding part per row, maybe empty
        segment += range(1, len(pieces) + 1)
        segment.append(0)
    n = len(rows)
    lengths = np.array([len(p) for p in parts], np.int64)
    ends = np.cumsum(lengths)
    segments = np.array(segment, np.int32).repeat(lengths)
    positions = (np.arange(n * capacity) - (ends - lengths).repeat(lengths)).astype(np.int32)
    positions[segments == 0] = 0
    tokens = np.concatenate(parts)
    shape = n, capacity
    return {
        "tokens": Dense(tokens.reshape(shape)),
        "segment_ids": Dense(segments.reshape(shape)),
        "positions": Dense(positions.reshape(shape)),
    }
