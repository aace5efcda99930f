"""What `to_global` adds to placing arrays: packed rows of 2,049 on 8 forced devices, beside `make_array_from_callback` alone.

In a process of its own, since the devices must be forced before jax is imported.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import numpy as np

from tests.benchmarks.speed.corpus import BINS, shards

ROW, ROWS, DEVICES = 2049, 64, 8
STEP_S = 0.02
"""A step of training for prefetch to hide behind, spent asleep: a device computes, and the host does nothing."""


def steps(root: str, n: int) -> dict[str, Any]:
    """Milliseconds a step; medians of `n` steps, each kind of step in turn. CPU time of all threads, less the wait for a step.

    `placing_ms` is what a step of `to_global` takes more than the lanes' batches on the host, which are not joined yet.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import zephon_jax as zj

    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))

    def pipeline(executor: str) -> zj.Pipeline:
        data = zj.Dataset.from_path("tokens", shards(root, "tok_parquet", "parquet"))
        work = zj.StaticMixtureWorkSource(data, exhausted_policy="repeat")
        packed = zj.Pipeline(work).split(ROW).pack(ROW, num_bins=BINS).batch(global_batch_size=ROWS)
        return packed.options(executor=executor)

    host = next(iter(pipeline("inline").steps()))
    arrays = {name: value for name, value in host.items() if isinstance(value, np.ndarray)}

    def place() -> None:
        for value in arrays.values():
            made = jax.make_array_from_callback(value.shape, sharding, lambda index, v=value: v[index])
            made.block_until_ready()

    lanes = pipeline("inline")._plan().lanes
    on_host, placed = iter(pipeline("inline")), pipeline("inline").to_global(sharding)
    alone, hosts, globals_ = [], [], []
    tokens = 0
    for _ in range(n):
        alone.append(_spent(place)[0])
        hosts.append(_spent(lambda: [next(on_host) for _ in range(lanes)])[0])  # a round, its lanes not yet joined
        seconds, batch = _spent(lambda: jax.block_until_ready(next(placed)))
        globals_.append(seconds)
        tokens += int(np.count_nonzero(np.asarray(batch["segment_ids"])))
    waits = []
    with pipeline("threads").to_global(sharding) as ahead:
        next(ahead)
        for _ in range(n):
            time.sleep(STEP_S)
            began = time.perf_counter()
            jax.block_until_ready(next(ahead))
            waits.append(time.perf_counter() - began)
    limit = statistics.median(alone)
    # Step by step, since both do the same work in the same step: what is left is joining and placing.
    own = statistics.median(all_of_it - host_part for all_of_it, host_part in zip(globals_, hosts, strict=True))
    return {
        "rate": 0.0,
        "units": n,
        "tokens": tokens,
        "limit_ms": 1e3 * limit,
        "host_ms": 1e3 * statistics.median(hosts),
        "placing_ms": 1e3 * own,
        "placing_ratio": own / limit,
        "hidden_wait_ms": 1e3 * statistics.median(waits),
        "hidden_ratio": statistics.median(waits) / limit,
    }


def _spent(call: Any) -> tuple[float, Any]:
    began = time.process_time()
    found = call()
    return time.process_time() - began, found
