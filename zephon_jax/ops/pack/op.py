"""pack: token lists → rows of fixed length."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import Any

import numpy as np

from zephon_jax.deferred import DEFERRED
from zephon_jax.errors import DataError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import Accumulator, Fields, OpTraits, RecordFailure
from zephon_jax.ops.pack.bins import NO_LIMIT, BestFit, Bins, Rows, first_fit
from zephon_jax.ops.pack.cuts import BestFitWrap, Cuts, Cutter, Wrap
from zephon_jax.ops.pack.fields import Part, Parts, beside_parts, token_parts
from zephon_jax.ops.pack.groups import group_keys, runs_of
from zephon_jax.ops.pack.joint import JointFit
from zephon_jax.ops.pack.layout import PackedRow, laid_columns
from zephon_jax.ops.pack.settings import PackSettings, pack_settings
from zephon_jax.origin import Origin
from zephon_jax.types import Int64s, LaneContext

__all__ = ["Pack"]


@dataclass(slots=True)
class _State:
    """Pieces 0, 1, 2, … that are in open bins, among them at most twice as many that have left."""

    ctx: LaneContext
    bins: dict[Any, Bins | Cutter | JointFit] = field(
        default_factory=dict[Any, Any]
    )  # by group, in order of appearance
    parts: list[Part] = field(default_factory=list[Part])
    lengths: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))  # of parts
    waits: bool = False  # whether some part may stand in for one that a replay has not read
    beside: dict[str, list[Part]] = field(default_factory=dict[str, list[Part]])
    origin: Origin | None = None
    open: int = 0
    figures: dict[str, int] = field(default_factory=lambda: {"empty": 0, "overlong_dropped": 0, "truncated": 0})
    template: MicroBatch | None = None


class Pack(Accumulator[_State]):
    """Packs `tokens` of several records into rows of `max_length`.

    Gives int32 `tokens`, `segment_ids` (0 is padding, from 1 in each row) and `positions` (from 0 in each segment), each
    of shape (max_length,). Decisions need lengths only, so a restore repeats them without reading what was delivered.

    Args:
        max_length: Tokens in a row; or lengths by field, `{"tokens": 2048, "patches": 256}`, for records that bring
            several lists of lengths of their own. A record then fits where each of its lists does. Every field but
            `tokens` gives `F`, `F_segment_ids` and `F_positions`; its values may have more axes behind the first.
        algorithm: "first_fit"; "best_fit"; "wrap", documents end to end, cut where a row is full; or "best_fit_wrap", best
            fit that cuts a document only to fill a row that would leave with padding.
        num_bins: Rows open at once, up to 2**20; of each group, where there are groups. Not used by "wrap".
        on_overlong: For records longer than a row: "split" in pieces, "truncate", "drop", or "error". With the packings
            that wrap, "split" means that they are cut like any other. With several lengths it cannot be "split".
        max_segments: Pieces in a row at most.
        keep: Fields with one value (of any shape) per token that are packed, cut and padded with zeros like the tokens;
            64-bit values become those of 32 bits. Fields that are neither packed nor kept are dropped, with one warning.
        separate_datasets: Samples of different datasets share no row.
        separate_by: Records with different values (text, number or bytes) in this field share no row.

    Empty records are dropped and counted. At a flush every open row leaves, padded.
    """

    def __init__(
        self,
        max_length: int | Mapping[str, int],
        *,
        algorithm: str = "first_fit",
        num_bins: int = 16,
        on_overlong: str = "split",
        max_segments: int | None = None,
        keep: Iterable[str] = (),
        separate_datasets: bool = False,
        separate_by: str | None = None,
    ):
        self._settings = s = pack_settings(
            max_length, algorithm, num_bins, on_overlong, max_segments, keep, separate_datasets, separate_by
        )
        on_lengths = not s.other_lengths and s.separate_by is None
        self.traits = OpTraits(
            preserves_cursor_order=False,
            expands=s.cuts or on_overlong == "split",
            buffer_records=s.num_bins,
            replays_on_lengths=on_lengths,
            uses_lengths=on_lengths,
        )
        self.name = f"pack({s.max_length})"
        self._warned = False
        self._made_at = _line_outside()

    def identity(self) -> Mapping[str, Any]:
        return {"op": "pack", **self._settings.identity()}

    @property
    def field_names(self) -> Sequence[str]:
        """The fields that records must have."""
        s = self._settings
        return ["tokens", *s.other_lengths, *s.keep, *([s.separate_by] if s.separate_by else [])]

    def fields(self, before: Fields | None) -> Fields | None:
        s = self._settings
        row = ((s.max_length,), np.dtype(np.int32))
        made = dict.fromkeys(("tokens", "segment_ids", "positions"), row)
        known: Fields = {"loss_mask": ((), np.dtype(np.bool_)), **(before or {})}  # the mask is chat's
        if s.other_lengths or not all(name in known for name in s.keep):
            return None
        return {**made, **{name: ((s.max_length, *known[name][0][1:]), known[name][1]) for name in s.keep}}

    def init_state(self, ctx: LaneContext) -> _State:
        return _State(ctx, beside={name: [] for name in (*self._settings.keep, *self._settings.other_lengths)})

    def push(self, state: _State, batch: MicroBatch) -> MicroBatch:
        if not len(batch):
            return batch
        keys = group_keys(batch, self._settings, state.ctx, self.name)
        state.waits = state.waits or DEFERRED in batch.columns
        batch, parts, lengths, keys = self._admitted(batch, keys, state.figures)
        first = len(state.parts)
        cuts, rows = self._placed(state, lengths, keys, first)
        batch, parts = self._cut(batch, parts, lengths, cuts)
        state.template = batch.slice(0, 0)
        state.parts += parts.tokens
        new = lengths[:, 0] if cuts is None else np.array([*chain.from_iterable(cuts)], np.int64)
        state.lengths = np.concatenate([state.lengths, new])
        for name, held in state.beside.items():
            held += parts.beside[name]
        state.origin = batch.origin if state.origin is None else Origin.concat([state.origin, batch.origin])
        state.open += len(parts.tokens) - sum(map(len, rows))
        out = self._rows(state, rows)
        if len(state.parts) > 3 * state.open + 64:  # amortised: a push costs what it brings, not what is open
            self._carry(state)
        return replace(batch, columns=out.columns, origin=out.origin) if out else batch.without_records()

    def flush(self, state: _State) -> MicroBatch | None:
        return self._rows(state, [row for bins in state.bins.values() for row in bins.flush()])

    def figures(self, state: _State) -> Mapping[str, int]:
        return state.figures

    # -- what is packed --------------------------------------------------------------------------------------------
    def _admitted(
        self, batch: MicroBatch, keys: list[Any], figures: dict[str, int]
    ) -> tuple[MicroBatch, Parts, Int64s, list[Any]]:
        """The records that are packed, with their parts, and lengths (n, fields with a length of their own)."""
        s = self._settings
        tokens, counts = token_parts(batch, self.name)
        parts = Parts(tokens, {})
        self._warn_once(set(batch.columns) - {*self.field_names, DEFERRED})
        for name in (*s.keep, *s.other_lengths):
            parts.beside[name] = beside_parts(batch, name, parts.tokens if name in s.keep else None, self.name)
        others = [np.array([len(part) for part in parts.beside[name]], np.int64) for name in s.other_lengths]
        lengths = np.stack([counts, *others], axis=1)
        over = lengths > np.array([s.max_length, *s.other_lengths.values()])
        if over.any() and s.on_overlong == "error":
            i, which = (int(at[0]) for at in np.nonzero(over))
            what = ["tokens", *(f"values in {name!r}" for name in s.other_lengths)][which]
            ways = "'truncate' or 'drop'" if s.other_lengths else "'split', 'truncate' or 'drop'"
            raise RecordFailure(i) from DataError(
                f"{self.name}: a record has {int(lengths[i, which])} {what}; split it, or pass on_overlong={ways}"
            )
        keep = lengths[:, 0] > 0
        figures["empty"] += len(keep) - int(keep.sum())
        if s.on_overlong == "drop":
            keep &= ~over.any(axis=1)
            figures["overlong_dropped"] += int(over.any(axis=1).sum())
        batch = batch.with_columns({}).keep(keep)
        if not keep.all():
            kept = np.flatnonzero(keep).tolist()
            parts, lengths, over = parts.take(kept), lengths[keep], over[keep]
            keys = [keys[i] for i in kept] if keys else keys
        if s.on_overlong == "truncate" and over.any():
            figures["truncated"] += int(over.any(axis=1).sum())
            parts = parts.truncated(s.max_length, s.other_lengths)
            lengths = np.minimum(lengths, np.array([s.max_length, *s.other_lengths.values()]))
        return batch, parts, lengths, keys

    def _placed(self, state: _State, lengths: Int64s, keys: list[Any], first: int) -> tuple[Cuts | None, Rows]:
        """Where documents are cut (None: nowhere), and the rows that leave."""
        s = self._settings
        cuts: Cuts | None = None
        if not s.cuts and s.on_overlong == "split" and int(lengths.max(initial=0)) > s.max_length:
            cuts = [_equal_cuts(n, s.max_length) for n in lengths[:, 0].tolist()]
        rows: Rows = []
        found: Cuts = []
        for key, a, b in runs_of(keys, len(lengths)):
            bins = state.bins.get(key)
            if bins is None:
                bins = state.bins[key] = _bins(s)
            if isinstance(bins, JointFit):
                rows += bins.push(lengths[a:b], first + a)
            elif isinstance(bins, (Wrap, BestFitWrap)):
                made, left = bins.place(lengths[a:b, 0].tolist(), first)
                found += made
                first += sum(map(len, made))
                rows += left
            else:
                some = lengths[a:b, 0].tolist() if cuts is None else list(chain.from_iterable(cuts[a:b]))
                rows += bins.push(some, first)  # pyright: ignore[reportAttributeAccessIssue]
                first += len(some)
        return (found if s.cuts else cuts), rows

    def _cut(self, batch: MicroBatch, parts: Parts, lengths: Int64s, cuts: Cuts | None) -> tuple[MicroBatch, Parts]:
        """The documents as pieces, each with an identity of its own."""
        if not self.traits.expands:
            return batch.spanned(lengths[:, 0]), parts
        if cuts is None:
            return batch.repeat(np.ones(len(batch), np.int64), {}).spanned(lengths[:, 0]), parts
        counts = np.array([len(pieces) for pieces in cuts], np.int64)
        starts = [[0, *accumulate(pieces[:-1])] for pieces in cuts]
        flat, at = np.array([*chain.from_iterable(cuts)], np.int64), np.array([*chain.from_iterable(starts)], np.int64)
        return batch.repeat(counts, {}).spanned(flat, at), parts.cut(cuts)

    def _warn_once(self, dropped: set[str]) -> None:
        if "loss_mask" in dropped:
            raise DataError(
                f"{self.name} would drop 'loss_mask', and the loss would count everywhere; pass keep=['loss_mask'], or remove "
                "the field in a map"
            )
        if dropped and not self._warned:
            self._warned = True
            warnings.warn_explicit(  # this runs in a thread of its own, where no caller of the user's is found
                f"{self.name} drops the fields {sorted(dropped)}, which are not packed; keep= names those to keep",
                UserWarning,
                *self._made_at,
            )

    # -- what leaves -----------------------------------------------------------------------------------------------
    def _rows(self, state: _State, rows: Rows) -> MicroBatch | None:
        if not rows or state.template is None or state.origin is None:
            return None
        s = self._settings
        pieces = np.array(list(chain.from_iterable(rows)), np.int64)
        splits = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([*map(len, rows)], out=splits[1:])
        parts, nth = state.parts, np.arange(len(rows))
        lengths = np.zeros(len(pieces) + len(rows), np.int64)  # of each row's pieces, then of its padding
        lengths[np.arange(len(pieces)) + nth.repeat(splits[1:] - splits[:-1])] = own = state.lengths[pieces]
        rooms = s.max_length - np.add.reduceat(own, splits[:-1])
        lengths[splits[1:] + nth] = rooms
        starts = ((lengths.cumsum() - lengths) % s.max_length).astype(np.int32)
        packed: list[PackedRow] = []
        at = 0
        for row, room in zip(rows, rooms.tolist(), strict=True):
            stop = at + len(row) + 1
            beside = {name: [held[p] for p in row] for name, held in state.beside.items()} if state.beside else {}
            own = [parts[p] for p in row]
            packed.append(PackedRow(own, lengths[at:stop], starts[at:stop], room, beside, state.waits))
            at = stop
        columns = laid_columns(packed, s.max_length, s.keep, s.other_lengths)
        return replace(state.template, columns=columns, origin=state.origin.take(pieces).group(splits))

    def _carry(self, state: _State) -> None:
        """Keep what is in open bins. Views are copied, or one of them would keep its whole block alive."""
        assert state.origin is not None
        index: list[int] = []
        for bins in state.bins.values():
            index += bins.renumber(len(index))
        state.parts = [_detached(state.parts[i]) for i in index]
        state.beside = {name: [_detached(held[i]) for i in index] for name, held in state.beside.items()}
        kept = np.array(index, np.int64)
        state.lengths, state.origin = state.lengths[kept], state.origin.take(kept)


def _bins(s: PackSettings) -> Bins | Cutter | JointFit:
    most = s.max_segments or NO_LIMIT
    if s.other_lengths:
        lengths = [s.max_length, *s.other_lengths.values()]
        return JointFit(lengths, s.num_bins, most, best=s.algorithm == "best_fit")
    match s.algorithm:
        case "first_fit":
            return first_fit(s.max_length, s.num_bins, most)
        case "best_fit":
            return BestFit(s.max_length, s.num_bins, most)
        case "wrap":
            return Wrap(s.max_length, most)
        case _:
            return BestFitWrap(s.max_length, s.num_bins, most)


def _line_outside() -> tuple[str, int]:
    """File and line from which this package was called: where the pipeline says `pack`."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(__name__.partition(".")[0] + "."):
        frame = frame.f_back
    return (__file__, 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _equal_cuts(n: int, size: int) -> list[int]:
    whole, rest = divmod(n, size)
    return [size] * whole + ([rest] if rest else [])


def _detached(part: Part) -> Part:
    return part.copy() if isinstance(part, np.ndarray) and part.base is not None else part
