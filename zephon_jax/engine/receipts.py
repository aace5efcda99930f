"""What travels with a delivered batch from a lane's chain to its books: everything the batch settles.

The chain runs ahead of the consumer; the books are kept on the consumer's side and learn of the world only through
receipts, in order, when the batch that carries them is taken. So the books are a function of the cut, and prefetch
leaves no trace in a checkpoint (rules C5 and C9) by construction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from zephon_jax.origin import Origin
from zephon_jax.types import Int32s, SourceState, WorkChunk

__all__ = ["Admission", "Receipt"]


class Admission(NamedTuple):
    """A chunk was drawn from the work source, whose state right afterwards was `source`."""

    chunk: int
    work: WorkChunk
    source: SourceState


@dataclass(slots=True)
class Receipt:
    """What one delivery settles.

    `rows`: identity of the delivered rows, in order. `closed` and `skipped`: contributors finished without a row, and
    (2, k) samples skipped as unreadable. `boundary`: the highest sentinel that came out behind these rows. `known`: what
    became of samples that went through the stateless operators, where a replay can use it.
    """

    admitted: list[Admission] = field(default_factory=list[Admission])
    rows: Origin | None = None
    closed: list[Int32s] = field(default_factory=list[Int32s])
    skipped: list[Int32s] = field(default_factory=list[Int32s])
    boundary: int | None = None
    known: list[Int32s] = field(default_factory=list[Int32s])

    @property
    def bulk(self) -> int:
        """How much has gathered: contributors and pointers."""
        rows = 0 if self.rows is None else self.rows.table.shape[1]
        return rows + sum(a.work.dataset.size for a in self.admitted) + sum(c.shape[1] for c in self.closed)
