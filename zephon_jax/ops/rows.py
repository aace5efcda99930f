"""map, filter, flat_map and random_map: a Python function per record; map_columns: one per micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from zephon_jax.columns import (
    Binary,
    Column,
    Dense,
    Laid,
    Objects,
    Ragged,
    canonical,
    columns_from_rows,
    from_values,
    named_fields,
)
from zephon_jax.errors import ConfigurationError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import (
    Fields,
    OpTraits,
    RecordFailure,
    RecordOperator,
    bool_mask,
    callable_name,
    checked_int,
    function_identity,
)
from zephon_jax.ops.interrupt import check_wanted
from zephon_jax.ops.randomness import record_generator

__all__ = ["Filter", "FlatMap", "Map", "MapColumns", "RandomMap"]


def _function(given: Any, method: str) -> Callable[..., Any]:
    """The function itself, or the method of a transform class in Grain's manner (by duck type)."""
    bound = getattr(given, method, None)
    if callable(bound):
        return bound
    if not callable(given):
        raise ConfigurationError(
            f"{method} needs a function of one record or an object with a method {method}(), got {given!r}"
        )
    return given


class Map(RecordOperator):
    """One record in, one record out: `fn(record) -> record`.

    `record` is a dict of field → value (NumPy scalars and arrays, str, bytes, objects); arrays are views that must not
    be written to. A result that is no dict becomes `{"value": result}`.
    """

    traits = OpTraits(keeps_count=True)

    def __init__(self, fn: Any, *, name: str | None = None, version: str | int | None = None):
        self._fn = _function(fn, "map")
        self._identity = function_identity(callable_name(fn, name), version)
        self.name = f"map({self._identity['function']})"

    def identity(self) -> Mapping[str, Any]:
        return {"op": "map", **self._identity}

    def process(self, batch: MicroBatch) -> MicroBatch:
        out: list[Mapping[str, Any]] = []
        for i, row in enumerate(batch.rows()):
            check_wanted()
            try:
                out.append(_record(self._fn(row), self.name))
            except Exception as error:
                raise RecordFailure(i) from error
        return batch.with_rows(out)


def _record(result: Any, operator: str) -> Mapping[str, Any]:
    if result is None:
        raise TypeError(f"{operator} returned None; return the record (a dict of fields)")
    return named_fields(result) if isinstance(result, Mapping) else {"value": result}  # pyright: ignore[reportUnknownArgumentType]


class RandomMap(RecordOperator):
    """As `Map` with randomness: `fn(record, rng) -> record`.

    `rng` is a `numpy.random.Generator` of the record's own, keyed by `seed`, the operator's place in the pipeline and the
    record's identity (rule O2): the same draws in every run, on every topology and after every resume, and other draws
    each time a sample comes again. Whatever else draws at random, `fn` must not use it.
    """

    traits = OpTraits(keeps_count=True)

    def __init__(self, fn: Any, *, seed: int = 0, name: str | None = None, version: str | int | None = None):
        self._fn = _function(fn, "random_map")
        self._seed = checked_int("random_map", "seed", seed, -(2**63), 2**63)
        self._identity = function_identity(callable_name(fn, name), version)
        self.name = f"random_map({self._identity['function']})"

    def identity(self) -> Mapping[str, Any]:
        return {"op": "random_map", "seed": self._seed, **self._identity}

    def process(self, batch: MicroBatch) -> MicroBatch:
        out: list[Mapping[str, Any]] = []
        cursors = batch.origin.cursors().T.tolist()
        for i, (row, cursor) in enumerate(zip(batch.rows(), cursors, strict=True)):
            check_wanted()
            try:
                rng = record_generator(self._seed, batch.operator, batch.lane, cursor)
                out.append(_record(self._fn(row, rng), self.name))
            except Exception as error:
                raise RecordFailure(i) from error
        return batch.with_rows(out)


class FlatMap(RecordOperator):
    """One record in, any number out: `fn(record)` returns or yields records. None at all finishes the record."""

    traits = OpTraits(expands=True)

    def __init__(self, fn: Any, *, name: str | None = None, version: str | int | None = None):
        self._fn = _function(fn, "flat_map")
        self._identity = function_identity(callable_name(fn, name), version)
        self.name = f"flat_map({self._identity['function']})"

    def identity(self) -> Mapping[str, Any]:
        return {"op": "flat_map", **self._identity}

    def process(self, batch: MicroBatch) -> MicroBatch:
        out: list[Mapping[str, Any]] = []
        counts: list[int] = []
        for i, row in enumerate(batch.rows()):
            check_wanted()
            try:
                made = self._fn(row)
                if made is None or isinstance(made, (Mapping, str, bytes)):
                    raise TypeError(f"{self.name} returned {type(made).__name__}; return or yield several records")
                before = len(out)
                out += [_record(record, self.name) for record in made]
            except Exception as error:
                raise RecordFailure(i) from error
            counts.append(len(out) - before)
        return batch.repeat(np.array(counts, np.int64), columns_from_rows(out))


class Filter(RecordOperator):
    """Keep the records for which `fn(record)` is true; the others are finished and counted."""

    def __init__(self, fn: Any, *, name: str | None = None, version: str | int | None = None):
        self._fn = _function(fn, "filter")
        self._identity = function_identity(callable_name(fn, name), version)
        self.name = f"filter({self._identity['function']})"

    def identity(self) -> Mapping[str, Any]:
        return {"op": "filter", **self._identity}

    def fields(self, before: Fields | None) -> Fields | None:
        return before

    def process(self, batch: MicroBatch) -> MicroBatch:
        verdicts: list[Any] = []
        for i, row in enumerate(batch.rows()):
            check_wanted()
            try:
                verdicts.append(bool(self._fn(row)))
            except Exception as error:
                raise RecordFailure(i) from error
        return batch.keep(bool_mask(verdicts))


class MapColumns(RecordOperator):
    """A function of many records at once, a column at a time: `fn(columns) -> columns`, row by row the same number.

    Numbers come as an array of shape (n,), lists of numbers as a `Ragged` (`values`, `splits`), arrays of a higher rank as
    one of shape (n, ...) while they are alike, everything else as a list of n values. They must not be written to.
    Returned may be arrays with n rows, `Ragged`, `Dense` or `Objects` columns, and lists of n values.

    How many records come together is not the function's business: what it makes of a record must not depend on the
    others. `testing.check_operator` finds out.
    """

    traits = OpTraits(keeps_count=True)

    def __init__(self, fn: Any, *, name: str | None = None, version: str | int | None = None):
        self._fn = _function(fn, "map_columns")
        self._identity = function_identity(callable_name(fn, name), version)
        self.name = f"map_columns({self._identity['function']})"

    def identity(self) -> Mapping[str, Any]:
        return {"op": "map_columns", **self._identity}

    def process(self, batch: MicroBatch) -> MicroBatch:
        if not len(batch):
            return batch.with_columns({})
        check_wanted()
        made = self._fn({name: _shown(batch.columns[name]) for name in sorted(batch.columns)})
        if not isinstance(made, Mapping):
            raise TypeError(f"{self.name} returned {type(made).__name__}; return a dict of columns")
        named: Mapping[str, Any] = named_fields(made)  # pyright: ignore[reportUnknownArgumentType]
        return batch.with_columns({name: _column(value, self.name, name) for name, value in named.items()})


def _shown(column: Column) -> Any:
    """In one form whatever the neighbours are: lists of equal lengths are lists still."""
    match column:
        case Dense(values) if values.ndim == 2:
            return Ragged(values.reshape(-1), np.arange(len(values) + 1, dtype=np.int64) * values.shape[1])
        case Dense(values):
            return values
        case Ragged():
            return column
        case Binary():
            return column.items()
        case Objects(items):
            return list(items)
        case Laid(items, lay):
            return _shown(Dense(lay(items)))


def _column(value: Any, operator: str, name: str) -> Column:
    if isinstance(value, (Dense, Ragged, Binary, Objects, Laid)):
        return value
    if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "biufcV":
        return Dense(np.ascontiguousarray(value))
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim):
        return from_values([canonical(one) for one in value])  # pyright: ignore[reportUnknownVariableType]
    raise TypeError(f"{operator} returned {type(value).__name__} for {name!r}; return an array, a column or a list")
