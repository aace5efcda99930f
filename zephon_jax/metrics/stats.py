"""Figures of an iterator at one moment, and what they say in one line. No clocks here: seconds come from who measured them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zephon_jax.display.figures import Figures, LaneFigures, OperatorFigures, figures_html, figures_text
from zephon_jax.metrics.counters import OperatorCounts

__all__ = ["Buffer", "Stats", "figures_of", "limiting", "scalars"]

_STARVED = 0.05


class Buffer(NamedTuple):
    """Something that holds data while the pipeline runs: bytes now, the most so far, and its ceiling; None if not known.

    One batch and one record are let through whatever they hold, so the most may lie above the ceiling by one of them.
    """

    bytes: int
    most_bytes: int | None
    ceiling_bytes: int | None


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures of an iterator at one moment; lanes are those of this process. `str(stats)` is one line of health.

    `step`: steps delivered. `rows`, `rounds`, `chunks_in_flight`, `skipped`: per lane, since the start of the stream
    (in flight: what a checkpoint taken now would keep). `operators`: records in, out and finished and seconds at work, since
    this iterator started. `batches_ready`, `bytes_ready`: made ahead, of at most `prefetch`. `chunks_replayed`,
    `rows_replayed`: by the restore; `samples_loaded`: read again by it, for rows that were still to be delivered.

    `first_wait_s`: until the first `next` returned. Since then: `elapsed_s`; `wait_s`, for which the consumer waited in
    `next`. Since the start: `steps_taken`; `blocked_s`, for which the producer waited for room in the queue;
    `workers_wait_s`, for which lanes waited for operators that keep nothing; `workers_lost`, workers that died and were
    replaced. `limit`: what the step waits for, in words.
    `buffers`: what holds data, by name.
    """

    step: int
    rows: Mapping[int, int]
    rounds: Mapping[int, int]
    chunks_in_flight: Mapping[int, int]
    skipped: Mapping[int, int]
    operators: Mapping[str, OperatorCounts]
    batches_ready: int
    chunks_drawn: int
    chunks_replayed: int
    rows_replayed: int
    samples_loaded: int
    prefetch: int = 0
    bytes_ready: int = 0
    first_wait_s: float = 0.0
    elapsed_s: float = 0.0
    steps_taken: int = 0
    wait_s: float = 0.0
    blocked_s: float = 0.0
    workers_wait_s: float = 0.0
    workers_lost: int = 0
    limit: str = ""
    buffers: Mapping[str, Buffer] = field(default_factory=dict[str, Buffer])

    @property
    def steps_per_s(self) -> float:
        """Since the first `next` returned; 0 before it."""
        return (self.steps_taken - 1) / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def wait_fraction(self) -> float:
        """The part of that time for which the consumer waited."""
        return self.wait_s / self.elapsed_s if self.elapsed_s else 0.0

    def _repr_html_(self) -> str:
        return figures_html(figures_of(self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(figures_text(figures_of(self)))

    def __str__(self) -> str:
        parts = [
            f"step {self.step:,}: {self.steps_per_s:.3g} steps/s",
            f"waited {100 * self.wait_fraction:.1f} % of {self.elapsed_s:.1f} s",
            f"{self.batches_ready} of {self.prefetch} batches ready ({self.bytes_ready / 1e6:.1f} MB)",
        ]
        if skipped := sum(self.skipped.values()):
            parts.append(f"{skipped} samples skipped")
        if self.workers_lost:
            parts.append(f"{self.workers_lost} workers lost")
        return ", ".join(parts) + (f"; {self.limit}" if self.limit else "")


def figures_of(stats: Stats) -> Figures:
    """The same in the words of the picture that a notebook shows."""
    operators = [
        OperatorFigures(
            name, c.records_in, c.records_out, c.finished, c.busy_s,
            tuple(
                (what, count)
                for what, count in (
                    ("left by flush", c.left_by_flush), ("padding tokens", c.padding_tokens),
                    ("padding by flush", c.padding_by_flush_tokens), *c.figures.items(),
                )
                if count
            ),
        )
        for name, c in stats.operators.items()
    ]  # fmt: skip
    waited = f"{stats.wait_s:.3f} s of {stats.elapsed_s:.3f} s ({100 * stats.wait_fraction:.1f} %)"
    ready = f"{stats.batches_ready} of {stats.prefetch} batches ({stats.bytes_ready / 1e6:.1f} MB)"
    facts = [
        ("waited", f"{waited}; {stats.first_wait_s:.3f} s for the first step"),
        ("made ahead", f"{ready}; the producer waited {stats.blocked_s:.3f} s for room"),
        ("lanes waited for workers", f"{stats.workers_wait_s:.3f} s"),
        ("chunks", f"{stats.chunks_drawn:,} drawn, {stats.chunks_replayed:,} replayed by the restore"),
        ("replay", f"{stats.rows_replayed:,} rows made again and dropped, {stats.samples_loaded:,} samples read again"),
    ]
    if stats.workers_lost:
        facts.append(("workers lost", f"{stats.workers_lost:,}"))
    return Figures(
        title=f"step {stats.step:,}: {stats.steps_per_s:.3g} steps/s",
        answer=stats.limit,
        waited=stats.wait_fraction,
        operators=tuple(operators),
        lanes=tuple(
            LaneFigures(
                lane, rows, stats.rounds.get(lane, 0), stats.chunks_in_flight.get(lane, 0), stats.skipped.get(lane, 0)
            )
            for lane, rows in stats.rows.items()
        ),
        facts=tuple(facts),
    )


def limiting(stats: Stats, in_workers: frozenset[str]) -> str:
    """Which part of the pipeline the consumer waits for. `in_workers`: names of the operators that keep nothing."""
    if stats.steps_taken < 2:
        return ""
    if stats.wait_fraction < _STARVED:
        return "the pipeline keeps up"
    working = stats.first_wait_s + stats.elapsed_s - stats.blocked_s
    workers = stats.workers_wait_s > working / 2
    busy = {name: c.busy_s for name, c in stats.operators.items() if (name in in_workers) == workers and c.busy_s > 0}
    total = sum(busy.values())
    if workers and busy:
        name = max(busy, key=lambda one: busy[one])
        return f"starved by {name}: {100 * busy[name] / total:.0f} % of the workers' time"
    if busy and total > working / 2:
        name = max(busy, key=lambda one: busy[one])
        return f"starved by {name}, which runs in order: {100 * busy[name] / working:.0f} % of the time"
    return "starved by batching and placing arrays"


def scalars(stats: Stats) -> dict[str, float]:
    """Numbers by name, flat, for whatever draws curves; names are stable, and hold operators' names."""
    out: dict[str, float] = {
        "step": stats.step,
        "rows": sum(stats.rows.values()),
        "steps_per_second": stats.steps_per_s,
        "wait_seconds": stats.wait_s,
        "wait_fraction": stats.wait_fraction,
        "blocked_seconds": stats.blocked_s,
        "workers_wait_seconds": stats.workers_wait_s,
        "batches_ready": stats.batches_ready,
        "bytes_ready": stats.bytes_ready,
        "chunks_in_flight": sum(stats.chunks_in_flight.values()),
        "samples_skipped": sum(stats.skipped.values()),
        "workers_lost": stats.workers_lost,
    }
    for name, counts in stats.operators.items():
        out[f"operator/{name}/records_in"] = counts.records_in
        out[f"operator/{name}/records_out"] = counts.records_out
        out[f"operator/{name}/finished"] = counts.finished
        out[f"operator/{name}/busy_seconds"] = counts.busy_s
    return out
