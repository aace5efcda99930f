"""What the chains counted: plain numbers, written by one thread, read by any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["OperatorCounts", "PipelineCounts"]


@dataclass(slots=True)
class OperatorCounts:
    """Of one operator over all lanes of this process since the iterator started; a replay counts again."""

    records_in: int = 0
    records_out: int = 0
    finished: int = 0
    """Records finished without leaving one behind: filtered, dropped, empty, skipped."""
    busy_s: float = 0.0
    """Seconds spent in it, by all workers together."""
    place: str = ""
    """Where executor="auto" has put it: "inline", "threads" or "processes", and until then where it runs meanwhile. Empty with
    other executors."""
    why: str = ""
    """What was measured of it then, and what decided."""
    left_by_flush: int = 0
    """Records that left an accumulator because of a flush: of a shuffle, those that were mixed with fewer."""
    padding_tokens: int = 0
    padding_by_flush_tokens: int = 0
    """Padding in rows that left a packer, and the part of it in rows that only a flush sent off."""
    figures: dict[str, int] = field(default_factory=dict[str, int])
    """What the operator counts itself: documents that a packer truncated, rows in which no target counts, and so on."""

    def add(self, figures: Mapping[str, int], before: Mapping[str, int] | None = None) -> None:
        """Add figures, less those of them that were added before. Replaced as a whole, since another thread may read."""
        if figures:
            names = dict.fromkeys([*self.figures, *figures])
            self.figures = {
                name: self.figures.get(name, 0) + figures.get(name, 0) - (before or {}).get(name, 0) for name in names
            }


@dataclass(slots=True)
class PipelineCounts:
    """Of all operators, by name, in order."""

    operators: dict[str, OperatorCounts] = field(default_factory=dict[str, OperatorCounts])
    chunks_replayed: int = 0
    chunks_drawn: int = 0
    samples_fed: int = 0
    samples_loaded: int = 0
    """Read again by a replay on lengths, for rows still to be delivered."""
    rows_replayed: int = 0
    waited_s: float = 0.0
    """Seconds for which the lanes waited for operators that keep nothing."""
