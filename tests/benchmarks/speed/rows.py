"""Which contestants run in which configuration, and what is asked of ours: the plan of the table.

Targets are ratios to the limit or the peer of the same round; where they are absolute, the machine must be quiet.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["WORKLOADS", "Row", "Seen", "plan"]

BEST_PEER = 4.8 / 2.8
"""The best peer known on `pack` was so many times as fast as Grain, on one machine; it is not installed with the tests."""
WORKLOADS = ("pack", "text", "records", "map", "resume", "global", "lanes", "start")

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Seen:
    """Medians that a target is judged by: of the row, of the workload's limit and peer, and of one lane."""

    own: Figures
    limit: float
    peer: float
    one_lane: Figures


Target = tuple[str, Callable[[Seen], bool | None]]


@dataclass(frozen=True)
class Row:
    """One contestant. `reference`: the limit that the others of its workload are compared with."""

    workload: str
    contestant: str
    configuration: str
    arguments: tuple[str, ...]
    reference: bool = False
    once: bool = False
    """Long, and steady in what it measures: one round is enough."""
    targets: tuple[Target, ...] = field(default=())

    @property
    def key(self) -> tuple[str, str, str]:
        return self.workload, self.contestant, self.configuration


def _at_least(ratio: float, of: str) -> Target:
    def met(seen: Seen) -> bool | None:
        other = seen.limit if of == "limit" else seen.peer
        return None if not other else seen.own["rate"] >= ratio * other

    return f"≥ {ratio:g} x the {of}", met


def _least(name: str, value: float, text: str) -> Target:
    return f"{text} ≥ {value:g}", lambda seen: seen.own[name] >= value


def _most(name: str, value: float, text: str) -> Target:
    return f"{text} ≤ {value:g}", lambda seen: None if name not in seen.own else seen.own[name] <= value


def _resume(times_cold: float | None, most_ms: float | None) -> tuple[Target, ...]:
    def soon(seen: Seen) -> bool:
        each = seen.own["depths"].values()
        if most_ms is not None:
            return all(d["extra_ms"] <= most_ms for d in each)
        return all(d["extra_ms"] + d["cold_ms"] <= (times_cold or 0) * d["cold_ms"] for d in each)

    asked = f"≤ {most_ms:g} ms over cold" if most_ms is not None else f"≤ {times_cold:g} x cold"
    return (asked, soon), (
        "checkpoint ≤ 1 ms",
        lambda seen: all(d["checkpoint_ms"] <= 1 for d in seen.own["depths"].values()),
    )


def _lane_targets(n: int) -> tuple[Target, ...]:
    if n == 1:
        return ()

    def cpu(seen: Seen) -> bool | None:
        return None if not seen.one_lane else seen.own["cpu_us_per_unit"] <= 1.2 * seen.one_lane["cpu_us_per_unit"]

    def memory(seen: Seen) -> bool | None:
        return None if not seen.one_lane else seen.own["memory_mb"] - seen.one_lane["memory_mb"] <= 1.0 * (n - 1)

    return ("CPU ≤ 1.2 x one lane", cpu), ("≤ 1 MB a lane", memory)


def plan(*, small: bool = False, loops: int = 700) -> list[Row]:
    """All rows in the order in which they run; the peer's only where it is installed. `small`: the same rows, little work."""
    ours, limit, peer = (f"tests.benchmarks.speed.{name}" for name in ("ours", "limit", "grain"))
    work = ("--loops", str(50 if small else loops), "--records", "400" if small else "80000")
    deep = ("--depths", "3", "--phases", "2") if small else ()
    texts = deep or ("--depths", "100,1000")
    two = () if small else ("--workers", "2")
    memory = _most("memory_mb", 120, "MB")
    rows = [
        Row("pack", "ours", "inline", (ours, "pack"), targets=(
            (f"≥ 8 x best peer (Grain x {BEST_PEER:.2g})",
             lambda s: None if not s.peer else s.own["rate"] >= 8 * BEST_PEER * s.peer),
            _least("fill", 0.993, "fill"), memory)),
        Row("pack", "ours", "threads, 1", (ours, "pack", "--executor", "threads", "--workers", "1"),
            targets=(_at_least(1.3, "limit"), memory)),
        Row("pack", "ours", "threads, 2", (ours, "pack", "--executor", "threads", "--workers", "2"),
            targets=(_at_least(1.3, "limit"), memory)),
        Row("pack", "grain", "a thread ahead", (peer, "pack")),
        Row("pack", "grain", "2 processes", (peer, "pack", *two)),
        Row("pack", "limit", "bare first fit", (limit, "pack"), reference=True),
        Row("pack", "limit", "concatenate and cut", (limit, "concat")),
        Row("text", "ours", "inline", (ours, "text"), targets=(_at_least(0.95, "limit"),)),
        Row("text", "ours", "threads, 2", (ours, "text", "--executor", "threads", "--workers", "2"),
            targets=(_at_least(0.95, "limit"),)),
        Row("text", "grain", "a thread ahead", (peer, "text")),
        Row("text", "grain", "2 processes", (peer, "text", *two)),
        Row("text", "limit", "bare tokenizer, 2 threads", (limit, "text", "--workers", "2"), reference=True),
        Row("records", "ours", "inline", (ours, "records"), targets=(_at_least(0.25, "limit"),)),
        Row("records", "ours", "threads, 2", (ours, "records", "--executor", "threads", "--workers", "2"),
            targets=(_at_least(0.25, "limit"),)),
        Row("records", "grain", "a thread ahead", (peer, "records")),
        Row("records", "limit", "array in memory", (limit, "records"), reference=True),
        Row("map", "ours", "processes, 2", (ours, "map", "--executor", "processes", "--workers", "2", *work),
            targets=(_at_least(0.9, "limit"),)),
        Row("map", "grain", "2 processes", (peer, "map", *two, *work)),
        Row("map", "limit", "2 bare processes", (limit, "map", "--workers", "2", *work), reference=True),
        Row("resume", "ours", "pack, inline", (ours, "resume", *deep), targets=_resume(None, 60)),
        Row("resume", "ours", "text, inline", (ours, "resume-text", *texts), once=True, targets=_resume(3, None)),
        Row("resume", "grain", "pack, a thread ahead", (peer, "resume", *texts), once=True),
        Row("global", "ours", "8 forced devices", (ours, "global", "--documents", "3" if small else "100"), targets=(
            _most("placing_ratio", 1.1, "placing / limit"), _most("hidden_ratio", 0.1, "wait behind a step / limit"))),
    ]  # fmt: skip
    documents = ("--documents", "40") if small else ()
    rows += [
        Row("lanes", "ours", f"{n}, inline", (ours, "lanes", "--lanes", str(n), *documents), once=n > 16,
            targets=_lane_targets(n))
        for n in ((1, 4) if small else (1, 16, 64, 256))
    ]  # fmt: skip
    rows += [
        Row("start", "ours", "import", (ours, "import"), targets=(
            _most("import_s", 0.3, "s"), ("without jax", lambda seen: not seen.own["jax"]))),
        Row("start", "ours", "first batch", (ours, "start"), targets=(_most("first_batch_s", 1.2, "s"),)),
        Row("start", "grain", "first batch", (peer, "start")),
    ]  # fmt: skip
    there = importlib.util.find_spec("grain") is not None
    return [row for row in rows if there or row.contestant != "grain"]
