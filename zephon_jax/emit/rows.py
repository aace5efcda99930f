"""A round's batches of several lanes → rows of one global batch, on the host. No jax."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon_jax.engine.engine import Delivery, Engine
from zephon_jax.errors import DataError

__all__ = ["HostRound", "join_lanes", "rounds_of"]

HostRound = tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]
"""Fields that can be device arrays, and those that cannot (object arrays), each of shape (rows, ...)."""


def join_lanes(batches: Sequence[dict[str, NDArray[Any]]], dtypes: Mapping[str, Any] | None = None) -> HostRound:
    """Lane after lane in fresh arrays: lane l's rows are [l·R, (l + 1)·R) of those produced here (rule O5).

    A field is an array if all rows have one shape and one dtype, or one that `dtypes` gives; else it is kept apart, as an
    object array with None where a row lacks it.
    """
    arrays: dict[str, NDArray[Any]] = {}
    host: dict[str, NDArray[Any]] = {}
    sizes = [len(next(iter(batch.values()), ())) for batch in batches]
    for name in dict.fromkeys(name for batch in batches for name in batch):
        parts = [batch.get(name) for batch in batches]
        if dtypes and name in dtypes:
            parts = [_as_dtype(p, np.dtype(dtypes[name])) for p in parts]
        whole = [p for p in parts if p is not None and p.dtype != object]
        alike = len(whole) == len(parts) and all(p.shape[1:] == whole[0].shape[1:] for p in whole)
        if alike and len({p.dtype for p in whole}) > 1:
            raise DataError(
                f"the field {name!r} is of several types in one step: {sorted({str(p.dtype) for p in whole})}; name one in "
                f"dtypes={{{name!r}: …}}, or map it to one"
            )
        # np.concatenate copies even a single part, so no delivered array shares memory with an operator's.
        if alike:
            arrays[name] = np.concatenate(whole)
        else:
            host[name] = np.concatenate([_as_objects(p, n) for p, n in zip(parts, sizes, strict=True)])
    return arrays, host


def _as_dtype(part: NDArray[Any] | None, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Numbers of several types, which a batch keeps as objects, as the one type that was asked for."""
    if part is None or part.dtype != object:
        return part if part is None or part.dtype.kind not in "biuf" or dtype.kind != "f" else part.astype(dtype)
    numbers = all(isinstance(v, (np.number, np.bool_)) for v in part)
    return np.array(part.tolist(), dtype) if numbers and dtype.kind == "f" else part


def _as_objects(part: NDArray[Any] | None, n: int) -> NDArray[Any]:
    if part is not None and part.dtype == object:
        return part
    out = np.empty(n, object)
    for i in range(n if part is not None else 0):
        assert part is not None
        out[i] = part[i]
    return out


def rounds_of(
    engine: Engine, finish: Callable[[HostRound], Any], dtypes: Mapping[str, Any] | None = None
) -> Iterator[Delivery]:
    """The engine's rounds, each joined and finished; receipts pass."""
    for delivery in engine.rounds():
        yield (
            delivery
            if delivery.batch is None
            else Delivery(finish(join_lanes(delivery.batch, dtypes)), delivery.receipts)
        )
