"""What a checkpoint holds, as frozen values. Pure.

No bitmaps, no accumulators, no payloads: those come back by replaying the chunks that are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from zephon_jax.checkpoint.marks import DatasetMark
from zephon_jax.origin import Cursor
from zephon_jax.types import Int32s, SourceState, WorkChunk

__all__ = ["FORMAT", "VERSION", "DatasetMark", "LaneSnapshot", "PipelineState"]

FORMAT: Final = "zephon_jax.pipeline_state"
VERSION: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class LaneSnapshot:
    """A lane's part of a checkpoint: plain values.

    `first`: number of the oldest chunk kept; `chunks`: those from `first` to T, in full; `skipped`: (chunk, offset) of
    their samples that were skipped as unreadable before the cut. `boundaries`: sentinels at the start of the epoch and,
    if T ends it, behind T. `source`: the work source's state right after T. `delivered`: rows delivered from that
    epoch; `cursor`: the last one's, `None` before the first row. `high_offset`: the highest offset of T delivered, -1
    before. `rounds`, `rows`, `digest`: since the start of the stream. `skipped_total`: samples skipped before the cut.
    `passed_over`: [start, stop) of the lane's rows that the consumer asked to pass over; they count as delivered.
    `known`: identity (an `Origin` table, with lengths of tokens) of what the stateless operators made of every sample up to
    offset `high_offset` of T; None where it is not kept.
    """

    lane: int
    first: int
    chunks: tuple[WorkChunk, ...]
    skipped: tuple[tuple[int, int], ...]
    boundaries: tuple[int, ...]
    source: SourceState
    delivered: int
    cursor: Cursor | None
    high_offset: int
    rounds: int
    rows: int
    digest: int
    skipped_total: int
    known: Int32s | None = None
    passed_over: tuple[tuple[int, int], ...] = ()

    @property
    def next_chunk(self) -> int:
        """The number of the chunk that the restored source draws first."""
        return self.first + len(self.chunks)


@dataclass(frozen=True, slots=True, eq=False)
class PipelineState:
    """A checkpoint: the plan that it belongs to, and every lane that it covers."""

    lanes_total: int
    plan: Mapping[str, Any]
    datasets: tuple[DatasetMark, ...]
    lanes: Mapping[int, LaneSnapshot]
