"""What every contestant does alike: take batches, count, look at clocks, and print one JSON line.

Rates are taken after the first batch, which shows start-up on its own.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.benchmarks.speed.corpus import root_folder
from zephon_jax.bench.meters import PeakMemory, tree_cpu_s

__all__ = ["arguments", "busy", "consume", "count", "emit", "loops_for"]

Counter = Callable[[Any], tuple[int, int]]


def consume(make: Callable[[], Iterator[Any]], counter: Counter, most: int = 0) -> dict[str, Any]:
    """`counter(batch)` gives units and the places that they could have filled. Stops after `most` batches, if given."""
    with PeakMemory(0.02) as peak:
        began = time.perf_counter()
        it = make()
        units = places = batches = first_units = 0
        start = cpu = 0.0
        for batch in it:
            some, room = counter(batch)
            units, places, batches = units + some, places + room, batches + 1
            if batches == 1:
                first_units, start, cpu = units, time.perf_counter(), tree_cpu_s()
            if batches == most:
                break
        seconds, cpu_s = time.perf_counter() - start, tree_cpu_s() - cpu
        peak.sample()
        if callable(close := getattr(it, "close", None)):
            close()
    after = units - first_units
    return {
        "rate": after / seconds,
        "units": units,
        "batches": batches,
        "fill": units / places,
        "first_batch_s": start - began,
        "cpu_us_per_unit": 1e6 * cpu_s / max(after, 1),
        "memory_mb": peak.bytes / 1e6,
    }


def count(batch: Any) -> tuple[int, int]:
    """Of rows with segment ids, places that hold a token; else rows."""
    for name, value in batch.items():
        if name.endswith("segment_ids"):
            return int(np.count_nonzero(value)), value.size
    rows = len(next(iter(batch.values())))
    return rows, rows


def emit(contestant: str, workload: str, configuration: str, figures: dict[str, Any]) -> None:
    rounded = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in figures.items()}
    line = {"contestant": contestant, "workload": workload, "configuration": configuration, **rounded}
    print(json.dumps(line), flush=True)


def arguments(description: str, workloads: list[str]) -> argparse.ArgumentParser:
    """What every contestant is told."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=workloads)
    parser.add_argument("--root", default=root_folder())
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--loops", type=int, default=700, help="of the busy function")
    parser.add_argument("--records", type=int, default=80_000, help="for the busy function")
    parser.add_argument("--depths", default="100,1000,10000", help="batches at which a resume is measured")
    parser.add_argument("--phases", type=int, default=16, help="of the flush epoch, from each depth on")
    parser.add_argument("--name", default="", help="how the configuration is called")
    return parser


# -- the work of a Python function ---------------------------------------------------------------------------------
def busy(loops: int) -> int:
    """Holds the GIL for a while."""
    total = 0
    for i in range(loops):
        total += i & 3
    return total


def loops_for(seconds: float) -> int:
    """How many loops take so long on this machine, at its best."""
    loops, best = 2_000, float("inf")
    end = time.perf_counter() + 0.3
    while time.perf_counter() < end:
        began = time.perf_counter()
        busy(loops)
        best = min(best, time.perf_counter() - began)
    return max(1, round(loops * seconds / best))


def pinned_threads(workers: int) -> None:
    """How many threads libraries of others may use; before they are imported."""
    os.environ["RAYON_NUM_THREADS"] = str(max(1, workers))
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if workers > 1 else "false"
