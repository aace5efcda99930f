"""Records held back and let go in another order: what accumulators that only reorder share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zephon_jax.microbatch import MicroBatch

__all__ = ["Held"]


@dataclass(slots=True)
class Held:
    """Records of a lane, numbered 0, 1, 2, … in the order in which they came; numbers start anew after each `exchange`."""

    batch: MicroBatch | None = None

    def __len__(self) -> int:
        return 0 if self.batch is None else len(self.batch)

    def exchange(self, batch: MicroBatch, leaving: Sequence[int], staying: Sequence[int]) -> MicroBatch:
        """Take `batch` in behind what is held; of all these, those numbered `leaving` go, and `staying` stay, in this order.

        What was closed goes with the first. Those that stay are copies, so that no block is kept alive by one of them.
        """
        bare = batch.slice(0, len(batch))
        whole = bare if self.batch is None else MicroBatch.concat([self.batch, bare])
        self.batch = whole.take(np.array(staying, np.int64))
        out = whole.take(np.array(leaving, np.int64))
        return replace(out, closed=batch.closed, skipped=batch.skipped)

    def release(self, order: Sequence[int]) -> MicroBatch | None:
        """All records, in this order; nothing is held afterwards."""
        batch, self.batch = self.batch, None
        return None if batch is None or not len(batch) else batch.take(np.array(order, np.int64))
