"""Contestants started one after the other, so that whatever else the machine does meets all alike."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.benchmarks.speed.rows import Row
from zephon_jax.bench.meters import machine_cpu_s

__all__ = ["Results", "medians", "once", "rounds"]

Results = dict[tuple[str, str, str], list[dict[str, Any]]]
LIMIT_S = 1800


def once(arguments: Sequence[str], *, timed_start: bool = False) -> dict[str, Any]:
    """One contestant's line. `foreign`: the part of the machine that others took meanwhile, start-up included."""
    command = [sys.executable, "-m", *arguments]
    if timed_start:
        command += ["--began", repr(time.time())]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])),
    }
    began, machine, spent = time.perf_counter(), machine_cpu_s(), _children_s()
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False)
    seconds = time.perf_counter() - began
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    foreign = machine_cpu_s() - machine - (_children_s() - spent)
    return json.loads(lines[-1]) | {"foreign": max(0.0, foreign / seconds / (os.cpu_count() or 1))}


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def rounds(rows: Sequence[Row], root: str, n: int, tell: Callable[[str], object], at_once: int = 1) -> Results:
    """Every row in turn, `n` times; a workload is finished before the next begins. `at_once`: for trying out, not for figures."""
    results: Results = {row.key: [] for row in rows}
    gate = threading.Semaphore(at_once)
    errors: list[BaseException] = []

    def run(row: Row) -> None:
        with gate:
            if errors:
                return
            try:
                found = once((*row.arguments, "--root", root), timed_start=row.arguments[1] == "start")
            except BaseException as error:
                errors.append(error)
                return
            results[row.key].append(found)
            tell(f"{' '.join(row.key):44s} {found['rate']:14,.0f}/s, others {100 * found['foreign']:.0f} %")

    for workload in dict.fromkeys(row.workload for row in rows):
        for number in range(n):
            for row in (r for r in rows if r.workload == workload and (number == 0 or not r.once)):
                if at_once == 1:
                    run(row)
                    if errors:
                        raise errors[0]
                else:
                    threading.Thread(target=run, args=(row,), name=f"speed-{row.key}").start()
    for thread in [t for t in threading.enumerate() if t.name.startswith("speed-")]:
        thread.join()
    if errors:
        raise errors[0]
    return results


def medians(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of every number, also of those by depth; `low` and `high` are the rate's spread."""
    rates = [run["rate"] for run in runs]
    return {**_median(runs), "low": min(rates), "high": max(rates), "rounds": len(runs)}


def _median(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in runs[0].items():
        each = [run[name] for run in runs]
        if isinstance(value, dict):
            out[name] = _median(each)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            out[name] = statistics.median(each)
        else:
            out[name] = value
    return out
