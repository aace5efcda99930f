"""pack: token lists → rows of fixed length."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

import numpy as np

from zephon_jax.columns import Ragged
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import Accumulator, OpTraits, RecordFailure
from zephon_jax.ops.fields import field_of, int32_ragged
from zephon_jax.ops.pack.bins import Bins, Leaving, first_fit
from zephon_jax.ops.pack.layout import lay_out
from zephon_jax.ops.split import cut_lists
from zephon_jax.origin import Origin
from zephon_jax.types import Int32s, LaneContext

__all__ = ["Pack"]

_OVERLONG: Final = ("split", "truncate", "drop", "error")


@dataclass(slots=True)
class _State:
    """Pieces 0, 1, 2, … that are in open bins, among them at most twice as many that have left."""

    bins: Bins
    parts: list[Int32s] = field(default_factory=list[Int32s])
    origin: Origin | None = None
    open: int = 0
    template: MicroBatch | None = None


class Pack(Accumulator[_State]):
    """First fit of `tokens` into rows of `max_length`.

    Gives int32 `tokens`, `segment_ids` (0 is padding, from 1 in each row) and `positions`, each (max_length,). Other
    fields are dropped, with one warning. Empty records are dropped and counted. `on_overlong` decides for records longer
    than a row: "split" in pieces, "truncate", "drop", or "error".
    """

    def __init__(
        self, max_length: int, *, algorithm: str = "first_fit", num_bins: int = 16, on_overlong: str = "split"
    ):
        if max_length < 1 or num_bins < 1:
            raise ConfigurationError(f"pack(max_length={max_length}, num_bins={num_bins}) must both be at least 1")
        if algorithm != "first_fit":
            raise ConfigurationError(f"pack(algorithm={algorithm!r}): this version has 'first_fit'")
        if on_overlong not in _OVERLONG:
            raise ConfigurationError(f"pack(on_overlong={on_overlong!r}) must be one of {list(_OVERLONG)}")
        self._capacity, self._num_bins, self._on_overlong = max_length, num_bins, on_overlong
        self.traits = OpTraits(preserves_cursor_order=False, expands=on_overlong == "split", buffer_records=num_bins)
        self.name = f"pack({max_length})"
        self._warned = False

    def identity(self) -> Mapping[str, Any]:
        return {
            "op": "pack", "max_length": self._capacity, "algorithm": "first_fit", "num_bins": self._num_bins,
            "on_overlong": self._on_overlong,
        }  # fmt: skip

    def init_state(self, ctx: LaneContext) -> _State:
        return _State(first_fit(self._capacity, self._num_bins))

    def push(self, state: _State, batch: MicroBatch) -> MicroBatch:
        if not len(batch):
            return batch
        batch, pieces = self._fitting(batch)
        state.template = batch.slice(0, 0)
        first = len(state.parts)
        leaving = state.bins.push(pieces.lengths.tolist(), first)
        state.parts += pieces.views()
        state.origin = batch.origin if state.origin is None else Origin.concat([state.origin, batch.origin])
        state.open += len(state.parts) - first - sum(map(len, leaving[0]))
        out = self._rows(state, leaving)
        if len(state.parts) > 3 * state.open + 64:  # amortised: a push costs what it brings, not what is open
            self._carry(state)
        return replace(batch, columns=out.columns, origin=out.origin) if out else batch.without_records()

    def flush(self, state: _State) -> MicroBatch | None:
        return self._rows(state, state.bins.flush())

    def _fitting(self, batch: MicroBatch) -> tuple[MicroBatch, Ragged]:
        """The records cut, shortened or dropped so that each has 1 to `max_length` tokens."""
        lists = int32_ragged(field_of(batch, "tokens", self.name), self.name, "tokens")
        if len(batch.columns) > 1 and not self._warned:
            self._warned = True
            others = sorted(set(batch.columns) - {"tokens"})
            warnings.warn(f"{self.name} drops the fields {others}, which cannot be packed", stacklevel=2)
        lengths = lists.lengths
        over = lengths > self._capacity
        if over.any() and self._on_overlong == "error":
            i = int(np.flatnonzero(over)[0])
            raise RecordFailure(i) from DataError(
                f"{self.name}: a record has {int(lengths[i])} tokens; split it, or pass on_overlong='split', 'truncate' or 'drop'"
            )
        batch = batch.with_columns({"tokens": lists})
        keep = (lengths > 0) & ~over if self._on_overlong == "drop" else lengths > 0
        batch = batch.keep(keep)
        lists = batch.columns["tokens"]
        assert isinstance(lists, Ragged)
        if over.any() and self._on_overlong == "split":
            counts, lists = cut_lists(lists, self._capacity)
            batch = batch.repeat(counts, {"tokens": lists})
        elif over.any() and self._on_overlong == "truncate":
            views = [v[: self._capacity] for v in lists.views()]
            lists = Ragged(np.concatenate(views), np.cumsum([0, *map(len, views)], dtype=np.int64))
        elif self._on_overlong == "split":  # same identity whether or not a neighbour was cut
            batch = batch.repeat(np.ones(len(batch), np.int64), {"tokens": lists})
        return batch, lists

    def _rows(self, state: _State, leaving: Leaving) -> MicroBatch | None:
        rows, room = leaving
        if not rows or state.template is None or state.origin is None:
            return None
        pieces = np.array(list(chain.from_iterable(rows)), np.int64)
        splits = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        columns = lay_out([[state.parts[p] for p in row] for row in rows], room, self._capacity)
        return replace(state.template, columns=columns, origin=state.origin.take(pieces).group(splits))

    def _carry(self, state: _State) -> None:
        """Keep what is in open bins. Views are copied, or one of them would keep its whole block alive."""
        assert state.origin is not None
        index = state.bins.renumber()
        state.parts = [p if p.base is None else p.copy() for p in map(state.parts.__getitem__, index)]
        state.origin = state.origin.take(np.array(index, np.int64))
