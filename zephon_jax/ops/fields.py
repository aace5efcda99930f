"""Getting a token field out of a micro-batch, with errors that name the field and the record."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon_jax.columns import MISSING, Column, Dense, Objects, Ragged, row_values
from zephon_jax.errors import DataError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import RecordFailure

__all__ = ["field_of", "int32_ragged"]


def field_of(batch: MicroBatch, field: str, operator: str) -> Column:
    """The column of `field`; a DataError that lists the fields there are if no record has it."""
    if field not in batch.columns:
        raise DataError(
            f"{operator} needs the field {field!r}, but the records have {sorted(batch.columns)}; "
            "pass field= or add a map that makes it"
        )
    column = batch.columns[field]
    if isinstance(column, Objects):
        for i, item in enumerate(column.items):
            if item is MISSING or item is None:
                what = "has no field" if item is MISSING else "holds null in the field"
                error = DataError(f"{operator} needs the field {field!r}, but the record {what} {field!r}")
                raise RecordFailure(i) from error
    return column


def int32_ragged(column: Column, operator: str, field: str) -> Ragged:
    """Token ids of any integer type, as int32 lists; values beyond 32 bits and other types are refused."""
    if isinstance(column, Dense) and column.values.ndim == 2:
        values: NDArray[Any] = column.values.reshape(-1)
        splits = np.arange(len(column.values) + 1, dtype=np.int64) * column.values.shape[1]
        return Ragged(_int32(values, operator, field), splits)
    if isinstance(column, Ragged):
        return Ragged(_int32(column.values, operator, field), column.splits)
    parts: list[NDArray[np.int32]] = []
    for i, value in enumerate(row_values(column)):
        try:
            array = np.asarray(value)
            if array.ndim != 1:
                raise DataError(
                    f"{operator} needs a list of integers in {field!r}, got {type(value).__name__} {str(value)[:40]!r}"
                )
            parts.append(_int32(array, operator, field) if len(array) else np.zeros(0, np.int32))
        except Exception as error:
            raise RecordFailure(i) from error
    splits = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(p) for p in parts], out=splits[1:])
    return Ragged(np.concatenate(parts) if parts else np.zeros(0, np.int32), splits)


def _int32(values: NDArray[Any], operator: str, field: str) -> NDArray[np.int32]:
    if values.dtype == np.int32:
        return values
    if values.dtype.kind not in "iu":
        raise DataError(f"{operator} needs integers in {field!r}, got dtype {values.dtype}")
    if values.dtype.itemsize > 2 and len(values) and (values.min() < -(2**31) or values.max() >= 2**31):
        raise DataError(f"{operator}: {field!r} holds {int(values.max())}, which does not fit in int32")
    return values.astype(np.int32)
