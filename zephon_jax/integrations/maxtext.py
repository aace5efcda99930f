"""A pipeline as the local iterator that MaxText's loader, and Grain's checkpoint handlers, expect.

MaxText makes its global arrays itself: each process hands over a dict of NumPy arrays with its own rows, which are cut into
one piece per local device, in the order of the mesh, with all axes of the mesh on the batch axis. `to_local` with that very
sharding gives those rows, so the arrays that MaxText forms are those of `to_global`, on any mesh and any number of processes.

A checkpoint there is one text file per process, written and read by Grain's handler, which asks an iterator that is not
Grain's own for bytes. `get_state` gives the lanes of its process, without communication: MaxText lets some handlers ask
process 0 alone. So a restore needs as many processes as wrote the files, each with the same lanes; for another number (or
another order of devices) `redistribute` rewrites the files first. MaxText and Grain are not imported here.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Self

import jax
from etils import epath
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from zephon_jax.checkpoint.codec import decode, encode, state_from_plain
from zephon_jax.checkpoint.merge import joined, lacking_lanes, plan_digest, shares_of
from zephon_jax.emit.iterator import PipelineIterator
from zephon_jax.errors import CheckpointMismatch, ConfigurationError, ZephonError
from zephon_jax.ops.targets import TARGET_NAMES, LmTargets
from zephon_jax.pipeline import Pipeline

__all__ = ["Loader", "LocalIterator", "redistribute"]

FIELDS: Final = tuple(sorted(TARGET_NAMES["maxtext"].values()))
"""What MaxText's training step reads."""

_COMMAND: Final = "python -m zephon_jax.integrations.maxtext"
_FORMAT: Final = "zephon_jax.process_state"
_FILE: Final = re.compile(r"process_([0-9]{1,6})-of-([0-9]{1,6})\.json")


class Loader:
    """A pipeline that ends in `lm_targets("maxtext")`, to be handed to MaxText in place of its own dataset.

    Iterable, any number of times: each `iter` gives a fresh `LocalIterator` from the start of the data, which is what MaxText's
    `reset` wants. With several processes all of them make the same iterators in the same order.

    Args:
        pipeline: With `pack` or `pad`, `batch(global_batch_size=…)` and `lm_targets("maxtext")`.
        mesh: Of all devices, as MaxText makes it. The global batch must be a multiple of their number.
        keep: Further fields to hand over; MaxText places all of them with one sharding. Left out, the six it trains on.
        end: Of finite data, as in `to_global`: "drop", or "pad" with rows of zeros, whose `targets_segmentation` of 0
            keeps them out of the loss.
        prefetch: Steps made ahead; by default the pipeline's.

    Raises:
        ConfigurationError: The pipeline has no such fields, or its batch does not fit the mesh.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        mesh: Mesh,
        *,
        keep: Iterable[str] = (),
        end: Literal["drop", "pad"] = "drop",
        prefetch: int | None = None,
    ):
        if not isinstance(pipeline, Pipeline):
            raise ConfigurationError(f"Loader needs a Pipeline, got {type(pipeline).__name__}")
        if not isinstance(mesh, Mesh):
            raise ConfigurationError(f"Loader needs the jax.sharding.Mesh of all devices, got {type(mesh).__name__}")
        conventions = [op.name for op in pipeline.operators if isinstance(op, LmTargets)]
        if conventions and conventions[-1] != "lm_targets(maxtext)":
            raise ConfigurationError(
                f'MaxText reads the fields {list(FIELDS)}; this pipeline has {conventions[-1]}: write lm_targets("maxtext")'
            )
        self._pipeline, self._prefetch = pipeline, prefetch
        self._end: Literal["drop", "pad"] = end
        self._fields = (*FIELDS, *([keep] if isinstance(keep, str) else keep))
        self._sharding = NamedSharding(mesh, PartitionSpec(tuple(mesh.axis_names)))
        self._start().close()  # mistakes are raised here, not in MaxText's loop

    def _start(self) -> PipelineIterator:
        return self._pipeline.to_local(self._sharding, end=self._end, prefetch=self._prefetch)

    def __iter__(self) -> LocalIterator:
        return LocalIterator(self._start, self._fields)


class LocalIterator(Iterator[dict[str, NDArray[Any]]]):
    """Dicts of this process's rows: int32 NumPy arrays of shape (rows, S), and the state of what was delivered.

    Made by `iter(Loader(...))`. Use it from one thread; `close()` or garbage collection stops its threads.
    """

    def __init__(self, start: Callable[[], PipelineIterator], fields: Sequence[str]):
        self._start, self._fields = start, tuple(fields)
        self._batches: PipelineIterator = start()
        self._untouched = True

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, NDArray[Any]]:
        self._untouched = False
        batch = next(self._batches)
        if missing := [name for name in self._fields if name not in batch]:
            raise ConfigurationError(
                f"the batch lacks {missing}, which MaxText (or keep=) needs; it has {sorted(batch)}. "
                'End the pipeline with lm_targets("maxtext")'
            )
        return {name: batch[name] for name in self._fields}

    @property
    def step(self) -> int:
        """Steps delivered since the start of the stream, resumes included."""
        return self._batches.step

    def get_state(self) -> bytes:
        """What was delivered of this process's lanes, as ASCII text of one JSON object.

        No other process is asked. Together the files of all processes at one step hold every lane.
        """
        plain = self._batches.get_state()
        return _to_text(plain, self._batches.step).encode()

    def set_state(self, state: bytes) -> None:
        """Continue behind the last batch delivered before `state` was taken; at any time, also after batches were taken.

        With several processes all of them call it, and that all go on from the same step is compared.

        Raises:
            CheckpointMismatch: It is no such state, of another pipeline, or lacks lanes that this process makes now.
            AggregationFailed: Processes have got states of different steps.
        """
        plain, _ = _from_text(state, "the state")
        batches = self._batches if self._untouched else self._start()
        try:
            batches.restore(plain)
        except ZephonError as error:
            if batches is not self._batches:
                batches.close()
            lacking = lacking_lanes(plain)
            if (
                not isinstance(error, CheckpointMismatch)
                or not lacking
                or "are missing from the checkpoint" not in str(error)
            ):
                raise
            raise CheckpointMismatch(
                f"{error}\nThe state is one process's part, and here are other processes or another order of devices than there "
                f"were when it was saved. Rewrite the files of the step once, before the run: {_COMMAND} "
                f"FOLDER_OF_THE_FILES --processes {jax.process_count()}"
            ) from error
        if batches is not self._batches:
            self._batches.close()
            self._batches = batches
        self._untouched = False
        if batches.aggregation.together():
            batches.fingerprint()  # is a round, which compares steps

    def start_prefetch(self) -> None:
        """Grain's handler calls it after a restore. Nothing is left to do: `set_state` has begun to make batches."""

    def close(self) -> None:
        """Stop the threads and drop what was made ahead."""
        self._batches.close()


# -- the text of a process's part ------------------------------------------------------------------------------------
def _to_text(plain: Mapping[str, Any], step: int) -> str:
    lanes = [lane["lane"] for lane in plain["lanes"]]
    data = base64.b64encode(encode(plain)).decode()
    return json.dumps({"format": _FORMAT, "version": 1, "step": step, "lanes": lanes, "state": data})


def _from_text(text: bytes, where: str) -> tuple[dict[str, Any], int]:
    """A process's part of the state, checked, and its step."""
    try:
        whole = json.loads(text)
        if not isinstance(whole, dict) or whole.get("format") != _FORMAT:
            raise CheckpointMismatch(
                f"{where} is not what LocalIterator.get_state() gives; a state of Grain's own iterators cannot be continued here"
            )
        if whole.get("version") != 1:
            raise CheckpointMismatch(f"{where} has version {whole.get('version')!r}; this zephon_jax reads version 1")
        plain, step = decode(base64.b64decode(whole["state"], validate=True)), whole["step"]
        state_from_plain(plain)
    except ZephonError as error:
        raise CheckpointMismatch(f"{where}: {error}") from error
    except (ValueError, TypeError, KeyError, binascii.Error, RecursionError) as error:
        raise CheckpointMismatch(f"{where} is broken: {type(error).__name__}: {error}") from error
    if not isinstance(step, int) or isinstance(step, bool):
        raise CheckpointMismatch(f"{where} is broken: its step is {step!r}")
    return plain, step


# -- another number of processes -------------------------------------------------------------------------------------
def redistribute(folder: str | os.PathLike[str], processes: int) -> list[str]:
    """Rewrite the files of one saved step for another number of processes; their names.

    `folder` holds `process_0-of-4.json` and so on: in MaxText the step's `iter`. Afterwards there are `processes` files, each
    with all lanes, of which a restore takes those that its process makes; the old ones are deleted. Interrupted, it can be
    run again. Run it once, before the processes start.

    Raises:
        CheckpointMismatch: Files are missing, broken, of different steps or of different pipelines. Nothing has changed then.
    """
    if isinstance(processes, bool) or not isinstance(processes, int) or processes < 1:
        raise ConfigurationError(f"redistribute(processes={processes!r}) must be an int of at least 1")
    where = epath.Path(folder)
    if not where.is_dir():
        raise CheckpointMismatch(f"{where}: no such folder")
    found = _files(where)
    plain, step = _whole(where, found)
    text = _to_text(plain, step)
    named = {(i, processes): where / f"process_{i}-of-{processes}.json" for i in range(processes)}
    for path in named.values():
        temporary = where / f"tmp-{uuid.uuid4().hex}"
        temporary.write_text(text)
        temporary.replace(path)
    for at, path in found.items():
        if at not in named:
            path.unlink()
    return [path.name for path in named.values()]


def _files(where: epath.Path) -> dict[tuple[int, int], epath.Path]:
    """The files of a folder by (process, processes): those of the set that is there in full."""
    found: dict[tuple[int, int], epath.Path] = {}
    for path in where.iterdir():
        if (named := _FILE.fullmatch(path.name)) is not None:
            found[int(named[1]), int(named[2])] = path
    counts = sorted({total for _, total in found})
    if not any(all((i, total) in found for i in range(total)) for total in counts):
        raise CheckpointMismatch(
            f"{where} does not hold the files of all processes: {sorted(path.name for path in found.values())}"
        )
    return found


def _whole(where: epath.Path, found: Mapping[tuple[int, int], epath.Path]) -> tuple[dict[str, Any], int]:
    """The state of all lanes that these files hold together, and its step."""
    lanes: dict[int, tuple[str, bytes, str]] = {}
    first: tuple[str, int, dict[str, Any]] | None = None
    for at in sorted(found):
        name = found[at].name
        plain, step = _from_text(found[at].read_text().encode(), str(found[at]))
        if first is None:
            first = name, step, plain
        elif step != first[1]:
            raise CheckpointMismatch(f"{where}: {name} is of step {step}, {first[0]} of step {first[1]}")
        elif plan_digest(plain) != plan_digest(first[2]):
            raise CheckpointMismatch(f"{where}: {name} and {first[0]} are of different pipelines or other data")
        for lane, mark, packed in shares_of(plain):
            before = lanes.setdefault(lane, (mark, packed, name))
            if before[1] != packed:
                raise CheckpointMismatch(f"{where}: lane {lane} has {mark} in {name}, {before[0]} in {before[2]}")
    assert first is not None
    whole = joined(first[2], [(lane, packed) for lane, (_, packed, _) in lanes.items()])
    if lacking := lacking_lanes(whole):
        raise CheckpointMismatch(
            f"{where}: lanes {lacking} are in none of the files {sorted(p.name for p in found.values())}"
        )
    return whole, first[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m zephon_jax.integrations.maxtext FOLDER --processes N`."""
    parser = argparse.ArgumentParser(prog=_COMMAND, description=redistribute.__doc__)
    parser.add_argument("folder", help="of one step's process_*-of-*.json, e.g. checkpoints/100/iter")
    parser.add_argument("--processes", type=int, required=True, help="how many will restore")
    given = parser.parse_args(arguments)
    try:
        redistribute(given.folder, given.processes)
    except ZephonError as error:
        parser.exit(1, f"{error}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
