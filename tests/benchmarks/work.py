"""What a work source costs, by order and depth: `python -m tests.benchmarks.work [SAMPLES [SHARDS]]`.

Prints the table of docs/mixtures.md for a dataset of 10^9 samples in 10^5 shards, alone and as the largest of eight:
building the source, the first chunk of 512 (which lays out a pass), chunks at depths of 10^0 to 10^15 draws of a lane
(in ascending order, so that nearly each lies in another pass), the chunks behind them, restoring, what Python and NumPy
hold at the most meanwhile, and the state. Times are medians; the depth is that of lane 3 of 8.
"""

from __future__ import annotations

import statistics
import sys
import time
import tracemalloc
from dataclasses import dataclass
from typing import Any

import msgpack

from zephon_jax.work import MixtureSchedule, StaticMixtureWorkSource

CHUNK, LANE, LANES = 512, 3, 8
DEPTHS = [10**k // CHUNK * CHUNK for k in range(16)]
ORDERS: dict[str, dict[str, Any]] = {
    "shards": {},
    "samples within shards": {"shuffle_within_shard": True},
    "blocks of 256": {"shuffle_block_size": 256},
    "global": {"shuffle_block_size": "global"},
}


@dataclass(frozen=True)
class Shard:
    num_samples: int


@dataclass(frozen=True)
class Data:
    name: str
    shards: list[Shard]


@dataclass
class Cost:
    build_s: float = 0.0
    first_s: float = 0.0
    deep_s: float = 0.0
    next_s: float = 0.0
    restore_s: float = 0.0
    peak_bytes: int = 0
    state_bytes: int = 0
    passes_laid_out: int = 0


def dataset(name: str, samples: int, shards: int) -> Data:
    """Shards of two sizes, so that no division comes out even."""
    size = samples // shards
    return Data(name, [Shard(size + (i % 2) * 2 - 1) for i in range(shards)])


def several(samples: int, shards: int) -> list[Data]:
    return [dataset(f"d{i}", max(samples >> i, 1 << 10), max(shards >> i, 2)) for i in range(8)]


def timed(fn: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = fn()
    return time.perf_counter() - start, result


def measure(sets: list[Data], **options: Any) -> Cost:
    """Build one source and visit every depth once."""
    cost = Cost()
    tracemalloc.start()
    try:
        cost.build_s, source = timed(
            lambda: StaticMixtureWorkSource(sets, chunk_size=CHUNK, exhausted_policy="repeat", **options)
        )
        lane = source.clone_for_lane(LANE, LANES)
        cost.first_s, _ = timed(lane.next_chunk)
        deep, following, restores = [], [], []
        for depth in DEPTHS:
            restores.append(timed(lambda to=depth: lane.load_state_dict({"position": to}))[0])
            took, chunk = timed(lane.next_chunk)
            assert chunk is not None
            assert len(chunk) == CHUNK
            deep.append(took)
            following.append(timed(lane.next_chunk)[0])
            cost.state_bytes = max(cost.state_bytes, len(msgpack.packb(dict(lane.state_dict())) or b""))
        cost.peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    cost.deep_s, cost.next_s = max(deep), statistics.median(following)
    cost.restore_s = statistics.median(restores)
    cost.passes_laid_out = sum(order._pass_order.cache_info().misses for order in source._orders)
    return cost


def main() -> None:
    samples = int(sys.argv[1]) if len(sys.argv) > 1 else 10**9
    shards = int(sys.argv[2]) if len(sys.argv) > 2 else 10**5
    print(f"{samples:,} samples in {shards:,} shards, chunks of {CHUNK}, depths up to {DEPTHS[-1]:.0e} draws of a lane")
    print("order | build | first chunk | worst chunk at any depth | next chunk | restore | memory | state")
    ways: list[tuple[str, list[Data], dict[str, Any]]] = [
        (name, [dataset("d", samples, shards)], options) for name, options in ORDERS.items()
    ]
    eight = several(samples, shards)
    points = [{d.name: 1 + (i + k) % 8 for i, d in enumerate(eight)} for k in (0, 3)]
    ways += [(f"{name}, 8 datasets", eight, options) for name, options in list(ORDERS.items())[2:]]
    schedule = MixtureSchedule([(0, points[0]), (10**9, points[1])], "linear")
    ways.append(("blocks of 256, 8 datasets on a ramp", eight, {"mixture": schedule, "shuffle_block_size": 256}))
    measure([dataset("warm", 10**6, 100)], shuffle_block_size=64)  # so that the first line pays no import
    for name, sets, options in ways:
        c = measure(sets, **options)
        print(
            f"{name} | {c.build_s * 1e3:.0f} ms | {c.first_s * 1e3:.0f} ms | {c.deep_s * 1e3:.0f} ms | "
            f"{c.next_s * 1e3:.1f} ms | {c.restore_s * 1e6:.0f} µs | {c.peak_bytes / 1e6:.0f} MB | {c.state_bytes} B"
        )


if __name__ == "__main__":
    main()
