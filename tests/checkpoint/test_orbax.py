"""Saving through Orbax: the state of the call, sync and async, errors that surface, nothing half-written."""

from __future__ import annotations

import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from orbax.checkpoint import v1

import zephon_jax as zj
from zephon_jax.checkpoint import item as module


def pipeline():
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("n", range(400)), chunk_size=8, seed=1)
    return zj.Pipeline(work).shuffle(8).batch(global_batch_size=8)


def sharding(n=4):
    return NamedSharding(Mesh(np.array(jax.devices()[:n]), ("data",)), P("data"))


def take(it, n):
    return [np.asarray(next(it)["value"]).tolist() for _ in range(n)]


@pytest.fixture(scope="module")
def whole():
    with pipeline().to_global(sharding()) as it:
        return take(it, 20)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_save_and_restore_beside_a_model(tmp_path, whole, asynchronous):
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=asynchronous, max_to_keep=2)
    with ocp.CheckpointManager(tmp_path, options=options) as mgr, pipeline().to_global(sharding()) as it:
        for step in range(1, 10):
            assert take(it, 1) == [whole[step - 1]]
            if step % 3 == 0:
                args = ocp.args.Composite(
                    state=ocp.args.StandardSave({"step": np.int32(step)}), data=zj.PipelineSave(it)
                )
                mgr.save(step, args=args)
        mgr.wait_until_finished()
        assert mgr.all_steps() == [6, 9]
    with ocp.CheckpointManager(tmp_path) as mgr, pipeline().to_global(sharding(2)) as it:
        restored = mgr.restore(
            6, args=ocp.args.Composite(state=ocp.args.StandardRestore(), data=zj.PipelineRestore(it))
        )
        assert restored.data is it
        assert int(restored.state["step"]) == it.step == 6
        assert take(it, 8) == whole[6:14]


def test_case_4_an_async_save_keeps_the_position_of_the_call(tmp_path, whole, monkeypatch):
    write = module.write_file

    def slow(directory, name, data):
        time.sleep(1.0)
        write(directory, name, data)

    monkeypatch.setattr(module, "write_file", slow)
    with ocp.CheckpointManager(tmp_path) as mgr:
        it = pipeline().to_global(sharding())
        take(it, 3)
        mgr.save(3, args=ocp.args.Composite(data=zj.PipelineSave(it)))
        assert take(it, 5) == whole[3:8]  # while it is written
        it.close()
        mgr.wait_until_finished()
    with ocp.CheckpointManager(tmp_path) as mgr, pipeline().to_global(sharding()) as it:
        mgr.restore(3, args=ocp.args.Composite(data=zj.PipelineRestore(it)))
        assert take(it, 4) == whole[3:7]


def test_case_43_a_failed_background_save_surfaces_and_commits_nothing(tmp_path, monkeypatch):
    def full(directory, name, data):
        raise OSError("no space left on device")

    monkeypatch.setattr(module, "write_file", full)
    with pipeline().to_global(sharding()) as it:
        mgr = ocp.CheckpointManager(tmp_path)
        take(it, 1)
        mgr.save(1, args=ocp.args.Composite(data=zj.PipelineSave(it)))
        with pytest.raises(OSError, match="no space left"):
            mgr.wait_until_finished()
        monkeypatch.undo()
        assert mgr.all_steps() == []
        take(it, 1)
        mgr.save(2, args=ocp.args.Composite(data=zj.PipelineSave(it)))
        mgr.close()
    with ocp.CheckpointManager(tmp_path) as mgr:
        assert mgr.all_steps() == [2]


def test_a_state_that_was_damaged_on_disk_is_refused_by_name(tmp_path):
    with ocp.CheckpointManager(tmp_path) as mgr, pipeline().to_global(sharding()) as it:
        take(it, 2)
        mgr.save(2, args=ocp.args.Composite(data=zj.PipelineSave(it)))
    (file,) = (tmp_path / "2" / "data").glob("lanes_*")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    with ocp.CheckpointManager(tmp_path) as mgr, pipeline().to_global(sharding()) as it:
        with pytest.raises(zj.CheckpointMismatch, match="lanes_00000_of_00001"):
            mgr.restore(2, args=ocp.args.Composite(data=zj.PipelineRestore(it)))
        assert it.step == 0
    file.unlink()
    with ocp.CheckpointManager(tmp_path) as mgr, pipeline().to_global(sharding()) as it:
        with pytest.raises(zj.CheckpointMismatch, match="holds no pipeline state"):
            mgr.restore(2, args=ocp.args.Composite(data=zj.PipelineRestore(it)))


def test_the_state_of_another_pipeline_is_refused_through_orbax(tmp_path):
    with ocp.CheckpointManager(tmp_path) as mgr, pipeline().to_global(sharding()) as it:
        take(it, 2)
        mgr.save(2, args=ocp.args.Composite(data=zj.PipelineSave(it)))
    other = zj.Pipeline(pipeline().work).shuffle(9).batch(global_batch_size=8)
    with ocp.CheckpointManager(tmp_path) as mgr, other.to_global(sharding()) as it:
        with pytest.raises(zj.CheckpointMismatch, match=r"buffer_size: the checkpoint has 8, this pipeline 9"):
            mgr.restore(2, args=ocp.args.Composite(data=zj.PipelineRestore(it)))


@pytest.mark.parametrize(("saved", "restored"), [("v1", "v1"), ("v1", "v0"), ("v0", "v1")])
def test_both_interfaces_of_orbax_read_what_either_wrote(tmp_path, whole, saved, restored):
    with pipeline().to_global(sharding()) as it:
        take(it, 3)
        if saved == "v1":
            with v1.training.Checkpointer(tmp_path) as checkpointer:
                response = checkpointer.save_checkpointables_async(3, {"state": {"x": np.ones(3)}, "data": it})
                assert take(it, 2) == whole[3:5]  # while it is written
                response.result()
        else:
            with ocp.CheckpointManager(tmp_path) as mgr:
                mgr.save(3, args=ocp.args.Composite(data=zj.PipelineSave(it)))
    with pipeline().to_global(sharding(2)) as it:
        if restored == "v1":
            with v1.training.Checkpointer(tmp_path) as checkpointer:
                checkpointer.load_checkpointables(3, {"data": it})
        else:
            with ocp.CheckpointManager(tmp_path) as mgr:
                mgr.restore(3, args=ocp.args.Composite(data=zj.PipelineRestore(it)))
        assert take(it, 4) == whole[3:7]


def test_a_failed_save_through_v1_surfaces_and_commits_nothing(tmp_path, monkeypatch):
    def full(directory, name, data):
        raise OSError("no space left on device")

    monkeypatch.setattr(module, "write_file", full)
    checkpointer = v1.training.Checkpointer(tmp_path)
    with pipeline().to_global(sharding()) as it:
        take(it, 1)
        with pytest.raises(OSError, match="no space left"):
            checkpointer.save_checkpointables(1, {"data": it})
        assert list(checkpointer.checkpoints) == []
    with pytest.raises(OSError, match="no space left"):  # Orbax tells it again
        checkpointer.close()


def test_case_42_without_arguments_the_raw_state_and_without_the_data_only_the_model(tmp_path, whole):
    with ocp.CheckpointManager(tmp_path) as mgr, pipeline().to_global(sharding()) as it:
        take(it, 2)
        state = it.checkpoint()
        model = ocp.args.StandardSave({"step": np.int32(2)})
        mgr.save(2, args=ocp.args.Composite(state=model, data=zj.PipelineSave(it)))
    with ocp.CheckpointManager(tmp_path) as mgr:
        assert mgr.restore(2).data == state
        assert mgr.item_metadata(2).data["rounds"] == dict.fromkeys(range(8), 2)
    with ocp.CheckpointManager(tmp_path) as mgr:
        assert int(mgr.restore(2, args=ocp.args.Composite(state=ocp.args.StandardRestore())).state["step"]) == 2
