"""Whose turn it is (rule O4). Pure.

Next is the unfinished lane with the fewest rounds, lowest id first. The position is rounds per lane, not an index into
a list of lanes, so that it holds when other lanes are owned after a restore.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["RoundRobin"]


class RoundRobin:
    """Strict round-robin over the owned lanes; `rounds` says how many batches each has delivered so far."""

    def __init__(self, rounds: Mapping[int, int]):
        self._rounds = dict(sorted(rounds.items()))

    def turn(self) -> int | None:
        """The lane whose batch is due, or None when all have ended."""
        return min(self._rounds, key=lambda lane: (self._rounds[lane], lane), default=None)

    def delivered(self, lane: int) -> None:
        """The lane's batch of this round went out."""
        self._rounds[lane] += 1

    def ended(self, lane: int) -> None:
        """The lane has no further batch."""
        del self._rounds[lane]
