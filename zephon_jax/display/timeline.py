"""A lane's chunks in the order in which they are drawn: what is forgotten, what a resume replays, what is read ahead. Pure.

One picture answers "why does a resume replay what it replays": the newest chunk in a delivered row (T) stands in a flush
epoch, the epoch began at a sentinel, where no operator held anything back, and so everything from there to T is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from zephon_jax.display.page import box, heading, listed, table, told
from zephon_jax.display.svg import GREY, INK, PALETTE, Drawing, number, wrapped
from zephon_jax.display.words import counted

__all__ = ["ChunkMark", "LaneTimeline", "Timeline", "timeline_svg"]

_WIDTH, _TOP = 900, 36
_BOX = 26
_WIDEST, _NARROWEST = 84.0, 7.0
_ROOM = _WIDTH - 210.0  # what is left for chunks beside the block of forgotten ones and the next chunk
_LANES_DRAWN, _LANES_LISTED = 8, 50
_LANES_TOLD: Final = 16

State = Literal["kept", "ahead", "dropped"]
_IN_WORDS: Final = {
    "kept": "in flight: kept by a checkpoint, replayed after a resume",
    "ahead": "read ahead, nothing of it delivered: a resume draws it again",
    "dropped": "all of it was dropped: forgotten",
}


@dataclass(frozen=True, slots=True)
class ChunkMark:
    """A chunk that is drawn. `closed`: of its `size` samples, those of which everything is done; None if not known."""

    number: int
    size: int
    state: State
    closed: int | None = None


@dataclass(frozen=True, slots=True)
class LaneTimeline:
    """One lane at a cut.

    `every`: chunks in a flush epoch, None if a watermark suffices. `chunks`: those not forgotten, ascending, and without
    gaps. `cursor`: of the last row delivered; `delivered`: rows of T's epoch that were delivered; `rows`: of the lane since
    the start. `continues`: the work source's state behind T, in words; `live`: from an iterator, which knows what is
    read ahead.
    """

    lane: int
    every: int | None
    chunks: tuple[ChunkMark, ...]
    cursor: tuple[int, ...] | None
    delivered: int
    rows: int
    continues: str
    live: bool

    @property
    def kept(self) -> tuple[ChunkMark, ...]:
        """The chunks in flight: a checkpoint of this cut names them."""
        return tuple(chunk for chunk in self.chunks if chunk.state == "kept")

    @property
    def top(self) -> int | None:
        """T: the newest chunk with a part in a delivered row; None before the first."""
        kept = self.kept
        return kept[-1].number if kept else None

    @property
    def forgotten(self) -> int:
        """How many chunks before those in flight are forgotten."""
        return self.kept[0].number if self.kept else 0

    def why(self) -> str:
        """What a resume from this cut replays, and why."""
        kept = self.kept
        if not kept:
            return "Nothing was delivered yet: a resume starts at chunk 0, and replays nothing."
        samples, which = sum(chunk.size for chunk in kept), _range([chunk.number for chunk in kept])
        rows = "first row" if self.delivered == 1 else f"first {self.delivered:,} rows"
        again = f"a resume replays {which} ({counted(samples, 'sample')}) and drops the {rows}, up to {self.cursor}"
        if self.every is None:
            return f"No operator holds records back, so older chunks are done: {again}."
        number = kept[0].number // self.every
        began = f"which began empty at the sentinel before chunk {kept[0].number}"
        return f"T = {kept[-1].number} is in epoch {number}, {began}: {again}."


@dataclass(frozen=True, slots=True)
class Timeline:
    """The lanes of an iterator or of a checkpoint at one cut. `str()` gives text; a notebook draws it.

    `title` says which cut it is; `lanes` are ascending.
    """

    title: str
    lanes: tuple[LaneTimeline, ...]

    def __str__(self) -> str:
        lines = [self.title, _summary(self.lanes)]
        for lane in self.lanes[:_LANES_TOLD]:
            lines += [f"lane {lane.lane}: {_as_text(lane)}", f"  {lane.why()}"]
        if len(self.lanes) > _LANES_TOLD:
            lines.append(f"and {len(self.lanes) - _LANES_TOLD:,} more lanes")
        elif self.lanes:
            lines.append("▓ in flight, T its last   ░ read ahead   · forgotten   | sentinel")
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        drawn = self.lanes[:_LANES_DRAWN]
        parts = [heading(self.title), listed([("lanes", _summary(self.lanes))])]
        for lane in drawn:
            drawing = Drawing(_WIDTH)
            parts.append(drawing.embedded(_lane(drawing, 0, lane), f"chunks of lane {lane.lane}", least=640))
            parts.append(told(lane.why()))
        drawing = Drawing(_WIDTH)
        parts.append(drawing.embedded(_legend(drawing, 6, drawn), "legend", least=640))
        if len(self.lanes) > len(drawn):
            listed_lanes = self.lanes[:_LANES_LISTED]
            left = len(self.lanes) - len(listed_lanes)
            parts.append(lanes_table(listed_lanes, more=f"and {left:,} more lanes" if left else ""))
        return box(*parts)

    def svg(self) -> str:
        """The picture alone, as the text of an SVG file; at most 8 lanes."""
        return timeline_svg(self)


def timeline_svg(timeline: Timeline) -> str:
    """A file of its own."""
    drawing = Drawing(_WIDTH)
    drawing.text(0, 12, timeline.title, size=13, bold=True, room=_WIDTH)
    return drawing.standalone(_draw(drawing, timeline.lanes[:_LANES_DRAWN], 22), timeline.title)


def lanes_table(lanes: Sequence[LaneTimeline], *, more: str = "") -> str:
    """A line per lane."""
    return table(
        ("lane", "rows", "forgotten", "in flight", "samples in flight", "read ahead", "last row"),
        [
            (
                lane.lane,
                lane.rows,
                lane.forgotten,
                len(lane.kept),
                sum(chunk.size for chunk in lane.kept),
                sum(chunk.state == "ahead" for chunk in lane.chunks),
                "" if lane.cursor is None else str(lane.cursor),
            )
            for lane in lanes
        ],
        more=more,
    )


def _summary(lanes: Sequence[LaneTimeline]) -> str:
    if not lanes:
        return "no lanes"
    kept = sorted(len(lane.kept) for lane in lanes)
    samples = sum(chunk.size for lane in lanes for chunk in lane.kept)
    spread = f"{kept[0]}" if kept[0] == kept[-1] else f"{kept[0]} to {kept[-1]}"
    return (
        f"{counted(len(lanes), 'lane')}, {counted(sum(lane.rows for lane in lanes), 'row')} delivered; a resume "
        f"replays {counted(sum(kept), 'chunk')} ({counted(samples, 'sample')}), {spread} per lane"
    )


def _range(numbers: Sequence[int]) -> str:
    return f"chunk {numbers[0]}" if len(numbers) == 1 else f"chunks {numbers[0]} to {numbers[-1]}"


def _as_text(lane: LaneTimeline) -> str:
    """`· 0-23 | ▓▓▓ 24-26 ░░ 27-28`, at most some eighty characters."""
    parts = [f"· 0-{lane.forgotten - 1}"] if lane.forgotten else []
    runs: list[tuple[State, list[ChunkMark]]] = []
    for chunk in lane.chunks:
        if runs and runs[-1][0] == chunk.state and not _starts_epoch(lane, chunk):
            runs[-1][1].append(chunk)
        else:
            runs.append((chunk.state, [chunk]))
    for state, run in runs[:12]:
        if _starts_epoch(lane, run[0]):
            parts.append("|")
        sign = {"kept": "▓", "ahead": "░", "dropped": "·"}[state] * min(len(run), 16)
        parts.append(f"{sign} {run[0].number}" + (f"-{run[-1].number}" if len(run) > 1 else ""))
    return " ".join(parts) or "nothing drawn yet"


def _starts_epoch(lane: LaneTimeline, chunk: ChunkMark) -> bool:
    return lane.every is not None and chunk.number % lane.every == 0


# -- the picture ---------------------------------------------------------------------------------------------------
def _draw(d: Drawing, lanes: Sequence[LaneTimeline], y: float = 0) -> float:
    for lane in lanes:
        y = _lane(d, y, lane) + 16
        for line in wrapped(lane.why(), _WIDTH, 12):
            d.text(0, y, line)
            y += 16
        y += 8
    return _legend(d, y + 6, lanes)


def _lane(d: Drawing, y: float, lane: LaneTimeline) -> float:
    d.text(0, y + 15, f"lane {lane.lane}", bold=True)
    d.text(74, y + 15, f"{counted(lane.rows, 'row')} delivered", size=11, faint=True)
    y, x = y + _TOP + 14, 6.0  # room for the sentinel before chunk 0
    if lane.forgotten:
        d.rect(x, y, 100, _BOX, stroke=GREY, dashed=True, radius=3, tip="done: every sample delivered or dropped")
        d.text(
            50,
            y + 17,
            f"0 to {lane.forgotten - 1:,}" if lane.forgotten > 1 else "0",
            size=11,
            anchor="middle",
            faint=True,
        )
        d.text(50, y + _BOX + 14, "forgotten", size=11, anchor="middle", faint=True)
        x = 108
    width, per = _scale(len(lane.chunks))
    starts: dict[int, float] = {}
    chunks = lane.chunks
    for at in range(0, len(chunks), per):
        group = chunks[at : at + per]
        starts[group[0].number] = x
        _sentinel_at(d, x, y, lane, group)
        _group(d, x, y, width, group, lane.top)
        x += width
    if chunks:
        starts[chunks[-1].number + 1] = x
    after = chunks[-1].number + 1 if chunks else 0
    if lane.every is not None and after % lane.every == 0:
        _sentinel(d, x, y, f"sentinel before chunk {after}", dashed=True)
    shown = min(max(width, 30), _WIDEST)
    d.rect(
        x + 3,
        y,
        shown,
        _BOX,
        stroke=GREY,
        dashed=True,
        radius=3,
        tip=f"chunk {after} will be drawn next: {lane.continues}",
    )
    d.text(x + 3 + shown / 2, y + 17, after, size=11, anchor="middle", faint=True, room=shown)
    d.text(x + 3 + shown / 2, y + _BOX + 14, "next", size=11, anchor="middle", faint=True)
    if lane.kept:
        _bracket(d, y, lane, starts, width, per)
    return y + _BOX + 34


def _scale(chunks: int) -> tuple[float, int]:
    """Pixels of a box, and how many chunks share one."""
    width = min(_WIDEST, _ROOM / max(chunks, 1))
    if width >= _NARROWEST:
        return width, 1
    per = -(-chunks * int(_NARROWEST) // int(_ROOM))
    return _ROOM / -(-chunks // per), per


def _group(d: Drawing, x: float, y: float, width: float, group: Sequence[ChunkMark], top: int | None) -> None:
    states = {state: sum(chunk.state == state for chunk in group) for state in ("kept", "ahead", "dropped")}
    state = "kept" if states["kept"] else group[0].state
    size = sum(chunk.size for chunk in group)
    closed = None if any(chunk.closed is None for chunk in group) else sum(chunk.closed or 0 for chunk in group)
    words = _IN_WORDS[state]
    if states[state] < len(group):
        words = f"{states['kept']:,} of them in flight, {states['ahead']:,} read ahead, {states['dropped']:,} forgotten"
    tip = f"{_range([chunk.number for chunk in group])}: {counted(size, 'sample')}, {words}"
    tip += "" if closed is None else f"; {closed:,} are done"
    holds_top = any(chunk.number == top for chunk in group)
    inner = width - 2
    if state == "kept":
        if closed:
            done = _BOX * closed / max(size, 1)
            d.rect(x, y + _BOX - done, inner, done, fill=PALETTE[0])
        d.rect(x, y, inner, _BOX, fill=PALETTE[0], opacity=0.35, radius=2, tip=tip)
    elif state == "ahead":
        d.rect(x, y, inner, _BOX, fill=PALETTE[1], opacity=0.25, stroke=PALETTE[1], radius=2, tip=tip)
        d.hatch(x, y, inner, _BOX, stroke=PALETTE[1])
    else:
        d.rect(x, y, inner, _BOX, stroke=GREY, dashed=True, radius=2, tip=tip)
    if holds_top:
        d.rect(x, y, inner, _BOX, stroke="currentColor", thick=2.5, radius=2)
    if width >= 22:
        ink = INK if state == "kept" and closed is not None and closed * 2 > size else "currentColor"
        d.text(x + inner / 2, y + 17, group[0].number, size=11, anchor="middle", fill=ink, room=inner)


def _sentinel_at(d: Drawing, x: float, y: float, lane: LaneTimeline, group: Sequence[ChunkMark]) -> None:
    found = [chunk.number for chunk in group if _starts_epoch(lane, chunk)]
    if found:
        _sentinel(d, x, y, f"sentinel before chunk {found[0]}: all operators gave away what they held", dashed=False)


def _sentinel(d: Drawing, x: float, y: float, tip: str, *, dashed: bool) -> None:
    at = x - 1
    d.path(f"M{number(at)} {number(y - 10)}V{number(y + _BOX + 4)}", thick=2, dashed=dashed)
    d.path(
        f"M{number(at)} {number(y - 16)}l5 6h-10Z",
        stroke="currentColor",
        fill="none" if dashed else "currentColor",
        tip=tip,
    )


def _bracket(d: Drawing, y: float, lane: LaneTimeline, starts: dict[int, float], width: float, per: int) -> None:
    """Below: what a resume replays. Above: T with the cursor of the last row."""
    kept = lane.kept
    offset = lane.chunks[0].number
    left = starts[kept[0].number - (kept[0].number - offset) % per]
    top = starts[kept[-1].number - (kept[-1].number - offset) % per]
    right = top + width - 2
    under = y + _BOX + 5
    d.path(f"M{number(left)} {number(under)}v5H{number(right)}v-5", thick=1.5)
    _centred(d, (left + right) / 2, under + 20, f"replayed: {_range([chunk.number for chunk in kept])}", left - 40)
    shown = f"T = {kept[-1].number}, last row {lane.cursor}"
    at = top + width / 2 - 1
    d.path(f"M{number(at)} {number(y - 6)}v4", thick=1.5)
    _centred(d, at, y - 21 if lane.every is not None else y - 9, shown, 0)


def _centred(d: Drawing, x: float, y: float, text: str, least: float) -> None:
    """Around `x`, but inside the picture."""
    half = 3.1 * len(text)
    d.text(min(max(x, least + half, half), _WIDTH - half), y, text, size=11, anchor="middle")


def _legend(d: Drawing, y: float, lanes: Sequence[LaneTimeline]) -> float:
    live = any(lane.live for lane in lanes)
    sentinels = any(lane.every is not None for lane in lanes)
    x = 0.0
    d.rect(x, y, 14, 12, fill=PALETTE[0], opacity=0.35)
    if live:
        d.rect(x, y + 5, 14, 7, fill=PALETTE[0])
    words = "in flight, filled as far as it is done" if live else "in flight"
    d.text(x + 20, y + 10, words, size=11, faint=True)
    x += 36 + 5.4 * len(words)
    d.rect(x, y, 14, 12, stroke="currentColor", thick=2.5)
    d.text(x + 20, y + 10, "T, newest in a delivered row", size=11, faint=True)
    x += 190
    if live:
        d.rect(x, y, 14, 12, fill=PALETTE[1], opacity=0.25, stroke=PALETTE[1])
        d.hatch(x, y, 14, 12, stroke=PALETTE[1])
        d.text(x + 20, y + 10, "read ahead", size=11, faint=True)
        x += 100
    d.rect(x, y, 14, 12, stroke=GREY, dashed=True)
    d.text(x + 20, y + 10, "forgotten, or not drawn yet", size=11, faint=True)
    x += 190
    if sentinels:
        d.path(f"M{number(x)} {number(y)}l5 6h-10Z", stroke="currentColor", fill="currentColor")
        d.line(x, y + 6, x, y + 14, thick=2)
        d.text(x + 10, y + 10, "sentinel", size=11, faint=True)
    return y + 20
