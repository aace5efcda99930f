"""One of several jax.distributed processes on loopback: `python -m tests.processes.hosts CONFIG.json`.

It runs jobs one after the other, each an iterator over steps of a pipeline on a mesh of all processes' devices, and writes
what its own devices hold: for each step and field the shards with their places in the global array.
"""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]


def long_enough(record):
    return len(record["text"]) % 5 != 0


def tokenize(text: str) -> list[int]:
    return [ord(c) % 97 + 1 for c in text]


def uneven(record):
    return int(record["n"]) % 5 != 1


def pipeline(lanes: int, rows: int, **options: Any):
    """filter → tokenize → split → pack → shuffle over a two-way mixture."""
    import random

    import zephon_jax as zj

    rng = random.Random(0)
    datasets = [
        zj.Dataset.from_source(
            name, [{"text": "abcdefgh"[: rng.randint(1, 8)] * rng.randint(0, 8)} for _ in range(n)], fingerprint=name
        )
        for name, n in (("web", 2400), ("code", 900))
    ]
    work = zj.StaticMixtureWorkSource(datasets, {"web": 2, "code": 1}, chunk_size=8, shuffle_block_size=4, seed=3)
    p = zj.Pipeline(work).filter(long_enough).tokenize(tokenize).split(30).pack(33, num_bins=4).shuffle(6)
    return p.batch(global_batch_size=rows).lm_targets().options(canonical_replicas=lanes, **options)


def short(lanes: int, rows: int, drop_last: bool = True, **options: Any):
    """Few records: lanes end at different steps."""
    import zephon_jax as zj

    data = zj.Dataset.from_source("n", [{"n": i} for i in range(190)], fingerprint="n")
    work = zj.StaticMixtureWorkSource(data, chunk_size=4, shuffle_block_size=2, seed=1)
    p = zj.Pipeline(work).filter(uneven).shuffle(5).batch(global_batch_size=rows, drop_last=drop_last)
    return p.options(canonical_replicas=lanes, **options)


PIPELINES = {"pack": pipeline, "short": short}


def mesh_of(shape, names, order: str):
    import jax
    import numpy as np
    from jax.sharding import Mesh

    devices = np.array(sorted(jax.devices(), key=lambda d: (d.process_index, d.id)))
    if order == "reversed":
        devices = devices[::-1]
    elif order == "dealt":  # neighbours in the mesh are on different processes
        devices = devices.reshape(jax.process_count(), -1).T.reshape(-1)
    return Mesh(devices[: int(np.prod(shape))].reshape(shape), names)


def sharding_of(job):
    from jax.sharding import NamedSharding, PartitionSpec

    spec = [tuple(axis) if isinstance(axis, list) else axis for axis in job["spec"]]
    return NamedSharding(mesh_of(job["shape"], job["names"], job.get("order", "plain")), PartitionSpec(*spec))


def run(job) -> dict[str, Any]:
    import numpy as np

    p = PIPELINES[job["pipeline"]](job["lanes"], job["rows"], **job.get("options", {}))
    steps, states = [], []
    options = {k: job[k] for k in ("end", "accumulate", "prefetch") if k in job}
    error = None
    with p.to_global(sharding_of(job), **options) as it:
        if "restore" in job:
            it.restore(pickle.loads(pathlib.Path(job["restore"]).read_bytes()))
        try:
            for batch in it:
                steps.append(
                    {
                        name: (
                            array.shape,
                            array.dtype.str,
                            [
                                ([(s.start, s.stop) for s in sh.index], np.asarray(sh.data))
                                for sh in array.addressable_shards
                            ],
                        )
                        for name, array in batch.items()
                    }
                )
                if job.get("states"):
                    states.append(it.get_state())
                if len(steps) == job["steps"]:
                    break
        except Exception as raised:
            if not job.get("may_fail"):
                raise
            error = f"{type(raised).__name__}: {raised}"
        return {"steps": steps, "states": states, "error": error, "lanes": it.lane_fingerprints(), "step": it.step}


def join(config: Mapping[str, Any]) -> None:
    """Become one of the processes that the configuration names."""
    import jax

    jax.distributed.initialize(
        f"127.0.0.1:{config['port']}",
        config["processes"],
        config["process"],
        initialization_timeout=90,
        cluster_detection_method="deactivate",
    )


def main(path: str) -> None:
    config = json.loads(pathlib.Path(path).read_text())
    join(config)
    results = [run(job) for job in config["jobs"]]
    pathlib.Path(config["out"]).write_bytes(pickle.dumps(results))


# -- the launcher's side -------------------------------------------------------------------------------------------------------
def launch(
    folder: pathlib.Path,
    processes: int,
    devices: int,
    jobs: list[Any],
    timeout_s: float = 110,
    module: str = "tests.processes.hosts",
) -> list[list[Any]]:
    """The results of every process: a list per process of a result per job."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "NPROC": "16",
        "PYTHONPATH": str(ROOT),
    }
    running = []
    for i in range(processes):
        config = {
            "port": port,
            "processes": processes,
            "process": i,
            "jobs": jobs,
            "out": str(folder / f"out{i}.pickle"),
        }
        path = folder / f"config{i}.json"
        path.write_text(json.dumps(config))
        with open(folder / f"log{i}", "wb") as log:
            command = [sys.executable, "-m", module, str(path)]
            running.append(subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT))
    deadline = time.monotonic() + timeout_s
    try:
        for process in running:
            process.wait(timeout=max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    logs = "\n".join(f"[{i}] {(folder / f'log{i}').read_text()[-3000:]}" for i in range(processes))
    assert all(process.returncode == 0 for process in running), logs
    return [pickle.loads((folder / f"out{i}.pickle").read_bytes()) for i in range(processes)]


def assembled(results: list[Any], step: int) -> dict[str, Any]:
    """A step's global arrays, from the shards of all processes; copies of a shard must be equal."""
    import numpy as np

    out: dict[str, Any] = {}
    for result in results:
        for name, (shape, dtype, shards) in result["steps"][step].items():
            if name not in out:
                out[name] = np.zeros(shape, dtype), np.zeros(shape, bool)
            array, known = out[name]
            for index, values in shards:
                where = tuple(slice(a, b) for a, b in index)
                if known[where].any():
                    assert known[where].all()
                    assert np.array_equal(array[where], values), f"copies of {name}{index} differ"
                array[where], known[where] = values, True
    for name, (_, known) in out.items():
        assert known.all(), f"no device holds some rows of {name}"
    return {name: array for name, (array, _) in out.items()}


if __name__ == "__main__":
    main(sys.argv[1])
