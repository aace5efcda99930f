"""What tests of operators share: micro-batches of plain dicts, cut anywhere, and records with their whole identity.

The identity of a record is a list of its contributors, each a tuple (last, siblings, chunk, offset, child indices…), so
that a reference needs nothing but Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from zephon_jax.columns import columns_from_rows
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops import Accumulator, RecordOperator
from zephon_jax.origin import START, TOKENS, Origin, no_contributors
from zephon_jax.types import LaneContext

PROPERTY = settings(deadline=None, database=None, max_examples=40)
CONTEXT = LaneContext(lane=0, epoch=0, operator=3)

Contributor = tuple[int, ...]
Identity = list[Contributor]
sizes = st.lists(st.integers(0, 6), max_size=12)
"""Of micro-batches, some of them empty; what is left over makes the last one."""


def batch_of(rows: Sequence[dict[str, Any]], *, start: int = 0, depth: int = 1, level: int = 0) -> MicroBatch:
    """Offsets `start` and up of chunk 0 with these fields."""
    origin = Origin.of_chunk(0, np.arange(start, start + len(rows)), depth)
    nothing = np.empty((2, 0), np.int32)
    return MicroBatch(0, columns_from_rows(rows), origin, no_contributors(depth), nothing, level)


def cut(rows: Sequence[dict[str, Any]], parts: Iterable[int], **options: Any) -> list[MicroBatch]:
    """The rows as micro-batches of these sizes."""
    out: list[MicroBatch] = []
    at = 0
    for n in [*parts, len(rows)]:
        out.append(batch_of(rows[at : at + n], start=at, **options))
        at = min(at + n, len(rows))
    return out


def contributors(table: Any) -> Identity:
    """Without the span of tokens, which has tests of its own."""
    return [tuple(column) for column in np.delete(table, [START, TOKENS], axis=0).T.tolist()]


def identities(batch: MicroBatch) -> list[Identity]:
    every = contributors(batch.origin.table)
    splits = range(len(every) + 1) if batch.origin.splits is None else batch.origin.splits.tolist()
    return [every[a:b] for a, b in pairwise(splits)]


def sample(offset: int, *children: int, last: int = 1, siblings: int = 0) -> Contributor:
    """A contributor of chunk 0."""
    return (last, siblings, 0, offset, *children)


def collected(batches: Iterable[MicroBatch]) -> tuple[list[dict[str, Any]], list[Identity], Identity]:
    """Rows, their identities, and what was closed (in ascending order, since it may overtake records)."""
    rows: list[dict[str, Any]] = []
    of: list[Identity] = []
    closed: Identity = []
    for batch in batches:
        assert batch.ragged_text() is None
        rows += batch.rows()
        of += identities(batch)
        closed += contributors(batch.closed)
    return rows, of, sorted(closed)


def processed(op: RecordOperator, batches: Iterable[MicroBatch]):
    """What a stateless operator makes of these."""
    return collected(op.process(batch) for batch in batches)


def accumulated(op: Accumulator[Any], batches: Iterable[MicroBatch], context: LaneContext = CONTEXT):
    """What an accumulator makes of these and of a flush behind them."""
    state = op.init_state(context)
    out = [op.push(state, batch) for batch in batches]
    rest = op.flush(state)
    return collected(out if rest is None else [*out, rest])


def same(a: Any, b: Any) -> bool:
    """Equal values of one type; arrays also of one dtype and shape. Not-a-number equals itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (np.ndarray, np.generic)):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return a.tobytes() == b.tobytes() if a.dtype.kind in "biufc" else a.tolist() == b.tolist()
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return a == b or (a != a and b != b)


def same_rows(got: Sequence[dict[str, Any]], want: Sequence[dict[str, Any]]) -> bool:
    return len(got) == len(want) and all(same(dict(a), dict(b)) for a, b in zip(got, want, strict=True))
