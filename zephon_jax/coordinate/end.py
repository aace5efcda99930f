"""One agreed end for finite lanes, without a collective or a barrier (rule M5). Pure.

What processes share are *facts about lanes*, never promises of processes: "lane 3 yields at least 40 steps", "lane 5 yields
41 and then ends". A lane is a function of its description (rule O1), so a fact stays true for ever: it may arrive late,
twice, out of order, or from a run that crashed last week, and facts are joined by maximum.

    drop   deliver step t if every lane is known to have more than t steps; stop if some lane ends at or before t
    pad    deliver step t if some lane is known to have more than t steps; stop if all lanes end at or before t
    else   wait for facts

Two processes with any two sets of true facts cannot come to opposite answers. That is the whole proof that none delivers
a step before which another stops. Waiting ends because a process writes what it knows every `every` steps, at an end,
when it has produced all that it may and still has to wait, and when it stops. `every` must not exceed the steps that a
process may produce ahead: a process whose consumer sits in a device collective does not look like one that waits.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

__all__ = ["Fact", "Facts", "Policy", "Verdict", "Watch", "join", "pack_facts", "unpack_facts", "verdict"]

Policy: TypeAlias = Literal["drop", "pad"]


class Fact(NamedTuple):
    """The lane yields at least `steps` steps, counted from the start of its stream; with `ended`, exactly so many."""

    steps: int = 0
    ended: bool = False


Facts: TypeAlias = tuple[Fact, ...]
"""One for each lane of the pipeline."""


class Verdict(enum.Enum):
    """What to do about a step."""

    DELIVER = "deliver"
    STOP = "stop"
    WAIT = "wait"


def join(a: Facts, b: Facts) -> Facts:
    """What is known by either."""
    return tuple(Fact(max(x.steps, y.steps), x.ended or y.ended) for x, y in zip(a, b, strict=True))


def verdict(facts: Facts, step: int, policy: Policy) -> Verdict:
    """What these facts say of step `step`, counted from 0."""
    if policy == "drop":
        if any(f.ended and f.steps <= step for f in facts):
            return Verdict.STOP
        if all(f.steps > step for f in facts):
            return Verdict.DELIVER
    else:
        if any(f.steps > step for f in facts):
            return Verdict.DELIVER
        if all(f.ended for f in facts):
            return Verdict.STOP
    return Verdict.WAIT


@dataclass(frozen=True, slots=True)
class Watch:
    """What one process knows (`facts`, of its `own` lanes as well), and what it has written of it (`told`)."""

    facts: Facts
    own: tuple[int, ...]
    told: Facts
    every: int

    @staticmethod
    def of(lanes: int, own: Iterable[int], every: int) -> Watch:
        """Nothing is known yet."""
        nothing = (Fact(),) * lanes
        return Watch(nothing, tuple(own), nothing, every)

    def produced(self, lanes: Mapping[int, Fact]) -> Watch:
        """Own lanes have got further."""
        return replace(self, facts=tuple(lanes.get(i, fact) for i, fact in enumerate(self.facts)))

    def learned(self, facts: Facts) -> Watch:
        """Others say so."""
        return replace(self, facts=join(self.facts, facts))

    def due(self, said: Verdict, full: bool) -> bool:
        """Whether to write now. `full`: no more may be produced before the step that was asked about is delivered."""
        new, old = ([facts[i] for i in self.own] for facts in (self.facts, self.told))
        if new == old:
            return False
        others_may_wait = said is Verdict.STOP or (said is Verdict.WAIT and full)
        ended = any(n.ended != o.ended for n, o in zip(new, old, strict=True))
        return others_may_wait or ended or min(n.steps for n in new) >= min(o.steps for o in old) + self.every

    def wrote(self) -> Watch:
        """What is known has been written."""
        return replace(self, told=self.facts)


def pack_facts(facts: Facts) -> bytes:
    """Nine bytes a lane."""
    return struct.pack(f"<{len(facts)}q{len(facts)}?", *(f.steps for f in facts), *(f.ended for f in facts))


def unpack_facts(data: bytes, lanes: int) -> Facts | None:
    """The facts; None if they are not of so many lanes."""
    if len(data) != 9 * lanes:
        return None
    values = struct.unpack(f"<{lanes}q{lanes}?", data)
    return tuple(Fact(steps, ended) for steps, ended in zip(values[:lanes], values[lanes:], strict=True))
