"""A keyed reordering of `range(n)` with random access: the order is computed, never stored.

Shuffled orders are saved nowhere: a position anywhere in a pass, of a billion samples or more, must cost the same and
need no memory, and a seed must mean the same order for as long as checkpoints live. So the order is a cipher on the
numbers below n rather than a shuffled array, and it uses integer arithmetic alone: the streams of
`numpy.random.Generator` may change between NumPy versions.

The cipher is a Feistel network on a grid of `rows * columns >= n` cells, both about the square root of n. The grid has
less than `rows` cells too many, so that "walk the cycle until the result is below n" hardly ever takes a second step;
on the enclosing power of four it takes up to four on average and, for the unluckiest of 512 indices, about twenty.

Sources: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002 (generalised Feistel network, cycle
walking); Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014 (splitmix64, the mixing).

It is a shuffle, not cryptography. This module knows nothing of shards, samples or lanes.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zephon_jax.errors import ConfigurationError
from zephon_jax.types import Int64s

__all__ = ["MAX_SIZE", "Permutation", "UInt64s", "mix_key", "mix_key_each", "permute_each"]

UInt64s: TypeAlias = NDArray[np.uint64]

MAX_SIZE = 2**48
"""The largest n: rows and columns then stay within 24 bits, so that no product below leaves 64 bits."""

# The chance of an item to land in a given place is then within 3 % of 1/n for n = 5, the worst n (200,000 keys); with
# six rounds within 6 %. Sixteen would make all 120 orders of 5 items alike, but each round costs 10 µs per 512 draws.
_ROUNDS = 8
_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_COUNTERS = np.array([[(_GOLDEN * (i + 1)) & _WORD] for i in range(_ROUNDS)], np.uint64)


def mix_key(*parts: int) -> int:
    """Mix integers, each taken modulo 2**64, into one 64-bit key; their order and number matter.

    >>> mix_key(7, 1) == mix_key(1, 7)
    False
    """
    key = 0
    for part in parts:
        key = ((key + _GOLDEN) & _WORD) ^ (part & _WORD)
        key = ((key ^ (key >> 30)) * _MULTIPLIERS[0]) & _WORD
        key = ((key ^ (key >> 27)) * _MULTIPLIERS[1]) & _WORD
        key ^= key >> 31
    return key


def mix_key_each(key: int, parts: Int64s) -> UInt64s:
    """Add one more part to `key = mix_key(...)`, for each of `parts`: an array of `mix_key(..., part)`."""
    return _mix(parts.astype(np.uint64) ^ np.uint64((key + _GOLDEN) & _WORD))


class Permutation:
    """A bijection of `range(n)` onto itself, decided by `key`; immutable, so safe to share between threads.

    >>> order = Permutation(5, key=(0, 3))
    >>> sorted(order(np.arange(5)).tolist())
    [0, 1, 2, 3, 4]
    """

    def __init__(self, n: int, key: tuple[int, ...]):
        if not 0 <= n <= MAX_SIZE:
            raise ConfigurationError(f"cannot permute {n} items: from 0 to 2**48 are possible. Use fewer samples.")
        self._grid = _grid(np.array([n], np.int64), np.array([mix_key(*key)], np.uint64))

    def __call__(self, index: Int64s) -> Int64s:
        """Where each of `index` (shape (m,)) goes, same shape; raises `IndexError` unless all are in `range(n)`."""
        return _walk(index, self._grid)


def permute_each(index: Int64s, size: Int64s, key: UInt64s) -> Int64s:
    """Apply to each index a permutation of its own: of `range(size)`, by a key as `mix_key` makes it.

    All three have shape (m,). Equals `Permutation(size[i], parts)(index[i])` where `key[i] == mix_key(*parts)`.
    """
    return _walk(index, _grid(size, key))


class _Grid(NamedTuple):
    """The cells that the network permutes, and its round keys; arrays of one item, or of one per index."""

    size: UInt64s
    rows: UInt64s
    columns: UInt64s
    keys: UInt64s  # (_ROUNDS, 1) or (_ROUNDS, m)

    def select(self, chosen: Int64s) -> _Grid:
        if len(self.size) == 1:
            return self
        return _Grid(self.size[chosen], self.rows[chosen], self.columns[chosen], self.keys[:, chosen])


def _grid(size: Int64s, key: UInt64s) -> _Grid:
    # Up to 2**48 a float64 root is exact enough: it equals an integer only where size is that integer's square.
    rows = np.maximum(np.ceil(np.sqrt(size)).astype(np.int64), 1)
    columns = np.maximum((size + rows - 1) // rows, 1)
    return _Grid(size.astype(np.uint64), rows.astype(np.uint64), columns.astype(np.uint64), _mix(key + _COUNTERS))


def _walk(index: Int64s, grid: _Grid) -> Int64s:
    cell = index.astype(np.uint64)  # a negative index becomes a huge one
    if (cell >= grid.size).any():
        raise IndexError("an index to permute is not in range(n); from there the walk might never come back")
    cell = _encipher(cell, grid)
    outside = np.flatnonzero(cell >= grid.size)
    while len(outside):
        there = grid.select(outside)
        cell[outside] = moved = _encipher(cell[outside], there)
        outside = outside[moved >= there.size]
    return cell.view(np.int64)


def _encipher(cell: UInt64s, grid: _Grid) -> UInt64s:
    row = cell // grid.columns
    column = cell - row * grid.columns
    for turn in range(0, _ROUNDS, 2):
        row = _turn(row, column, grid.keys[turn], grid.rows)
        column = _turn(column, row, grid.keys[turn + 1], grid.columns)
    return row * grid.columns + column


def _turn(half: UInt64s, other: UInt64s, key: UInt64s, modulus: UInt64s) -> UInt64s:
    """`half` plus a keyed function of `other`, modulo `modulus`."""
    mixed = _scramble(other ^ key)
    mixed >>= np.uint64(32)
    mixed *= modulus  # the upper 32 bits, taken as a fraction, of the modulus: cheaper than a remainder
    mixed >>= np.uint64(32)
    mixed += half
    return np.minimum(mixed, mixed - modulus)  # below the modulus the difference wraps round to something huge


def _scramble(word: UInt64s) -> UInt64s:
    """The first two thirds of splitmix64's finaliser, in place: its last step does not reach the upper 32 bits."""
    word ^= word >> np.uint64(30)
    word *= np.uint64(_MULTIPLIERS[0])
    word ^= word >> np.uint64(27)
    word *= np.uint64(_MULTIPLIERS[1])
    return word


def _mix(word: UInt64s) -> UInt64s:
    word = _scramble(word)
    return word ^ (word >> np.uint64(31))
