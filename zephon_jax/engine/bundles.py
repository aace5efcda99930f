"""Several micro-batches in one task: a hand-off to a thread or a process costs a fraction of a millisecond, whatever is in it.

What fails ends its bundle there; what came before it is delivered first, as if each micro-batch had been a task of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from zephon_jax.engine.sizes import RecordSizes
from zephon_jax.engine.tasks import Counted, run_steps
from zephon_jax.microbatch import MicroBatch
from zephon_jax.plan.compile import Step
from zephon_jax.runners.outcome import Stopped

__all__ = ["Done", "Pace", "run_bundle"]

_TASK_S: Final = 0.01
_MOST: Final = 16


class Done(NamedTuple):
    """Results of the first micro-batches of a task, and what the next one raised."""

    results: list[Counted]
    error: BaseException | None

    def each(self) -> Iterator[Counted]:
        """The results one by one; then raises the error, if there is one."""
        yield from self.results
        if self.error is not None:
            raise self.error


def run_bundle(
    steps: Sequence[Step], batches: Sequence[MicroBatch], entering: Callable[[int | None], None]
) -> list[Counted]:
    """The micro-batches through stateless operators, in a worker.

    Raises:
        Stopped: One failed, which was not the first.
        BaseException: What the first one raised.
    """
    done: list[Counted] = []
    for batch in batches:
        try:
            done.append(run_steps(steps, batch, entering))
        except BaseException as error:
            if done:
                raise Stopped(done, error) from error
            raise
    return done


class Pace:
    """How many micro-batches go into the next task of a stage: some milliseconds' worth, within the ceiling on bytes."""

    def __init__(self, sizes: RecordSizes):
        self._sizes, self._each_s = sizes, 0.0

    def took(self, seconds: float, micro_batches: int) -> None:
        """A task at work; follows what came last, quickly."""
        if micro_batches:
            each_s = seconds / micro_batches
            self._each_s = (self._each_s + each_s) / 2 if self._each_s else each_s

    @property
    def size(self) -> int:
        """One, until it is known how long that takes."""
        if not self._each_s:
            return 1
        return max(1, min(_MOST, int(_TASK_S / self._each_s), self._sizes.calls))
