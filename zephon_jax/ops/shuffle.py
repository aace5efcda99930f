"""shuffle: a streaming buffer with exact per-record semantics, decided for a micro-batch at once.

Per record the rule is: draw a slot, hand out what is in it, put the newcomer there. Within a micro-batch of n newcomers
the record handed out at step t is the newcomer of the PREVIOUS step that drew the same slot, or else what the slot held
before; the slot keeps the newcomer of the LAST step that drew it. One stable argsort of the draws finds both. So the
result does not depend on how the stream is cut into micro-batches, and each dense record is copied twice, in bulk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon_jax.columns import MISSING, Column, Columns, Dense, Laid, Objects, from_values, row_values
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import Accumulator, Fields, OpTraits, checked_int
from zephon_jax.ops.randomness import Draws
from zephon_jax.origin import Origin
from zephon_jax.types import Int64s, LaneContext

__all__ = ["Shuffle"]


class _Slots:
    """One field's values in the buffer: an array written in place while all values are alike, else a list.

    Rows that are laid out late stay so: the list then holds their items, and `lay` is how they become arrays.
    """

    def __init__(self, size: int, count: int):
        self._size = size
        self._dense: NDArray[Any] | None = None
        self._list: list[Any] = [MISSING] * count
        self._lay: Callable[[list[Any]], NDArray[Any]] | None = None

    def exchange(
        self, column: Column, count: int, slot: Int64s, plan: _Exchange, detached: Callable[[Laid], list[Any]]
    ) -> Column:
        """Append the first newcomers to `count` held values, then exchange the rest at `slot`; the values that leave."""
        if not count:
            self._begin(column)
        if self._dense is not None and isinstance(column, Dense) and _alike(column.values, self._dense):
            self._dense = _grown(self._dense, count, plan.fill, self._size)
            return self._exchange_dense(self._dense, column.values, count, slot, plan)
        if isinstance(column, Laid) and self._lay == column.lay:
            return Laid(self._exchange_list(detached(column), slot, plan), column.lay)
        self._as_values(count)
        # Copies, or a view of one record keeps the block that it was read with alive.
        values = [v.copy() if isinstance(v, np.ndarray) else v for v in row_values(column)]
        return from_values(self._exchange_list(values, slot, plan))

    def _begin(self, column: Column) -> None:
        if isinstance(column, Dense):
            self._dense = np.empty((0, *column.values.shape[1:]), column.values.dtype)
        elif isinstance(column, Laid):
            self._lay = column.lay

    def _as_values(self, count: int) -> None:
        """Hold row values from now on: stored differently, they stay the same."""
        if self._dense is not None:
            self._list, self._dense = list(self._dense[:count].copy()), None
        if self._lay is not None:
            self._list, self._lay = row_values(Laid(self._list, self._lay)), None

    @staticmethod
    def _exchange_dense(held: NDArray[Any], values: NDArray[Any], count: int, slot: Int64s, plan: _Exchange) -> Column:
        fill = plan.fill
        held[count : count + fill] = values[:fill]
        new = values[fill:]
        out = held.take(slot, axis=0)  # right but for the few that drew a slot of this micro-batch
        out[plan.late] = new[plan.before]
        held[slot[plan.final]] = new[plan.final]
        return Dense(out)

    def _exchange_list(self, values: list[Any], slot: Int64s, plan: _Exchange) -> list[Any]:
        held = self._list
        held.extend(values[: plan.fill])
        new, out = values[plan.fill :], [held[s] for s in slot.tolist()]
        for t, b in zip(plan.late.tolist(), plan.before.tolist(), strict=True):
            out[t] = new[b]
        for t in plan.final.tolist():
            held[int(slot[t])] = new[t]
        return out

    def column(self, order: Int64s) -> Column:
        """The values held, in this order."""
        if self._dense is not None:
            return Dense(self._dense.take(order, axis=0))
        values = [self._list[i] for i in order.tolist()]
        return from_values(values) if self._lay is None else Laid(values, self._lay)


def _grown(held: NDArray[Any], count: int, fill: int, size: int) -> NDArray[Any]:
    """Room for `fill` more: doubled, so that a buffer larger than the data costs no more than the data."""
    if count + fill <= len(held):
        return held
    wider = np.empty((min(size, max(2 * len(held), count + fill)), *held.shape[1:]), held.dtype)
    wider[:count] = held[:count]
    return wider


def _alike(values: NDArray[Any], held: NDArray[Any]) -> bool:
    return values.dtype == held.dtype and values.shape[1:] == held.shape[1:]


@dataclass(frozen=True, slots=True)
class _Exchange:
    """For newcomers behind the first `fill`: step late[j] hands out newcomer before[j]; the steps `final` leave theirs."""

    fill: int
    late: Int64s
    before: Int64s
    final: Int64s


def _plan_exchange(slot: Int64s, fill: int) -> _Exchange:
    order = slot.argsort(kind="stable")
    again = np.zeros(len(slot), np.bool_)  # in `order`: the same slot as the one before
    again[1:] = slot[order[1:]] == slot[order[:-1]]
    final = order[~np.append(again[1:], False)] if len(slot) else order
    return _Exchange(fill, order[again], order[:-1][again[1:]], final)


@dataclass(slots=True)
class _State:
    draws: Draws
    template: MicroBatch | None = None
    count: int = 0
    fields: dict[str, _Slots] = field(default_factory=dict[str, _Slots])
    origin: Origin | None = None


class Shuffle(Accumulator[_State]):
    """Records leave in random order, at most `buffer_size` held per lane."""

    def __init__(self, buffer_size: int, *, seed: int = 0):
        self._size = checked_int("shuffle", "buffer_size", buffer_size, 1)
        self._seed = checked_int("shuffle", "seed", seed, -(2**63), 2**63)
        self.traits = OpTraits(
            preserves_cursor_order=False, buffer_records=buffer_size, replays_on_lengths=True, keeps_count=True
        )
        self.name = f"shuffle({buffer_size})"

    def identity(self) -> Mapping[str, Any]:
        return {"op": "shuffle", "buffer_size": self._size, "seed": self._seed}

    def fields(self, before: Fields | None) -> Fields | None:
        return before

    def init_state(self, ctx: LaneContext) -> _State:
        return _State(Draws(self._seed, ctx))

    def push(self, state: _State, batch: MicroBatch) -> MicroBatch:
        n = len(batch)
        if not n:
            return batch
        count, fill = state.count, min(n, self._size - state.count)
        slot = state.draws.below(self._size, n - fill)
        plan = _plan_exchange(slot, fill)
        out = self._exchange_fields(state, batch.columns, n, slot, plan)
        origin = batch.origin if state.origin is None else Origin.concat([state.origin, batch.origin])
        held = np.arange(count + fill)
        leaving = slot.copy()
        leaving[plan.late] = count + fill + plan.before
        held[slot[plan.final]] = count + fill + plan.final
        state.origin, state.count = origin.take(held), count + fill
        state.template = batch.slice(0, 0)
        return replace(batch, columns=out, origin=origin.take(leaving))

    def _exchange_fields(
        self, state: _State, columns: Columns, n: int, slot: Int64s, plan: _Exchange
    ) -> dict[str, Column]:
        out: dict[str, Column] = {}
        made: dict[int, list[Any]] = {}

        def detached(column: Laid) -> list[Any]:
            """The rows without views; the fields of packed rows share them."""
            if id(column.items) not in made:
                made[id(column.items)] = [item.detached() for item in column.items]
            return made[id(column.items)]

        for name in dict.fromkeys([*state.fields, *columns]):
            if name not in state.fields:
                state.fields[name] = _Slots(self._size, state.count)
            column = columns[name] if name in columns else Objects([MISSING] * n)
            out[name] = state.fields[name].exchange(column, state.count, slot, plan, detached)
        return out

    def flush(self, state: _State) -> MicroBatch | None:
        if state.template is None or state.origin is None:
            return None
        order = state.draws.permutation(state.count)
        columns = {name: slots.column(order) for name, slots in state.fields.items()}
        return replace(state.template, columns=columns, origin=state.origin.take(order))
