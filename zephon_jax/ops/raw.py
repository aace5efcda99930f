"""decode_raw: bytes that are numbers, as they are → arrays, without a Python object per record where the format allows."""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zephon_jax.columns import Binary, Column, Dense, Ragged, row_values
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import Fields, OpTraits, RecordFailure, RecordOperator, checked_field, used
from zephon_jax.ops.fields import field_of
from zephon_jax.types import Int64s

__all__ = ["DecodeRaw"]


class DecodeRaw(RecordOperator):
    """The field `field`, `bytes` of numbers in C order, becomes an array of `dtype`: pixels, embeddings, audio samples.

    Args:
        field: The field to decode, in place.
        dtype: As NumPy names it; `">i4"` for big-endian, `"bfloat16"` and the other names of ml_dtypes. What comes out is in
            native byte order.
        shape: Of each record's array; a number n is (n,). None: 1-D, as long as the bytes are.

    Raises DataError, with the record, for a field that holds no bytes, or not as many as shape and dtype need.

    >>> import zephon_jax as zj
    >>> images = zj.Dataset.from_source("images", [{"image": bytes([1, 2, 3, 4])}, {"image": bytes([5, 6, 7, 8])}])
    >>> work = zj.StaticMixtureWorkSource(images, shuffle_shards=False)
    >>> next(iter(zj.Pipeline(work).apply(zj.ops.DecodeRaw("image", "uint8", (2, 2))).batch(2)))["image"].tolist()
    [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    """

    traits = OpTraits(keeps_count=True)

    def __init__(self, field: str, dtype: Any, shape: int | Sequence[int] | None = None):
        self._field = checked_field("decode_raw", field)
        self._dtype = _dtype_of(dtype)
        # The numbers of ml_dtypes are of the kind V as well.
        if dtype is None or self._dtype.kind not in "biufcV" or self._dtype.type is np.void:
            raise ConfigurationError(f"decode_raw(dtype={dtype!r}) must be numbers or booleans")
        self._shape = None if shape is None else _shape_of(shape)
        self.name = f"decode_raw({field}, {self._dtype})"

    def identity(self) -> Mapping[str, Any]:
        shape = None if self._shape is None else list(self._shape)
        # Short names are not unique among types that NumPy was taught: three of eight bits are <V1.
        dtype = self._dtype.name if self._dtype.isbuiltin == 2 else self._dtype.str
        return {"op": "decode_raw", "field": self._field, "dtype": dtype, **used({"shape": shape})}

    def fields(self, before: Fields | None) -> Fields | None:
        if before is None or self._shape is None:
            return None
        return {**before, self._field: (self._shape, self._dtype.newbyteorder("="))}

    def process(self, batch: MicroBatch) -> MicroBatch:
        if not len(batch):
            return batch
        column = field_of(batch, self._field, self.name)
        blob, splits = _bytes_of(column, self._field, self.name)
        made = self._decoded(blob, splits)
        return batch.with_columns({**batch.columns, self._field: made})

    def _decoded(self, blob: NDArray[np.uint8], splits: Int64s) -> Column:
        size, lengths = self._dtype.itemsize, splits[1:] - splits[:-1]
        whole = None if self._shape is None else math.prod(self._shape) * size
        wrong = lengths % size != 0 if whole is None else lengths != whole
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            need = f"a multiple of {size}" if whole is None else f"{whole}, for shape {self._shape}"
            raise RecordFailure(i) from DataError(
                f"{self.name}: {self._field!r} holds {int(lengths[i])} bytes; {self._dtype} needs {need}"
            )
        values = blob.view(self._dtype)
        if not self._dtype.isnative or not values.flags.aligned:
            values = values.astype(self._dtype.newbyteorder("="))
        return Ragged(values, splits // size) if self._shape is None else Dense(values.reshape(-1, *self._shape))


def _dtype_of(dtype: Any) -> np.dtype[Any]:
    try:
        try:
            return np.dtype(dtype)
        except (
            TypeError
        ):  # NumPy learns "bfloat16" and its like from ml_dtypes, which jax brings and may not have imported
            importlib.import_module("ml_dtypes")
            return np.dtype(dtype)
    except (TypeError, ValueError, ImportError) as error:
        seen = error.__context__ if isinstance(error, ImportError) else error
        raise ConfigurationError(f"decode_raw(dtype={dtype!r}): {seen}") from error


def _shape_of(shape: Any) -> tuple[int, ...]:
    try:
        sizes = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        if any(isinstance(size, (bool, np.bool_)) for size in sizes):
            raise TypeError("a boolean is no size")
        found = tuple(operator.index(size) for size in sizes)
    except TypeError as error:
        raise ConfigurationError(
            f"decode_raw(shape={shape!r}) must be a size or a sequence of sizes: {error}"
        ) from error
    if any(size < 0 for size in found):
        raise ConfigurationError(f"decode_raw(shape={shape!r}) must have no negative sizes")
    return found


def _bytes_of(column: Column, field: str, operator: str) -> tuple[NDArray[np.uint8], Int64s]:
    """Every record's bytes end to end, and where each begins and ends."""
    if isinstance(column, Binary):
        return column.values[column.splits[0] : column.splits[-1]], column.splits - column.splits[0]
    values = row_values(column)
    for i, value in enumerate(values):
        if not isinstance(value, bytes):
            raise RecordFailure(i) from DataError(
                f"{operator} needs bytes in {field!r}, got {type(value).__name__} {str(value)[:40]!r}"
            )
    splits = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value) for value in values], out=splits[1:])
    return np.frombuffer(bytearray().join(values), np.uint8), splits
