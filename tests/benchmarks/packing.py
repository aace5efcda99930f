"""Fill and cost of each packing, beside Grain's where it is installed: `python -m tests.benchmarks.packing [--small]`.

Prints the tables of docs/packing.md. Documents have lognormal lengths, cut at the row's length first, as a training run
does. *Fill* is the share of places in rows that hold tokens; *documents cut* counts those that a packing cut itself, of
those that fit in a row. Contestants run in turn in each round, and the table shows medians.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from zephon_jax.columns import Ragged, collate
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops import Pack
from zephon_jax.origin import Origin, no_contributors
from zephon_jax.types import LaneContext

CAPACITY, BINS = 2048, 16


def documents(n: int) -> list[np.ndarray]:
    """Lognormal, mean about 600, from 8 to the row's length; the rest of longer ones as documents of their own."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(5.9, 1.0, n).astype(int), 8, 16_384)
    pieces = [min(CAPACITY, length - at) for length in lengths.tolist() for at in range(0, length, CAPACITY)]
    return [rng.integers(1, 32_000, length, dtype=np.int32) for length in pieces]


def ours(docs: list[np.ndarray], **options: Any) -> tuple[float, int, int]:
    """Fill, rows, and documents cut."""
    op = Pack(CAPACITY, **options)
    state = op.init_state(LaneContext(0, 0, 0))
    nothing = np.empty((2, 0), np.int32)
    tokens = rows = pieces = 0
    outs: list[MicroBatch | None] = []
    for chunk, at in enumerate(range(0, len(docs), 128)):
        some = docs[at : at + 128]
        origin = Origin.of_chunk(chunk, np.arange(len(some)), 1)
        column = Ragged(np.concatenate(some), np.cumsum([0, *map(len, some)]))
        outs.append(op.push(state, MicroBatch(0, {"tokens": column}, origin, no_contributors(1), nothing, 0)))
    outs.append(op.flush(state))
    for out in outs:
        if out is not None and len(out):
            # Rows become arrays here; Grain's are arrays already.
            laid = {name: collate([column]) for name, column in out.columns.items()}
            rows += len(out)
            segments = np.asarray(laid["segment_ids"])
            tokens += int((segments > 0).sum())
            pieces += int(segments.max(axis=1).sum())
    return tokens / (rows * CAPACITY), rows, pieces - len(docs)


def grains(docs: list[np.ndarray], kind: str, bins: int) -> tuple[float, int, int] | None:
    try:
        import grain
        from grain._src.python.dataset.transformations.packing import BestFitPackIterDataset
        from grain.experimental import ConcatThenSplitIterDataset, FirstFitPackIterDataset
    except ImportError:
        return None
    # Without its reading threads, which are there for slow storage: with them a document in memory costs six times as much.
    read = grain.ReadOptions(num_threads=0)
    source = grain.MapDataset.source([{"tokens": d} for d in docs]).to_iter_dataset(read)
    lengths = {"tokens": CAPACITY}
    if kind == "wrap":
        packed: Any = ConcatThenSplitIterDataset(source, length_struct=lengths)
    else:
        make = FirstFitPackIterDataset if kind == "first_fit" else BestFitPackIterDataset
        packed = make(source, length_struct=lengths, num_packing_bins=bins, shuffle_bins=False)
    tokens = rows = 0
    for row in packed:
        row = row[0] if isinstance(row, tuple) else row
        rows += 1
        tokens += int((np.asarray(row["tokens_segment_ids"]) > 0).sum())
    return tokens / (rows * CAPACITY), rows, 0


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = run()
    return result, time.perf_counter() - start


def fills(docs: list[np.ndarray], rounds: int) -> Iterator[str]:
    contestants: dict[str, Callable[[], Any]] = {
        "first_fit": lambda: ours(docs, num_bins=BINS),
        "first_fit, Grain": lambda: grains(docs, "first_fit", BINS),
        "best_fit": lambda: ours(docs, algorithm="best_fit", num_bins=BINS),
        "best_fit, Grain": lambda: grains(docs, "best_fit", BINS),
        "best_fit, 256 bins": lambda: ours(docs, algorithm="best_fit", num_bins=256),
        "best_fit_wrap": lambda: ours(docs, algorithm="best_fit_wrap", num_bins=BINS),
        "wrap": lambda: ours(docs, algorithm="wrap"),
        "wrap, Grain": lambda: grains(docs, "wrap", BINS),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    results: dict[str, Any] = {}
    for _ in range(rounds):
        for name, run in contestants.items():
            results[name], spent = timed(run)
            seconds[name].append(spent)
    yield "| packing | fill | rows | documents cut | µs per document |"
    yield "|---|---|---|---|---|"
    for name, result in results.items():
        if result is None:
            yield f"| {name} | Grain is not installed | | | |"
            continue
        fill, rows, cut = result
        spent = statistics.median(seconds[name]) / len(docs) * 1e6
        yield f"| {name} | {fill:.4f} | {rows:,} | {cut if 'Grain' not in name else '-'} | {spent:.1f} |"


def bins_cost(docs: list[np.ndarray], rounds: int) -> Iterator[str]:
    counts = [8, 16, 64, 256, 1024, 4096]
    yield "| µs per document with bins | " + " | ".join(f"{n:,}" for n in counts) + " |"
    yield "|---" * (len(counts) + 1) + "|"
    for algorithm in ("first_fit", "best_fit", "best_fit_wrap"):
        spent: dict[int, list[float]] = {n: [] for n in counts}
        for _ in range(rounds):
            for n in counts:
                spent[n].append(timed(lambda n=n: ours(docs, algorithm=algorithm, num_bins=n))[1])  # noqa: B023
        yield (
            f"| {algorithm} | "
            + " | ".join(f"{statistics.median(spent[n]) / len(docs) * 1e6:.1f}" for n in counts)
            + " |"
        )


def main(arguments: list[str]) -> None:
    small = "--small" in arguments
    rounds = 1 if small else 3
    warnings.simplefilter("ignore")
    for line in fills(documents(400 if small else 20_000), rounds):
        print(line)
    print()
    for line in bins_cost(documents(400 if small else 40_000), rounds):
        print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
