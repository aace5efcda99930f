"""Fitting documents that have several lengths (tokens, and images beside them) into rows of several capacities. Pure.

A document fits where each of its lengths does. One row of an array per open bin, in order of opening: a comparison per
document costs the same few microseconds for any usual number of bins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zephon_jax.ops.pack.bins import Rows, renumbered
from zephon_jax.types import Int64s

__all__ = ["JointFit"]


class JointFit:
    """First fit, or with `best` best fit by the first length; the bin with the least of that room leaves first."""

    def __init__(self, capacities: Sequence[int], num_bins: int, max_segments: int, *, best: bool):
        self._capacities = np.array(capacities, np.int64)
        self._num_bins, self._most, self._best = num_bins, max_segments, best
        self._room = np.zeros((num_bins, len(capacities)), np.int64)  # of open bins, in order of opening
        self._held: Rows = []

    def push(self, lengths: Int64s, first: int) -> Rows:
        """Place documents first, first + 1, … with these lengths, shape (n, fields), the first of each at least 1."""
        rows: Rows = []
        for piece, needed in enumerate(lengths, first):
            room = self._room[: len(self._held)]
            fitting = np.flatnonzero((room >= needed).all(axis=1))
            if len(fitting):
                at = int(fitting[room[fitting, 0].argmin()] if self._best else fitting[0])
            else:
                if len(self._held) == self._num_bins:
                    rows.append(self._pop(int(room[:, 0].argmin())))
                at = len(self._held)
                self._held.append([])
                self._room[at] = self._capacities
            self._held[at].append(piece)
            self._room[at] -= needed
            if len(self._held[at]) == self._most:
                self._room[at] = 0  # a document has a first length of at least 1: nothing more fits
        return rows

    def _pop(self, at: int) -> list[int]:
        open_bins = len(self._held)
        self._room[at : open_bins - 1] = self._room[at + 1 : open_bins]
        return self._held.pop(at)

    def flush(self) -> Rows:
        """All open bins, in order of opening; none is open afterwards."""
        out, self._held = self._held, []
        return out

    def renumber(self, base: int) -> list[int]:
        """The documents in open bins, bin after bin; from now on they are called base, base + 1, …"""
        return renumbered(self._held, base)
