"""A pipeline's state as the files of a checkpoint item, and what processes agree on before and after they are written.

The files are those of both Orbax interfaces, and of none: nothing here imports Orbax. One process writes one file, the
state as `checkpoint()` gives it. Of several, each that leads a lane (the lowest of those that produce it) writes the lanes
that it leads; an `item` map beside them says which save they are of and how many files there are. So restoring needs no
merged file: whoever reads requires every file and every lane once, all of one save. Other files are ignored.

Orbax's own barriers know no time-out, so a process that fails between them leaves the others waiting for a device
collective. Hence the first act of saving and of restoring is a bounded agreement over the key-value store: all go on, or
all raise the same text. A second one follows when the files are written, in which process 0 looks at all of them; a disk
that fails on one host is then known to all within seconds, and nothing is committed.
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

from etils import epath

from zephon_jax.checkpoint.aggregate import Aggregation
from zephon_jax.checkpoint.codec import decode, encode, state_from_plain
from zephon_jax.checkpoint.merge import lacking_lanes, plan_digest, state_digest
from zephon_jax.coordinate import jaxkv
from zephon_jax.coordinate.protocol import Merged, Ranks
from zephon_jax.coordinate.round import Contribution, Seat
from zephon_jax.errors import AggregationFailed, CheckpointMismatch, ConfigurationError, ZephonError

__all__ = ["Item", "Save", "begin_save", "read_item", "restore_item", "write_file", "write_save"]

FILE: Final = "lanes_{writer:05d}_of_{writers:05d}.zst"
_NAME: Final = re.compile(r"lanes_(\d{5,9})_of_(\d{5,9})\.zst")
_TIMEOUT_S: Final = 180.0  # where no iterator says otherwise
_READS: Final = 32
_NAMED: Final = 8  # missing files that a message names
_SAVE, _WRITTEN, _RESTORE = "zephon_jax/item/save/", "zephon_jax/item/written/", "zephon_jax/item/restore/"


class Item(Protocol):
    """What is saved and restored: an iterator of a pipeline."""

    @property
    def aggregation(self) -> Aggregation: ...
    @property
    def step(self) -> int: ...
    def checkpoint(self) -> Mapping[str, Any]: ...
    def get_state(self) -> Mapping[str, Any]: ...
    def prepare_restore(self, state: Mapping[str, Any], /) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True)
class Save:
    """A state that was captured and agreed on. `data`: of this process's file, None if it leads no lane."""

    name: str
    data: bytes | None
    nonce: str
    writers: int
    timeout_s: float
    store: Any = None
    rank: int = 0
    ranks: int = 1


# -- saving --------------------------------------------------------------------------------------------------------
def begin_save(item: Item) -> Save:
    """Capture the state of this moment and agree on it with the other processes, all of which must call it.

    Raises:
        AggregationFailed, AggregationTimeout: Some process cannot save; all raise the same text, before any barrier.
    """
    rank, ranks = jaxkv.processes()
    if ranks == 1:
        return Save(FILE.format(writer=0, writers=1), encode(item.checkpoint()), "", 1, _TIMEOUT_S)
    with_others, store = item.aggregation, jaxkv.JaxStore()
    seat = Seat(store, rank, with_others.ranks(ranks), _SAVE)
    plain, failure, mine = with_others.contribution(item.get_state, item.step, ranks, states=False)
    try:
        merged = seat.agree(mine, with_others.timeout_s)
    except ZephonError as outcome:
        raise outcome from failure
    assert plain is not None
    leaders = {lane: leader for lane, leader, _ in merged.lanes}
    writers = sorted(set(leaders.values()))
    writer = writers.index(rank) if rank in writers else 0
    data = None
    if rank in writers:
        data = encode(
            {
                **plain,
                "lanes": [lane for lane in plain["lanes"] if leaders[lane["lane"]] == rank],
                "item": {
                    "nonce": merged.round,
                    "step": item.step,
                    "writer": writer,
                    "writers": len(writers),
                    "plan": plan_digest(plain),
                },
            }
        )
    name = FILE.format(writer=writer, writers=len(writers))
    return Save(name, data, merged.round, len(writers), with_others.timeout_s, store, rank, ranks)


def write_save(save: Save, directory: epath.Path) -> None:
    """Write this process's file, and return when every process has written its own and process 0 has read all of them.

    In the background, on a thread of its own; every process must call it, also one that has nothing to write.

    Raises:
        AggregationFailed, AggregationTimeout: Some process could not; all raise the same text.
    """
    if save.ranks == 1:
        assert save.data is not None
        write_file(directory, save.name, save.data)
        return
    failure: Exception | None = None
    if save.data is not None:
        try:
            write_file(directory, save.name, save.data)
        except Exception as error:  # of any file system; told to the others first, who would wait for this process
            failure = error
    error = "" if failure is None else f"{directory / save.name}: {type(failure).__name__}: {failure}"

    def whole(merged: Merged) -> str:
        try:
            read_item(directory, nonce=save.nonce)
        except (ZephonError, OSError) as error:
            return f"what was written does not read back: {type(error).__name__}: {error}"
        return ""

    nobody = Ranks(0, (None,) * save.ranks)
    seat = Seat(save.store, save.rank, nobody, f"{_WRITTEN}{save.nonce}/")
    try:
        seat.agree(Contribution(save.nonce, "", 0, (), (), error), save.timeout_s, whole)
    except (AggregationFailed, ZephonError) as outcome:
        raise outcome from failure
    seat.close()


def write_file(directory: epath.Path, name: str, data: bytes) -> None:
    """Write it whole or not at all: under a name that nobody reads, then renamed."""
    temporary = directory / f"tmp-{uuid.uuid4().hex}"
    temporary.write_bytes(data)
    temporary.replace(directory / name)


# -- restoring -----------------------------------------------------------------------------------------------------
def restore_item(directory: epath.Path, item: Item | None) -> Mapping[str, Any]:
    """Read the state of all lanes, agree with the other processes, and restore `item`, if there is one, from it.

    Raises:
        CheckpointMismatch: The files are not whole, or of another pipeline; with several processes AggregationFailed, of
            which all raise the same text. Nothing has changed then.
    """
    rank, ranks = jaxkv.processes()
    plain: Mapping[str, Any] = {}
    failure: Exception | None = None
    apply: Callable[[], None] | None = None
    try:
        plain = read_item(directory)
        apply = None if item is None else item.prepare_restore(plain)
    except (ZephonError, OSError) as error:
        if ranks == 1:
            raise
        failure = error
    if ranks > 1:
        timeout_s = _TIMEOUT_S if item is None else item.aggregation.timeout_s
        digest = "" if failure is not None else state_digest(plain)
        error = "" if failure is None else f"{type(failure).__name__}: {failure}"
        seat = Seat(jaxkv.JaxStore(), rank, Ranks(0, (None,) * ranks), f"{_RESTORE}{next(_restores)}/")
        try:
            seat.agree(Contribution(digest, "", 0, (), (), error), timeout_s)
        except ZephonError as outcome:
            raise outcome from failure
        seat.close()
    if apply is not None:
        apply()
    return plain


_restores = itertools.count()  # a restore is collective, so they have the same numbers everywhere


def item_files(directory: epath.Path) -> dict[tuple[int, int], epath.Path]:
    """The files of pipeline states in a folder, by (writer, writers)."""
    found: dict[tuple[int, int], epath.Path] = {}
    for path in directory.iterdir():
        if (named := _NAME.fullmatch(path.name)) is not None:
            found[int(named[1]), int(named[2])] = path
    if not found:
        names = sorted(path.name for path in directory.iterdir())
        raise CheckpointMismatch(f"{directory} holds no pipeline state; it has {names}")
    return found


def read_item(directory: epath.Path, *, nonce: str | None = None) -> dict[str, Any]:
    """The state of all lanes. `nonce`: of the save that it must be of.

    Raises:
        CheckpointMismatch: A file or a lane is missing, damaged, there twice or of another save; the message names it.
    """
    found = item_files(directory)
    with ThreadPoolExecutor(min(_READS, len(found)), thread_name_prefix="zephon_jax-item") as pool:
        states = dict(zip(found, pool.map(_read_file, found.values()), strict=True))
    if (
        [*found] != [(0, 1)] or "item" in states[0, 1] or nonce is not None
    ):  # else one process wrote it, and says no more
        _require_one_save(directory, found, states, nonce)
    lanes = [lane for at in sorted(states) for lane in states[at]["lanes"]]
    whole = {**_bare(states[min(states)]), "lanes": sorted(lanes, key=lambda lane: lane["lane"])}
    try:
        state_from_plain(whole)
    except ZephonError as error:
        raise type(error)(f"{directory}: {error}") from error
    if lacking := lacking_lanes(whole):
        raise CheckpointMismatch(f"{directory}: lanes {lacking} are in none of its {len(found)} files")
    return whole


def _require_one_save(
    directory: epath.Path,
    found: Mapping[tuple[int, int], epath.Path],
    states: Mapping[tuple[int, int], dict[str, Any]],
    nonce: str | None,
) -> None:
    writers = max(total for _, total in found)
    if len({total for _, total in found}) > 1:
        names = sorted(path.name for path in found.values())
        raise CheckpointMismatch(f"{directory} holds files of several saves: {names}. Remove those of the older one")
    there = {writer for writer, _ in found}
    if missing := [writer for writer in range(min(writers, len(there) + _NAMED)) if writer not in there][:_NAMED]:
        names = [FILE.format(writer=writer, writers=writers) for writer in missing]
        lanes = lacking_lanes(*(states[at] for at in sorted(states)))
        raise CheckpointMismatch(
            f"{directory}: {writers - len(there)} of {writers} files are missing, {names}, and with them the state of lanes {lanes}"
        )
    first = states[min(states)].get("item")
    wanted, plan = (first.get("nonce"), first.get("plan")) if isinstance(first, Mapping) else (None, None)
    for at in sorted(states):
        said = states[at].get("item")
        if not isinstance(said, Mapping) or (said.get("writer"), said.get("writers")) != at:
            raise CheckpointMismatch(f"{found[at]}: what it says of itself does not fit its name: {said}")
        if said.get("nonce") != (nonce or wanted):
            raise CheckpointMismatch(
                f"{found[at]} is of save {said.get('nonce')}, the others are of save {nonce or wanted}"
            )
        if not plan_digest(_bare(states[at])) == said.get("plan") == plan:
            raise CheckpointMismatch(f"{found[at]}: plan and datasets are not those that were saved")


def _bare(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in plain.items() if name != "item"}


def _read_file(path: epath.Path) -> dict[str, Any]:
    try:
        plain = decode(path.read_bytes())
        state_from_plain(plain)
    except ZephonError as error:
        raise type(error)(f"{path}: {error}") from error
    return plain


def require_item(item: Any) -> Any:
    """The iterator; ConfigurationError if it is something else."""
    if not callable(getattr(item, "checkpoint", None)) or not callable(getattr(item, "prepare_restore", None)):
        raise ConfigurationError(
            f"PipelineSave and PipelineRestore take an iterator, e.g. it = pipeline.to_global(sharding); got {type(item).__name__}"
        )
    return item
