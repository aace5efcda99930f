"""split: long records → several of bounded length, or one per part between separators."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon_jax.columns import Column, Objects, Ragged, row_values, take
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import OpTraits, RecordFailure, RecordOperator, checked_field, checked_int, used
from zephon_jax.ops.fields import field_of, int32_ragged
from zephon_jax.types import Int64s

__all__ = ["Split", "windows"]


def windows(lengths: Int64s, size: int, overlap: int) -> tuple[Int64s, Int64s, Int64s]:
    """Windows of at most `size`, each `overlap` back into the one before: how many of each list, starts and stops.

    An empty list has one empty window, and no window lies within the one before it.

    >>> [a.tolist() for a in windows(np.array([7, 0]), 4, 1)]
    [[2, 1], [0, 3, 0], [4, 7, 0]]
    """
    stride = size - overlap
    counts = np.maximum(-(-(lengths - overlap) // stride), 1)
    child = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = child * stride
    return counts, starts, np.minimum(starts + size, np.repeat(lengths, counts))


class Split(RecordOperator):
    """Cuts the field `field`, token ids or text, into pieces that become a record each; other fields are copied to each.

    Args:
        max_length: The longest piece, in tokens, or characters of text. None: cut at separators only.
        field: The field to cut. Token ids come out as int32.
        overlap: How far each piece reaches back into the one before it.
        separators: Token ids, or texts, behind which to cut. Without `max_length` at each of them; with it, at the last one
            that lets a piece be no longer, and where there is none, at `max_length`.
        keep_separator: Whether a separator stays at the end of its piece. Pieces that are empty without it are left out.

    An empty record stays one. The field `tokens` holds ids, never text.
    """

    traits = OpTraits(expands=True)

    def __init__(
        self,
        max_length: int | None = None,
        *,
        field: str = "tokens",
        overlap: int = 0,
        separators: Iterable[int | str] | None = None,
        keep_separator: bool = True,
    ):
        self._field = checked_field("split", field)
        self._size = None if max_length is None else checked_int("split", "max_length", max_length, 1)
        self._overlap = checked_int("split", "overlap", overlap, 0)
        self._separators = _checked_separators(separators)
        self._keep = bool(keep_separator)
        if self._size is None and not self._separators:
            raise ConfigurationError("split needs max_length, separators, or both")
        if self._overlap and (self._separators or self._overlap >= (self._size or 0)):
            raise ConfigurationError(
                f"split(overlap={overlap}) needs a larger max_length, and does not go with separators"
            )
        if not self._keep and not self._separators:
            raise ConfigurationError("split(keep_separator=False) needs separators")
        what = [] if self._size is None else [str(self._size)]
        self.name = f"split({', '.join([*what, *(['at separators'] if self._separators else [])])})"

    def identity(self) -> Mapping[str, Any]:
        options = {"overlap": self._overlap, "separators": list(self._separators), "drop_separator": not self._keep}
        return {"op": "split", "max_length": self._size, "field": self._field, **used(options)}

    def process(self, batch: MicroBatch) -> MicroBatch:
        if not len(batch):
            return batch
        column = field_of(batch, self._field, self.name)
        if self._field != "tokens" and isinstance(column, Objects) and isinstance(column.items[0], str):
            return self._split_texts(batch, column)
        if any(isinstance(s, str) for s in self._separators):
            raise RecordFailure(0) from DataError(
                f"{self.name}: separators are texts, but {self._field!r} holds token ids; give ids"
            )
        lists = int32_ragged(column, self.name, self._field)
        if self._separators:
            counts, starts, stops = self._at_separators(lists)
        else:
            assert self._size is not None
            counts, starts, stops = windows(lists.lengths, self._size, self._overlap)
        return self._cut(batch, lists, counts, starts, stops)

    def _cut(self, batch: MicroBatch, lists: Ragged, counts: Int64s, starts: Int64s, stops: Int64s) -> MicroBatch:
        if len(starts) == len(batch) and (stops - starts == lists.lengths).all():
            return self._spanned(batch.repeat(counts, {**batch.columns, self._field: lists}), lists.lengths, None)
        first = lists.splits[0]
        base = np.repeat(lists.splits[:-1], counts)
        tiled = not self._overlap and (stops[:-1] + base[:-1] == starts[1:] + base[1:]).all()
        if tiled and (base[0] + starts[0] == first if len(starts) else True):  # no value is copied: only splits change
            pieces = Ragged(lists.values, np.append(base + starts, base[-1] + stops[-1]))
        else:
            flat = [lists.values[a:b] for a, b in zip((base + starts).tolist(), (base + stops).tolist(), strict=True)]
            pieces = Ragged(np.concatenate(flat), np.append(0, np.cumsum(stops - starts)))
        columns = self._copied(batch, counts, pieces)
        return self._spanned(batch.repeat(counts, columns), stops - starts, starts)

    def _copied(self, batch: MicroBatch, counts: Int64s, pieces: Column) -> dict[str, Column]:
        index = np.repeat(np.arange(len(batch)), counts)
        return {name: pieces if name == self._field else take(column, index) for name, column in batch.columns.items()}

    def _spanned(self, batch: MicroBatch, lengths: Int64s, shift: Int64s | None) -> MicroBatch:
        return batch.spanned(lengths, shift) if self._field == "tokens" else batch

    # -- separators ------------------------------------------------------------------------------------------------
    def _at_separators(self, lists: Ragged) -> tuple[Int64s, Int64s, Int64s]:
        is_end = np.isin(lists.values, np.array(self._separators, np.int64))
        pieces = [
            self._pieces(np.flatnonzero(is_end[a:b]) + 1, b - a, None) for a, b in pairwise(lists.splits.tolist())
        ]
        return _flat(pieces)

    def _split_texts(self, batch: MicroBatch, column: Objects) -> MicroBatch:
        if any(not isinstance(s, str) for s in self._separators):
            raise RecordFailure(0) from DataError(
                f"{self.name}: separators are token ids, but {self._field!r} holds text; give texts"
            )
        found = re.compile("|".join(map(re.escape, sorted(map(str, self._separators), key=len, reverse=True))))
        pieces: list[list[tuple[int, int]]] = []
        for i, text in enumerate(row_values(column)):
            if not isinstance(text, str):
                raise RecordFailure(i) from DataError(
                    f"{self.name} needs text in {self._field!r} as in other records, got {type(text).__name__}"
                )
            if not self._separators:
                assert self._size is not None
                _, starts, stops = windows(np.array([len(text)]), self._size, self._overlap)
                pieces.append(list(zip(starts.tolist(), stops.tolist(), strict=True)))
                continue
            matches = [(m.start(), m.end()) for m in found.finditer(text)]
            ends = np.array([end for _, end in matches], np.int64)
            pieces.append(self._pieces(ends, len(text), {end: end - start for start, end in matches}))
        counts, starts, stops = _flat(pieces)
        index = np.repeat(np.arange(len(batch)), counts).tolist()
        texts = [column.items[i][a:b] for i, a, b in zip(index, starts.tolist(), stops.tolist(), strict=True)]
        return batch.repeat(counts, self._copied(batch, counts, Objects(texts)))

    def _pieces(self, ends: Int64s, n: int, widths: Mapping[int, int] | None) -> list[tuple[int, int]]:
        """Start and stop of each piece of one record of length n, with a separator in front of each of `ends`.

        `widths[end]`: how long that separator is; None: 1, as token ids are.
        """
        known = set(ends.tolist())
        pieces: list[tuple[int, int]] = []
        for start, stop in pairwise([0, *self._cuts(ends, n), n]):
            if not self._keep and stop in known:
                stop = max(start, stop - (1 if widths is None else widths[stop]))
            if stop > start:
                pieces.append((start, stop))
        return pieces or [(0, 0)]

    def _cuts(self, ends: Int64s, n: int) -> list[int]:
        """Where to cut, in order, within a record of length n."""
        if self._size is None:
            return [end for end in ends.tolist() if end < n]
        cuts: list[int] = []
        start = 0
        while n - start > self._size:
            at = int(np.searchsorted(ends, start + self._size, "right")) - 1
            start = int(ends[at]) if at >= 0 and ends[at] > start else start + self._size
            cuts.append(start)
        return cuts


def _flat(pieces: list[list[tuple[int, int]]]) -> tuple[Int64s, Int64s, Int64s]:
    counts = np.array([len(own) for own in pieces], np.int64)
    spans: NDArray[np.int64] = np.array([span for own in pieces for span in own], np.int64).reshape(-1, 2)
    return counts, spans[:, 0].copy(), spans[:, 1].copy()


def _checked_separators(separators: Iterable[int | str] | None) -> tuple[int | str, ...]:
    if separators is None:
        return ()
    found = (separators,) if isinstance(separators, str) else tuple(separators)
    texts = [isinstance(s, str) and bool(s) for s in found]
    ids = [isinstance(s, (int, np.integer)) and not isinstance(s, bool) and -(2**31) <= s < 2**31 for s in found]
    if not found or not (all(texts) or all(ids)):
        raise ConfigurationError(f"split(separators={separators!r}) must be token ids, or texts that are not empty")
    return tuple(s if isinstance(s, str) else int(s) for s in found)
