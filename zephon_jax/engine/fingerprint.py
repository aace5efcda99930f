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
_ROWS = np.array([0x243F6A8885A308D3, 0x13198A2E03707344], np.uint64)
_LANES = np.array([0xA4093822299F31D0, 0x082EFA98EC4E6C89], np.uint64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """In place; products wrap, as they are to."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def _mixed(ordinals: NDArray[np.uint64], cursors: NDArray[np.uint64], seeds: NDArray[np.uint64]) -> list[int]:
    """Per seed the sum over rows. Whole arrays for all seeds at once: a call costs more than what it does to a few rows."""
    seed = seeds[:, None]
    h = _mix(ordinals + seed)
    for part in cursors:
        h ^= part
        h *= _GOLDEN
        h += seed
        h = _mix(h)
    # Python integers from here: a sum of 64-bit values would wrap, and the carry into the upper half counts.
    upper, lower = (h >> np.uint64(32)).sum(axis=1).tolist(), (h & np.uint64(0xFFFFFFFF)).sum(axis=1).tolist()
    return [u * (1 << 32) + v for u, v in zip(upper, lower, strict=True)]


def rows_digest(first_ordinal: int, cursors: Int32s) -> int:
    """The contribution of these rows: `cursors` is (2 + depth, n), the first row being the lane's `first_ordinal`-th."""
    n = cursors.shape[1]
    ordinals = np.arange(n, dtype=np.uint64) + np.uint64(first_ordinal)
    parts = cursors.astype(np.uint64)
    low, high = _mixed(ordinals, parts, _ROWS)
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
        low, high = _mixed(words[:1], words[1:, None], _LANES)
        total += low + (high << 64)
    return to_hex(total % MODULUS)
