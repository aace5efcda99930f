"""Rows of a batch, each as a strip in proportion: documents, padding, positions, and where the loss counts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zephon_jax.display.svg import GREY, INK, PALETTE, Drawing, escaped, number
from zephon_jax.display.words import counted

__all__ = ["Stretch", "Strip", "colour_of", "strips_html", "strips_svg", "swatch"]

_WIDTH, _LABEL = 900, 58
_BAND = 20
_MOST_BLOCKS = 400  # of all strips of a picture: each has a tip, and tips are what makes a picture large
_MOST_RUNS = 1200
_MOST_STRIPS = 32


@dataclass(frozen=True, slots=True)
class Stretch:
    """Columns `start` to `stop` of a row: one document's, or padding with segment 0. `label`: in words, for the tip."""

    start: int
    stop: int
    segment: int
    label: str
    positions: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Strip:
    """One row. `trained`: runs of columns whose loss counts, ascending; None where the batch does not say."""

    name: str
    length: int
    stretches: tuple[Stretch, ...]
    trained: tuple[tuple[int, int], ...] | None


def colour_of(segment: int) -> str:
    """The colour of a document by its number in the row."""
    return PALETTE[(segment - 1) % len(PALETTE)]


def swatch(segment: int) -> str:
    """A small square of that colour, for a table."""
    fill = "transparent" if segment == 0 else colour_of(segment)
    return (
        f'<span style="display:inline-block;width:.8em;height:.8em;margin-right:6px;background:{fill};'
        f'border:1px solid {GREY}"></span>{escaped(segment or "padding")}'
    )


def strips_html(strips: Sequence[Strip]) -> str:
    """For a page."""
    drawing = Drawing(_WIDTH)
    return drawing.embedded(_draw(drawing, strips), "rows of a batch", least=640)


def strips_svg(strips: Sequence[Strip]) -> str:
    """A file of its own."""
    drawing = Drawing(_WIDTH)
    return drawing.standalone(_draw(drawing, strips), "rows of a batch")


def _draw(d: Drawing, strips: Sequence[Strip]) -> float:
    shown = strips[:_MOST_STRIPS]
    narrowest = _narrowest(shown)
    runs = max(50, _MOST_RUNS // max(len(shown), 1))
    y = 4.0
    for strip in shown:
        y = _strip(d, y, strip, narrowest, runs)
    d.text(_LABEL, y + 10, "hatched: padding", size=11, faint=True)
    d.path(
        f"M{_LABEL + 130} {number(y + 10)}L{_LABEL + 160} {number(y + 2)}V{number(y + 10)}L{_LABEL + 190} {number(y + 2)}",
        thick=1.2,
    )
    d.text(_LABEL + 198, y + 10, "positions", size=11, faint=True)
    if any(strip.trained is not None for strip in shown):
        d.rect(_LABEL + 280, y + 5, 30, 4, fill="currentColor")
        d.text(_LABEL + 318, y + 10, "the loss counts", size=11, faint=True)
    if len(strips) > len(shown):
        d.text(_WIDTH - 4, y + 10, f"{len(strips) - len(shown):,} more rows are not drawn", size=11, anchor="end")
    return y + 18


def _narrowest(strips: Sequence[Strip]) -> float:
    """How many pixels a block needs, so that all strips together have no more of them than a picture may have."""
    least = 1.0
    while sum(len(_blocks(strip, least)) for strip in strips) > max(_MOST_BLOCKS, 2 * len(strips)):
        least *= 1.5
    return least


def _blocks(strip: Strip, least: float) -> list[list[Stretch]]:
    """Neighbours that are too narrow to be seen go together."""
    scale = (_WIDTH - _LABEL) / max(strip.length, 1)
    blocks: list[list[Stretch]] = []
    held = 0.0
    for stretch in strip.stretches:
        width = (stretch.stop - stretch.start) * scale
        if blocks and width < least and held < least:
            blocks[-1].append(stretch)
            held += width
        else:
            blocks.append([stretch])
            held = width
    return blocks


def _strip(d: Drawing, y: float, strip: Strip, least: float, runs: int) -> float:
    scale = (_WIDTH - _LABEL) / max(strip.length, 1)
    d.text(0, y + 14, strip.name, size=12, bold=True, room=_LABEL - 6)
    for block in _blocks(strip, least):
        x, width = _LABEL + block[0].start * scale, (block[-1].stop - block[0].start) * scale
        documents = [stretch for stretch in block if stretch.segment]
        if len(block) > 1:
            d.rect(
                x,
                y,
                width,
                _BAND,
                fill=GREY,
                tip=f"{counted(len(documents), 'document')}, {block[0].start}:{block[-1].stop}",
            )
        elif not documents:
            d.rect(x, y, width, _BAND, stroke=GREY, tip=block[0].label)
            d.hatch(x, y, width, _BAND)
        else:
            gap = 1 if width > 3 else 0
            d.rect(x, y, width - gap, _BAND, fill=colour_of(block[0].segment), tip=block[0].label)
            if width > 18:
                d.text(x + width / 2, y + 14, block[0].segment, size=11, anchor="middle", fill=INK, room=width - 4)
    line = _positions(strip, scale, y + _BAND + 2, 10, max(1.5, (_WIDTH - _LABEL) / runs))
    if line:
        d.path(line, thick=1)
    y += _BAND + 15
    if strip.trained is not None:
        d.line(_LABEL, y + 2, _WIDTH, y + 2, faint=True)
        if path := _runs(strip.trained, scale, y, runs):
            d.path(path, stroke="", fill="currentColor")
        y += 8
    return y + 8


def _positions(strip: Strip, scale: float, y: float, height: float, least: float) -> str:
    """A saw: it rises with the positions of a document and falls where the next one begins at 0; no teeth below `least`."""
    top = max((s.positions[1] for s in strip.stretches if s.positions is not None), default=0)
    if not top:
        return ""
    parts: list[str] = []
    last = -1.0
    for stretch in strip.stretches:
        x, end = _LABEL + stretch.start * scale, _LABEL + stretch.stop * scale
        if stretch.positions is None or end - last < least:
            continue
        first, final = (y + height * (1 - p / top) for p in stretch.positions)
        parts.append(f"M{number(x)} {number(first)}L{number(end - 1)} {number(final)}V{number(y + height)}")
        last = end
    return "".join(parts)


def _runs(trained: Sequence[tuple[int, int]], scale: float, y: float, most: int) -> str:
    """Bars where the loss counts; with more of them than pixels, neighbours flow into one."""
    gap = 0.75
    while True:
        merged: list[list[float]] = []
        for start, stop in trained:
            x, end = _LABEL + start * scale, _LABEL + stop * scale
            if merged and x - merged[-1][1] < gap:
                merged[-1][1] = end
            else:
                merged.append([x, end])
        if len(merged) <= most:
            return "".join(f"M{number(x)} {number(y)}H{number(max(end, x + 0.5))}v4H{number(x)}Z" for x, end in merged)
        gap *= 2
