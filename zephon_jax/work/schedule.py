"""A mixture whose weights change on the way: at exact draws, in steps or along ramps.

A ramp is cut into pieces of constant weights, at most 256 of them. The weights of a piece are the very numbers of draws
that each dataset has in it: its shares in the middle of the piece times the piece's length, rounded so that what one
piece rounds away the next makes up for. A quota of such weights gives exactly them, so that at the end of every piece
the datasets have had what the ramp promises to within two draws, however many pieces came before.

This module knows nothing of passes, lanes or tokens: what it is given as `cost` only divides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from numbers import Real
from operator import index
from typing import Any, Literal, SupportsIndex, TypeAlias, cast

from zephon_jax.errors import ConfigurationError
from zephon_jax.work.quota import integer_weights
from zephon_jax.work.segments import MAX_DRAWS, Phase

__all__ = ["RAMP_PIECES", "Interpolation", "MixtureSchedule", "checked_weights"]

Interpolation: TypeAlias = Literal["step", "linear"]

RAMP_PIECES = 256
"""Pieces of constant weights in a ramp (as many as draws if it is shorter). Part of the order: never change it."""

_ONE = 48  # shares of a ramp are multiples of 2**-48, finer than a draw in any ramp that a run will ever see


@dataclass(frozen=True)
class MixtureSchedule:
    """Weights that change at given draws; pass one as `mixture=` of a work source.

    `points` are pairs of a start and the weights by name from there on. Starts count draws of all lanes together (one
    draw is one sample, in the order of the global sequence); the first is 0 and they ascend. Each point names the same
    datasets; a weight may be 0, then the dataset is not drawn, but one must be positive.

    `interpolation`: "step" keeps each point's weights up to the next one. "linear" moves the shares (weights divided by
    their sum) in a straight line from each point to the next, in at most 256 pieces of constant weights. Behind the last
    point its weights stay.

    >>> schedule = MixtureSchedule([(0, {"web": 0.9, "code": 0.1}), (1_000_000, {"web": 0.5, "code": 0.5})])
    >>> schedule.names
    ('web', 'code')

    Raises `ConfigurationError` on points that cannot work.
    """

    points: Sequence[tuple[int, Mapping[str, float]]]
    interpolation: Interpolation = "step"

    def __post_init__(self) -> None:
        if self.interpolation not in ("step", "linear"):
            raise ConfigurationError(f'MixtureSchedule(interpolation={self.interpolation!r}): give "step" or "linear".')
        object.__setattr__(self, "points", tuple(_checked_point(p) for p in _listed(self.points)))
        starts = [start for start, _ in self.points]
        if starts[0] != 0:
            raise ConfigurationError(f"the first point of a MixtureSchedule must start at draw 0, got {starts[0]}.")
        for before, after in pairwise(starts):
            if after <= before:
                raise ConfigurationError(
                    f"the starts of a MixtureSchedule must ascend, but {after:,} comes behind {before:,}."
                )
        for start, weights in self.points:
            if (odd := sorted(set(weights) ^ set(self.names))) != []:
                raise ConfigurationError(
                    f"the point of a MixtureSchedule at {start:,} must name the same datasets as the first, "
                    f"{list(self.names)}; it differs in {odd}. A dataset that is not to be drawn has weight 0."
                )

    @classmethod
    def from_steps(
        cls,
        points: Sequence[tuple[int, Mapping[str, float]]],
        *,
        samples_per_step: int,
        interpolation: Interpolation = "step",
    ) -> MixtureSchedule:
        """Points whose starts count training steps of so many samples: each start is multiplied by `samples_per_step`.

        That is `global_batch_size` where every row is one sample. Where filters, splitting or packing stand in
        between, a step takes another number of samples, which only a run can tell: measure it, or count in draws.

        >>> MixtureSchedule.from_steps([(0, {"a": 1, "b": 0}), (100, {"a": 1, "b": 1})], samples_per_step=512).points[1][0]
        51200
        """
        if isinstance(samples_per_step, bool) or not isinstance(samples_per_step, int) or samples_per_step < 1:
            raise ConfigurationError(f"from_steps(samples_per_step={samples_per_step!r}): give an integer from 1.")
        checked = [_checked_point(point) for point in _listed(points)]
        return cls([(start * samples_per_step, weights) for start, weights in checked], interpolation)

    @property
    def names(self) -> tuple[str, ...]:
        """The datasets, in the order of the first point."""
        return tuple(self.points[0][1])

    def phases(self, names: Sequence[str], cost: Sequence[Fraction] | None = None) -> list[Phase]:
        """Constant weights for `names`, in their order, from each start on.

        With `cost`, the weights are shares of what samples cost: a sample of dataset i costs `cost[i]`.
        """
        costs = list(cost) if cost is not None else [Fraction(1)] * len(names)
        each = [[Fraction(str(weights[name])) for name in names] for _, weights in self.points]
        if self.interpolation == "step":
            divided = [tuple(w / c for w, c in zip(weights, costs, strict=True)) for weights in each]
            return [Phase(start, weights) for (start, _), weights in zip(self.points, divided, strict=True)]
        shares = [[w / sum(weights) for w in weights] for weights in each]
        starts = [start for start, _ in self.points]
        found: list[Phase] = []
        for i, (start, stop) in enumerate(pairwise(starts)):
            found += _ramp(start, stop, shares[i], shares[i + 1], costs)
        found.append(Phase(starts[-1], tuple(s / c for s, c in zip(shares[-1], costs, strict=True))))
        return found

    def identity(self, names: Sequence[str]) -> dict[str, Any]:
        """Plain values that decide the weights: equal for points in other scales."""
        points = [[start, _ratio([weights[name] for name in names])] for start, weights in self.points]
        return {"interpolation": self.interpolation, "points": points}


def _ramp(
    start: int, stop: int, before: Sequence[Fraction], after: Sequence[Fraction], costs: Sequence[Fraction]
) -> list[Phase]:
    """Pieces from one point to the next, whose weights are the numbers of draws in them."""
    length = stop - start
    pieces = min(RAMP_PIECES, length)
    carry = [0] * len(costs)
    found: list[Phase] = []
    for k in range(pieces):
        a, b = length * k // pieces, length * (k + 1) // pieces
        middle = Fraction(a + b, 2 * length)
        wanted = [((1 - middle) * x + middle * y) / c for x, y, c in zip(before, after, costs, strict=True)]
        counts, carry = _rounded(_whole_shares(wanted), b - a, carry)
        found.append(Phase(start + a, tuple(counts)))
    return found


def _whole_shares(weights: Sequence[Fraction]) -> list[int]:
    """Shares as multiples of 2**-48 that add up to 1; the largest takes what is left of rounding down."""
    total = sum(weights)
    shares = [int(weight * 2**_ONE / total) for weight in weights]
    shares[max(range(len(shares)), key=lambda i: shares[i])] += 2**_ONE - sum(shares)
    return shares


def _rounded(shares: Sequence[int], draws: int, carry: Sequence[int]) -> tuple[list[int], list[int]]:
    """So many draws divided by shares, in whole draws, and what each is short of for the next time."""
    wanted = [share * draws + more for share, more in zip(shares, carry, strict=True)]
    counts = [max(0, want >> _ONE) for want in wanted]
    rest = [want - (count << _ONE) for want, count in zip(wanted, counts, strict=True)]
    while (missing := draws - sum(counts)) != 0:
        step = 1 if missing > 0 else -1
        fitting = [i for i, count in enumerate(counts) if (shares[i] if step > 0 else count)]
        chosen = max(fitting, key=lambda i: (step * rest[i], -i))
        counts[chosen] += step
        rest[chosen] -= step << _ONE
    return counts, rest


def _ratio(weights: Sequence[float]) -> list[int]:
    """The smallest integers in this ratio, zeros kept."""
    positive = iter(integer_weights([weight for weight in weights if weight]))
    return [next(positive) if weight else 0 for weight in weights]


def _listed(points: object) -> list[Any]:
    if isinstance(points, Mapping) or not isinstance(points, Sequence) or isinstance(points, str) or not points:
        raise ConfigurationError(
            f"a MixtureSchedule needs a list of pairs such as (0, {{'web': 0.7, 'code': 0.3}}), got {points!r:.100}."
        )
    return list(points)


def _checked_point(point: object) -> tuple[int, dict[str, float]]:
    pair = list(point) if isinstance(point, Sequence) and not isinstance(point, str) else []
    start, weights = pair if len(pair) == 2 else (None, None)
    if isinstance(start, bool) or not isinstance(start, SupportsIndex) or not isinstance(weights, Mapping):
        raise ConfigurationError(
            f"a point of a MixtureSchedule is a start and weights by name, such as (0, {{'web': 0.7}}); got {point!r:.100}."
        )
    if not 0 <= index(start) <= MAX_DRAWS:
        raise ConfigurationError(f"a start of a MixtureSchedule must be from 0 to 2**62, got {start!r}.")
    named = cast(Mapping[str, float], weights)
    where = f"the MixtureSchedule's weights at {index(start):,}"
    checked_weights(where, named, zero_allowed=True)
    if not any(named.values()):
        raise ConfigurationError(f"{where} are all 0: one dataset must be drawn.")
    return index(start), dict(named)


def checked_weights(where: str, weights: Mapping[str, Any], *, zero_allowed: bool) -> None:
    """Raise `ConfigurationError` unless all are positive, finite numbers (or 0, where that is allowed)."""
    for name, weight in weights.items():
        number = float(weight) if isinstance(weight, Real) and not isinstance(weight, bool) else -1.0
        if not (0 < number < float("inf") or (zero_allowed and number == 0)):
            sign = "not negative" if zero_allowed else "positive"
            raise ConfigurationError(f"{where}[{name!r}] = {weight!r}: weights are {sign}, finite numbers.")
