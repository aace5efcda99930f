"""The global sequence of draws: which dataset each draw takes, which of its draws it is, and where the sequence ends.

As long as nothing changes, that is one quota. Weights change where a schedule says so, and where a dataset drops out of
the mixture; between two changes lies a *segment*, with a quota over the datasets that are drawn in it and the number
of draws that each of them had before. A quota says in closed form when a dataset will have had so many draws, so the
segments are found once, by looking at one event after another: at most as many as phases and datasets together. A draw
then finds its segment by search, and the rest is the segment's quota.

The sequence ends at the first of these:

- before the draw that would begin a pass too many of a dataset that *stops* the source;
- behind the draw with which the last dataset that is *required* to complete its passes does so;
- when every dataset has dropped out.

This module knows nothing of lanes, shards, names of arguments or tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from zephon_jax.errors import ConfigurationError
from zephon_jax.types import Int32s, Int64s
from zephon_jax.work.quota import Quota

__all__ = ["MAX_DRAWS", "DrawSequence", "Passes", "Phase"]

MAX_DRAWS = 2**62
"""Draws are int64, with room for the arithmetic on them."""


class Phase(NamedTuple):
    """From global draw `start` on the datasets have these weights, in any scale; 0: not drawn."""

    start: int
    weights: tuple[float | Fraction, ...]


class Passes(NamedTuple):
    """What one dataset's draws decide, each counted in draws of this dataset; `None`: nothing of the kind.

    `required`: the source goes on until it had so many. `stop`: the source ends rather than give it another after so
    many. `drop`: after so many it is left out.
    """

    name: str
    required: int | None = None
    stop: int | None = None
    drop: int | None = None


class DrawSequence:
    """The components and ordinals of a global sequence of draws, numbered 0, 1, 2, ...; immutable.

    `phases` begin at 0 and ascend; each has a weight for each of `passes`, one of them above 0. `end` is the number of
    draws, `None` if there is no end. Raises `ConfigurationError` where the sequence could not go on to its end.

    >>> sequence = DrawSequence([Phase(0, (1, 1)), Phase(4, (3, 1))], [Passes("a", drop=5), Passes("b", required=5)])
    >>> component, ordinal = sequence.draws(np.arange(10))
    >>> component.tolist(), ordinal.tolist(), sequence.end
    ([0, 1, 0, 1, 0, 1, 0, 0, 1, 1], [0, 0, 1, 1, 2, 2, 3, 4, 3, 4], 10)
    """

    def __init__(self, phases: Sequence[Phase], passes: Sequence[Passes]):
        self._segments, self.end = _segments(phases, passes)
        self._starts = np.array([segment.start for segment in self._segments], np.int64)

    @property
    def starts(self) -> list[int]:
        """The global draw with which each segment begins."""
        return self._starts.tolist()

    def draws(self, draw: Int64s) -> tuple[Int32s, Int64s]:
        """Component and ordinal (how many draws that component had before) of each global draw, shape (m,)."""
        if len(self._segments) == 1 or not len(draw):
            return self._segments[0].draws(draw)
        number = np.searchsorted(self._starts, draw, "right") - 1
        first = int(number[0])
        if (number == first).all():
            return self._segments[first].draws(draw)
        component, ordinal = np.empty(len(draw), np.int32), np.empty(len(draw), np.int64)
        for k in np.unique(number).tolist():
            chosen = number == k
            component[chosen], ordinal[chosen] = self._segments[k].draws(draw[chosen])
        return component, ordinal

    def counts(self, draws: int) -> list[int]:
        """How many of the first `draws` global draws each component has; exact at any depth."""
        segment = self._segments[max(0, bisect_right(self._starts.tolist(), draws) - 1)]
        return segment.counts(draws - segment.start)


class _Segment:
    """Draws from `start` on, until something changes."""

    def __init__(self, start: int, phase: Phase, members: Sequence[int], used: Sequence[int]):
        self.start, self.members, self.used = start, tuple(members), tuple(used)
        self.quota = Quota([phase.weights[component] for component in members])
        self.leaf = {component: leaf for leaf, component in enumerate(members)}
        self._plain = len(members) == len(used) and not any(used)
        self._members, self._used = np.array(members, np.int32), np.array([used[c] for c in members], np.int64)

    def draws(self, draw: Int64s) -> tuple[Int32s, Int64s]:
        if self._plain:
            return self.quota.draws(draw - self.start if self.start else draw)
        leaf, ordinal = self.quota.draws(draw - self.start)
        return self._members[leaf], ordinal + self._used[leaf]

    def counts(self, draws: int) -> list[int]:
        counts = list(self.used)
        for component, more in zip(self.members, self.quota.counts(draws), strict=True):
            counts[component] += more
        return counts

    def before(self, component: int, ordinal: int) -> int:
        """How many draws of the segment come before the component's `ordinal`-th of all."""
        return self.quota.rank(self.leaf[component], ordinal - self.used[component])


def _segments(phases: Sequence[Phase], passes: Sequence[Passes]) -> tuple[tuple[_Segment, ...], int | None]:
    """Step from one change to the next, until the end or the last change is found."""
    used = [0] * len(passes)
    dropped: set[int] = set()
    waiting = {c for c, p in enumerate(passes) if p.required is not None}
    segments: list[_Segment] = []
    start, number = 0, 0
    while True:
        phase = phases[number]
        members = [c for c, weight in enumerate(phase.weights) if weight > 0 and c not in dropped]
        if not members:
            raise _nothing_to_draw(start, dropped, passes)
        segment = _Segment(start, phase, members, used)
        segments.append(segment)
        length = phases[number + 1].start - start if number + 1 < len(phases) else None
        end, cut, gone = _events(segment, length, passes, waiting)
        if end is None and cut is None:
            if waiting:
                raise _never_completed(start, waiting, passes)
            return tuple(segments), None
        if end is not None or cut is None:
            return tuple(segments), _checked(end)
        used, start = segment.counts(cut), _checked(start + cut)
        dropped |= gone
        if len(dropped) == len(passes):
            return tuple(segments), start
        if cut == length:
            number += 1


def _events(
    segment: _Segment, length: int | None, passes: Sequence[Passes], waiting: set[int]
) -> tuple[int | None, int | None, set[int]]:
    """The end of the sequence if it lies in this segment, else after how many draws the segment is cut, and who drops out.

    Takes those that complete their passes off `waiting`.
    """
    # Whether something happens before a known length is seen in counts; only what does is looked up.
    had = None if length is None else segment.counts(length)

    def within(component: int, samples: int) -> bool:
        return had is None or had[component] >= samples

    drops = {
        c: segment.before(c, drop - 1) + 1
        for c in segment.members
        if (drop := passes[c].drop) is not None and within(c, drop)
    }
    changes = [*drops.values(), *([] if length is None else [length])]
    cut = min(changes) if changes else None
    ends: list[int] = []
    for c in segment.members:
        stop = passes[c].stop
        if stop is not None and within(c, stop + 1) and (cut is None or segment.before(c, stop) < cut):
            ends.append(segment.before(c, stop))
    completed = 0
    for c in sorted(waiting & set(segment.members)):
        required = passes[c].required
        assert required is not None
        if within(c, required) and (cut is None or segment.before(c, required - 1) < cut):
            completed = max(completed, segment.before(c, required - 1) + 1)
            waiting.discard(c)
    if completed and not waiting:
        ends.append(completed)
    gone = {c for c, draws in drops.items() if draws == cut}
    return (segment.start + min(ends) if ends else None), cut, gone


def _checked(draws: int | None) -> int:
    assert draws is not None
    if draws > MAX_DRAWS:
        raise ConfigurationError(
            f"with these passes and weights the source takes {draws} draws or more, more than 2**62. Lower "
            'stop_after_passes or max_repeats; for a source without end leave them out and give exhausted_policy="repeat".'
        )
    return draws


def _nothing_to_draw(start: int, dropped: set[int], passes: Sequence[Passes]) -> ConfigurationError:
    return ConfigurationError(
        f"from draw {start:,} on the schedule gives weight only to datasets that have dropped out by then "
        f"(dropped out: {_names(dropped, passes)}). Raise their max_repeats, or give another dataset some weight there."
    )


def _never_completed(start: int, waiting: set[int], passes: Sequence[Passes]) -> ConfigurationError:
    return ConfigurationError(
        f"the source is to go on until {_names(waiting, passes)} completed its passes, but from draw {start:,} on it has "
        'no weight. Give it some, or exhausted_policy={name: "repeat"}, with which it does not decide the end.'
    )


def _names(components: set[int], passes: Sequence[Passes]) -> str:
    return ", ".join(repr(passes[c].name) for c in sorted(components))
