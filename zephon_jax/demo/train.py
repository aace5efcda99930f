"""One trainer, a process of its own: `python -m zephon_jax.demo.train --work DIR --log FILE --checkpoints DIR ...`.

It trains from the newest checkpoint of its folder, or from the start, up to the last step, saves model and pipeline
together every few steps, and writes one flushed line per step. It knows nothing of other runs and nothing of being
killed: there is no signal handler, no clean-up and no last save.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import threading
from collections.abc import Mapping, Sequence
from typing import TextIO

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import zephon_jax as zj
from zephon_jax.demo.data import build_pipeline
from zephon_jax.demo.model import State, abstract_state, initial_state, train_step
from zephon_jax.demo.settings import Settings, mesh_shape
from zephon_jax.demo.steplog import EndRecord, StartRecord, StepRecord, batch_digest, to_line

__all__ = ["main", "train"]


def train(settings: Settings, work: pathlib.Path, *, checkpoints: pathlib.Path, devices: int, log: TextIO) -> None:
    """Train on `devices` devices up to the last step, from the newest checkpoint in `checkpoints` if there is one."""
    mesh = Mesh(np.asarray(jax.devices()).reshape(mesh_shape(devices)), ("data", "model"))
    update = train_step(settings, mesh)
    pipeline = build_pipeline(settings, work)
    sharding = NamedSharding(mesh, PartitionSpec("data", None))
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with (
        ocp.CheckpointManager(checkpoints.absolute(), options=options) as manager,
        pipeline.to_global(sharding, prefetch=2) as batches,
    ):
        done = manager.latest_step() or 0
        state = _restore(manager, done, settings, mesh, batches) if done else initial_state(settings, mesh)
        log.write(to_line(StartRecord(done, devices)))
        for step in range(done + 1, settings.steps + 1):
            batch = next(batches)
            state, loss = update(state, batch)
            log.write(to_line(_record(step, devices, batch, loss)))
            log.flush()
            if step % settings.save_every == 0:
                items = ocp.args.Composite(state=ocp.args.StandardSave(state), data=zj.PipelineSave(batches))
                manager.save(step, args=items)  # writes in the background while the next steps run
        fingerprints = {str(lane): value for lane, value in sorted(batches.lane_fingerprints().items())}
        log.write(to_line(EndRecord(batches.step, fingerprints)))
        manager.wait_until_finished()


def _restore(
    manager: ocp.CheckpointManager, step: int, settings: Settings, mesh: Mesh, batches: zj.PipelineIterator
) -> State:
    """Model and pipeline of one checkpoint, written on whatever devices, onto this mesh."""
    abstract = abstract_state(settings, mesh)
    items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), data=zj.PipelineRestore(batches))
    state: State = manager.restore(step, args=items)["state"]
    if batches.step != step:
        raise RuntimeError(f"the checkpoint of step {step} put the pipeline at step {batches.step}")
    return state


def _record(step: int, devices: int, batch: Mapping[str, jax.Array], loss: jax.Array) -> StepRecord:
    host = {name: np.asarray(array) for name, array in batch.items()}
    return StepRecord(step, batch_digest(host), float(loss), devices, tokens=int(host["loss_weights"].sum()))


def _end_with_parent() -> None:
    """End this process once its standard input closes, as it does however the parent ends.

    `os.read` and not `sys.stdin`, whose lock a daemon thread would hold while the interpreter shuts down.
    """

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(3)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of the process; the parent sets the environment that forces the number of devices."""
    parser = argparse.ArgumentParser(prog="python -m zephon_jax.demo.train", description=__doc__)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder with settings, corpus and tokenizer")
    parser.add_argument("--log", type=pathlib.Path, required=True)
    parser.add_argument("--checkpoints", type=pathlib.Path, required=True)
    parser.add_argument("--devices", type=int, required=True)
    arguments = parser.parse_args(argv)
    _end_with_parent()
    if jax.device_count() != arguments.devices:
        raise RuntimeError(f"{jax.device_count()} devices, needed are {arguments.devices}: see XLA_FLAGS")
    with arguments.log.open("w", encoding="utf-8") as log:
        settings = Settings.read(arguments.work)
        train(settings, arguments.work, checkpoints=arguments.checkpoints, devices=arguments.devices, log=log)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
