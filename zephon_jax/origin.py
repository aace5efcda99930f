"""Identity as columns: which sample each record came from, and what finishing the record finishes.

A record has one or more *contributors*, pieces of samples. A contributor is a column of ONE int32 table (a verb is then
one NumPy call, and at 256 records a call costs its overhead). Its rows:

    LAST      1 if it is the last child of its sample (or the sample itself)
    SIBLINGS  how many more contributors its expansions made; carried by the last child of each expansion
    START     where the contributor's tokens begin in those of its sample; 0 unless it was cut
    TOKENS    how many they are; -1 where no operator has said so
    CHUNK, OFFSET, then one child index per expanding operator of the pipeline: the contributor's cursor

Every operator's effect on identity is one of five verbs: `keep`, `repeat`, `take`, `group`, `concat`. One law holds for
each: what goes in equals what comes out, records and finished contributors together, counted by `Weight`. So a sample
is finished exactly if its LAST contributor was finished and the contributors finished number 1 + SIBLINGS: a lost
*middle* child is noticed as well as a lost last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zephon_jax.types import Int32s, Int64s

__all__ = [
    "CHUNK",
    "LAST",
    "LINEAGE",
    "OFFSET",
    "SIBLINGS",
    "START",
    "TOKENS",
    "Cursor",
    "Origin",
    "Weight",
    "no_contributors",
    "weight_of",
]

LAST: Final = 0
SIBLINGS: Final = 1
START: Final = 2
TOKENS: Final = 3
CHUNK: Final = 4
OFFSET: Final = 5
LINEAGE: Final = 6

Cursor: TypeAlias = tuple[int, ...]
"""A record's identity within its lane: chunk, offset, one child index per expanding operator."""


class Weight(NamedTuple):
    """What an operator must conserve: samples closed, and contributors less the siblings they account for."""

    last: int
    net: int


def weight_of(table: Int32s) -> Weight:
    """The weight of these contributors."""
    last, siblings = table[: SIBLINGS + 1].sum(axis=1, dtype=np.int64).tolist() if table.shape[1] else (0, 0)
    return Weight(last, table.shape[1] - siblings)


def no_contributors(depth: int) -> Int32s:
    """An empty table for pipelines with `depth` expanding operators."""
    return np.empty((LINEAGE + depth, 0), np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The identity of n records. `splits` (n + 1,) delimits each record's contributors; None: one per record."""

    table: Int32s
    splits: Int64s | None = None

    @staticmethod
    def of_chunk(chunk: int, offsets: Int64s, depth: int) -> Origin:
        """Samples as handed out: one contributor each, nothing expanded yet."""
        table = np.zeros((LINEAGE + depth, len(offsets)), np.int32)
        table[LAST], table[TOKENS], table[CHUNK], table[OFFSET] = 1, -1, chunk, offsets
        return Origin(table)

    def __len__(self) -> int:
        return self.table.shape[1] if self.splits is None else len(self.splits) - 1

    @property
    def firsts(self) -> Int64s:
        """The index of each record's first contributor."""
        return np.arange(self.table.shape[1]) if self.splits is None else self.splits[:-1]

    def cursors(self) -> Int32s:
        """(2 + depth, n): each record's cursor, which is that of its first contributor."""
        return self.table[CHUNK:] if self.splits is None else self.table[CHUNK:, self.splits[:-1]]

    def cursor(self, record: int) -> Cursor:
        """One record's cursor."""
        return tuple(self.cursors()[:, record].tolist())

    def slice(self, start: int, stop: int) -> Origin:
        """Records start to stop, as views."""
        if self.splits is None:
            return Origin(self.table[:, start:stop])
        a, b = int(self.splits[start]), int(self.splits[stop])
        return Origin(self.table[:, a:b], self.splits[start : stop + 1] - a)

    # -- the verbs -------------------------------------------------------------------------------------------------
    def take(self, index: NDArray[np.integer]) -> Origin:
        """The records at `index`, in that order."""
        if self.splits is None:
            return Origin(self.table.take(index, axis=1))
        starts, lengths = self.splits[:-1][index], (self.splits[1:] - self.splits[:-1])[index]
        splits = np.zeros(len(index) + 1, np.int64)
        np.cumsum(lengths, out=splits[1:])
        gather = np.arange(splits[-1]) + np.repeat(starts - splits[:-1], lengths)
        return Origin(self.table.take(gather, axis=1), splits)

    def keep(self, mask: NDArray[np.bool_]) -> tuple[Origin, Int32s]:
        """A filter: the records that stay, and the contributors of those that go."""
        if mask.all():
            return self, self.table[:, :0]
        return self.take(np.flatnonzero(mask)), self.take(np.flatnonzero(~mask)).table

    def repeat(self, counts: NDArray[np.integer], level: int) -> tuple[Origin, Int32s]:
        """Record i becomes counts[i] children, numbered at lineage index `level`; count 0 finishes it."""
        if (counts == 1).all():  # an only child has the number that the table begins with, 0
            return self, self.table[:, :0]
        out = self.take(np.repeat(np.arange(len(self)), counts))
        ends = np.cumsum(counts)
        child = np.arange(len(out)) - np.repeat(ends - counts, counts)
        of = np.repeat(counts, counts)
        if out.splits is not None:  # per contributor instead of per record
            per = out.splits[1:] - out.splits[:-1]
            child, of = np.repeat(child, per), np.repeat(of, per)
        table, is_last = out.table, child == of - 1
        table[LINEAGE + level] = child
        table[LAST] *= is_last
        table[SIBLINGS] = np.where(is_last, table[SIBLINGS] + of - 1, 0)
        return Origin(table, out.splits), self.take(np.flatnonzero(counts == 0)).table

    def spanned(self, tokens: NDArray[np.integer], shift: NDArray[np.integer] | None = None) -> Origin:
        """The same records, known to have so many tokens, which begin `shift` later in those of their sample."""
        table = self.table.copy()
        table[TOKENS] = tokens
        if shift is not None:
            table[START] += shift.astype(np.int32)
        return Origin(table)

    def group(self, splits: Int64s) -> Origin:
        """Records splits[i] to splits[i + 1] become record i."""
        return Origin(self.table, splits if self.splits is None else self.splits[splits])

    @staticmethod
    def concat(parts: Sequence[Origin]) -> Origin:
        """Records after records."""
        if len(parts) == 1:
            return parts[0]
        table = np.concatenate([p.table for p in parts], axis=1)
        if all(p.splits is None for p in parts):
            return Origin(table)
        splits, at = [np.zeros(1, np.int64)], 0
        for part in parts:
            ends = np.arange(1, part.table.shape[1] + 1) if part.splits is None else part.splits[1:]
            splits.append(ends + at)
            at += part.table.shape[1]
        return Origin(table, np.concatenate(splits))
