"""check_operator: the whole operator contract, run on an operator of one's own.

Every check runs fresh copies of the operator on the same records in different ways that must not matter, and compares
rows and identities: other micro-batch sizes, a second run, other lanes in between, other epochs before. The engine's own
checks (the law of conservation above all) run at each call as well.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from zephon_jax.columns import collate, columns_from_rows, row_values
from zephon_jax.deferred import DEFERRED, Deferred
from zephon_jax.engine.accumulate import LaneAccumulator
from zephon_jax.engine.replay import deferred_batch
from zephon_jax.engine.tasks import StepFailed, run_steps
from zephon_jax.errors import ConfigurationError, ContractViolation
from zephon_jax.metrics.counters import OperatorCounts
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import Accumulator, Operator, RecordOperator, RowOperator
from zephon_jax.origin import Cursor, Origin
from zephon_jax.plan.compile import Step
from zephon_jax.testing.same import difference
from zephon_jax.types import Int32s

__all__ = ["check_operator"]

Records = Sequence[Mapping[str, Any]]
_SIZES = (1, 2, 3, 7)
_NO_SKIPS = np.empty((2, 0), np.int32)


@dataclass
class _Seen:
    """What came out of one lane: rows in order with their identities."""

    cursors: list[Cursor] = field(default_factory=list[Cursor])
    rows: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])

    def take(self, batch: MicroBatch | None) -> None:
        if batch is not None:
            self.cursors += [tuple(c) for c in batch.origin.cursors().T.tolist()]
            self.rows += batch.rows()


def check_operator(op: Operator, records: Iterable[Mapping[str, Any]]) -> None:
    """Run the operator contract on `records`: at least four, better a few dozen that reach every branch of the operator.

    Raises:
        ContractViolation: Saying which part is broken, and on what.
        WorkerError: The operator raised.
    """
    if not isinstance(op, Operator):
        raise ConfigurationError(
            f"check_operator needs an Operator, got {type(op).__name__}; wrap a function in ops.Map"
        )
    given = list(records)
    for record in given:
        if not isinstance(record, Mapping):
            raise ConfigurationError(f"check_operator needs records, dicts of fields, got {type(record).__name__}")
    rows = [dict(record) for record in given]
    if len(rows) < 4:
        raise ConfigurationError(f"check_operator needs at least 4 records, got {len(rows)}")
    try:
        match op:
            case RecordOperator() | Accumulator():
                _check_stream(op, rows)
            case RowOperator():
                _check_rows(op, rows)
            case _:
                raise ContractViolation(
                    f"{op.name}: derive from RecordOperator, Accumulator or RowOperator", operator=op.name
                )
    except StepFailed as failure:
        raise ContractViolation(
            f"{op.name} raised {type(failure.__cause__).__name__}: {failure.__cause__}", operator=op.name
        ) from failure.__cause__


# -- operators on records ------------------------------------------------------------------------------------------
def _check_stream(op: RecordOperator | Accumulator[Any], rows: Records) -> None:
    half = len(rows) // 2
    first, second = rows[:half], rows[half:]
    one = _run(op, [(0, 0, rows)], len(rows))[0]
    _compare(
        op, _run(op, [(0, 0, rows)], len(rows))[0], one, "run twice on the same records (randomness must be keyed)"
    )
    for size in _SIZES:
        _compare(op, _run(op, [(0, 0, rows)], size)[0], one, f"run in micro-batches of {size}, not {len(rows)}")
    if len(set(one.cursors)) < len(one.cursors):
        raise _violation(
            op, "two records that came out have the same identity; use repeat, or group what belongs together"
        )
    if op.traits.preserves_cursor_order and one.cursors != sorted(one.cursors):
        raise _violation(op, "records came out of order although its traits say preserves_cursor_order=True")
    alone = _run(op, [(0, 1, second)], 3)[0]
    after = _run(op, [(0, 0, first), (0, 1, second)], 3)[0]
    n = sum(cursor[0] == 0 for cursor in after.cursors)
    if any(cursor[0] == 0 for cursor in after.cursors[n:]):
        raise _violation(op, "a record came out behind the sentinel that follows it; flush must return everything")
    _compare(
        op, _Seen(after.cursors[n:], after.rows[n:]), alone, "run after another flush epoch (state must not survive)"
    )
    both = _run(op, [(0, 0, first), (1, 0, second), (0, 0, second)], 3, one_epoch=True)
    _compare(
        op,
        both[0],
        _run(op, [(0, 0, [*first, *second])], 3)[0],
        "run with another lane in between (lanes share nothing)",
    )
    if isinstance(op, Accumulator) and op.traits.replays_on_lengths:
        _check_lengths(op, rows, one)


def _run(
    op: RecordOperator | Accumulator[Any],
    work: Sequence[tuple[int, int, Records]],
    size: int,
    *,
    one_epoch: bool = False,
) -> dict[int, _Seen]:
    """Feed (lane, chunk, records) in order; a lane's epoch ends with each chunk, or only at the end."""
    op = copy.deepcopy(op)
    seen: dict[int, _Seen] = {}
    lanes: dict[int, LaneAccumulator] = {}
    offsets: dict[tuple[int, int], int] = {}
    step = Step(op, 0, 0 if op.traits.expands else -1)
    for lane, chunk, rows in work:
        out = seen.setdefault(lane, _Seen())
        if isinstance(op, Accumulator) and lane not in lanes:
            lanes[lane] = LaneAccumulator(step, lane, chunk, OperatorCounts(), _two_datasets)
        start = offsets.get((lane, chunk), 0)
        for batch in _micro_batches(lane, chunk, start, rows, size):
            before = [copy.deepcopy(row) for row in batch.rows()]
            out.take(lanes[lane].push(batch) if lane in lanes else run_steps([step], batch)[0])
            if text := difference(before, batch.rows(), "record"):
                raise _violation(op, f"it writes to its input: {text}; copy before changing an array")
        offsets[lane, chunk] = start + len(rows)
        if lane in lanes and not one_epoch:
            out.take(lanes[lane].flush(chunk + 1))
    if one_epoch:
        for lane, accumulator in lanes.items():
            seen[lane].take(accumulator.flush(None))
    return seen


def _two_datasets(chunks: Int32s, offsets: Int32s) -> Int32s:
    """Records take turns to come from two datasets."""
    return offsets % 2


def _micro_batches(lane: int, chunk: int, start: int, rows: Records, size: int) -> Iterable[MicroBatch]:
    for at in range(0, len(rows), size):
        part = rows[at : at + size]
        origin = Origin.of_chunk(chunk, np.arange(start + at, start + at + len(part)), 1)
        columns = columns_from_rows(copy.deepcopy(part))
        # A sample that an operator before this one has finished: it must be passed on.
        closed = Origin.of_chunk(chunk, np.array([1_000_000 + start + at]), 1).table
        yield MicroBatch(lane, columns, origin, closed, _NO_SKIPS)


def _check_lengths(op: Accumulator[Any], rows: Records, expected: _Seen) -> None:
    """`replays_on_lengths`: the same decisions on records of which only identity and length are known."""
    op = copy.deepcopy(op)
    origin = Origin.of_chunk(0, np.arange(len(rows)), 1)
    lengths = np.array([len(row["tokens"]) if "tokens" in row else -1 for row in rows])
    batch = deferred_batch(0, origin.spanned(lengths).table, 0, np.arange(len(rows)), lengths=True)
    lane = LaneAccumulator(Step(op, 0, 0 if op.traits.expands else -1), 0, 0, OperatorCounts(), _two_datasets)
    cursors: list[Cursor] = []
    for out in (lane.push(replace(batch)), lane.flush(None)):
        if out is not None:
            handles = out.columns.get(DEFERRED)
            for handle in row_values(handles) if handles is not None else ():
                assert isinstance(handle, Deferred)
            cursors += [tuple(c) for c in out.origin.cursors().T.tolist()]
    if cursors != expected.cursors:
        raise _violation(op, "its traits say replays_on_lengths=True, but without payloads it decides otherwise")


# -- operators on batches ------------------------------------------------------------------------------------------
def _check_rows(op: RowOperator, rows: Records) -> None:
    batch = {name: collate([column]) for name, column in columns_from_rows(rows).items()}
    fresh = copy.deepcopy(op)
    first = _process_rows(fresh, batch)
    if text := difference(first, _process_rows(fresh, batch)):
        raise _violation(
            op, f"the second of two equal batches came out otherwise: {text}; nothing may be kept in between"
        )
    if text := difference(first, _process_rows(copy.deepcopy(op), batch)):
        raise _violation(op, f"another run gave another result: {text}; randomness must be keyed")


def _process_rows(op: RowOperator, batch: Mapping[str, Any]) -> Mapping[str, Any]:
    n = len(next(iter(batch.values())))
    given = {name: values.copy() for name, values in batch.items()}
    try:
        out = op.process_rows(dict(given))
    except Exception as error:
        raise StepFailed(op.name, None) from error
    if not isinstance(out, Mapping):
        raise _violation(op, f"it returned {type(out).__name__}; return a dict of arrays")
    for name, values in out.items():
        if not isinstance(values, np.ndarray) or values.shape[:1] != (n,):
            raise _violation(op, f"field {name!r} is no array of {n} rows; after batch an operator must keep the rows")
    if text := difference(given, batch):
        raise _violation(op, f"it writes to its input: {text}; copy before changing an array")
    return {name: values.copy() for name, values in out.items()}


# -- reports -------------------------------------------------------------------------------------------------------
def _compare(op: Operator, got: _Seen, expected: _Seen, how: str) -> None:
    if got.cursors != expected.cursors:
        at = next((i for i, (a, b) in enumerate(zip(got.cursors, expected.cursors, strict=False)) if a != b), None)
        if at is None:
            raise _violation(op, f"{len(got.cursors)} records instead of {len(expected.cursors)} came out when {how}")
        raise _violation(op, f"record {at} was {got.cursors[at]} instead of {expected.cursors[at]} when {how}")
    for cursor, a, b in zip(got.cursors, got.rows, expected.rows, strict=True):
        if text := difference(a, b):
            raise _violation(op, f"record {cursor} came out otherwise when {how}: {text}")


def _violation(op: Operator, text: str) -> ContractViolation:
    return ContractViolation(f"{op.name}: {text}", operator=op.name)
