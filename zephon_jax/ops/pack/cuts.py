"""Packings that cut documents to fill rows, decided on lengths alone. Pure.

`Wrap` lays documents end to end and cuts where a row is full: no padding, and about one cut per row. `BestFitWrap`
places whole documents by best fit, and cuts one only where best fit would let a row leave with room: the document that
fits nowhere fills the fullest bin, and what is left of it is placed in its turn. So rows are as full as wrapped ones
with far fewer documents cut.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from zephon_jax.ops.pack.bins import AGE, Rows, renumbered

__all__ = ["BestFitWrap", "Cuts", "Cutter", "Wrap"]

Cuts: TypeAlias = list[list[int]]
"""Per document the lengths of its pieces, in order; pieces are numbered through all documents."""


class Cutter(Protocol):
    """As `bins.Bins`, for packings that also decide where documents are cut."""

    def place(self, lengths: Sequence[int], first: int) -> tuple[Cuts, Rows]:
        """Place documents of these lengths, each at least 1; their pieces are numbered first, first + 1, …"""
        ...

    def flush(self) -> Rows:
        """All that is held, in order of opening; nothing is held afterwards."""
        ...

    def renumber(self, base: int) -> list[int]:
        """The pieces held, row after row; from now on they are called base, base + 1, …"""
        ...


class Wrap:
    """One open row. With `max_segments` a row leaves, padded, once it holds so many pieces."""

    def __init__(self, capacity: int, max_segments: int):
        self._capacity, self._most = capacity, max_segments
        self._room, self._held = capacity, list[int]()

    def place(self, lengths: Sequence[int], first: int) -> tuple[Cuts, Rows]:
        """As `Cutter.place`."""
        cuts: Cuts = []
        rows: Rows = []
        piece = first
        for n in lengths:
            pieces: list[int] = []
            while n:
                taken = min(n, self._room)
                pieces.append(taken)
                self._held.append(piece)
                piece += 1
                n -= taken
                self._room -= taken
                if not self._room or len(self._held) == self._most:
                    rows += self.flush()
            cuts.append(pieces)
        return cuts, rows

    def flush(self) -> Rows:
        """As `Cutter.flush`."""
        out = [self._held] if self._held else []
        self._room, self._held = self._capacity, []
        return out

    def renumber(self, base: int) -> list[int]:
        """As `Cutter.renumber`."""
        old, self._held = self._held, list(range(base, base + len(self._held)))
        return old


class BestFitWrap:
    """Best fit among `num_bins` open bins; full ones leave at once.

    No piece is cut to less than `least` tokens to fill a bin: a bin with less room leaves with that padding. What a cut
    leaves over may be shorter.
    """

    def __init__(self, capacity: int, num_bins: int, max_segments: int):
        self._capacity, self._num_bins, self._most = capacity, num_bins, max_segments
        self._least = max(1, capacity // 64)
        self._keys: list[int] = []  # room << 64 | age, ascending
        self._held: dict[int, list[int]] = {}  # age → pieces, in order of opening
        self._age = 0

    def place(self, lengths: Sequence[int], first: int) -> tuple[Cuts, Rows]:
        """As `Cutter.place`."""
        cuts: Cuts = []
        rows: Rows = []
        piece = first
        for n in lengths:
            pieces: list[int] = []
            while n:
                taken = self._put(n, piece, rows)
                piece += taken > 0
                n -= taken
                if taken:
                    pieces.append(taken)
            cuts.append(pieces)
        return cuts, rows

    def _put(self, n: int, piece: int, rows: Rows) -> int:
        """Place as much of n tokens as the bin that is chosen takes; 0 if a bin had to leave first."""
        keys = self._keys
        at = bisect_left(keys, n << 64)
        if at == len(keys):  # it fits nowhere
            if len(keys) < self._num_bins:
                self._held[self._age] = []
                key, self._age = self._capacity << 64 | self._age, self._age + 1
            else:
                key = keys.pop(0)
                if key >> 64 < self._least:
                    rows.append(self._held.pop(key & AGE))
                    return 0
        else:
            key = keys.pop(at)
        room, age = key >> 64, key & AGE
        taken = min(n, room)
        held = self._held[age]
        held.append(piece)
        if taken == room or len(held) == self._most:
            rows.append(self._held.pop(age))
        else:
            insort(keys, room - taken << 64 | age)
        return taken

    def flush(self) -> Rows:
        """As `Cutter.flush`."""
        out = list(self._held.values())
        self._keys, self._held = [], {}
        return out

    def renumber(self, base: int) -> list[int]:
        """As `Cutter.renumber`."""
        held = list(self._held.values())
        old = renumbered(held, base)
        self._held = dict(zip(self._held, held, strict=True))
        return old
