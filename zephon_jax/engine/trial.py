"""What executor="auto" measures: a stage's first micro-batches, each run once and delivered as always.

The first warms up (a tokenizer loads, a file is opened). The second runs alone: how long each operator takes, and how much of
that at work. Two more then run at the same time, operator by operator side by side: for as long as the interpreter's lock is
held by one, the other can do nothing. That a thread waits for the lock, and not for a processor, is seen from the kernel's
figures of it; so a machine that is busy with other things does not look like Python code.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from zephon_jax.engine.sizes import batch_bytes
from zephon_jax.microbatch import MicroBatch
from zephon_jax.plan.choose import Figures, Place
from zephon_jax.plan.compile import Step

__all__ = ["SideBySide", "Trial"]

_WARM_RECORDS: Final = 16
_AIM_S: Final = 0.004
_PAIRS: Final = 2
_LONGEST_PAUSE: Final = 1024
_MATTERS: Final = 0.2
_CHEAP_US: Final = 5.0
_QUEUED: Final = 0.3
"""A pair that was without a processor for more than this part of its work says nothing of the lock."""
_TOGETHER_S: Final = 1.0
"""Seconds that one micro-batch waits for the other before an operator: no more than a safeguard."""

Run = Callable[[Step, MicroBatch], MicroBatch]
"""One operator on one micro-batch."""


class _Spent(NamedTuple):
    """Of a thread: seconds by the clock, at work, and ready but without a processor."""

    wall_s: float
    cpu_s: float
    queued_s: float


def _spent() -> _Spent:
    return _Spent(time.monotonic(), time.thread_time(), _queued_s())


def _queued_s() -> float:
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (
        OSError,
        IndexError,
        ValueError,
    ):  # a kernel without these figures: then a busy machine looks like a held lock
        return 0.0


class _Beside(NamedTuple):
    """Of one of two at once: seconds at work, blocked, and ready but without a processor."""

    cpu_s: float
    blocked_s: float
    queued_s: float


@dataclass(slots=True)
class _Seen:
    """Of one operator."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    pairs: list[list[_Beside]] = field(default_factory=list[list[_Beside]])


class SideBySide:
    """Where two micro-batches meet before each operator, until one of them fails."""

    def __init__(self) -> None:
        self._go_s = 0.0
        self._barrier = threading.Barrier(2, action=self._stamp)

    def _stamp(self) -> None:
        self._go_s = time.monotonic()

    def meet(self) -> float | None:
        """When both were here; None if the other does not come."""
        try:
            self._barrier.wait(_TOGETHER_S)
        except threading.BrokenBarrierError:
            return None
        return self._go_s

    def leave(self) -> None:
        """The other need not wait any more."""
        self._barrier.abort()


class Trial:
    """Of one stage. `next` says what the next micro-batch is for; one thread asks, tasks of the pool run."""

    def __init__(self, steps: Sequence[Step], pairs: bool):
        self._steps, self._pairs = steps, pairs
        self._seen = [_Seen() for _ in steps]
        self._records = self._alone = self._tries = 0
        self._warm_s: float | None = None
        self._warm_records = 1
        self.over = False

    @property
    def next(self) -> Literal["warm", "alone", "pair"]:
        """What to do with the next one."""
        if self._warm_s is None:
            return "warm"
        return "pair" if self._alone and self._pairs else "alone"

    @property
    def records(self) -> int:
        """Records that make a micro-batch worth measuring."""
        if self._warm_s is None:
            return _WARM_RECORDS
        return max(_WARM_RECORDS, int(_AIM_S / max(self._warm_s / self._warm_records, 1e-7)))

    def warm(self, run: Run, batch: MicroBatch) -> MicroBatch:
        """The first one, which tells how large the others should be."""
        before, records = time.monotonic(), len(batch)
        for step in self._steps:
            batch = run(step, batch)
        self._warm_s, self._warm_records = time.monotonic() - before, max(1, records)
        return batch

    def alone(self, run: Run, batch: MicroBatch) -> MicroBatch:
        """One by itself."""
        self._records += len(batch)
        for step, seen in zip(self._steps, self._seen, strict=True):
            seen.bytes_in += batch_bytes(batch)
            before = _spent()
            batch = run(step, batch)
            after = _spent()
            seen.cpu_s += after.cpu_s - before.cpu_s
            # Time without a processor is neither work nor waiting: alone, there would have been none.
            seen.wall_s += after.wall_s - before.wall_s - (after.queued_s - before.queued_s)
            seen.bytes_out += batch_bytes(batch)
        self._alone += 1
        cpu_s, wall_s = (sum(seen.cpu_s for seen in self._seen), sum(seen.wall_s for seen in self._seen))
        cheap = 1e6 * wall_s < _CHEAP_US * self._records
        self.over = not self._pairs or cheap or cpu_s < wall_s / 2  # then the lock does not matter
        return batch

    def pair(self) -> SideBySide:
        """For the next two."""
        for seen in self._seen:
            seen.pairs = [*filter(_tells, seen.pairs), []]
        self._tries += 1
        return SideBySide()

    def pause(self) -> int:
        """Micro-batches that pass as they would without this, before the next try; 0 if there need be none.

        A machine that is busy with other things, compiling for example, is given time.
        """
        most_s = _MATTERS * sum(seen.cpu_s for seen in self._seen)
        told = all(len(_blocked(seen)) >= _PAIRS for seen in self._seen if seen.cpu_s >= most_s)
        self.over = told
        return 0 if told or self._tries <= _PAIRS else min(2**self._tries, _LONGEST_PAUSE)

    def beside(self, run: Run, batch: MicroBatch, other: SideBySide) -> MicroBatch:
        """One of two that run at the same time."""
        try:
            for step, seen in zip(self._steps, self._seen, strict=True):
                go_s = other.meet()
                before = _spent()
                batch = run(step, batch)
                after = _spent()
                if go_s is None:
                    continue
                cpu_s, queued_s = after.cpu_s - before.cpu_s, after.queued_s - before.queued_s
                seen.pairs[-1].append(_Beside(cpu_s, after.wall_s - go_s - cpu_s - queued_s, queued_s))
        except BaseException:
            other.leave()
            raise
        return batch

    def figures(self, fixed: Sequence[Place | None], stays: Callable[[Step], str]) -> list[Figures]:
        """What was measured, for `choose`. `stays` is asked of operators that are worth sending away."""
        n = max(1, self._records)
        found: list[Figures] = []
        for step, seen, place in zip(self._steps, self._seen, fixed, strict=True):
            cpu_us, wall_us = 1e6 * seen.cpu_s / n, 1e6 * max(seen.wall_s, seen.cpu_s) / n
            found.append(
                Figures(
                    wall_us=wall_us,
                    cpu_us=cpu_us,
                    held=_held(seen),
                    bytes_in=seen.bytes_in / n,
                    bytes_out=seen.bytes_out / n,
                    fixed=place,
                    stays=stays(step),
                )
            )
        return found


def _held(seen: _Seen) -> float | None:
    """The part of an operator's work for which it holds the interpreter's lock, None if nobody could tell."""
    waits = max(0.0, seen.wall_s - seen.cpu_s) / max(seen.cpu_s, 1e-9)  # of its own, which it has alone as well
    found = _blocked(seen)
    return min(1.0, max(0.0, statistics.median(found) - waits)) if found else None


def _blocked(seen: _Seen) -> list[float]:
    """Of each pair that ran together, for how long whoever came second was blocked, in parts of its work."""
    found: list[float] = []
    for pair in seen.pairs:
        if _tells(pair):
            found.append(max(one.blocked_s for one in pair) / max(1e-9, (pair[0].cpu_s + pair[1].cpu_s) / 2))
    return found


def _tells(pair: list[_Beside]) -> bool:
    """Whether both ran, and had processors."""
    return len(pair) == 2 and all(one.queued_s <= _QUEUED * one.cpu_s for one in pair)
