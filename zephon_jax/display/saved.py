"""A checkpoint in tables and timelines, alone or beside another. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from zephon_jax.display.page import Cell, box, heading, listed, table
from zephon_jax.display.svg import bounded, escaped
from zephon_jax.display.timeline import Timeline

__all__ = ["Saved", "SavedLane", "compared_html", "documents_html", "saved_html"]

_MOST_LANES, _MOST_LINES = 50, 200


@dataclass(frozen=True, slots=True)
class SavedLane:
    """A lane's part: names of columns with their values as text, and its number."""

    lane: int
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Saved:
    """What is shown of a state: each part is names with values, as text."""

    title: str
    facts: tuple[tuple[str, str], ...]
    datasets: tuple[tuple[str, str], ...]
    plan: tuple[tuple[str, str], ...]
    lanes: tuple[SavedLane, ...]
    timeline: Timeline


def saved_html(saved: Saved) -> str:
    """One state."""
    shown = saved.lanes[:_MOST_LANES]
    names = _columns(shown)
    left = len(saved.lanes) - len(shown)
    return box(
        listed(saved.facts),
        heading("datasets"),
        table(("dataset", "what it is, and how far it is drawn"), _cut(saved.datasets), more=_left(saved.datasets)),
        heading("lanes"),
        table(
            ("lane", *names),
            [(lane.lane, *(Cell(lane.values.get(n, ""), left=True) for n in names)) for lane in shown],
            more=f"and {left:,} more lanes" if left else "",
        ),
        saved.timeline._repr_html_(),  # pyright: ignore[reportPrivateUsage]  - the notebook's name for it
        heading("plan"),
        table(("part", "value"), _cut(saved.plan), more=_left(saved.plan)),
    )


def compared_html(first: Saved, second: Saved, differences: Sequence[str]) -> str:
    """Two states beside each other; what differs is marked. `differences`: the same in words."""
    lines = "".join(f"<li>{escaped(bounded(line))}</li>" for line in differences[:_MOST_LINES])
    return box(
        heading("what differs"),
        f'<ul style="margin:0;overflow-wrap:anywhere;font-size:13px">{lines}</ul>',
        _left_of(len(differences), "differences"),
        heading("beside each other"),
        _beside(first.facts, second.facts),
        heading("datasets"),
        _beside(first.datasets, second.datasets),
        heading("lanes"),
        _lanes_beside(first.lanes, second.lanes),
        heading("timelines: the first above, the second below"),
        first.timeline._repr_html_(),  # pyright: ignore[reportPrivateUsage]
        second.timeline._repr_html_(),  # pyright: ignore[reportPrivateUsage]
        heading("plan"),
        _beside(first.plan, second.plan),
    )


def documents_html(title: str, lines: Iterable[str]) -> str:
    """Lines of text, at most so many that a page stays a page."""
    every = list(lines)
    body = "\n".join(escaped(bounded(line)) for line in every[: 10 * _MOST_LINES])
    more = len(every) - 10 * _MOST_LINES
    note = f'<div style="opacity:.75">and {more:,} more lines</div>' if more > 0 else ""
    return box(
        heading(title),
        f'<pre style="white-space:pre-wrap;overflow-wrap:anywhere;font-size:12px;margin:0">{body}</pre>{note}',
    )


def _columns(lanes: Sequence[SavedLane]) -> list[str]:
    return list(dict.fromkeys(name for lane in lanes for name, value in lane.values.items() if value))


def _cut(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in pairs[:_MOST_LINES]]


def _left(pairs: Sequence[object]) -> str:
    return f"and {len(pairs) - _MOST_LINES:,} more" if len(pairs) > _MOST_LINES else ""


def _left_of(count: int, what: str) -> str:
    left = count - _MOST_LINES
    return f'<div style="opacity:.75">and {left:,} more {what}</div>' if left > 0 else ""


def _beside(first: Sequence[tuple[str, str]], second: Sequence[tuple[str, str]]) -> str:
    a, b = dict(first), dict(second)
    names = list(dict.fromkeys([*a, *b]))
    rows: list[Sequence[Cell | object]] = []
    for name in names[:_MOST_LINES]:
        x, y = a.get(name, ""), b.get(name, "")
        rows.append((name, Cell(x, left=True), Cell(y, left=True, changed=x != y)))
    return table(("", "first", "second"), rows, more=_left(names))


def _lanes_beside(first: Sequence[SavedLane], second: Sequence[SavedLane]) -> str:
    a, b = {lane.lane: lane.values for lane in first}, {lane.lane: lane.values for lane in second}
    numbers = sorted({*a, *b})
    names = _columns([*first[:1], *second[:1]])
    rows: list[Sequence[Cell | object]] = []
    for n in numbers[:_MOST_LANES]:
        s, t = a.get(n), b.get(n)
        for name in names:
            x = "not in it" if s is None else s.get(name, "")
            y = "not in it" if t is None else t.get(name, "")
            if x or y:
                rows.append((n, name, Cell(x, left=True), Cell(y, left=True, changed=x != y)))
    left = len(numbers) - _MOST_LANES
    return table(("lane", "", "first", "second"), rows, more=f"and {left:,} more lanes" if left > 0 else "")
