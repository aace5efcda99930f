"""Counter-based randomness (rule O2): a function of what it is keyed by, so that there is nothing to save.

Only raw Philox output is used: NumPy keeps a bit generator's stream stable between versions, but not what
`Generator.shuffle` or `integers` make of it.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np

from zephon_jax.types import Int64s, LaneContext

__all__ = ["Draws"]


class Draws:
    """The draws of one accumulator in one flush epoch of one lane: a function of (seed, operator, lane, epoch, ordinal)."""

    def __init__(self, seed: int, ctx: LaneContext):
        packed = struct.pack("<4q", seed, ctx.operator, ctx.lane, ctx.epoch)
        key = np.frombuffer(hashlib.blake2b(packed, digest_size=16).digest(), np.uint64)
        self._bits = np.random.Philox(key=key)

    def below(self, bound: int, n: int) -> Int64s:
        """The next n draws from range(bound), bound < 2**32; the bias is below bound / 2**32."""
        raw = self._bits.random_raw(n) >> np.uint64(32)
        return (raw * np.uint64(bound) >> np.uint64(32)).astype(np.int64)

    def permutation(self, n: int) -> Int64s:
        """range(n) in random order."""
        return np.argsort(self._bits.random_raw(n), kind="stable")
