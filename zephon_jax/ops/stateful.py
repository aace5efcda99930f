"""stateful_transform: a function with a memory over the records of a lane; and map_batch, a function of whole batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon_jax.columns import columns_from_rows, named_fields
from zephon_jax.errors import ConfigurationError, ContractViolation
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import Accumulator, OpTraits, RecordFailure, RowOperator, callable_name, function_identity
from zephon_jax.types import LaneContext

__all__ = ["MapBatch", "StatefulTransform"]

Record = Mapping[str, Any]


@dataclass(slots=True)
class _State:
    memory: Any
    pending: MicroBatch | None = None  # what was pushed since the last record that left, not yet expanded


class StatefulTransform(Accumulator[_State]):
    """`push(state, record)` returns the records that leave now, `flush(state)` those that are still held.

    `init_state()` makes the memory of one flush epoch of one lane: it is made anew after each flush, so nothing may be
    kept elsewhere. A record that leaves stands for all that were pushed since the one before it (that is what is
    delivered with it, and what its provenance names); what was pushed and never followed by a record is dropped.
    """

    def __init__(
        self,
        name: str,
        *,
        init_state: Callable[[], Any],
        push: Callable[[Any, dict[str, Any]], Iterable[Record]],
        flush: Callable[[Any], Iterable[Record]],
        preserves_cursor_order: bool = True,
        version: str | int | None = None,
    ):
        for what, fn in (("init_state", init_state), ("push", push), ("flush", flush)):
            if not callable(fn):
                raise ConfigurationError(f"stateful_transform({name!r}): {what} must be a function, got {fn!r}")
        self._init, self._push, self._flush = init_state, push, flush
        self._identity = function_identity(name, version)
        self.traits = OpTraits(preserves_cursor_order=preserves_cursor_order, expands=True)
        self.name = f"stateful_transform({name})"

    def identity(self) -> Mapping[str, Any]:
        return {"op": "stateful_transform", **self._identity}

    def init_state(self, ctx: LaneContext) -> _State:
        return _State(self._init())

    def push(self, state: _State, batch: MicroBatch) -> MicroBatch:
        if not len(batch):
            return batch
        made: list[list[Record]] = []
        for i, row in enumerate(batch.rows()):
            try:
                made.append([named_fields(record) for record in self._push(state.memory, row)])
            except Exception as error:
                raise RecordFailure(i) from error
        rest = batch.without_records()
        batch = replace(batch, closed=rest.closed, skipped=rest.skipped)
        held = 0 if state.pending is None else len(state.pending)
        inputs = batch if state.pending is None else MicroBatch.concat([state.pending, _bare(batch)])
        counts = [0] * held + [len(records) for records in made]
        last = max((i for i, n in enumerate(counts) if n), default=-1) + 1
        state.pending = _bare(inputs.slice(last, len(inputs)))
        out = _attributed(inputs.slice(0, last), counts[:last], [record for records in made for record in records])
        return replace(out, closed=rest.closed, skipped=rest.skipped)

    def flush(self, state: _State) -> MicroBatch | None:
        records = [named_fields(record) for record in self._flush(state.memory)]
        pending = state.pending
        if pending is None or not len(pending):
            if records:
                raise ContractViolation(
                    f"{self.name}: flush returned {len(records)} records, but every record that was pushed has left already",
                    operator=self.name,
                )
            return None
        if not records:
            return pending.keep(np.zeros(len(pending), np.bool_))
        return _attributed(pending, [0] * (len(pending) - 1) + [len(records)], records)


def _bare(batch: MicroBatch) -> MicroBatch:
    return batch.slice(0, len(batch))  # without what was closed, which has been passed on


def _attributed(inputs: MicroBatch, made: Sequence[int], records: Sequence[Record]) -> MicroBatch:
    """Input i gave made[i] records: the first of them stands for the inputs since the record before it as well."""
    counts = np.maximum(np.array(made, np.int64), 1)
    expanded = inputs.with_columns({}).repeat(counts, {})
    ends = np.repeat(np.array(made, np.int64) > 0, counts)  # every child of an input that gave records ends a group
    splits = np.append(0, np.flatnonzero(ends) + 1)
    return expanded.group(splits, columns_from_rows(list(records)))


class MapBatch(RowOperator):
    """`fn(batch) -> batch` after `batch`: arrays of shape (rows, ...) in, arrays of as many rows out."""

    def __init__(self, fn: Any, *, name: str | None = None, version: str | int | None = None):
        if not callable(fn):
            raise ConfigurationError(f"map_batch needs a function of a batch, got {fn!r}")
        self._fn = fn
        self._identity = function_identity(callable_name(fn, name), version)
        self.name = f"map_batch({self._identity['function']})"

    def identity(self) -> Mapping[str, Any]:
        return {"op": "map_batch", **self._identity}

    def process_rows(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        out = self._fn(batch)
        if not isinstance(out, Mapping):
            raise TypeError(f"{self.name} returned {type(out).__name__}; return a dict of arrays")
        return {name: np.asarray(values) for name, values in out.items()}
