"""The fingerprint of what a lane delivered (rule C8): a sum over rows, so batches and topologies leave no trace in it.

A row contributes a 128-bit mix of its ordinal in the lane and its cursor; the lane's digest is the sum modulo 2**128.
The mixing is splitmix64's finaliser (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014),
run twice with different constants. It guards against mistakes, not against an adversary.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from zephon_jax.types import Int32s

__all__ = ["MODULUS", "combine", "rows_digest", "to_hex"]

MODULUS = 1 << 128
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _half(ordinals: NDArray[np.uint64], cursors: NDArray[np.uint64], seed: int) -> int:
    with np.errstate(over="ignore"):
        h = _mix(ordinals + np.uint64(seed))
        for part in cursors:
            h = _mix((h ^ part) * _GOLDEN + np.uint64(seed))
        # Python integers from here: a sum of 64-bit values would wrap, and the carry into the upper half counts.
        return int((h >> np.uint64(32)).sum(dtype=np.uint64)) * (1 << 32) + int(
            (h & np.uint64(0xFFFFFFFF)).sum(dtype=np.uint64)
        )


def rows_digest(first_ordinal: int, cursors: Int32s) -> int:
    """The contribution of these rows: `cursors` is (2 + depth, n), the first row being the lane's `first_ordinal`-th."""
    n = cursors.shape[1]
    ordinals = np.arange(n, dtype=np.uint64) + np.uint64(first_ordinal)
    parts = cursors.astype(np.uint64)
    low, high = _half(ordinals, parts, 0x243F6A8885A308D3), _half(ordinals, parts, 0x13198A2E03707344)
    return (low + (high << 64)) % MODULUS


def to_hex(digest: int) -> str:
    """32 hexadecimal digits."""
    return f"{digest:032x}"


def combine(digests: Mapping[int, int]) -> str:
    """One digest for all lanes, whatever order they are listed in."""
    total = 0
    for lane, digest in digests.items():
        words = np.array(
            [lane, digest & 0xFFFFFFFF, digest >> 32 & 0xFFFFFFFF, digest >> 64 & 0xFFFFFFFF, digest >> 96], np.uint64
        )
        total += _half(words[:1], words[1:, None], 0xA4093822299F31D0) + (
            _half(words[:1], words[1:, None], 0x082EFA98EC4E6C89) << 64
        )
    return to_hex(total % MODULUS)
