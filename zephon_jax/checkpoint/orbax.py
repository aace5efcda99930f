"""A pipeline's state as an item of an Orbax checkpoint, beside the model's.

The state is captured when `save` calls the handler, on the caller's thread, so the training loop may go on while an
asynchronous save is written. It travels in the item's own directory: no second storage, and a step is committed with
both or with neither. Nothing here depends on the number of devices, so a machine with one CPU can read every state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orbax.checkpoint as ocp
from etils import epath

from zephon_jax.checkpoint.codec import decode, encode, state_from_plain
from zephon_jax.errors import CheckpointMismatch, ConfigurationError, ZephonError

__all__ = ["PipelineCheckpointHandler", "PipelineRestore", "PipelineSave"]

_FILE: Final = "lanes_{writer:05d}_of_{writers:05d}.zst"


class Checkpointable(Protocol):
    """What is saved and restored: an iterator of a pipeline."""

    def checkpoint(self) -> Mapping[str, Any]: ...
    def restore(self, state: Mapping[str, Any], /) -> None: ...


class PipelineCheckpointHandler(ocp.handlers.AsyncCheckpointHandler):
    """Orbax handler for `PipelineSave` and `PipelineRestore`; found through these, or named in a handler registry.

    One file per writing process holds the lanes that it leads; unknown files in the folder are ignored.
    """

    @classmethod
    def typestr(cls) -> str:
        """A constant, so that a checkpoint is found again after a move of this module."""
        return "zephon_jax.PipelineCheckpointHandler"

    async def async_save(self, directory: epath.Path, args: PipelineSave) -> list[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Capture the state now, write it in the background; the directory need not exist yet."""
        data = encode(_checked(args.item).checkpoint())
        future = ocp.future.CommitFutureAwaitingContractedSignals  # pyright: ignore[reportAttributeAccessIssue]
        return [future(_write(directory, data), name="zephon_jax_data_save")]

    def save(self, directory: epath.Path, args: PipelineSave) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Write the state before returning. No event loop is started: a notebook has one running already."""
        data = encode(_checked(args.item).checkpoint())
        _write_file(directory, data)

    def restore(self, directory: epath.Path, args: PipelineRestore | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Restore `args.item` and return it; without an item, return the state as `checkpoint()` gave it."""
        state = _read(directory)
        if args is None or args.item is None:
            return state
        _checked(args.item).restore(state)
        return args.item

    def metadata(self, directory: epath.Path) -> dict[str, Any]:
        """What the state says of itself: format version, lanes, rounds and rows per lane, datasets, bytes."""
        path = _state_file(directory)
        state = state_from_plain(_read(directory))
        return {
            "version": 1,
            "lanes_total": state.lanes_total,
            "rounds": {lane: s.rounds for lane, s in state.lanes.items()},
            "rows": {lane: s.rows for lane, s in state.lanes.items()},
            "datasets": {d.name: {"num_samples": d.num_samples, "fingerprint": d.fingerprint} for d in state.datasets},
            "state_bytes": path.stat().length,
        }

    def finalize(self, directory: epath.Path) -> None:
        """Before the commit: what was written must read back whole."""
        state_from_plain(_read(directory))

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


def _checked(item: Any) -> Checkpointable:
    if not callable(getattr(item, "checkpoint", None)) or not callable(getattr(item, "restore", None)):
        raise ConfigurationError(
            f"PipelineSave and PipelineRestore take an iterator, e.g. it = pipeline.to_global(sharding); got {type(item).__name__}"
        )
    return item


async def _write(directory: epath.Path, data: bytes) -> None:
    await asyncio.to_thread(_write_file, directory, data)


def _write_file(directory: epath.Path, data: bytes) -> None:
    # Orbax writes into a temporary step directory and renames it at the commit, so a torn file is never seen as a step.
    (directory / _FILE.format(writer=0, writers=1)).write_bytes(data)


def _state_file(directory: epath.Path) -> epath.Path:
    found = sorted(directory.glob("lanes_*_of_*.zst"))
    if not found:
        raise CheckpointMismatch(
            f"{directory} holds no pipeline state; it has {sorted(p.name for p in directory.iterdir())}"
        )
    if found[0].name != _FILE.format(writer=0, writers=1) or len(found) > 1:
        raise CheckpointMismatch(
            f"{directory} was written by several processes ({[p.name for p in found]}), which this version cannot merge"
        )
    return found[0]


def _read(directory: epath.Path) -> dict[str, Any]:
    path = _state_file(directory)
    try:
        return decode(path.read_bytes())
    except ZephonError as error:
        raise type(error)(f"{path}: {error}") from error
