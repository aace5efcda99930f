"""A pipeline drawn from its datasets down to `next()`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zephon_jax.display.page import box, table
from zephon_jax.display.svg import GREY, INK, PALETTE, Drawing

__all__ = ["Flow", "FlowDataset", "FlowOperator", "FlowStage", "flow_html", "flow_svg"]

_WIDTH, _LEFT, _LINE = 680, 8, 20
_MOST_DATASETS, _MOST_OPERATORS = 8, 60
_MOST_LISTED = 100


@dataclass(frozen=True, slots=True)
class FlowDataset:
    """`share`: of the draws or tokens, 0 to 1; None where it changes on the way or is not known."""

    name: str
    shards: int
    samples: int
    share: float | None


@dataclass(frozen=True, slots=True)
class FlowOperator:
    """`detail`: its parameters in words; `place`: where it runs."""

    name: str
    detail: str
    place: str


@dataclass(frozen=True, slots=True)
class FlowStage:
    """Operators that run together. `before`: what waits in front of it, in words."""

    title: str
    operators: tuple[FlowOperator, ...]
    before: str


@dataclass(frozen=True, slots=True)
class Flow:
    """What is drawn: datasets, the order in which they are drawn from, stages, and what the consumer gets."""

    datasets: tuple[FlowDataset, ...]
    order: str
    lanes: str
    stages: tuple[FlowStage, ...]
    ready: str
    step: str
    notes: tuple[str, ...]


def flow_svg(flow: Flow) -> str:
    """A file of its own."""
    drawing = Drawing(_WIDTH)
    return drawing.standalone(_draw(drawing, flow), "a pipeline")


def flow_html(flow: Flow) -> str:
    """For a notebook: the picture, and all datasets in a table if the picture does not have them."""
    drawing = Drawing(_WIDTH)
    parts = [drawing.embedded(_draw(drawing, flow), "a pipeline")]
    if len(flow.datasets) > _MOST_DATASETS:
        left = len(flow.datasets) - _MOST_LISTED
        parts.append(
            table(
                ("dataset", "share", "samples", "shards"),
                [(d.name, _share(d), d.samples, d.shards) for d in flow.datasets[:_MOST_LISTED]],
                more=f"and {left:,} more datasets" if left > 0 else "",
            )
        )
    return box(*parts)


def _share(dataset: FlowDataset) -> str:
    return "" if dataset.share is None else f"{100 * dataset.share:.3g} %"


def _draw(d: Drawing, flow: Flow) -> float:
    y = _datasets(d, flow.datasets, 4)
    y = _connect(d, y, flow.order, flow.lanes)
    left = _MOST_OPERATORS
    for stage in flow.stages:
        if stage.before:
            y = _connect(d, y, stage.before)
        y = _stage(d, y, stage, left)
        left = max(1, left - len(stage.operators))
    y = _connect(d, y, flow.ready)
    d.rect(_LEFT, y, _WIDTH - 2 * _LEFT, 30, fill=PALETTE[2], opacity=0.25, stroke=PALETTE[2], radius=6)
    d.text(_LEFT + 12, y + 20, "next()", bold=True)
    d.text(_LEFT + 74, y + 20, flow.step, room=_WIDTH - 2 * _LEFT - 90)
    y += 34
    for note in flow.notes:
        y += 16
        d.text(_LEFT, y, f"Note: {note}", size=11, faint=True, room=_WIDTH - 2 * _LEFT)
    return y + 4


def _connect(d: Drawing, y: float, *lines: str) -> float:
    """An arrow down, with what waits or happens on the way beside it."""
    height = max(22.0, 15.0 * len(lines) + 10)
    d.arrow(_LEFT + 24, y, y + height)
    for i, line in enumerate(lines):
        d.text(_LEFT + 42, y + 15 + 15 * i, line, size=11, faint=True, room=_WIDTH - _LEFT - 60)
    return y + height


def _datasets(d: Drawing, datasets: Sequence[FlowDataset], y: float) -> float:
    shown = datasets if len(datasets) <= _MOST_DATASETS else datasets[: _MOST_DATASETS - 1]
    bar, at = 150, _WIDTH - 330
    for i, one in enumerate(shown):
        colour = PALETTE[i % len(PALETTE)]
        about = f"{one.name}: {one.samples:,} samples in {one.shards:,} shards"
        d.rect(_LEFT, y, _WIDTH - 2 * _LEFT, 22, fill=colour, opacity=0.16, radius=4, tip=about)
        d.rect(_LEFT, y, 5, 22, fill=colour)
        d.text(_LEFT + 14, y + 15.5, one.name, bold=True, room=at - _LEFT - 24)
        if one.share is not None:
            d.rect(at, y + 7, bar, 8, stroke=GREY)
            d.rect(at, y + 7, bar * one.share, 8, fill=colour)
            d.text(at - 6, y + 15.5, _share(one), size=11, anchor="end")
        d.text(
            _WIDTH - _LEFT - 8,
            y + 15.5,
            f"{one.samples:,} samples, {one.shards:,} {'shard' if one.shards == 1 else 'shards'}",
            size=11,
            anchor="end",
        )
        y += 26
    if len(shown) < len(datasets):
        rest = datasets[len(shown) :]
        d.text(
            _LEFT + 14,
            y + 12,
            f"and {len(rest):,} more with {sum(one.samples for one in rest):,} samples",
            faint=True,
        )
        y += 20
    return y


def _stage(d: Drawing, y: float, stage: FlowStage, most: int) -> float:
    shown = stage.operators[:most]
    more = len(stage.operators) - len(shown)
    height = 26 + 26 * len(shown) + (18 if more else 0)
    d.rect(_LEFT, y, _WIDTH - 2 * _LEFT, height, stroke=GREY, radius=6)
    d.text(_LEFT + 10, y + 16, stage.title, size=11, faint=True, room=_WIDTH - 2 * _LEFT - 20)
    y += 22
    for operator in shown:
        d.rect(_LEFT + 8, y, 168, 22, fill=PALETTE[0], radius=4, tip=f"{operator.name}: {operator.detail}")
        d.text(_LEFT + 16, y + 15.5, operator.name, bold=True, fill=INK, room=152)
        d.text(_LEFT + 186, y + 15.5, operator.detail, size=11, room=_WIDTH - _LEFT - 186 - 110)
        d.text(_WIDTH - _LEFT - 10, y + 15.5, operator.place, size=11, anchor="end", faint=True, room=90)
        y += 26
    if more:
        d.text(_LEFT + 16, y + 10, f"and {more:,} more operators", size=11, faint=True)
        y += 18
    return y + 4
