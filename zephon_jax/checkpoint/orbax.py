"""A pipeline's state as an item of an Orbax checkpoint, beside the model's, for Orbax's first interface (v0).

The state is captured when `save` calls the handler, on the caller's thread, so the training loop may go on while an
asynchronous save is written. It travels in the item's own directory: no second storage, and a step is committed with
both or with neither. Nothing here depends on the number of devices or processes, so a machine with one CPU can read every
state. For the second interface (v1) the iterator itself is a checkpointable, with the same files.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import orbax.checkpoint as ocp
from etils import epath

from zephon_jax.checkpoint.codec import state_from_plain
from zephon_jax.checkpoint.item import (
    begin_save,
    item_files,
    read_item,
    require_item,
    restore_item,
    write_save,
)

__all__ = ["PipelineCheckpointHandler", "PipelineRestore", "PipelineSave"]


class PipelineCheckpointHandler(ocp.handlers.AsyncCheckpointHandler):
    """Orbax handler for `PipelineSave` and `PipelineRestore`; found through these, or named in a handler registry.

    One file per writing process holds the lanes that it leads; unknown files in the folder are ignored.
    """

    @classmethod
    def typestr(cls) -> str:
        """A constant, so that a checkpoint is found again after a move of this module."""
        return "zephon_jax.PipelineCheckpointHandler"

    async def async_save(self, directory: epath.Path, args: PipelineSave) -> list[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Capture the state now, write it in the background; the directory need not exist yet.

        With several processes they agree first: all go on to Orbax's barriers, or all raise the same text.
        """
        save = begin_save(require_item(args.item))
        future = ocp.future.CommitFutureAwaitingContractedSignals  # pyright: ignore[reportAttributeAccessIssue]
        return [future(asyncio.to_thread(write_save, save, directory), name="zephon_jax_data_save")]

    def save(self, directory: epath.Path, args: PipelineSave) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Write the state before returning. No event loop is started: a notebook has one running already."""
        write_save(begin_save(require_item(args.item)), directory)

    def restore(self, directory: epath.Path, args: PipelineRestore | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Restore `args.item` and return it; without an item, return the state as `checkpoint()` gave it."""
        item = None if args is None or args.item is None else require_item(args.item)
        state = restore_item(directory, item)
        return state if item is None else item

    def metadata(self, directory: epath.Path) -> dict[str, Any]:
        """What the state says of itself: format version, lanes, rounds and rows per lane, datasets, bytes."""
        state = state_from_plain(read_item(directory))
        return {
            "version": 1,
            "lanes_total": state.lanes_total,
            "rounds": {lane: s.rounds for lane, s in state.lanes.items()},
            "rows": {lane: s.rows for lane, s in state.lanes.items()},
            "datasets": {d.name: {"num_samples": d.num_samples, "fingerprint": d.fingerprint} for d in state.datasets},
            "state_bytes": sum(path.stat().length for path in item_files(directory).values()),
        }

    def finalize(self, directory: epath.Path) -> None:
        """On the primary host before the commit: every file and every lane must read back."""
        read_item(directory)

    def close(self) -> None:
        """Nothing is held."""


@ocp.args.register_with_handler(PipelineCheckpointHandler, for_save=True)  # pyright: ignore[reportUntypedClassDecorator]
@dataclass
class PipelineSave(ocp.args.CheckpointArgs):
    """`mgr.save(step, args=Composite(state=…, data=PipelineSave(it)))`: save where iterator `it` stands."""

    item: Any


@ocp.args.register_with_handler(PipelineCheckpointHandler, for_restore=True)  # pyright: ignore[reportUntypedClassDecorator]
@dataclass
class PipelineRestore(ocp.args.CheckpointArgs):
    """`mgr.restore(step, args=Composite(state=…, data=PipelineRestore(it)))`: continue fresh iterator `it` from there.

    Without an item the raw state is returned, for `it.restore(state)`.
    """

    item: Any = None
