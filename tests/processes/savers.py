"""One of several jax.distributed processes that save and restore together: `python -m tests.processes.savers CONFIG.json`.

Each job is a function here by its name; what it returns goes back to the test. Faults are planted in one process by replacing
a function of the package.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import pathlib
import pickle
import sys
import time
from typing import Any

from tests.processes.hosts import join, pipeline, sharding_of

DATA = {"names": ("data",), "spec": ["data"]}
LANES, ROWS = 5, 40


def globally(job, **options):
    import jax

    return pipeline(LANES, ROWS, **options).to_global(sharding_of({**DATA, "shape": (len(jax.devices()),)}))


def shards(batch) -> dict[str, Any]:
    import numpy as np

    return {
        name: (
            array.shape,
            array.dtype.str,
            [([(s.start, s.stop) for s in sh.index], np.asarray(sh.data)) for sh in array.addressable_shards],
        )
        for name, array in batch.items()
    }


def model(value: float):
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from tests.processes.hosts import mesh_of

    n = len(jax.devices())
    sharding = NamedSharding(mesh_of((n,), ("data",), "plain"), PartitionSpec("data"))
    return jax.make_array_from_callback((8 * n,), sharding, lambda index: np.full(8 * n, value, np.float32)[index])


def manager(job, **options):
    import orbax.checkpoint as ocp

    given = ocp.CheckpointManagerOptions(async_options=ocp.AsyncOptions(timeout_secs=40), **options)
    return ocp.CheckpointManager(pathlib.Path(job["folder"]), options=given)


def text_of(call) -> tuple[str, float]:
    """The error that this ends with, and after how many seconds."""
    begin = time.monotonic()
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begin
    return "", time.monotonic() - begin


# -- jobs --------------------------------------------------------------------------------------------------------------
def save_steps(job):
    """Steps 3 (async, the loop goes on) and 6 (sync), beside a model; what was delivered of steps 0 to 7."""
    import orbax.checkpoint as ocp

    import zephon_jax as zj

    steps = []
    with globally(job) as it:
        for asynchronous, save_at, stop_at in ((True, 3, 5), (False, 6, 8)):
            with manager(job, enable_async_checkpointing=asynchronous) as mgr:
                while it.step < stop_at:
                    steps.append(shards(next(it)))
                    if it.step == save_at:
                        mgr.save(
                            save_at,
                            args=ocp.args.Composite(
                                state=ocp.args.StandardSave({"w": model(save_at)}), data=zj.PipelineSave(it)
                            ),
                        )
        return {"steps": steps, "lanes": it.lane_fingerprints()}


def save_v1(job):
    from orbax.checkpoint import v1

    with globally(job) as it, v1.training.Checkpointer(pathlib.Path(job["folder"])) as checkpointer:
        for _ in range(4):
            next(it)
        response = checkpointer.save_checkpointables_async(4, {"state": {"w": model(4.0)}, "data": it})
        next(it)
        response.result()
    return {}


def restore_step(job):
    """What comes after the step, restored through v0 or v1."""
    import jax
    import orbax.checkpoint as ocp
    from orbax.checkpoint import v1

    import zephon_jax as zj

    abstract = {"w": jax.ShapeDtypeStruct(model(0.0).shape, "float32", sharding=model(0.0).sharding)}
    out = {}
    with globally(job) as it:
        if job["interface"] == "v1":
            with v1.training.Checkpointer(pathlib.Path(job["folder"])) as checkpointer:
                checkpointer.load_checkpointables(job["step"], {"data": it})
        else:
            with manager(job) as mgr:
                items = {"data": zj.PipelineRestore(it)}
                if job.get("model", True):
                    items["state"] = ocp.args.StandardRestore(abstract)
                got = mgr.restore(job["step"], args=ocp.args.Composite(**items))
                if job.get("model", True):
                    out["w"] = float(got.state["w"].addressable_shards[0].data[0])
        return {**out, "step": it.step, "steps": [shards(next(it)) for _ in range(2)]}


def round_over_jax(job):
    """checkpoint() of every process at the same step, over jax.distributed's own store; twice, then closed."""
    from zephon_jax.checkpoint.codec import encode
    from zephon_jax.coordinate.jaxkv import JaxStore

    it = globally(job)
    states, took = [], []
    for _ in range(3):
        next(it)
        begin = time.monotonic()
        states.append(encode(it.checkpoint()))
        took.append(time.monotonic() - begin)
    during = JaxStore().list("zephon_jax/round/")
    meet("before closing")
    it.close()
    meet("closed")
    return {"states": states, "took": took, "during": during, "after": JaxStore().list("zephon_jax/round/")}


def groups_over_jax(job):
    """The same for `iter` with data-parallel groups; world size and rank are jax's."""
    import jax

    from zephon_jax.checkpoint.codec import encode

    n = jax.process_count()
    p = pipeline(4, ROWS, dp_degree=n, dp_group_id=jax.process_index())
    with iter(p) as it:
        for _ in range(3 * 4 // n):
            next(it)
        return {"state": encode(it.checkpoint())}


def meet(name: str) -> None:
    from zephon_jax.coordinate.jaxkv import client

    here: Any = client()
    here.wait_at_barrier(name, 30_000)


def faults(job):
    """Each fault is in process 1 only; every process says what it was told, and then saves and restores in good order."""
    import jax
    import orbax.checkpoint as ocp
    from orbax.checkpoint import v1

    import zephon_jax as zj
    from zephon_jax.checkpoint import item as module
    from zephon_jax.coordinate.jaxkv import JaxStore
    from zephon_jax.errors import ConfigurationError

    here, out = jax.process_index(), {}
    faulty = here == 1
    it = globally(job, aggregate_timeout_s=20)
    next(it)
    mgr = manager(job)

    def save(step: int, what=None) -> None:
        mgr.save(step, args=ocp.args.Composite(data=zj.PipelineSave(it if what is None else what)))

    @contextlib.contextmanager
    def planted(owner, name, function):
        real = getattr(owner, name)
        if faulty:
            setattr(owner, name, function)
        yield
        setattr(owner, name, real)

    def no_capture():
        raise ConfigurationError("too many samples are in flight")

    def full(directory, name, data):
        raise OSError(28, "No space left on device")

    with planted(it, "get_state", no_capture):
        out["capture"] = text_of(lambda: save(1))
    other = (
        globally(job, aggregate_timeout_s=20)
        if not faulty
        else (
            pipeline(LANES, ROWS)
            .options(flush_every_k_chunks=5, aggregate_timeout_s=20)
            .to_global(sharding_of({**DATA, "shape": (len(jax.devices()),)}))
        )
    )
    out["another pipeline"] = text_of(lambda: save(2, other))
    other.close()
    mgr.close()

    mgr = manager(job)
    with planted(module, "write_file", full):
        save(3)
        out["disk"] = text_of(mgr.wait_until_finished)
    mgr.close()

    def half(directory, name, data):
        (directory / name).write_bytes(data[: len(data) // 2])

    mgr = manager(job)
    with planted(module, "write_file", half):
        save(3)
        out["half"] = text_of(mgr.wait_until_finished)
    out["steps after disk"] = list(mgr.all_steps())
    mgr.close()
    mgr = manager(job)
    next(it)
    save(4)
    mgr.wait_until_finished()
    out["steps"] = list(mgr.all_steps())

    def unreadable(directory, nonce=None):
        raise zj.CheckpointMismatch("lanes_00001_of_00002.zst: this is no pipeline state")

    again = globally(job, aggregate_timeout_s=20)

    def restore() -> None:
        mgr.restore(4, args=ocp.args.Composite(data=zj.PipelineRestore(again)))

    with planted(module, "read_item", unreadable):
        out["restore"] = text_of(restore)
    restore()  # nothing had changed
    out["restored"] = again.step
    raw: Any = mgr.restore(4)
    out["raw"] = sorted(lane["lane"] for lane in raw.data["lanes"])
    next(again)
    again.close()
    mgr.close()

    second = pathlib.Path(job["folder"] + "-v1")
    checkpointer = v1.training.Checkpointer(second)
    with planted(it, "get_state", no_capture):
        out["v1 capture"] = text_of(lambda: checkpointer.save_checkpointables(1, {"data": it}))
    with planted(module, "write_file", full):
        out["v1 disk"] = text_of(lambda: checkpointer.save_checkpointables(2, {"data": it}))
    out["v1 closing"] = text_of(checkpointer.close)
    with v1.training.Checkpointer(second) as checkpointer:  # the other one tells of its error for as long as it lives
        checkpointer.save_checkpointables(3, {"data": it})
        out["v1 steps"] = [found.step for found in checkpointer.checkpoints]
    it.close()
    meet("faults are over")
    out["keys"] = JaxStore().list("zephon_jax/item/")
    return out


def the_store(job):
    """What every store must do, in process 0; a launch has one nonce."""
    import jax

    from tests.coordinate.contract import check_store
    from zephon_jax.coordinate.jaxkv import JaxStore, launch_nonce

    if jax.process_index() == 0:
        check_store(JaxStore())
    return {"launch": launch_nonce(20.0)}


def late(job):
    """Whoever does not come is named, within the budget, before Orbax's barriers, which know none."""
    import jax

    from zephon_jax.checkpoint.item import begin_save

    it = globally(job, aggregate_timeout_s=1)
    next(it)
    out = {}
    if jax.process_index() != 1:
        out = {"round": text_of(it.checkpoint)[0], "save": text_of(lambda: begin_save(it))[0]}
    meet("those who came have given up")
    it.close()
    return out


def shut_down(job):
    """The last job of a launch: an iterator may outlive jax.distributed."""
    import jax

    it = globally(job)
    next(it)
    it.checkpoint()
    jax.distributed.shutdown()
    return {"closing": text_of(it.close)[0]}


JOBS = {
    f.__name__: f
    for f in (save_steps, save_v1, restore_step, round_over_jax, groups_over_jax, the_store, late, shut_down, faults)
}


def main(path: str) -> None:
    config = json.loads(pathlib.Path(path).read_text())
    join(config)
    faulthandler.dump_traceback_later(25)
    results = []
    for job in config["jobs"]:
        begin = time.monotonic()
        results.append(JOBS[job["job"]](job))
        print(job["job"], f"{time.monotonic() - begin:.1f} s", flush=True)
    pathlib.Path(config["out"]).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
