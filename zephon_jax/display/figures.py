"""What holds a pipeline back: figures per operator as bars and as a table, and how the lanes stand. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from zephon_jax.display.page import Cell, box, heading, listed, table
from zephon_jax.display.svg import GREY, INK, PALETTE, Drawing

__all__ = ["Figures", "LaneFigures", "OperatorFigures", "figures_html", "figures_svg", "figures_text"]

_WIDTH, _LEFT = 680, 8
_MOST_OPERATORS, _MOST_LANES = 40, 16


@dataclass(frozen=True, slots=True)
class OperatorFigures:
    """Counts of one operator; `more` are counts of its own."""

    name: str
    records_in: int
    records_out: int
    finished: int
    busy_s: float
    more: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class LaneFigures:
    """How a lane stands."""

    lane: int
    rows: int
    rounds: int
    chunks_in_flight: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Figures:
    """`answer`: what the consumer waits for, in words. `waited`: share of its time, 0 to 1. `facts`: names with values."""

    title: str
    answer: str
    waited: float
    operators: tuple[OperatorFigures, ...]
    lanes: tuple[LaneFigures, ...]
    facts: tuple[tuple[str, str], ...]

    @property
    def busy_s(self) -> float:
        """Seconds in all operators together."""
        return sum(operator.busy_s for operator in self.operators)


def _share(figures: Figures, operator: OperatorFigures) -> float:
    return operator.busy_s / figures.busy_s if figures.busy_s else 0.0


def figures_text(figures: Figures) -> str:
    """Several lines: a table of operators."""
    lines = [figures.title, figures.answer] if figures.answer else [figures.title]
    width = min(40, max((len(operator.name) for operator in figures.operators), default=8))
    lines.append(f"  {'operator':<{width}} {'in':>12} {'out':>12} {'finished':>10} {'busy s':>9}  share")
    for operator in figures.operators[:_MOST_OPERATORS]:
        share = _share(figures, operator)
        lines.append(
            f"  {operator.name[:width]:<{width}} {operator.records_in:>12,} {operator.records_out:>12,} {operator.finished:>10,} "
            f"{operator.busy_s:>9.3f}  {'█' * round(20 * share):<20} {share:.0%}"
        )
    lines += [f"  {name}: {value}" for name, value in figures.facts]
    return "\n".join(lines)


def figures_html(figures: Figures) -> str:
    """For a notebook: the picture, all numbers, and the lanes."""
    drawing = Drawing(_WIDTH)
    parts = [drawing.embedded(_draw(drawing, figures), figures.title)]
    shown = figures.operators[:_MOST_OPERATORS]
    parts.append(
        table(
            ("operator", "in", "out", "finished", "busy seconds", "share", "its own counts"),
            [
                (
                    o.name, o.records_in, o.records_out, o.finished, Cell(f"{o.busy_s:.3f}"),
                    Cell(f"{_share(figures, o):.0%}", share=_share(figures, o)),
                    Cell(", ".join(f"{name} {value:,}" for name, value in o.more[:20]), left=True),
                )
                for o in shown
            ],
            more=f"and {len(figures.operators) - len(shown):,} more" if len(figures.operators) > len(shown) else "",
        )
    )  # fmt: skip
    parts.append(listed(figures.facts))
    lanes = figures.lanes[:_MOST_LANES]
    if figures.lanes:
        left = len(figures.lanes) - len(lanes)
        parts.append(heading("lanes of this process"))
        rows = sum(lane.rows for lane in figures.lanes)
        flight = sum(lane.chunks_in_flight for lane in figures.lanes)
        parts.append(
            table(
                ("lane", "rows", "rounds", "chunks in flight", "skipped"),
                [(one.lane, one.rows, one.rounds, one.chunks_in_flight, one.skipped) for one in lanes],
                more=f"and {left:,} more lanes; {rows:,} rows and {flight:,} chunks in flight in all" if left else "",
            )
        )
    return box(*parts)


def figures_svg(figures: Figures) -> str:
    """A file of its own: the bars."""
    drawing = Drawing(_WIDTH)
    return drawing.standalone(_draw(drawing, figures), figures.title)


def _draw(d: Drawing, figures: Figures) -> float:
    d.text(_LEFT, 14, figures.title, bold=True, size=13, room=_WIDTH - 2 * _LEFT)
    y = 22.0
    if figures.answer:
        d.rect(_LEFT, y, _WIDTH - 2 * _LEFT, 26, fill=PALETTE[1], opacity=0.25, radius=4)
        d.rect(_LEFT, y, 5, 26, fill=PALETTE[1])
        d.text(_LEFT + 14, y + 17.5, figures.answer, bold=True, room=_WIDTH - 2 * _LEFT - 24)
        y += 34
    d.text(_LEFT, y + 12, "the step waited", size=11, faint=True)
    _bar(d, y, figures.waited, PALETTE[1], f"{figures.waited:.1%} of its time")
    y += 22
    heaviest: str = max(figures.operators, key=lambda o: o.busy_s).name if figures.busy_s else ""
    for operator in figures.operators[:_MOST_OPERATORS]:
        share = _share(figures, operator)
        d.text(_LEFT, y + 12, operator.name, room=136, bold=operator.name == heaviest)
        _bar(d, y, share, PALETTE[0], f"{share:.0%} of {figures.busy_s:.3g} s")
        d.text(
            _WIDTH - _LEFT,
            y + 12,
            f"{operator.records_in:,} → {operator.records_out:,}",
            size=11,
            anchor="end",
            tip=f"{operator.name}: {operator.records_in:,} records in, {operator.records_out:,} out, "
            f"{operator.finished:,} finished, {operator.busy_s:.3f} s",
        )
        y += 20
    return y + 4


def _bar(d: Drawing, y: float, share: float, colour: str, words: str) -> None:
    x, width = _LEFT + 160, 330
    part = width * min(max(share, 0.0), 1.0)
    d.rect(x, y, width, 16, stroke=GREY, radius=2)
    d.rect(x, y, part, 16, fill=colour, radius=2)
    room = 6.0 * len(words) + 8
    inside = part > room
    d.text(
        x + 6 if inside else x + part + 6, y + 12, words, size=11, fill=INK if inside else "currentColor", room=width
    )
