"""One table of all rows: figures beside limit and peer, targets, and whether they are met."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.benchmarks.speed.rows import Row, Seen
from tests.benchmarks.speed.runs import Results, medians

__all__ = ["COLUMNS", "as_markdown", "as_text", "cells"]

COLUMNS = (
    "workload", "contestant", "configuration", "rate /s", "spread", "÷ limit", "÷ peer", "first batch s", "memory MB",
    "CPU µs a unit", "fill", "other figures", "target", "met", "others",
)  # fmt: skip


def cells(rows: Sequence[Row], results: Results) -> Iterator[list[str]]:
    """A list of texts for each row that ran."""
    found = {row.key: medians(results[row.key]) for row in rows if results.get(row.key)}
    for row in rows:
        if row.key not in found:
            continue
        own = found[row.key]
        mates = [(other, found[other.key]) for other in rows if other.workload == row.workload and other.key in found]
        limit = max((f["rate"] for other, f in mates if other.reference), default=0.0)
        peer = max((f["rate"] for other, f in mates if other.contestant == "grain"), default=0.0)
        one_lane = next((f for other, f in mates if other.configuration == "1, inline"), {})
        seen = Seen(own, limit, peer, one_lane)
        rate = own["rate"]
        judged = [(text, met(seen)) for text, met in row.targets]
        yield [
            row.workload,
            row.contestant,
            row.configuration,
            _number(rate),
            f"{_number(own['low'])} to {_number(own['high'])}" if rate and own["rounds"] > 1 else "",
            _ratio(rate, limit),
            _ratio(rate, peer),
            f"{own['first_batch_s']:.2f}" if "first_batch_s" in own else "",
            f"{own['memory_mb']:.0f}" if "memory_mb" in own else "",
            f"{own['cpu_us_per_unit']:.3g}" if "cpu_us_per_unit" in own else "",
            f"{own['fill']:.4f}" if "fill" in own and row.workload in ("pack", "text", "lanes") else "",
            _others(row, own, one_lane),
            "; ".join(text for text, _ in judged),
            "; ".join({True: "yes", False: "no", None: "?"}[met] for _, met in judged),
            f"{100 * own['foreign']:.0f} %",
        ]


def _number(value: float) -> str:
    if not value:
        return ""
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    return f"{value / 1e3:.1f} k" if value >= 1e4 else f"{value:,.0f}"


def _ratio(value: float, other: float) -> str:
    return f"{value / other:.2f}" if value and other else ""


def _others(row: Row, own: dict[str, Any], one_lane: dict[str, Any]) -> str:
    match row.workload:
        case "resume":
            return "; ".join(f"batch {int(depth):,}: {_resume(d)}" for depth, d in own["depths"].items())
        case "global":
            return (
                f"CPU of a step: {own['limit_ms']:.2f} ms the limit, {own['host_ms']:.2f} the lanes' batches, to which "
                f"to_global adds {own['placing_ms']:.2f}; behind a step of 20 ms next() waits {own['hidden_wait_ms']:.2f} ms"
            )
        case "lanes" if one_lane:
            lanes = int(row.configuration.split(",")[0])
            more = (own["memory_mb"] - one_lane["memory_mb"]) / max(1, lanes - 1)
            return f"CPU {own['cpu_us_per_unit'] / one_lane['cpu_us_per_unit']:.2f} x one lane, {more:.2f} MB a lane"
        case "start" if "import_s" in own:
            return f"{own['import_s']:.2f} s, {'with' if own['jax'] else 'without'} jax"
        case _:
            return ""


def _resume(d: dict[str, Any]) -> str:
    return (
        f"{d['extra_ms']:+.0f} ms (median {d['extra_median_ms']:+.0f}) over a cold start of {d['cold_ms']:.0f} ms, "
        f"{d['state_bytes']:,.0f} B, checkpoint {d['checkpoint_ms']:.2f} ms"
    )


def as_text(lines: Sequence[Sequence[str]]) -> str:
    every = [COLUMNS, *lines]
    widths = [max(len(line[i]) for line in every) for i in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in every
    )


def as_markdown(lines: Sequence[Sequence[str]]) -> str:
    every = [COLUMNS, ("---",) * len(COLUMNS), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in every)
