"""Which draws of the global sequence are a lane's: in turns of blocks, and evenly at the end.

Every draw goes to exactly one lane, whatever their number, and lanes end within one draw of each other. A position of
a lane becomes a global draw by arithmetic alone.

This module knows nothing of datasets or weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zephon_jax.types import Int64s
from zephon_jax.work.permutation import mix_key_each

__all__ = ["Deal", "deal_block"]

_BLOCKS_PER_PASS = 64  # per lane: the order within a block is the dataset's, so fewer blocks would cluster lanes


@dataclass(frozen=True, slots=True)
class Deal:
    """The draws of one lane.

    A round gives each lane one block of consecutive draws. What is left for the last round is cut into `lanes` equal
    parts instead, so that lanes end within one draw of each other. `key` turns each round's assignment by a keyed
    number of lanes: without that, a mixture whose period divides a round would bind datasets to lanes for ever.
    """

    lane: int
    lanes: int
    block: int
    end: int | None  # global draws; None: endless
    key: int | None

    @property
    def num_draws(self) -> int | None:
        """The number of the lane's draws; `None`: endless."""
        if self.end is None:
            return None
        rounds, left = divmod(self.end, self.block * self.lanes)
        place = int(self._places(np.array([rounds], np.int64))[0])
        return rounds * self.block + (place + 1) * left // self.lanes - place * left // self.lanes

    def global_draws(self, draw: Int64s) -> Int64s:
        """The global draw of each of the lane's draws, shape (m,)."""
        number = draw // self.block
        place = self._places(number)
        dealt = (number * (self.lanes - 1) + place) * self.block + draw
        if self.end is None:
            return dealt
        rounds, left = divmod(self.end, self.block * self.lanes)
        last = (rounds * (self.lanes - 1)) * self.block + place * left // self.lanes + draw
        return np.where(number < rounds, dealt, last)

    def _places(self, number: Int64s) -> Int64s:
        """Which of the blocks of each round is the lane's."""
        if self.key is None:
            return np.full(len(number), self.lane, np.int64)
        turned = mix_key_each(self.key, number) % np.uint64(self.lanes)
        return (turned.astype(np.int64) + self.lane) % self.lanes


def deal_block(num_samples: int, lanes: int, chunk_size: int) -> int:
    """The draws in a block: a power of two up to `chunk_size` that leaves every lane at least 64 blocks a pass.

    >>> deal_block(1_000_000, lanes=8, chunk_size=512), deal_block(3_000, lanes=3, chunk_size=512)
    (512, 8)
    """
    most = max(1, min(chunk_size, num_samples // (lanes * _BLOCKS_PER_PASS)))
    return 1 << (most.bit_length() - 1)
