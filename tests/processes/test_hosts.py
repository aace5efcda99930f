"""Several jax.distributed processes: on any mesh the global arrays of the uninterrupted run of one process, one end for all."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tests.processes.hosts import PIPELINES, assembled, launch
from zephon_jax.checkpoint.codec import encode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

STEPS, CUT = 8, 5
MESHES = {
    "data": {"shape": (8,), "names": ("data",), "spec": ["data"]},
    "data reversed": {"shape": (8,), "names": ("data",), "spec": ["data"], "order": "reversed"},
    "data dealt": {"shape": (8,), "names": ("data",), "spec": ["data"], "order": "dealt"},
    "data and sequence": {"shape": (4, 2), "names": ("data", "seq"), "spec": ["data", "seq"]},
    "tensor over hosts": {"shape": (2, 4), "names": ("model", "data"), "spec": ["data", None]},
    "two batch axes": {"shape": (2, 2, 2), "names": ("data", "fsdp", "model"), "spec": [["data", "fsdp"], None]},
    "replicated": {"shape": (8,), "names": ("data",), "spec": []},
}


def reference(name: str, lanes: int, rows: int, steps: int, **options):
    """Steps and states of one process without a mesh; int64 as the devices have it."""
    p = PIPELINES[name](lanes, rows, executor="inline", **options)
    out, states = [], []
    with p.steps() as it:
        states.append(it.checkpoint())
        for arrays in it:
            out.append({k: v.astype(np.int32) if v.dtype == np.int64 else v for k, v in arrays.items()})
            states.append(it.checkpoint())
            if len(out) == steps:
                break
    return out, states


@pytest.mark.parametrize(
    ("processes", "devices"),
    [(2, 4), pytest.param(4, 2, marks=pytest.mark.long), pytest.param(8, 1, marks=pytest.mark.long)],
)
def test_global_arrays_are_the_same_on_any_mesh(tmp_path, processes, devices):
    """5 lanes of 40 rows: a count that no topology divides, so that lanes straddle processes."""
    meshes = MESHES if processes < 8 else {k: MESHES[k] for k in ("data", "two batch axes", "tensor over hosts")}
    wanted = {lanes: reference("pack", lanes, 40, STEPS + 6) for lanes in (8, 5)}
    (tmp_path / "state").write_bytes(pickle.dumps(wanted[8][1][CUT]))
    jobs = [
        {"pipeline": "pack", "lanes": lanes, "rows": 40, "steps": 3, "states": True, **mesh}
        for mesh in meshes.values()
        for lanes in (8, 5)
    ]
    jobs.append(
        {"pipeline": "pack", "lanes": 8, "rows": 40, "steps": 3, "restore": str(tmp_path / "state"), **MESHES["data"]}
    )
    jobs.append(
        {"pipeline": "pack", "lanes": 8, "rows": 40, "steps": 2, "accumulate": 2, **MESHES["data and sequence"]}
    )
    results = launch(tmp_path, processes, devices, jobs, timeout_s=60 + 40 * processes)
    for number, job in enumerate(jobs):
        ours = [process[number] for process in results]
        steps, states = wanted[job["lanes"]]
        first = CUT if "restore" in job else 0
        for t in range(job["steps"]):
            got = assembled(ours, t)
            if "accumulate" in job:
                want = {k: np.stack([steps[2 * t + a][k] for a in range(2)]) for k in steps[0]}
            else:
                want = steps[first + t]
            assert got.keys() == want.keys()
            for field in want:
                assert got[field].dtype == want[field].dtype
                assert np.array_equal(got[field], want[field]), (job, t, field)
            if job.get("states"):
                whole = {lane["lane"]: lane for lane in states[t + 1]["lanes"]}
                for process in ours:
                    part = process["states"][t]
                    for lane in part["lanes"]:
                        assert encode({"lane": lane}) == encode({"lane": whole[lane["lane"]]})


def ends_of(lanes: int, rows: int, drop_last: bool) -> list[int]:
    """Steps of each lane."""
    p = PIPELINES["short"](lanes, rows, drop_last, executor="inline")
    with iter(p) as it:
        for _ in it:
            pass
        return list(it.stats().rounds.values())


@pytest.mark.parametrize(("processes", "devices"), [(2, 2), pytest.param(4, 1, marks=pytest.mark.long)])
def test_all_processes_stop_after_the_same_step(tmp_path, processes, devices):
    mesh = {"shape": (processes * devices,), "names": ("data",), "spec": ["data"]}
    base = {"pipeline": "short", "steps": 1000, **mesh}
    jobs = [
        {**base, "lanes": 4, "rows": 8},
        {**base, "lanes": 4, "rows": 8, "prefetch": 1},
        {**base, "lanes": 4, "rows": 8, "end": "pad"},
        {**base, "lanes": 4, "rows": 8, "end": "pad", "options": {"drop_last": False}, "prefetch": 4},
        {**base, "lanes": 2, "rows": 8, "end": "pad", "options": {"drop_last": False}, "accumulate": 3},
        {**base, "lanes": 4, "rows": 8, "options": {"executor": "inline"}},
    ]
    results = launch(tmp_path, processes, devices, jobs)
    shortest, longest = min(ends_of(4, 8, True)), max(ends_of(4, 8, True))
    every, of_two = max(ends_of(4, 8, False)), max(ends_of(2, 8, False))
    assert shortest < longest <= every
    want = [shortest, shortest, longest, every, -(-of_two // 3), shortest]
    for number, steps in enumerate(want):
        assert [len(process[number]["steps"]) for process in results] == [steps] * processes, jobs[number]
    rows = sum(int(assembled([p[3] for p in results], t)["row_valid"].sum()) for t in range(every))
    assert rows == sum(1 for i in range(190) if i % 5 != 1), "padding loses no row"
