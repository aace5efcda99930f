"""In which order the samples of one dataset come, pass after pass.

The order is a function of the draw's ordinal: draw j is position `j % n` of pass `j // n`, and a pass is a closed form
over the shards, so that any position is reached at once and memory grows with the shards, not with the samples. That
is what makes a resume cost the same at every step.

A pass lays out either whole shards, one after the other in a permuted order, or blocks of consecutive samples from
anywhere in the dataset. Blocks are cut from each shard's start, so that they fall on row groups and cost one read each.
What is left at a shard's end, its tail, is shorter than a block; tails are laid out evenly between the full blocks,
where a position is found by searching their starts, and everything between them by division.

This module knows nothing of mixtures, lanes or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import Any, Literal, SupportsIndex, TypeAlias, cast

import numpy as np

from zephon_jax.errors import ConfigurationError
from zephon_jax.types import Int32s, Int64s
from zephon_jax.work.permutation import MAX_SIZE, Permutation, mix_key, mix_key_each, permute_each

__all__ = ["AUTO_BLOCK_SIZE", "BlockSize", "SampleOrder", "block_size_of"]

BlockSize: TypeAlias = int | Literal["auto", "global"] | None
"""Samples in a block of a block shuffle; `None` where no blocks are made."""

AUTO_BLOCK_SIZE = 256
"""What "auto" means where a dataset does not tell which blocks are cheap to read."""

# What the keys of one pass are for. The numbers are part of the order: never change or reuse one.
_SHARDS, _BLOCKS, _TAILS, _INSIDE, _TAIL_PLACE = range(5)


def block_size_of(block_size: BlockSize, where: str = "") -> int | None:
    """The number of samples in a block: "auto" is 256, "global" 1; `where` says in an error whose it is.

    >>> block_size_of("global")
    1
    """
    if block_size is None:
        return None
    if block_size == "auto":
        return AUTO_BLOCK_SIZE
    if block_size == "global":
        return 1
    given = cast(object, block_size)
    number = index(given) if isinstance(given, SupportsIndex) and not isinstance(given, bool) else 0
    if number < 1:
        raise ConfigurationError(
            f'shuffle_block_size{where}={block_size!r}: give a number of samples from 1, "auto", "global" or None.'
        )
    return number


class SampleOrder:
    """The order of one dataset's samples over all passes; safe to share between threads; pickles without its cache.

    With nothing asked for, samples come in file order. `shuffle_shards` permutes the shards; `shuffle_within_shard`
    permutes the samples of each shard, or its blocks if there is a block size (its tail then goes between two of
    them). A block size without `shuffle_within_shard` permutes the blocks of the whole dataset, whatever
    `shuffle_shards` says; a block's samples stay in order. With `reshuffle_on_repeat` each pass has its own order.

    It keeps what the last two passes need, about 40 bytes per shard each.

    >>> order = SampleOrder([3, 2], shuffle_shards=False)
    >>> shard, sample = order.locate(np.arange(6))
    >>> list(zip(shard.tolist(), sample.tolist()))
    [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (0, 0)]
    """

    def __init__(
        self,
        shard_sizes: Sequence[int] | Int64s,
        seed: int = 0,
        shuffle_shards: bool = True,
        shuffle_within_shard: bool = False,
        shuffle_block_size: BlockSize = None,
        reshuffle_on_repeat: bool = True,
    ):
        self._sizes = np.array(shard_sizes, np.int64)
        if self._sizes.ndim != 1 or (self._sizes < 0).any() or int(self._sizes.sum()) > MAX_SIZE:
            raise ConfigurationError(
                f"shard sizes must be a list of numbers from 0 with a sum up to 2**48; got {shard_sizes!r:.200}"
            )
        self.num_samples = int(self._sizes.sum())
        self._seed, self._shuffle_shards, self._inside = seed, shuffle_shards, shuffle_within_shard
        self._block = block_size_of(shuffle_block_size)
        shuffled = shuffle_shards or shuffle_within_shard or self._block is not None
        self._varies = shuffled and reshuffle_on_repeat and self.num_samples > 1
        # Two, since a chunk may straddle the end of a pass, and lanes that share this object stand close together.
        self._pass_order = lru_cache(maxsize=2)(self._make_pass_order)
        shuffles = (shuffle_shards, shuffle_within_shard, shuffle_block_size, reshuffle_on_repeat)
        self._arguments: tuple[Any, ...] = (self._sizes, seed, *shuffles)

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleOrder, self._arguments  # the cache is made anew: it cannot be pickled, and need not be

    def locate(self, draw: Int64s) -> tuple[Int32s, Int64s]:
        """Shard and index within the shard of each draw (shape (m,), counted from 0 over all passes)."""
        if not self.num_samples and len(draw):
            raise ConfigurationError("a dataset without samples cannot be drawn from. Leave it out.")
        turn = draw // max(1, self.num_samples)
        position = draw - turn * self.num_samples
        if not self._varies or not len(draw):
            return self._pass_order(0).locate(position)
        first = int(turn[0])
        if (turn == first).all():
            return self._pass_order(first).locate(position)
        shard, sample = np.empty(len(draw), np.int32), np.empty(len(draw), np.int64)
        for number in np.unique(turn).tolist():
            chosen = turn == number
            shard[chosen], sample[chosen] = self._pass_order(number).locate(position[chosen])
        return shard, sample

    def _make_pass_order(self, number: int) -> _ShardwiseOrder | _BlockwiseOrder:
        key = (self._seed, number)
        if self._block is not None and not self._inside:
            return _blockwise(self._sizes, self._block, key)
        shards = np.arange(len(self._sizes), dtype=np.int64)
        if self._shuffle_shards:
            shards = Permutation(len(shards), (*key, _SHARDS))(shards)
        starts = _starts(self._sizes[shards])
        return _ShardwiseOrder(self._sizes, shards, starts, (self._block or 1) if self._inside else None, key)


def _starts(sizes: Int64s) -> Int64s:
    """Where each of consecutive pieces begins; a search from the right then passes over the empty ones."""
    return np.cumsum(sizes) - sizes


@dataclass(frozen=True, slots=True, eq=False)
class _ShardwiseOrder:
    """A pass that finishes one shard before it begins the next."""

    sizes: Int64s
    shards: Int64s  # in the order of their turn
    starts: Int64s  # the position where each turn begins
    block: int | None  # None: each shard in file order
    key: tuple[int, int]

    def locate(self, position: Int64s) -> tuple[Int32s, Int64s]:
        turn = np.searchsorted(self.starts, position, "right") - 1
        shard = self.shards[turn]
        offset = position - self.starts[turn]
        if self.block is not None:
            offset = self._shuffled(shard, offset, self.block)
        return shard.astype(np.int32), offset

    def _shuffled(self, shard: Int64s, offset: Int64s, block: int) -> Int64s:
        """The sample at each offset of a shard whose blocks are permuted, with the tail at a keyed place."""
        blocks, tail = np.divmod(self.sizes[shard], block)
        place = mix_key_each(mix_key(*self.key, _TAIL_PLACE), shard) % (blocks + 1).astype(np.uint64)
        past_tail = offset - place.astype(np.int64) * block
        in_tail = (past_tail >= 0) & (past_tail < tail)
        sample = blocks * block + past_tail
        full = np.flatnonzero(~in_tail)
        turn, inner = np.divmod(offset[full] - np.where(past_tail[full] >= 0, tail[full], 0), block)
        keys = mix_key_each(mix_key(*self.key, _INSIDE), shard[full])
        sample[full] = permute_each(turn, blocks[full], keys) * block + inner
        return sample


@dataclass(frozen=True, slots=True, eq=False)
class _BlockwiseOrder:
    """A pass over the blocks of all shards, mixed."""

    block: int
    sizes: Int64s
    order: Permutation  # of the full blocks
    first_blocks: Int64s  # of each shard, counted over the dataset
    tails: Int64s  # shards that have one, in the order of their turn
    tail_sizes: Int64s
    tail_starts: Int64s  # the positions where tails begin
    tail_before: Int64s  # (tails + 1,): samples of the first t tails

    def locate(self, position: Int64s) -> tuple[Int32s, Int64s]:
        passed = np.searchsorted(self.tail_starts, position, "right")  # tails that began at or before the position
        turn, inner = np.divmod(position - self.tail_before[passed], self.block)
        shard, sample = np.empty(len(position), np.int64), np.empty(len(position), np.int64)
        in_tail = np.zeros(len(position), np.bool_)
        if len(self.tails):
            last = np.maximum(passed - 1, 0)
            past_start = position - self.tail_starts[last]
            in_tail = (past_start >= 0) & (past_start < self.tail_sizes[last])
            tail = self.tails[last[in_tail]]
            shard[in_tail] = tail
            sample[in_tail] = self.sizes[tail] - self.tail_sizes[last[in_tail]] + past_start[in_tail]
        full = ~in_tail
        block = self.order(turn[full])
        shard[full] = owner = np.searchsorted(self.first_blocks, block, "right") - 1
        sample[full] = (block - self.first_blocks[owner]) * self.block + inner[full]
        return shard.astype(np.int32), sample


def _blockwise(sizes: Int64s, block: int, key: tuple[int, int]) -> _BlockwiseOrder:
    blocks, rest = np.divmod(sizes, block)
    total = int(blocks.sum())
    tails = np.flatnonzero(rest)
    tails = tails[Permutation(len(tails), (*key, _TAILS))(np.arange(len(tails)))]
    tail_sizes = rest[tails]
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(tail_sizes)])
    # Tail t of T comes after (2 t + 1) / (2 T) of the full blocks; split so that no product leaves 64 bits.
    halves, twice = 2 * np.arange(len(tails)) + 1, 2 * max(1, len(tails))
    blocks_before = halves * (total // twice) + halves * (total % twice) // twice
    return _BlockwiseOrder(
        block=block,
        sizes=sizes,
        order=Permutation(total, (*key, _BLOCKS)),
        first_blocks=_starts(blocks),
        tails=tails,
        tail_sizes=tail_sizes,
        tail_starts=blocks_before * block + before[:-1],
        tail_before=before,
    )
