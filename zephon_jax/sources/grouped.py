"""Reading samples that lie in groups, each of which is decoded as a whole, and joining what came of each group. Pure.

A group's rows may be given as `Spans` of an array that is kept; they are copied once, straight to where they belong. What
`read_grouped` returns is in memory of its own, so that no operator can reach a block that is kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zephon_jax.columns import MISSING, Binary, Column, Objects, Ragged, concat, row_values, take
from zephon_jax.errors import DataError
from zephon_jax.sources.base import ReadResult
from zephon_jax.types import Int64s

__all__ = ["Part", "Spans", "gather", "read_grouped", "starts_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Ragged rows where they lie: row i is `values[starts[i]:stops[i]]`, of an array that may hold much more.

    `binary`: they are `bytes`, and the values uint8.
    """

    values: NDArray[Any]
    starts: Int64s
    stops: Int64s
    binary: bool = False

    def column(self, values: NDArray[Any], splits: Int64s) -> Column:
        """The rows, cut from values of their own."""
        if (
            splits[-1] != len(values) or (splits[1:] < splits[:-1]).any()
        ):  # slices do not complain about spans beyond the array
            raise DataError("offsets of lists point outside of their values: the file is damaged")
        return Binary(values, splits) if self.binary else Ragged(values, splits)


Part: TypeAlias = tuple[Mapping[str, Column | Spans], dict[int, DataError]]
"""As `ReadResult`, of one group; only `Spans` may be views of what is kept."""


def starts_of(counts: Int64s) -> Int64s:
    """Where each group starts, and where the last one ends: int64 of shape (groups + 1,)."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def read_grouped(starts: Int64s, samples: Int64s, read: Callable[[int, Int64s], Part]) -> ReadResult:
    """What `read(group, rows)` gives for each group that is needed, one call each, put in the order of `samples`.

    Group g holds samples starts[g] to starts[g + 1]; `rows` count from the group's start. Groups may be empty.
    """
    if not len(samples):
        return {}, {}
    group = np.searchsorted(starts, samples, "right") - 1
    if (group == group[0]).all():
        columns, bad = read(int(group[0]), samples - starts[group[0]])
        return {name: _column(part, len(samples)) for name, part in columns.items()}, bad
    rows, ascending, order = samples - starts[group], group, np.arange(len(group))
    if (group[1:] < group[:-1]).any():
        order = np.argsort(group, kind="stable")
        ascending, rows = group[order], rows[order]
    cuts = [0, *(np.flatnonzero(ascending[1:] != ascending[:-1]) + 1).tolist(), len(order)]
    parts: list[Mapping[str, Column | Spans]] = []
    bad = {}
    for a, b in itertools.pairwise(cuts):
        columns, broken = read(int(ascending[a]), rows[a:b])
        parts.append(columns)
        for i, error in broken.items():
            bad[int(order[a + i])] = error
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _joined([part.get(name) for part in parts], cuts, order) for name in names}, bad


def _joined(parts: Sequence[Column | Spans | None], cuts: Sequence[int], order: Int64s) -> Column:
    """One column of each part's rows; `order[i]` is where row i of all belongs. None: the rows lack the field."""
    spans = [part for part in parts if isinstance(part, Spans) and _kind(part) == _kind(parts[0])]
    if len(spans) == len(parts):
        return _gathered(spans, cuts, order)
    lengths = [b - a for a, b in itertools.pairwise(cuts)]
    columns = [_column(part, n) for part, n in zip(parts, lengths, strict=True)]
    if all(isinstance(column, Objects) for column in columns):
        items: list[Any] = [item for column in columns for item in row_values(column)]
        if not (order[1:] < order[:-1]).any():
            return Objects(items)
        items = [None] * len(order)
        for at, item in zip(order.tolist(), (item for column in columns for item in row_values(column)), strict=True):
            items[at] = item
        return Objects(items)
    column = concat(columns)
    if (order[1:] < order[:-1]).any():
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return take(column, back)
    return column


def _kind(part: Column | Spans | None) -> Any:
    return (part.values.dtype, part.binary) if isinstance(part, Spans) else None


def _column(part: Column | Spans | None, length: int) -> Column:
    if part is None:
        return Objects([MISSING] * length)
    if isinstance(part, Spans):
        splits = starts_of(part.stops - part.starts)
        return part.column(gather(part.values, part.starts, part.stops), splits)
    return part


def _gathered(parts: Sequence[Spans], cuts: Sequence[int], order: Int64s) -> Column:
    if len(parts) == 1:
        only = parts[0]
        return only.column(gather(only.values, only.starts, only.stops), starts_of(only.stops - only.starts))
    starts, stops, part_of = (np.empty(len(order), np.int64) for _ in range(3))
    for number, (part, a, b) in enumerate(zip(parts, cuts[:-1], cuts[1:], strict=True)):
        at = order[a:b]
        starts[at], stops[at], part_of[at] = part.starts, part.stops, number
    firsts, lasts = _runs((starts[1:] != stops[:-1]) | (part_of[1:] != part_of[:-1]))
    values = [part.values for part in parts]
    runs = zip(part_of[firsts].tolist(), starts[firsts].tolist(), stops[lasts].tolist(), strict=True)
    return parts[0].column(np.concatenate([values[p][a:b] for p, a, b in runs]), starts_of(stops - starts))


def gather(values: NDArray[Any], starts: Int64s, stops: Int64s) -> NDArray[Any]:
    """The spans of values one behind the other, as a copy; spans that touch are copied at once."""
    firsts, lasts = _runs(starts[1:] != stops[:-1])
    runs = zip(starts[firsts].tolist(), stops[lasts].tolist(), strict=True)
    return np.concatenate([values[a:b] for a, b in runs])


def _runs(cut: NDArray[np.bool_]) -> tuple[Int64s, Int64s]:
    """The first and the last row of each run; `cut[i]`: one ends with row i."""
    ends = np.flatnonzero(cut)
    return np.concatenate([[0], ends + 1]), np.concatenate([ends, [len(cut)]])
