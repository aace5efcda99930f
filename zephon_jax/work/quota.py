"""Which component each draw of a mixture comes from: exact shares, spread evenly, with random access.

Whatever position a checkpoint names, the next draws must follow at once, so the sequence is a closed form in exact
integer arithmetic rather than a running deficit. The components are the leaves of a binary tree, and each inner node
splits its own draws between two children as evenly as integers allow: of its first m draws, `floor((m a + h) / n)` go
to the lighter child, where a of n is that child's weight and h = n // 2. A draw finds its component by going down the
tree, a component's draw its place by going up.

The tree is Huffman's: no inner child then has more than two thirds of its parent, which bounds the error. Of the first
g draws every component has its exact share to within (1 + 3 p) / 2 < 2, p being its part of its parent; the worst of
6,000 random mixtures was 1.34. The usual draw is cheap too, since heavy components sit near the root. Sorting all draws
by the times (2 i + 1) / (2 w) was rejected: components of equal weight coincide there, so that ten of 1 % each come as
ten draws in a row.

The sequence repeats after W = sum of the weights, with exactly w draws of each component. No randomness is involved.
This module knows nothing of datasets or lanes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import NamedTuple, overload

import numpy as np

from zephon_jax.errors import ConfigurationError
from zephon_jax.types import Int32s, Int64s

__all__ = ["MAX_TOTAL", "Quota", "integer_weights"]

MAX_TOTAL = 2**48
"""The largest sum of weights; as many samples as a dataset may have, so that weights by size are always exact."""


def integer_weights(weights: Sequence[float | Fraction]) -> tuple[int, ...]:
    """The smallest integers in the ratio of `weights`; floats count as the decimals they print as.

    A sum above 2**48 is scaled down to it, by largest remainder and with at least 1 each.

    >>> integer_weights([0.7, 0.3]), integer_weights([2000, 500])
    ((7, 3), (4, 1))
    """
    exact = [Fraction(str(weight)) for weight in weights]
    denominator = lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * denominator) for weight in exact]
    return _reduced(_scaled(_reduced(whole)))


def _reduced(weights: Sequence[int]) -> tuple[int, ...]:
    divisor = gcd(*weights)
    return tuple(weight // divisor for weight in weights)


def _scaled(weights: tuple[int, ...]) -> tuple[int, ...]:
    total = sum(weights)
    if total <= MAX_TOTAL:
        return weights
    scaled = [max(1, weight * MAX_TOTAL // total) for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(weights[i] * MAX_TOTAL % total), i))
    for component in by_remainder[: max(0, MAX_TOTAL - sum(scaled))]:
        scaled[component] += 1
    heaviest = max(range(len(weights)), key=lambda i: scaled[i])
    scaled[heaviest] -= max(0, sum(scaled) - MAX_TOTAL)  # what raising the lightest to 1 has cost
    return tuple(scaled)


class Quota:
    """The components of a global sequence of draws, numbered 0, 1, 2, ...; immutable.

    `weights` are positive numbers in any scale. The arrays taken and given have shape (m,); draws count from 0 and
    may be as large as 2**62.

    >>> quota = Quota([3, 1])
    >>> component, ordinal = quota.draws(np.arange(6))
    >>> component.tolist(), ordinal.tolist()
    ([0, 1, 0, 0, 0, 1], [0, 0, 1, 2, 3, 1])
    >>> quota.rank(1, 1)
    5
    """

    def __init__(self, weights: Sequence[float | Fraction]):
        if not len(weights) or not all(0 < weight < float("inf") for weight in weights):
            raise ConfigurationError(f"weights must be positive, finite numbers, at least one; got {list(weights)}")
        self.weights = integer_weights(weights)
        self._tree = _huffman(self.weights)

    @property
    def period(self) -> int:
        """The number of draws after which the sequence of components repeats."""
        return sum(self.weights)

    def draws(self, draw: Int64s) -> tuple[Int32s, Int64s]:
        """Component and ordinal (how many draws that component had before) of each global draw, in any order."""
        tree = self._tree
        node = np.full(len(draw), tree.root, np.int64)
        ordinal = draw.astype(np.int64)  # a copy: rewritten from the node's ordinal to its child's at each step
        leaves = len(self.weights)
        inner = np.arange(len(draw)) if tree.root >= leaves else np.empty(0, np.int64)
        while len(inner):
            here, m = node[inner], ordinal[inner]
            part, whole = tree.part[here], tree.whole[here]
            periods, rest = np.divmod(m, whole)
            # The light child has had `before` of the node's first m draws, and takes this one if m + 1 give it more.
            before = _scaled_floor(rest, part, whole // 2, whole)
            light = _residue(rest + 1, part, whole // 2, before, whole) >= whole
            before += periods * part
            ordinal[inner] = np.where(light, before, m - before)
            node[inner] = child = np.where(light, tree.light[here], tree.heavy[here])
            inner = inner[child >= leaves]
        return node.astype(np.int32), ordinal

    @overload
    def rank(self, component: int, ordinal: int) -> int: ...
    @overload
    def rank(self, component: Int32s, ordinal: Int64s) -> Int64s: ...
    def rank(self, component: int | Int32s, ordinal: int | Int64s) -> int | Int64s:
        """The global draw that is the component's `ordinal`-th (from 0); the inverse of `draws`.

        Plain integers give a plain integer, exact at any depth; arrays must stay below 2**62.
        """
        if isinstance(component, np.ndarray) and isinstance(ordinal, np.ndarray):
            return self._ranks(component, ordinal)
        tree, node, place = self._tree, int(component), int(ordinal)
        while node != tree.root:
            parent = int(tree.parent[node])
            whole, part = int(tree.whole[parent]), int(tree.whole[node])
            place = ((place + 1) * whole + part - 1 - _phase(tree, node, parent)) // part - 1
            node = parent
        return place

    def _ranks(self, component: Int32s, ordinal: Int64s) -> Int64s:
        tree = self._tree
        node, place = component.astype(np.int64), ordinal.astype(np.int64)
        below = np.flatnonzero(node != tree.root)
        while len(below):
            here = node[below]
            node[below] = parent = tree.parent[here]
            whole, part = tree.whole[parent], tree.whole[here]
            phase = np.where(tree.light[parent] == here, whole // 2, whole - 1 - whole // 2)
            periods, rest = np.divmod(place[below], part)
            place[below] = periods * whole + _scaled_floor(rest + 1, whole, part - 1 - phase, part) - 1
            below = below[parent != tree.root]
        return place

    def counts(self, draws: int) -> list[int]:
        """How many of the first `draws` global draws each component has; exact at any depth."""
        tree, leaves = self._tree, len(self.weights)
        had = [0] * len(tree.whole)
        had[tree.root] = draws
        for node in range(tree.root, leaves - 1, -1):  # parents are numbered above their children
            whole, part = int(tree.whole[node]), int(tree.part[node])
            had[tree.light[node]] = light = (had[node] * part + whole // 2) // whole
            had[tree.heavy[node]] = had[node] - light
        return had[:leaves]


class _Tree(NamedTuple):
    """Leaves are numbered as the components, inner nodes from there in the order of their making; arrays by node."""

    root: int
    whole: Int64s  # the node's weight
    part: Int64s  # the weight of its light child; 0 for a leaf
    light: Int64s
    heavy: Int64s
    parent: Int64s


def _huffman(weights: tuple[int, ...]) -> _Tree:
    leaves = len(weights)
    nodes = 2 * leaves - 1
    whole, part, light, heavy, parent = (np.zeros(nodes, np.int64) for _ in range(5))
    whole[:leaves] = weights
    heap = [(weight, node) for node, weight in enumerate(weights)]  # equal weights: the lower number first
    heapq.heapify(heap)
    for node in range(leaves, nodes):
        (lighter, left), (heavier, right) = heapq.heappop(heap), heapq.heappop(heap)
        whole[node], part[node], light[node], heavy[node] = lighter + heavier, lighter, left, right
        parent[left] = parent[right] = node
        heapq.heappush(heap, (lighter + heavier, node))
    return _Tree(nodes - 1, whole, part, light, heavy, parent)


def _phase(tree: _Tree, node: int, parent: int) -> int:
    """The h in `floor((m a + h) / n)`, the number of `node`'s draws among its parent's first m."""
    whole = int(tree.whole[parent])
    return whole // 2 if tree.light[parent] == node else whole - 1 - whole // 2


def _scaled_floor(x: Int64s, y: Int64s, add: Int64s, z: Int64s) -> Int64s:
    """`(x * y + add) // z`, exact although the product leaves 64 bits; x, y, z and the result up to 2**48, |add| <= z.

    A float64 quotient is off by less than 3 here, so what it leaves over is a few z and comes out right modulo 2**64.
    """
    guess = (x.astype(np.float64) * y / z).astype(np.int64)
    return guess + _residue(x, y, add, guess, z) // z


def _residue(x: Int64s, y: Int64s, add: Int64s, quotient: Int64s, z: Int64s) -> Int64s:
    """`x * y + add - quotient * z`, computed modulo 2**64 (NumPy arrays wrap silently) and small by its use."""
    return x * y + add - quotient * z
