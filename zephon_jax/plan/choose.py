"""executor="auto": measured figures of the operators of a stage in, a place for each of them out. Pure.

A model of a few lines: what each arrangement would take of the interpreter's lock, of the processors and of the workers; the
largest of the three is the time that a record takes. Arrangements that start processes must win by a margin, and save seconds
over the data that there is, since each costs a start, memory, and copies of what operators hold. No choice changes the output.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Literal, TypeAlias

__all__ = ["Choice", "Figures", "Place", "choose"]

Place: TypeAlias = Literal["inline", "threads", "processes"]

_SHIP_US: Final = 2.0
_SHIP_US_PER_BYTE: Final = 0.0006
"""What a record costs this process's interpreter if it is worked on in another, there and back."""
_LOCK_FACTOR: Final = 1.2
"""Threads that want the interpreter's lock at once pass it back and forth: Python code takes so much longer in them."""
_THREADS_PAY, _PROCESSES_PAY = 0.8, 0.7
"""The part of the time that may be left, or threads and processes are not worth having."""
_LEAST_SAVED_US, _LEAST_SAVED_S = 5.0, 2.0
_CHEAP_US: Final = 2.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one operator, in µs and bytes for each record that enters the stage.

    `wall_us`: how long it takes alone, waiting included. `cpu_us`: of it at work. `held`: the part of its work for which it
    holds the interpreter's lock, 0 to 1; None if that is not known, since it does not matter or there is one worker.
    `bytes_in`, `bytes_out`: what would be sent, there and back. `fixed`: where it has to be, by `executors=`. `stays`: why it
    cannot run in another process; empty if it can.
    """

    wall_us: float
    cpu_us: float
    held: float | None
    bytes_in: float
    bytes_out: float
    fixed: Place | None = None
    stays: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """A place for each operator, and why."""

    places: tuple[Place, ...]
    reasons: tuple[str, ...]

    def without_processes(self, why: str) -> Choice:
        """Threads instead, and why."""
        moved = [place == "processes" for place in self.places]
        return Choice(
            tuple("threads" if gone else place for gone, place in zip(moved, self.places, strict=True)),
            tuple(f"{reason}; {why}" if gone else reason for gone, reason in zip(moved, self.reasons, strict=True)),
        )


def choose(
    figures: Sequence[Figures], *, cpus: int, workers: int, samples: int | None, may_inline: bool = True
) -> Choice:
    """Where each operator of a stage is to run.

    Args:
        figures: Of the operators, in order.
        cpus: Processors that this process may use.
        workers: Threads or processes that it may have.
        samples: Samples that there are, in all; None if that is unknown.
        may_inline: Whether operators may run in the thread that produces batches, where nobody could end one that hangs.
    """
    best = _placed(figures, ())
    took = _threads_us(figures, best, cpus, workers)
    alone = sum(one.wall_us for one in figures)
    waits = alone - sum(one.cpu_us for one in figures) > alone / 2  # then what comes behind goes on meanwhile
    if may_inline and not waits and not any(one.fixed for one in figures) and took > _THREADS_PAY * alone:
        best, took = _inline(len(figures)), alone
    without = took
    n = len(figures)
    for first, end in combinations(range(n + 1), 2):
        inside = range(first, end)
        if any(figures[i].stays or figures[i].fixed not in (None, "processes") for i in inside):
            continue
        if all(figures[i].held is None for i in inside):
            continue
        places = _placed(figures, inside)
        time_us = _threads_us(figures, places, cpus, workers)
        pays = time_us <= _PROCESSES_PAY * without and without - time_us >= _LEAST_SAVED_US
        saved_s = (without - time_us) * samples / 1e6 if samples is not None else _LEAST_SAVED_S
        if pays and saved_s >= _LEAST_SAVED_S and time_us < took:
            best, took = places, time_us
    most = max(_LEAST_SAVED_US, sum(map(_locked_us, figures)) / 2)
    reasons = [_reason(one, place, best, cpus, workers, most) for one, place in zip(figures, best, strict=True)]
    return Choice(best, tuple(reasons))


def _inline(n: int) -> tuple[Place, ...]:
    return ("inline",) * n


def _locked_us(one: Figures) -> float:
    """Of its work, what holds the interpreter's lock."""
    return one.cpu_us * (1.0 if one.held is None else one.held)


def _placed(figures: Sequence[Figures], elsewhere: Container[int]) -> tuple[Place, ...]:
    return tuple(
        "processes" if i in elsewhere or one.fixed == "processes" else "threads" for i, one in enumerate(figures)
    )


def _threads_us(figures: Sequence[Figures], places: Sequence[Place], cpus: int, workers: int) -> float:
    """Time a record if these operators run in threads and those in processes."""
    lock = work = wall = 0.0
    for i, (one, place) in enumerate(zip(figures, places, strict=True)):
        work += one.cpu_us
        wall += one.wall_us
        if place != "processes":
            lock += _locked_us(one) * _LOCK_FACTOR
            continue
        sent = 0.0
        if not i or places[i - 1] != "processes":
            sent += _SHIP_US + _SHIP_US_PER_BYTE / 2 * one.bytes_in
        if i + 1 == len(places) or places[i + 1] != "processes":
            sent += _SHIP_US_PER_BYTE / 2 * one.bytes_out
        lock += sent
        work += 2 * sent  # the worker packs and unpacks as well
        wall += 2 * sent
    return max(lock, work / min(cpus, workers + 1), wall / workers)


def _reason(one: Figures, place: Place, places: Sequence[Place], cpus: int, workers: int, most: float) -> str:
    """In words: what was measured, and what decided."""
    seen = f"{one.wall_us:.1f} µs a record"
    if one.wall_us - one.cpu_us > max(one.cpu_us, 1.0):
        # A thread of its own that computes looks the same from here, and so does another process.
        part = f", {100 * (1 - one.cpu_us / one.wall_us):.0f} % of it waiting, or in threads of its own"
        seen += "" if one.fixed else part
    elif one.cpu_us > _CHEAP_US and one.held is not None:
        seen += f", {100 * (1 - one.held):.0f} % of it without the lock"
    sent = f"{one.bytes_in:,.0f} bytes there and {one.bytes_out:,.0f} back"
    if one.fixed:
        return f"{seen}; options(executors=) places it"
    if place == "processes":
        return f"{seen}; {sent}"
    if one.stays and _locked_us(one) >= most:
        return f"{seen}; {one.stays}"
    if place == "threads":
        return seen + ("; beside what runs in processes" if "processes" in places else "")
    if min(cpus, workers) == 1:
        return f"{seen}; one at a time is all that there is"
    return f"{seen}; a thread would cost more than it brings"
