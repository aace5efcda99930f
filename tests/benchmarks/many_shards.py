"""What many small shards cost to open: `python -m tests.benchmarks.many_shards [NUMBER]`, 100,000 unless said.

The first start looks at every file and keeps an index, the second one reads that. Each start is a process of its own.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile

__all__ = ["main"]

START = """
import json, os, resource, sys, time
begin = time.perf_counter()
from zephon_jax.sources.base import Dataset
imported = time.perf_counter()
dataset = Dataset.from_path("d", sys.argv[1])
opened = time.perf_counter()
dataset[len(dataset) // 2]
read = time.perf_counter()
print(json.dumps({
    "shards": len(dataset.shards), "samples": len(dataset), "import_s": imported - begin, "open_s": opened - imported,
    "first_sample_ms": 1e3 * (read - opened), "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "open_files": len(os.listdir("/proc/self/fd")),
}))
"""


def main(number: int = 100_000) -> list[dict[str, float]]:
    """Print a line for each of three starts; returns what they measured."""
    measured: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "data"
        data.mkdir()
        for i in range(number):
            (data / f"{i:06}.jsonl").write_text(f'{{"value": {i}}}\n{{"value": {-i}}}\n')
        environment = os.environ | {"ZEPHON_JAX_CACHE_DIR": f"{folder}/cache"}
        for what in ("first start", "second start", "third start"):
            done = subprocess.run(
                [sys.executable, "-c", START, str(data)], capture_output=True, text=True, check=True, env=environment
            )
            measured.append(json.loads(done.stdout))
            print(what, {name: round(value, 2) for name, value in measured[-1].items()})
    return measured


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
