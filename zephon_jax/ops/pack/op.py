"""pack: token lists → rows of fixed length."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np

from zephon_jax.columns import Objects, take
from zephon_jax.deferred import DEFERRED, Deferred, Piece
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import Accumulator, OpTraits, RecordFailure, checked_int
from zephon_jax.ops.fields import field_of, int32_ragged
from zephon_jax.ops.pack.bins import Bins, Leaving, first_fit
from zephon_jax.ops.pack.layout import PackedRow, laid_columns
from zephon_jax.origin import Origin
from zephon_jax.types import Int32s, Int64s, LaneContext

__all__ = ["Pack"]

Part: TypeAlias = Int32s | Piece
"""A piece's tokens, or what stands in for them in a replay."""

_OVERLONG: Final = ("split", "truncate", "drop", "error")


@dataclass(slots=True)
class _State:
    """Pieces 0, 1, 2, … that are in open bins, among them at most twice as many that have left."""

    bins: Bins
    parts: list[Part] = field(default_factory=list[Part])
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
        max_length = checked_int("pack", "max_length", max_length, 1)
        num_bins = checked_int("pack", "num_bins", num_bins, 1)
        if algorithm != "first_fit":
            raise ConfigurationError(f"pack(algorithm={algorithm!r}): this version has 'first_fit'")
        if on_overlong not in _OVERLONG:
            raise ConfigurationError(f"pack(on_overlong={on_overlong!r}) must be one of {list(_OVERLONG)}")
        self._capacity, self._num_bins, self._on_overlong = max_length, num_bins, on_overlong
        self.traits = OpTraits(
            preserves_cursor_order=False,
            expands=on_overlong == "split",
            buffer_records=num_bins,
            replays_on_lengths=True,
            uses_lengths=True,
        )
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
        batch, parts, lengths = self._fitting(batch)
        state.template = batch.slice(0, 0)
        first = len(state.parts)
        leaving = state.bins.push(lengths.tolist(), first)
        state.parts += parts
        state.origin = batch.origin if state.origin is None else Origin.concat([state.origin, batch.origin])
        state.open += len(state.parts) - first - sum(map(len, leaving[0]))
        out = self._rows(state, leaving)
        if len(state.parts) > 3 * state.open + 64:  # amortised: a push costs what it brings, not what is open
            self._carry(state)
        return replace(batch, columns=out.columns, origin=out.origin) if out else batch.without_records()

    def flush(self, state: _State) -> MicroBatch | None:
        return self._rows(state, state.bins.flush())

    def _fitting(self, batch: MicroBatch) -> tuple[MicroBatch, list[Part], Int64s]:
        """The records cut, shortened or dropped so that each has 1 to `max_length` tokens; their tokens, and how many."""
        parts, lengths = self._parts(batch)
        size = self._capacity
        over = lengths > size
        if over.any() and self._on_overlong == "error":
            i = int(np.flatnonzero(over)[0])
            raise RecordFailure(i) from DataError(
                f"{self.name}: a record has {int(lengths[i])} tokens; split it, or pass on_overlong='split', 'truncate' or 'drop'"
            )
        keep = (lengths > 0) & ~over if self._on_overlong == "drop" else lengths > 0
        batch = batch.with_columns({}).keep(keep)
        parts, lengths, over = [parts[i] for i in np.flatnonzero(keep).tolist()], lengths[keep], over[keep]
        if self._on_overlong == "split":
            counts = -(-lengths // size)
            child = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            if over.any():
                parts = _cut(parts, np.flatnonzero(over).tolist(), counts.tolist(), size)
            lengths = np.minimum(np.repeat(lengths, counts) - child * size, size)
            batch = batch.repeat(counts, {}).spanned(lengths, child * size)
        elif over.any():  # "truncate"
            parts = [_span(part, 0, min(size, len(part))) for part in parts]
            lengths = np.minimum(lengths, size)
            batch = batch.spanned(lengths)
        else:
            batch = batch.spanned(lengths)
        return batch, parts, lengths

    def _parts(self, batch: MicroBatch) -> tuple[list[Part], Int64s]:
        """Each record's tokens, and how many; those of a replay may not have been read."""
        handles = batch.columns.get(DEFERRED)
        if not isinstance(handles, Objects):
            lists = int32_ragged(field_of(batch, "tokens", self.name), self.name, "tokens")
            self._warn_once(set(batch.columns) - {"tokens"})
            return list(lists.views()), lists.lengths
        parts: list[Any] = [Piece(h, 0, h.length) if isinstance(h, Deferred) else None for h in handles.items]
        read = np.flatnonzero([part is None for part in parts])
        if len(read):
            tokens = take(batch.columns["tokens"], read)
            for i, view in zip(read.tolist(), int32_ragged(tokens, self.name, "tokens").views(), strict=True):
                parts[i] = view
        return parts, np.array([len(part) for part in parts], np.int64)

    def _warn_once(self, dropped: set[str]) -> None:
        if dropped and not self._warned:
            self._warned = True
            warnings.warn(f"{self.name} drops the fields {sorted(dropped)}, which cannot be packed", stacklevel=2)

    def _rows(self, state: _State, leaving: Leaving) -> MicroBatch | None:
        rows, room = leaving
        if not rows or state.template is None or state.origin is None:
            return None
        pieces = np.array(list(chain.from_iterable(rows)), np.int64)
        splits = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        packed: list[PackedRow] = []
        for row, left in zip(rows, room, strict=True):
            parts = [state.parts[p] for p in row]
            packed.append(PackedRow(parts, [len(part) for part in parts], left))
        columns = laid_columns(packed, self._capacity)
        return replace(state.template, columns=columns, origin=state.origin.take(pieces).group(splits))

    def _carry(self, state: _State) -> None:
        """Keep what is in open bins. Views are copied, or one of them would keep its whole block alive."""
        assert state.origin is not None
        index = state.bins.renumber()
        state.parts = [_detached(state.parts[i]) for i in index]
        state.origin = state.origin.take(np.array(index, np.int64))


def _span(part: Part, start: int, stop: int) -> Part:
    return part.cut(start, stop) if isinstance(part, Piece) else part[start:stop]


def _cut(parts: list[Part], long: list[int], counts: list[int], size: int) -> list[Part]:
    """Cut the parts numbered in `long` into pieces of `size`. Python touches only these."""
    out: list[Part] = []
    at = 0
    for i in long:
        out += parts[at:i]
        out += [_span(parts[i], k * size, min((k + 1) * size, len(parts[i]))) for k in range(counts[i])]
        at = i + 1
    return out + parts[at:]


def _detached(part: Part) -> Part:
    return part if isinstance(part, Piece) or part.base is None else part.copy()
