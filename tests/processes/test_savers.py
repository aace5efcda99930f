"""Several jax.distributed processes on loopback, one checkpoint: saved on some, restored on others, through both interfaces of
Orbax; faults in one of them are told to all. Many checks share a launch, which takes seconds.
"""

from __future__ import annotations

import pathlib

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import zephon_jax as zj
from tests.processes.hosts import assembled, launch, pipeline
from tests.processes.savers import LANES, ROWS
from zephon_jax.checkpoint.codec import decode, encode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(170)]

SAVERS = "tests.processes.savers"


@pytest.fixture(scope="module")
def reference():
    """Steps 0 to 11 of one process, and its state before each."""
    steps, states = [], []
    with pipeline(LANES, ROWS, executor="inline").steps() as it:
        for _ in range(12):
            states.append(it.checkpoint())
            arrays = next(it)
            steps.append({k: v.astype(np.int32) if v.dtype == np.int64 else v for k, v in arrays.items()})
    return steps, states


def require_steps(results: list, first: int, reference) -> None:
    for k in range(len(results[0]["steps"])):
        got, want = assembled(results, k), reference[0][first + k]
        assert got.keys() == want.keys()
        for name in want:
            assert np.array_equal(got[name], want[name]), (first + k, name)


def restored_here(folder: str, step: int, reference) -> None:
    """On one process with its own devices, and then as on a machine with a single one."""
    for devices in (8, 1):
        sharding = NamedSharding(Mesh(np.array(jax.devices()[:devices]), ("data",)), PartitionSpec("data"))
        with ocp.CheckpointManager(folder) as mgr, pipeline(LANES, ROWS).to_global(sharding) as it:
            mgr.restore(step, args=ocp.args.Composite(data=zj.PipelineRestore(it)))
            assert it.step == step
            got = next(it)
            assert all(np.array_equal(np.asarray(got[name]), reference[0][step][name]) for name in got)


def test_saved_on_two_processes_restored_on_others(tmp_path, reference):
    """Cases 4, 8, 9, 11 and 42: async and sync, Orbax v0 and v1, two processes, then four, then one."""
    v0, v1 = str(tmp_path / "v0"), str(tmp_path / "v1")
    (tmp_path / "two").mkdir()
    (tmp_path / "four").mkdir()
    jobs = [
        {"job": "save_steps", "folder": v0},
        {"job": "save_v1", "folder": v1},
        {"job": "restore_step", "folder": v0, "step": 3, "interface": "v0"},
        {"job": "restore_step", "folder": v1, "step": 4, "interface": "v0", "model": False},
        {"job": "restore_step", "folder": v0, "step": 6, "interface": "v1"},
        {"job": "restore_step", "folder": v1, "step": 4, "interface": "v1"},
        {"job": "round_over_jax"},
        {"job": "groups_over_jax"},
        {"job": "the_store"},
    ]
    two = launch(tmp_path / "two", 2, 2, jobs, module=SAVERS)
    require_steps([process[0] for process in two], 0, reference)
    for number, first in ((2, 3), (3, 4), (4, 6), (5, 4)):
        results = [process[number] for process in two]
        assert {result["step"] for result in results} == {first}
        require_steps(results, first, reference)
    assert two[0][2]["w"] == two[1][2]["w"] == 3.0

    for step in (3, 6):
        names = sorted(path.name for path in pathlib.Path(v0, str(step), "data").glob("lanes*"))
        assert names == ["lanes_00000_of_00002.zst", "lanes_00001_of_00002.zst"]

    # Rounds over JAX's own store: the bytes of one process, two keys between rounds, none after closing.
    for process in two:
        assert process[6]["states"] == [encode(state) for state in reference[1][1:4]]
        assert {key.rpartition("-")[2] if "-" in key else "announce" for key in process[6]["during"]} <= {
            "announce", "result", "1",
        }  # fmt: skip
        assert process[6]["after"] == []
    assert decode(two[0][7]["state"])["lanes"] == decode(two[1][7]["state"])["lanes"]
    assert [lane["rounds"] for lane in decode(two[0][7]["state"])["lanes"]] == [3] * 4
    assert len({process[8]["launch"] for process in two}) == 1

    jobs = [
        {"job": "restore_step", "folder": v0, "step": 6, "interface": "v0", "model": False},
        {"job": "restore_step", "folder": v1, "step": 4, "interface": "v1"},
    ]
    four = launch(tmp_path / "four", 4, 1, jobs, module=SAVERS)
    for number, first in ((0, 6), (1, 4)):
        require_steps([process[number] for process in four], first, reference)

    restored_here(v0, 3, reference)
    restored_here(v1, 4, reference)
    with ocp.CheckpointManager(v0) as mgr:
        raw = mgr.restore(6, args=ocp.args.Composite(data=zj.PipelineRestore()))
        assert encode(raw.data) == encode(reference[1][6])
        assert mgr.item_metadata(6).data["rounds"] == dict.fromkeys(range(LANES), 6)

    # A process's part that is gone is named, with its lanes.
    pathlib.Path(v0, "6", "data", "lanes_00001_of_00002.zst").unlink()
    with (
        ocp.CheckpointManager(v0) as mgr,
        pytest.raises(
            zj.CheckpointMismatch, match=r"\['lanes_00001_of_00002.zst'\], and with them the state of lanes \[3, 4\]"
        ),
    ):
        mgr.restore(6, args=ocp.args.Composite(data=zj.PipelineRestore()))


def test_what_fails_in_one_process_is_told_to_all(tmp_path):
    """Case 43: the state, the plan, the disk, a file to restore from. Nothing is committed, nobody waits for long, and the next
    save and restore are good.
    """
    jobs = [{"job": "faults", "folder": str(tmp_path / "ck")}, {"job": "late"}, {"job": "shut_down"}]
    results = launch(tmp_path, 4, 1, jobs, module=SAVERS)
    told = [process[0] for process in results]
    for name, text in {
        "capture": "AggregationFailed: rank 1: ConfigurationError: too many samples are in flight",
        "another pipeline": "AggregationFailed: rank 1 has another pipeline or other data (",
        "disk": "OSError: [Errno 28] No space left on device",
        "half": "what was written does not read back: CheckpointMismatch: ",
        "v1 capture": "AggregationFailed: rank 1: ConfigurationError: too many samples are in flight",
        "v1 disk": "OSError: [Errno 28] No space left on device",
        "v1 closing": "OSError: [Errno 28] No space left on device",
        "restore": "AggregationFailed: rank 1: CheckpointMismatch: lanes_00001_of_00002.zst: this is no pipeline state",
    }.items():
        texts = {here[name][0] for here in told}
        assert len(texts) == 1, texts
        assert text in texts.pop()
        assert max(here[name][1] for here in told) < 15  # of a budget of 20, and of the 1,200 that Orbax would wait
    for here in told:
        assert here["steps after disk"] == []
        assert here["steps"] == [4]
        assert here["v1 steps"] == [3]
        assert here["restored"] == 2
        assert here["raw"] == list(range(LANES))
    for process, late in enumerate(results):
        for text in late[1].values():
            assert process != 1
            assert "1 of 4 ranks did not report their state in time; missing: rank 1 with lanes [1, 2]" in text
    assert set(results[0][1]) == {"round", "save"}
    assert {process[2]["closing"] for process in results} == {""}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("savers", "devices"), [(1, 4), (5, 1), (4, 2), (8, 1)])
def test_any_number_saves_and_any_number_restores(tmp_path, reference, savers, devices):
    """Case 10, with an accumulator, a shuffle and a mixture; 5 lanes, so that lanes straddle processes."""
    folder = str(tmp_path / "ck")
    (tmp_path / "save").mkdir()
    save = {"job": "save_steps", "folder": folder}
    launch(tmp_path / "save", savers, devices, [save], module=SAVERS)
    for processes, here in ((1, 2), (2, 4), (4, 1), (8, 1)):
        where = tmp_path / f"restore{processes}"
        where.mkdir()
        jobs = [
            {"job": "restore_step", "folder": folder, "step": 6, "interface": interface, "model": False}
            for interface in ("v0", "v1")
        ]
        got = launch(where, processes, here, jobs, module=SAVERS)
        for number in range(2):
            require_steps([process[number] for process in got], 6, reference)
    restored_here(folder, 6, reference)
