"""What a trainer writes per step, and the comparison of three runs: plain values, no processes and no jax.

A log is JSONL: one start, one line per step, and one end, which a killed trainer does not reach. A last line without
a newline was cut off by the kill and is passed over.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["Comparison", "Differences", "EndRecord", "RunLog", "StartRecord", "StepRecord", "batch_digest", "compare"]


@dataclasses.dataclass(frozen=True, slots=True)
class StartRecord:
    """Steps that lie behind this process: 0, or the step of the checkpoint from which it resumed."""

    done: int
    devices: int


@dataclasses.dataclass(frozen=True, slots=True)
class StepRecord:
    """One step, counted from 1: digest of its global batch, loss before the update, targets that the loss counts."""

    step: int
    digest: str
    loss: float
    devices: int
    tokens: int


@dataclasses.dataclass(frozen=True, slots=True)
class EndRecord:
    """The data state after the last step: the pipeline's fingerprint per lane."""

    step: int
    lane_fingerprints: dict[str, str]


_RECORDS = {"start": StartRecord, "step": StepRecord, "end": EndRecord}
_EVENTS = {record: event for event, record in _RECORDS.items()}


def batch_digest(batch: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """SHA-256 over all fields of a global batch: name, dtype, shape and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(batch):
        array = np.ascontiguousarray(batch[name])
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def to_line(record: StartRecord | StepRecord | EndRecord) -> str:
    """The record as one line of a log."""
    return json.dumps({"event": _EVENTS[type(record)], **dataclasses.asdict(record)}) + "\n"


@dataclasses.dataclass(frozen=True, slots=True)
class RunLog:
    """One trainer's log. `start` and `end` are None as long as they have not been written."""

    start: StartRecord | None = None
    steps: dict[int, StepRecord] = dataclasses.field(default_factory=dict[int, StepRecord])
    end: EndRecord | None = None

    @property
    def last_step(self) -> int:
        """The last step that was logged, 0 if none."""
        return max(self.steps, default=0)

    @classmethod
    def read(cls, path: pathlib.Path) -> RunLog:
        """The complete lines of the file; an empty log if there is no file yet."""
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        start, steps, end = None, dict[int, StepRecord](), None
        for line in text[: text.rfind("\n") + 1].splitlines():
            fields = json.loads(line)
            match _RECORDS[fields.pop("event")](**fields):
                case StartRecord() as record:
                    start = record
                case StepRecord() as record:
                    if record.step in steps:
                        raise ValueError(f"{path}: step {record.step} occurs twice, needed is one line per step")
                    steps[record.step] = record
                case EndRecord() as record:
                    end = record
        return cls(start, steps, end)


@dataclasses.dataclass(frozen=True, slots=True)
class Differences:
    """One run against the reference: steps in both, steps that are missing, steps whose batches differ."""

    steps: tuple[int, ...]
    missing: tuple[int, ...]
    batches: tuple[int, ...]
    loss: float

    @classmethod
    def between(cls, run: RunLog, reference: RunLog, expected: range) -> Differences:
        """Compare the steps `expected`, which both logs should have; a loss that is not finite differs by infinity."""
        both = tuple(step for step in expected if step in run.steps and step in reference.steps)
        loss = 0.0
        for step in both:
            difference = abs(run.steps[step].loss - reference.steps[step].loss)
            loss = max(loss, difference if math.isfinite(difference) else math.inf)
        return cls(
            steps=both,
            missing=tuple(step for step in expected if step not in both),
            batches=tuple(s for s in both if run.steps[s].digest != reference.steps[s].digest),
            loss=loss,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """The interrupted and the resumed run against the reference.

    `redone` is the number of steps done twice, before the kill and again after the resume. `problems` says in words
    what is wrong; empty means that every batch of every step is the same bit for bit, and so is the data state.
    """

    interrupted: Differences
    resumed: Differences
    redone: int
    fingerprints_equal: bool
    problems: tuple[str, ...]

    @property
    def steps_compared(self) -> int:
        return len(self.interrupted.steps) + len(self.resumed.steps)

    @property
    def batches_that_differ(self) -> int:
        return len(self.interrupted.batches) + len(self.resumed.batches)

    @property
    def largest_loss_difference(self) -> float:
        return max(self.interrupted.loss, self.resumed.loss)


def compare(
    reference: RunLog, interrupted: RunLog, resumed: RunLog, *, steps: int, loss_tolerance: float
) -> Comparison:
    """Compare all steps: 1 to the kill in `interrupted`, from the checkpoint to `steps` in `resumed`."""
    done = resumed.start.done if resumed.start else 0
    killed = interrupted.last_step
    first = Differences.between(interrupted, reference, range(1, killed + 1))
    second = Differences.between(resumed, reference, range(done + 1, steps + 1))
    equal = (
        reference.end is not None
        and resumed.end is not None
        and reference.end.step == resumed.end.step == steps
        and reference.end.lane_fingerprints == resumed.end.lane_fingerprints
        and len(reference.end.lane_fingerprints) > 0
    )
    problems: list[str] = []
    if not 0 < done <= killed:
        problems.append(
            f"resumed after step {done}, needed is a checkpoint between 1 and {killed}, the step of the kill"
        )
    for name, differences in (("interrupted", first), ("resumed", second)):
        if differences.missing:
            problems.append(f"{name}: no line to compare for step {_listed(differences.missing)}")
        if differences.batches:
            problems.append(f"{name}: another global batch than the reference at step {_listed(differences.batches)}")
        if differences.loss > loss_tolerance:
            problems.append(f"{name}: a loss differs by {differences.loss:.3g}, allowed are {loss_tolerance:g}")
    if not equal:
        problems.append("the lanes' fingerprints at the end of the resumed run are not those of the reference")
    redone = sum(1 for step in resumed.steps if step in interrupted.steps)
    return Comparison(first, second, redone, equal, tuple(problems))


def _listed(steps: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, steps[:8]))
    return shown + (f" and {len(steps) - 8} more" if len(steps) > 8 else "")
