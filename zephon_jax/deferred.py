"""Records whose payload is not read again: what a replay needs of them is their identity and length.

A checkpoint may keep, for the chunks in flight, which records the stateless operators made of each sample, and how long
they were. A replay then repeats every decision (packing, shuffling) without reading or tokenizing, and the payload is
loaded only for records that come out in rows that are still to be delivered. This module holds what stands in for such
a record on its way; who may handle it is said by `OpTraits.replays_on_lengths`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zephon_jax.columns import Column, Laid, Objects
from zephon_jax.origin import Cursor
from zephon_jax.types import Int32s

__all__ = ["DEFERRED", "Deferred", "Piece", "deferred_of"]

DEFERRED: Final = "\0deferred"
"""The only field of a record whose payload was not read; no sample can have a field of that name."""


@dataclass(slots=True, eq=False)
class Deferred:
    """A record known by its cursor; `length` is that of its tokens, -1 if it was not kept. `row` once it is loaded."""

    cursor: Cursor
    length: int
    row: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Tokens start to stop of a deferred record: what a packer puts in a row."""

    of: Deferred
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def cut(self, start: int, stop: int) -> Piece:
        """Tokens start to stop of this piece."""
        return Piece(self.of, self.start + start, self.start + stop)

    def tokens(self) -> Int32s:
        """The values, once the record is loaded."""
        return self.values("tokens").astype(np.int32, copy=False)

    def values(self, field: str) -> NDArray[Any]:
        """Those of another field that is as long as the tokens, once the record is loaded."""
        assert self.of.row is not None
        return np.asarray(self.of.row[field])[self.start : self.stop]


def deferred_of(columns: Mapping[str, Column]) -> Iterator[Deferred]:
    """Every record that these columns still wait for, records of packed rows included."""
    column = columns.get(DEFERRED)
    if isinstance(column, Objects):
        yield from (item for item in column.items if isinstance(item, Deferred) and item.row is None)
    for column in columns.values():
        if isinstance(column, Laid):
            yield from _of_pieces(piece for item in column.items for piece in item.pieces)
            return  # the other laid columns hold the same rows


def _of_pieces(pieces: Iterable[Any]) -> Iterator[Deferred]:
    for piece in pieces:
        if isinstance(piece, Piece) and piece.of.row is None:
            yield piece.of
