"""map and filter: a Python function per record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zephon_jax.columns import named_fields
from zephon_jax.errors import ConfigurationError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import RecordFailure, RecordOperator, bool_mask, callable_name, function_identity
from zephon_jax.ops.interrupt import check_wanted

__all__ = ["Filter", "Map"]


def _function(given: Any, method: str) -> Callable[[dict[str, Any]], Any]:
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
                result = self._fn(row)
                if result is None:
                    raise TypeError(f"{self.name} returned None; return the record (a dict of fields)")
                out.append(named_fields(result) if isinstance(result, Mapping) else {"value": result})
            except Exception as error:
                raise RecordFailure(i) from error
        return batch.with_rows(out)


class Filter(RecordOperator):
    """Keep the records for which `fn(record)` is true; the others are finished and counted."""

    def __init__(self, fn: Any, *, name: str | None = None, version: str | int | None = None):
        self._fn = _function(fn, "filter")
        self._identity = function_identity(callable_name(fn, name), version)
        self.name = f"filter({self._identity['function']})"

    def identity(self) -> Mapping[str, Any]:
        return {"op": "filter", **self._identity}

    def process(self, batch: MicroBatch) -> MicroBatch:
        verdicts: list[Any] = []
        for i, row in enumerate(batch.rows()):
            check_wanted()
            try:
                verdicts.append(bool(self._fn(row)))
            except Exception as error:
                raise RecordFailure(i) from error
        return batch.keep(bool_mask(verdicts))
