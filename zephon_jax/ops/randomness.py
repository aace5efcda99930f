"""Counter-based randomness (rule O2): a function of what it is keyed by, so that there is nothing to save.

Only raw Philox output is used: NumPy keeps a bit generator's stream stable between versions, but not what
`Generator.shuffle` or `integers` make of it. User code is given a `Generator` all the same: what it draws is stable as
long as NumPy is.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np

from zephon_jax.types import Int64s, LaneContext

__all__ = ["Draws", "record_generator"]


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


def record_generator(seed: int, operator: int, lane: int, cursor: Sequence[int]) -> np.random.Generator:
    """The generator of one record: a function of the seed, the operator and the record's identity."""
    packed = struct.pack(f"<{3 + len(cursor)}q", seed, operator, lane, *cursor)
    key = np.frombuffer(hashlib.blake2b(packed, digest_size=16, person=b"record").digest(), np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
