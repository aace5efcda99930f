"""A replay on lengths (rule C7): records known from the checkpoint stand in for samples, until one is to be delivered.

`deferred_batch` makes the micro-batch that the stateless operators would have made, without payloads, from what the
checkpoint keeps. `Loader` reads and tokenizes the few records that come out in rows not delivered yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from zephon_jax.columns import Objects, Ragged, row_of, row_values
from zephon_jax.deferred import DEFERRED, Deferred
from zephon_jax.errors import ContractViolation
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.fetch import pointer_columns
from zephon_jax.origin import CHUNK, LAST, OFFSET, SIBLINGS, TOKENS, Cursor, Origin, no_contributors
from zephon_jax.types import Int32s, Int64s, WorkChunk

__all__ = ["Loader", "Replayed", "deferred_batch", "known_of"]


class Replayed(NamedTuple):
    """A micro-batch that has been through the first stage already: the stage passes it on."""

    batch: MicroBatch


def known_of(batch: MicroBatch, keep_lengths: bool) -> Int32s | None:
    """The identity of what the stateless operators made of these samples, with lengths; None if nothing is left."""
    if not len(batch):
        return None
    if not keep_lengths:
        return batch.origin.table
    column = batch.columns.get("tokens")
    if isinstance(column, Ragged):
        return batch.origin.spanned(column.lengths).table
    # Not a token list: the accumulator that needs one will say so.
    values = row_values(column) if column is not None else [()] * len(batch)
    return batch.origin.spanned(np.array([len(v) if hasattr(v, "__len__") else 0 for v in values])).table


def deferred_batch(lane: int, known: Int32s, chunk: int, offsets: Int64s, *, lengths: bool) -> MicroBatch:
    """The records that samples `offsets` (ascending) of the chunk became, without payloads, and what was finished.

    `lengths`: what is known includes how long each record's tokens are. Else the counts in it are those of the sample's own
    tokens, for provenance, which padding does not change.
    """
    table = known[:, (known[CHUNK] == chunk) & (known[OFFSET] >= offsets[0]) & (known[OFFSET] <= offsets[-1])]
    cursors = table[CHUNK:].T.tolist()
    counts = table[TOKENS].tolist() if lengths else [-1] * len(cursors)
    handles = [Deferred(tuple(c), n) for c, n in zip(cursors, counts, strict=True)]
    closed = _missing(table, chunk, offsets)
    return MicroBatch(lane, {DEFERRED: Objects(handles)}, Origin(table), closed, np.empty((2, 0), np.int32))


def _missing(table: Int32s, chunk: int, offsets: Int64s) -> Int32s:
    """What was finished of these samples, as one contributor each: by the law it is what the records do not carry."""
    at, n = table[OFFSET] - offsets[0], len(offsets)
    last = 1 - np.bincount(at, table[LAST], n).astype(np.int64)
    net = 1 - np.bincount(at, 1 - table[SIBLINGS], n).astype(np.int64)
    finished = np.flatnonzero((last != 0) | (net != 0))
    out = np.zeros((table.shape[0], len(finished)), np.int32)
    out[LAST], out[SIBLINGS] = last[finished], 1 - net[finished]
    out[CHUNK], out[OFFSET] = chunk, offsets[finished]
    return out


class Loader:
    """Reads deferred records, by running their samples through the stateless operators."""

    def __init__(
        self,
        lane: int,
        depth: int,
        size: int,
        works: Mapping[int, WorkChunk],
        run: Callable[[Iterator[MicroBatch]], Iterable[MicroBatch]],
    ):
        self._lane, self._depth, self._size, self._works, self._run = lane, depth, size, works, run

    def load(self, records: Iterable[Deferred]) -> int:
        """Fill in `row` of each; the number of samples read."""
        wanted: dict[Cursor, Deferred] = {record.cursor: record for record in records}
        if not wanted:
            return 0
        batches = list(self._pointers(sorted({cursor[:2] for cursor in wanted})))
        for batch in self._run(iter(batches)):
            for i, cursor in enumerate(batch.origin.cursors().T.tolist()):
                if (record := wanted.get(tuple(cursor))) is not None:
                    record.row = row_of(batch.columns, i)
        for cursor, record in wanted.items():
            if record.row is None or record.length not in (-1, _length(record.row)):
                what = "is no longer made of its sample" if record.row is None else "has another length now"
                raise ContractViolation(
                    f"lane {self._lane}: record {cursor} of the checkpoint {what}; an operator is not deterministic, or "
                    "changed without another version="
                )
        return sum(len(batch) for batch in batches)

    def _pointers(self, samples: list[tuple[int, ...]]) -> Iterator[MicroBatch]:
        by_chunk: dict[int, list[int]] = {}
        for chunk, offset in samples:
            by_chunk.setdefault(chunk, []).append(offset)
        nothing = no_contributors(self._depth)
        for chunk, found in by_chunk.items():
            for start in range(0, len(found), self._size):
                offsets = np.array(found[start : start + self._size], np.int64)
                columns = pointer_columns(self._works[chunk], offsets)
                origin = Origin.of_chunk(chunk, offsets, self._depth)
                yield MicroBatch(self._lane, columns, origin, nothing, np.empty((2, 0), np.int32))


def _length(row: Mapping[str, object]) -> int:
    tokens = row.get("tokens")
    return len(tokens) if hasattr(tokens, "__len__") else 0  # pyright: ignore[reportArgumentType]
