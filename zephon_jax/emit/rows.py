"""A round's batches of several lanes → rows of one global batch, on the host. No jax."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon_jax.engine.engine import Delivery, LaneBatch
from zephon_jax.errors import ConfigurationError, DataError

__all__ = ["ROW_VALID", "HostRound", "Padder", "accumulated", "converted", "finished", "join_lanes"]

HostRound = tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]
"""Fields that can be device arrays, and those that cannot (object arrays), each of shape (rows, ...)."""

ROW_VALID = "row_valid"
"""With `end="pad"`: bool of shape (rows,), False for rows that were made up to fill the last steps."""


def join_lanes(batches: Sequence[Mapping[str, NDArray[Any]]], dtypes: Mapping[str, Any] | None = None) -> HostRound:
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
            parts = [_as_dtype(name, p, np.dtype(dtypes[name])) for p in parts]
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


def converted(name: str, values: NDArray[Any], wanted: np.dtype[Any]) -> NDArray[Any]:
    """The values as another type; DataError if one of them does not fit, or would lose its fraction."""
    if wanted == values.dtype:
        return values
    if wanted.kind in "iu" and values.dtype.kind in "iu" and values.size:
        info = np.iinfo(wanted.name)
        low, high = int(values.min()), int(values.max())
        if low < info.min or high > info.max:
            seen = low if low < info.min else high
            raise DataError(f"the field {name!r} holds {seen}, which does not fit in {wanted}; pass dtypes= or map it")
    with np.errstate(over="ignore", invalid="ignore"):
        out = values.astype(wanted)
    if values.dtype.kind == "f" and values.size and wanted.kind in "iuf":
        same = out == values if wanted.kind in "iu" else np.isfinite(out) | ~np.isfinite(values)
        if not same.all():
            seen = values[~same].flat[0]
            raise DataError(f"the field {name!r} holds {seen}, which {wanted} cannot hold; pass dtypes= or map it")
    return out


def _as_dtype(name: str, part: NDArray[Any] | None, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Numbers of several types, which a batch keeps as objects, as the one type that was asked for."""
    if part is None or part.dtype != object:
        return (
            part if part is None or part.dtype.kind not in "biuf" or dtype.kind != "f" else converted(name, part, dtype)
        )
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


class Padder:
    """Fills lanes that have ended up to R rows, and says in `row_valid` which rows are real.

    It remembers what a field looks like, for the steps in which no lane of this process has a row left.
    """

    def __init__(self, rows_per_lane: int):
        self._rows = rows_per_lane
        self._looks: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}

    def __call__(self, batches: Sequence[LaneBatch]) -> list[Mapping[str, NDArray[Any]]]:
        """Every lane with R rows; `None` is a lane that has none left."""
        for batch in batches:
            for name, values in (batch or {}).items():
                self._looks.setdefault(name, (values.dtype, values.shape[1:]))
        if not self._looks:
            raise DataError(
                "end='pad' has steps to fill, but not one row of this process's lanes came out, so that it is not known what "
                "a row looks like; use fewer lanes, or end='drop'"
            )
        return [self._filled(batch or {}) for batch in batches]

    def _filled(self, batch: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        if ROW_VALID in batch:
            raise ConfigurationError(f"the field {ROW_VALID!r} is made by end='pad'; rename yours in a map")
        n = len(next(iter(batch.values()), ()))
        valid = np.arange(self._rows) < n
        if n == self._rows:
            return {**batch, ROW_VALID: valid}
        out: dict[str, NDArray[Any]] = {}
        for name, (dtype, shape) in self._looks.items():
            given = batch.get(name)
            if given is not None:
                dtype, shape = given.dtype, given.shape[1:]
            filled = np.full(self._rows, None, object) if dtype.kind == "O" else np.zeros((self._rows, *shape), dtype)
            if given is not None:
                filled[:n] = given
            out[name] = filled
        return {**out, ROW_VALID: valid}


def finished(
    rounds: Iterable[Delivery],
    finish: Callable[[HostRound], Any],
    *,
    dtypes: Mapping[str, Any] | None = None,
    padder: Padder | None = None,
    accumulate: int | None = None,
) -> Iterator[Delivery]:
    """The engine's rounds, each padded, joined and finished; with `accumulate`, so many at a time. Receipts pass."""
    held: list[tuple[HostRound, Delivery]] = []
    for delivery in rounds:
        if delivery.batch is None:
            yield delivery
            continue
        joined = join_lanes(delivery.batch if padder is None else padder(delivery.batch), dtypes)
        if accumulate is None:
            yield delivery._replace(batch=finish(joined))
            continue
        held.append((joined, delivery))
        if len(held) == accumulate:
            yield _joined(held, finish)
            held = []
    if held and padder is not None and accumulate is not None:  # the last step is filled up, as everywhere
        last = held[-1][1]
        lanes = sorted({*(lane for lane, _ in last.receipts), *last.padded})
        for _ in range(accumulate - len(held)):
            held.append((join_lanes(padder([None] * len(lanes)), dtypes), Delivery(None, (), lanes)))
        yield _joined(held, finish)


def _joined(held: Sequence[tuple[HostRound, Delivery]], finish: Callable[[HostRound], Any]) -> Delivery:
    return Delivery(
        finish(accumulated([joined for joined, _ in held])),
        [receipt for _, one in held for receipt in one.receipts],
        [lane for _, one in held for lane in one.padded],
    )


def accumulated(rounds: Sequence[HostRound]) -> HostRound:
    """Several rounds as one, with an axis for them in front: (A, rows, ...)."""
    arrays: dict[str, NDArray[Any]] = {}
    host: dict[str, NDArray[Any]] = {}
    for name in dict.fromkeys(name for arrays_, host_ in rounds for name in (*arrays_, *host_)):
        parts = [arrays_.get(name, host_.get(name)) for arrays_, host_ in rounds]
        whole = [p for p in parts if p is not None]
        if len(whole) == len(rounds) and len({(p.dtype, p.shape) for p in whole}) == 1 and whole[0].dtype != object:
            arrays[name] = np.stack(whole)
        else:
            n = len(whole[0])
            host[name] = np.stack([_as_objects(p, n) for p in parts])
    return arrays, host
