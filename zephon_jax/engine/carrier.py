"""What a task does with its micro-batches: through the legs of a stage, here or elsewhere, and what is said of a failure.

Runs in threads of the pool, or in the one that produces batches. Nothing here waits for a task, and nothing is kept of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from zephon_jax.engine.bundles import Done
from zephon_jax.engine.sizes import batch_bytes
from zephon_jax.engine.tasks import Counted, StepFailed, run_steps
from zephon_jax.errors import ZephonError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.interrupt import Interrupted
from zephon_jax.plan.compile import Step
from zephon_jax.plan.place import Leg
from zephon_jax.plan.shipping import packed
from zephon_jax.runners.outcome import ATTEMPTS, Stopped, TaskLost
from zephon_jax.runners.watch import Watch

__all__ = ["Carrier", "Remote", "Work", "failed", "lost_in"]

Work = Callable[[Watch, list[MicroBatch]], Done]
"""What a task does with its micro-batches; it never raises."""


class Remote(Protocol):
    """Workers in other processes."""

    deaths: int

    @property
    def ready(self) -> bool: ...
    def call(
        self, key: str, parts: Sequence[Any], watch: Watch, timeout_s: float | None, attempts: int = ...
    ) -> Any: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


class Carrier:
    """Takes bundles through legs. `remote` is set once there are workers elsewhere."""

    def __init__(self, names: Mapping[int, str], timeout_s: float | None, patient: bool):
        self._names, self._timeout_s = names, timeout_s
        self.patient = patient
        """Whether workers elsewhere start in the middle, and are not waited for."""
        self.asked: set[tuple[Step, ...]] = set()
        """Legs that wait for them all the same."""
        self.keys: dict[tuple[Step, ...], str] = {}
        """Of the operators of a leg, for workers elsewhere."""
        self.remote: Remote | None = None

    def through(self, legs: Sequence[Leg], watch: Watch, batches: list[MicroBatch]) -> Done:
        """A bundle through all legs, one leg after the other; what fails ends it there."""
        counts: list[list[tuple[int, int, int]]] = [[] for _ in batches]
        error: BaseException | None = None
        for leg in legs:
            done, failed = self.leg(leg, watch, batches)
            batches = [batch for batch, _ in done]
            for all_counts, (_, more) in zip(counts, done, strict=False):
                all_counts += more
            watch.held = max(watch.held, sum(map(batch_bytes, batches)))
            error = failed or error  # what failed now stands before what failed in an earlier leg
        watch.entering(None)
        return Done(list(zip(batches, counts, strict=False)), error)

    def leg(self, leg: Leg, watch: Watch, batches: list[MicroBatch]) -> Done:
        if leg.place == "remote" and self._goes(leg) and any(map(len, batches)):
            return self._elsewhere(leg, watch, batches)
        done: list[Counted] = []
        for watch.at, batch in enumerate(batches):
            try:
                done.append(run_steps(leg.steps, batch, watch.entering))
            except BaseException as error:
                return Done(done, self.caught(error, leg, watch, batch))
        return Done(done, None)

    def _goes(self, leg: Leg) -> bool:
        """Until processes that were started in the middle are there, it goes on here."""
        return self.remote is not None and (not self.patient or self.remote.ready or leg.steps in self.asked)

    def _elsewhere(self, leg: Leg, watch: Watch, batches: list[MicroBatch]) -> Done:
        try:
            return Done(self._called(leg, watch, batches, 1 if len(batches) > 1 else ATTEMPTS), None)
        except Stopped as stopped:
            return Done(stopped.done, self._caught_elsewhere(stopped.error, leg, watch, batches[len(stopped.done)]))
        except TaskLost as lost:
            if len(batches) > 1:  # to find which of them it was, and to have those before it
                done: list[Counted] = []
                for batch in batches:
                    found, error = self._elsewhere(leg, watch, [batch])
                    done += found
                    if error is not None:
                        return Done(done, error)
                return Done(done, None)
            return Done([], self._caught_elsewhere(lost, leg, watch, batches[0]))
        except BaseException as error:
            return Done([], self._caught_elsewhere(error, leg, watch, batches[0]))

    def _called(self, leg: Leg, watch: Watch, batches: list[MicroBatch], attempts: int) -> list[Counted]:
        assert self.remote is not None
        watch.entering(None)
        watch.elsewhere = True
        try:
            return self.remote.call(self.keys[leg.steps], packed(batches), watch, self._timeout_s, attempts)
        finally:
            watch.elsewhere = False

    def _caught_elsewhere(self, error: BaseException, leg: Leg, watch: Watch, batch: MicroBatch) -> BaseException:
        if isinstance(error, TaskLost):
            lost = failed(self._at(watch, leg), batch)
            lost.__cause__ = TaskLost(lost_in(str(error), batch))
            return lost
        if isinstance(error, Exception) and not isinstance(error, (StepFailed, ZephonError, Interrupted)):
            raised = StepFailed(self._at(watch, leg), None)
            raised.__cause__ = error
            return raised
        return self.caught(error, leg, watch, batch)

    def caught(self, error: BaseException, leg: Leg, watch: Watch, batch: MicroBatch) -> BaseException:
        if isinstance(error, Exception):
            return error
        ended = failed(self._at(watch, leg), batch)  # SystemExit would end the trainer if it came out of `next`
        ended.__cause__ = error
        return ended

    def _at(self, watch: Watch, leg: Leg) -> str:
        """The operator that a task is in, or all that it may be in."""
        if watch.operator is not None:
            return self._names[watch.operator]
        return " or ".join(self._names[step.index] for step in leg.steps)


def failed(operator: str, batch: MicroBatch) -> StepFailed:
    """The failure of a whole micro-batch, told of its first record."""
    return StepFailed(operator, batch.origin.cursor(0))


def lost_in(text: str, batch: MicroBatch) -> str:
    """What became of a task that nobody finishes."""
    return f"{text}, in a micro-batch of {len(batch)} records that begins here"
