"""A mixture, step by step: what the closed forms must equal.

Looks at draw after draw and asks before each one what holds now: which point of the schedule, who has dropped out.
Nothing is looked up ahead. Only the order within a stretch of constant weights is taken from `Quota.draws`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from zephon_jax.work.quota import Quota


@dataclass(frozen=True)
class Shard:
    num_samples: int


@dataclass(frozen=True)
class Data:
    name: str
    shards: tuple[Shard, ...]
    block_hint: Any = None


def data(name: str, *sizes: int, hint: Any = None) -> Data:
    return Data(name, tuple(map(Shard, sizes)), hint)


class NeverEnds(Exception):
    """Some dataset must complete its passes and never will, or nothing is left to draw from."""


def of(argument: Any, name: str) -> Any:
    return argument.get(name) if isinstance(argument, dict) else argument


def reference(
    sizes: dict[str, int],
    phases: list[tuple[int, list[Any]]],
    passes: Any = None,
    policy: Any = None,
    repeats: Any = None,
    most: int = 10_000,
) -> tuple[list[tuple[int, int]], bool]:
    """(dataset, ordinal) of up to `most` draws, and whether the source ends behind them."""
    names = list(sizes)
    n = {name: of(passes, name) or 1 for name in names}
    required = [
        k for k, d in enumerate(names) if of(policy, d) is None or (of(policy, d) == "repeat" and of(passes, d))
    ]
    used = [0] * len(names)
    out: list[tuple[int, int]] = []
    now: Any = None
    components, local = np.empty(0, np.int32), 0
    while len(out) < most:
        gone = {
            k
            for k, d in enumerate(names)
            if of(policy, d) != "stop" and of(repeats, d) is not None and used[k] >= (1 + of(repeats, d)) * sizes[d]
        }
        if len(gone) == len(names) or (required and all(used[k] >= n[names[k]] * sizes[names[k]] for k in required)):
            return out, True
        number = max(i for i, (start, _) in enumerate(phases) if start <= len(out))
        members = [k for k, weight in enumerate(phases[number][1]) if weight and k not in gone]
        if not members:
            raise NeverEnds
        if (number, members) != now:
            now, local = (number, members), 0
            quota = Quota([Fraction(str(phases[number][1][k])) for k in members])
            components = np.array(members)[quota.draws(np.arange(most))[0]]
        k = int(components[local])
        if of(policy, names[k]) == "stop" and used[k] == n[names[k]] * sizes[names[k]]:
            return out, True
        out.append((k, used[k]))
        used[k] += 1
        local += 1
    return out, False
