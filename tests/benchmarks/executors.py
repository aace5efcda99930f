"""A Python map of about 50 µs a record on threads and processes, and what crossing costs: `python -m tests.benchmarks.executors`.

Prints the tables of docs/executors.md. Each figure is the median of interleaved runs, so that other load meets all alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import zephon_jax as zj

WAYS = {
    "inline": {"executor": "inline"},
    "threads 1": {"executor": "threads", "max_workers": 1},
    "threads 2": {"executor": "threads", "max_workers": 2},
    "processes 1": {"executor": "processes", "max_workers": 1},
    "processes 2": {"executor": "processes", "max_workers": 2},
}


def busy(loops: int) -> Callable:
    def fn(record):
        total = 0
        for i in range(loops):
            total += i & 3
        return {"x": total}

    return fn


def loops_for(seconds: float) -> int:
    fn, loops = busy(10_000), 10_000
    took = min(_seconds(lambda: fn({})) for _ in range(20))
    return max(1, int(loops * seconds / took))


def _seconds(call: Callable) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def rate(pipeline: zj.Pipeline, batches: int) -> tuple[float, ...]:
    """Seconds to the first batch; seconds a batch after it, and those of the main process's CPU time."""
    began = time.perf_counter()
    with iter(pipeline) as it:
        next(it)
        first, cpu = time.perf_counter(), time.process_time()
        for _ in range(batches):
            next(it)
        return first - began, (time.perf_counter() - first) / batches, (time.process_time() - cpu) / batches


def interleaved(make: Callable[[dict], zj.Pipeline], batches: int, repeats: int) -> dict[str, tuple[float, ...]]:
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in WAYS}
    for _ in range(repeats):
        for name, options in WAYS.items():
            found[name].append(rate(make(options), batches))
    return {name: tuple(statistics.median(column) for column in zip(*got, strict=True)) for name, got in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    endless = {"exhausted_policy": "repeat", "shuffle_shards": False}
    numbers = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", range(100_000)), **endless)
    loops = loops_for(50e-6)
    print("A map of 50 µs a record, batches of 128")
    print("| way | first batch (s) | records/s | µs a record | of it CPU of the main process |\n|---|---|---|---|---|")
    work = zj.Pipeline(numbers).map(busy(loops), name="busy").batch(128)
    for name, (first, wall, cpu) in interleaved(lambda o: work.options(**o), 120, repeats).items():
        print(f"| {name} | {first:.2f} | {128 / wall:,.0f} | {1e6 * wall / 128:.1f} | {1e6 * cpu / 128:.1f} |")
    print(
        "\nA map that returns its record at once; records of so many bytes, 32 a micro-batch: µs a micro-batch, and of it CPU"
    )
    print("| way | 64 B | 2 KiB | 32 KiB | 256 KiB |\n|---|---|---|---|---|")
    columns: dict[str, list[str]] = {name: [] for name in WAYS}
    for size in (64, 2048, 32768, 262144):
        samples = [np.full(size, n % 200, np.uint8) for n in range(128)]
        source = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", samples, fingerprint="s"), **endless)
        passed = zj.Pipeline(source).map(lambda record: record, name="same").batch(32)
        made = interleaved(
            lambda o, p=passed: p.options(micro_batch_records=32, **o), 100 if size < 65536 else 30, repeats
        )
        for name, (_, wall, cpu) in made.items():
            columns[name].append(f"{1e6 * wall:,.0f} / {1e6 * cpu:,.0f}")
    for name, each in columns.items():
        print(f"| {name} | " + " | ".join(each) + " |")


if __name__ == "__main__":
    main()
