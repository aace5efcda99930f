"""A round's batches of several lanes → rows of one global batch, on the host. No jax."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon_jax.engine.engine import Delivery, Engine
from zephon_jax.errors import DataError

__all__ = ["HostRound", "join_lanes", "rounds_of"]

HostRound = tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]
"""Fields that can be device arrays, and those that cannot (object arrays), each of shape (rows, ...)."""


def join_lanes(batches: Sequence[dict[str, NDArray[Any]]]) -> HostRound:
    """Lane after lane in fresh arrays: lane l's rows are [l·R, (l + 1)·R) of those produced here (rule O5)."""
    names = dict.fromkeys(name for batch in batches for name in batch)
    arrays: dict[str, NDArray[Any]] = {}
    host: dict[str, NDArray[Any]] = {}
    for name in names:
        parts = [batch.get(name) for batch in batches]
        if any(p is None for p in parts):
            raise DataError(f"the field {name!r} is in the batch of some lanes only; a map that always makes it helps")
        whole = [p for p in parts if p is not None]
        same = all(p.shape[1:] == whole[0].shape[1:] and p.dtype == whole[0].dtype for p in whole)
        if not same and not all(p.dtype == object for p in whole):
            shapes = sorted({f"{p.dtype}{p.shape[1:]}" for p in whole})
            raise DataError(f"the field {name!r} has rows of {shapes} in one step; pad or pack it to one shape")
        # np.concatenate copies even a single part, so no delivered array shares memory with an operator's.
        (host if whole[0].dtype == object else arrays)[name] = np.concatenate(whole)
    return arrays, host


def rounds_of(engine: Engine, finish: Callable[[HostRound], Any]) -> Iterator[Delivery]:
    """The engine's rounds, each joined and finished; receipts pass."""
    for delivery in engine.rounds():
        yield delivery if delivery.batch is None else Delivery(finish(join_lanes(delivery.batch)), delivery.receipts)
