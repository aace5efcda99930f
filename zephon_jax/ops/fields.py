"""Getting a token field out of a micro-batch, with errors that name the field and the record."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon_jax.columns import MISSING, Column, Dense, Objects, Ragged, row_values
from zephon_jax.deferred import DEFERRED
from zephon_jax.errors import DataError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import RecordFailure
from zephon_jax.types import Int64s

__all__ = ["field_of", "int32_ragged", "token_lengths"]


def field_of(batch: MicroBatch, field: str, operator: str) -> Column:
    """The column of `field`; a DataError that lists the fields there are if no record has it."""
    if field not in batch.columns:
        raise DataError(
            f"{operator} needs the field {field!r}, but the records have {sorted(batch.columns)}; "
            "name the field that holds it, or add a map that makes it"
        )
    column = batch.columns[field]
    if isinstance(column, Objects):
        for i, item in enumerate(column.items):
            if item is MISSING or item is None:
                what = "has no field" if item is MISSING else "holds null in the field"
                error = DataError(f"{operator} needs the field {field!r}, but the record {what} {field!r}")
                raise RecordFailure(i) from error
    return column


def token_lengths(batch: MicroBatch, operator: str) -> Int64s:
    """How many `tokens` each record has, also in a replay on lengths; an error if there are none to count."""
    if DEFERRED not in batch.columns:
        return int32_ragged(field_of(batch, "tokens", operator), operator, "tokens").lengths
    return batch.token_lengths()


def int32_ragged(column: Column, operator: str, field: str) -> Ragged:
    """Token ids of any integer type, as int32 lists; values beyond 32 bits and other types are refused."""
    if isinstance(column, Dense) and column.values.ndim == 2:
        splits = np.arange(len(column.values) + 1, dtype=np.int64) * column.values.shape[1]
        return Ragged(_int32(column.values.reshape(-1), splits, operator, field), splits)
    if isinstance(column, Ragged):
        return Ragged(_int32(column.values, column.splits, operator, field), column.splits)
    parts: list[NDArray[np.int32]] = []
    for i, value in enumerate(row_values(column)):
        try:
            array = np.asarray(value)
            if array.ndim != 1:
                seen = f"{type(value).__name__} {str(value)[:40]!r}"
                raise DataError(f"{operator} needs a list of integers in {field!r}, got {seen}")
            parts.append(_checked_int32(array, operator, field))
        except Exception as error:
            raise RecordFailure(i) from error
    splits = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(p) for p in parts], out=splits[1:])
    return Ragged(np.concatenate(parts) if parts else np.zeros(0, np.int32), splits)


def _int32(values: NDArray[Any], splits: Int64s, operator: str, field: str) -> NDArray[np.int32]:
    """All lists at once; a failure is looked for list by list, to name the record."""
    try:
        return _checked_int32(values, operator, field)
    except DataError as error:
        for i, (a, b) in enumerate(pairwise(splits.tolist())):
            try:
                _checked_int32(values[a:b], operator, field)
            except DataError as own:
                raise RecordFailure(i) from own
        raise error


def _checked_int32(values: NDArray[Any], operator: str, field: str) -> NDArray[np.int32]:
    if values.dtype == np.int32:
        return values
    if not len(values):  # of any type: an empty list has none
        return np.zeros(0, np.int32)
    if values.dtype.kind not in "iu":
        raise DataError(f"{operator} needs integers in {field!r}, got dtype {values.dtype}")
    if values.dtype.itemsize > 2:
        low, high = int(values.min()), int(values.max())
        if low < -(2**31) or high >= 2**31:
            raise DataError(
                f"{operator}: {field!r} holds {low if low < -(2**31) else high}, which does not fit in int32"
            )
    return values.astype(np.int32)
