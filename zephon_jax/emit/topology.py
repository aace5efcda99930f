"""Who produces which lanes. Pure: where it comes from (a sharding, options) is not known here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Topology", "alone"]


@dataclass(frozen=True, slots=True)
class Topology:
    """One process's place among all.

    `process` of `processes` is this one. `lanes` are those that it produces, ascending. `producers`: lane → the processes
    that produce it, ascending; None where only what is produced here is known.
    """

    process: int
    processes: int
    lanes: tuple[int, ...]
    producers: Mapping[int, tuple[int, ...]] | None = None

    @property
    def leads(self) -> tuple[int, ...]:
        """The lanes of which this process is the lowest producer."""
        if self.producers is None:
            return self.lanes
        return tuple(lane for lane in self.lanes if self.producers[lane][0] == self.process)


def alone(lanes: Sequence[int]) -> Topology:
    """The only process there is."""
    return Topology(0, 1, tuple(lanes), dict.fromkeys(lanes, (0,)))
