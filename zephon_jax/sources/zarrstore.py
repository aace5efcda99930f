"""Writing Zarr token stores, and what reading and writing share. `zarr.py` has the layout."""

from __future__ import annotations

import json
import math
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from zephon_jax.columns import as_rows, canonical
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.sources.jsonfile import read_json_object
from zephon_jax.sources.remote import request_timeout_s
from zephon_jax.sources.storage import is_remote

__all__ = ["ATTRIBUTE", "SPLITS", "kvstore", "result", "write_token_store"]

SPLITS: Final = "_splits"
ATTRIBUTE: Final = "token_store"
"""Of the group: `{"version": 1, "arrays": [...]}`, from a writer that left out no chunk."""

_BUFFERED: Final = 1 << 20  # values of a field that are kept until they are written
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")


def write_token_store(
    path: str | os.PathLike[str],
    documents: Iterable[Mapping[str, Any] | Sequence[int] | NDArray[Any]],
    *,
    dense: Sequence[str] = (),
    dtypes: Mapping[str, Any] | None = None,
    chunk_values: int = 1 << 16,
    shard_values: int | None = None,
    zarr: Literal[2, 3] = 3,
) -> int:
    """Write documents as a Zarr token store, a few MiB at a time, and return how many there were.

    Args:
        path: A new folder, or a URL of object storage.
        documents: Dicts of field → 1-D array, list of numbers, or single number; or bare arrays, which become `tokens`.
            Every document has the same fields.
        dense: Fields whose arrays have one shape in all documents and are stored without splits. Single numbers are anyway.
        dtypes: Of fields; left out, that of the first document, where Python's integers are int64. Values must fit.
        chunk_values: Values in a chunk, the least that is decoded for a read.
        shard_values: With it, chunks are put in files of so many values, a multiple of `chunk_values` (Zarr 3 only).
        zarr: The version of the format. Chunks of version 3 have a checksum.

    The file that describes the group is written last, so that a store whose writer was stopped is never taken for whole.

    Raises:
        ConfigurationError: There is a store at this path, or the arguments cannot work.
        DataError: A document does not fit to the first one.

    >>> import tempfile, zephon_jax as zj
    >>> folder = tempfile.mkdtemp() + "/tokens.zarr"
    >>> write_token_store(folder, [[5, 6, 7], [8]], dtypes={"tokens": "int32"})
    2
    """
    where = os.fspath(path)
    if zarr not in (2, 3) or (shard_values is not None and (zarr != 3 or shard_values % chunk_values)):
        raise ConfigurationError(
            f"write_token_store(zarr={zarr!r}, chunk_values={chunk_values}, shard_values={shard_values}): zarr is 2 or 3, "
            "shard_values a multiple of chunk_values and for version 3 only"
        )
    for described_by in ("zarr.json", ".zgroup"):
        if read_json_object(posixpath.join(where, described_by)) is not None:
            raise ConfigurationError(f"{where} is a Zarr group already; remove it first, or write to another path")
    writer = _Writer(where, frozenset(dense), dict(dtypes or {}), chunk_values, shard_values, zarr)
    count = 0
    for document in documents:
        row = document if isinstance(document, Mapping) else {"tokens": document}
        writer.add(as_rows([row])[0], count)
        count += 1
    writer.close()
    return count


class _Writer:
    def __init__(
        self,
        path: str,
        dense: frozenset[str],
        dtypes: dict[str, Any],
        chunk: int,
        shard: int | None,
        zarr: Literal[2, 3],
    ):
        self._path, self._dense, self._dtypes = path, dense, dtypes
        self._chunk, self._shard, self._zarr = chunk, shard, zarr
        self._fields: dict[str, _Growing] = {}
        self._splits: dict[str, _Growing] = {}
        self._started = False

    def add(self, row: Mapping[str, Any], number: int) -> None:
        if not self._started:
            self._start(row)
        if row.keys() != self._fields.keys():
            raise DataError(
                f"document {number} has the fields {sorted(row)}, the first one {sorted(self._fields)}; all must have the same",
                path=self._path, record=number,
            )  # fmt: skip
        for name, value in row.items():
            field = self._fields[name]
            values = field.fitting(_numbers(name, value, number, self._path), number)
            if name in self._splits:
                field.append(values)
                self._splits[name].append(np.array([field.length], np.int64))
            else:
                field.append(values[None])

    def _start(self, row: Mapping[str, Any]) -> None:
        if unknown := sorted((self._dense | self._dtypes.keys()) - row.keys()):
            raise ConfigurationError(f"dense= or dtypes= names {unknown}, the first document has {sorted(row)}")
        self._started = True
        for name, value in row.items():
            if not _NAME.fullmatch(name) or name.endswith(SPLITS):
                raise ConfigurationError(
                    f"a field of a token store cannot be called {name!r}: letters, digits, '_', '.' and '-' are possible, and "
                    f"{SPLITS!r} at the end has a meaning of its own"
                )
            values = _numbers(name, value, 0, self._path)
            dtype = np.dtype(self._dtypes.get(name, values.dtype))
            ragged = values.ndim == 1 and name not in self._dense
            if values.ndim > 1 and not ragged and name not in self._dense:
                raise ConfigurationError(
                    f"{name!r} has {values.ndim} dimensions; name it in dense= if all have its shape"
                )
            self._fields[name] = self._growing(name, dtype, () if ragged else values.shape, ragged)
            if ragged:
                self._splits[name] = self._growing(name + SPLITS, np.dtype(np.int64), (), False)
                self._splits[name].append(np.zeros(1, np.int64))

    def _growing(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], ragged: bool) -> _Growing:
        return _Growing(posixpath.join(self._path, name), dtype, shape, ragged, self._chunk, self._shard, self._zarr)

    def close(self) -> None:
        if not self._started:
            raise ConfigurationError(f"no documents for {self._path}: a token store has at least one")
        arrays = {**self._fields, **{name + SPLITS: array for name, array in self._splits.items()}}
        for array in arrays.values():
            array.close()
        attributes = {ATTRIBUTE: {"version": 1, "arrays": sorted(arrays)}}
        if self._zarr == 3:
            self._write("zarr.json", {"zarr_format": 3, "node_type": "group", "attributes": attributes})
        else:
            self._write(".zattrs", attributes)
            self._write(".zgroup", {"zarr_format": 2})

    def _write(self, name: str, content: Any) -> None:
        import tensorstore as ts

        store = _written(ts.KvStore.open(kvstore(self._path)), self._path)
        _written(store.write(name, json.dumps(content).encode()), posixpath.join(self._path, name))


class _Growing:
    """One array that grows; what is written are whole chunks (or files of them) until it is closed."""

    def __init__(
        self, path: str, dtype: np.dtype[Any], shape: tuple[int, ...], ragged: bool,
        chunk_values: int, shard_values: int | None, zarr: int,
    ):  # fmt: skip
        import tensorstore as ts

        self._path, self._dtype, self._shape, self._ragged = path, dtype, shape, ragged
        each = max(1, math.prod(shape))
        chunk = max(1, chunk_values // each)
        self._unit = chunk if shard_values is None else chunk * (shard_values // chunk_values)
        self._array = _written(
            ts.open(
                {"driver": "zarr3" if zarr == 3 else "zarr", "kvstore": kvstore(path), "store_data_equal_to_fill_value": True},
                create=True, delete_existing=True, dtype=dtype, shape=[0, *shape],
                chunk_layout=ts.ChunkLayout(read_chunk_shape=[chunk, *shape], write_chunk_shape=[self._unit, *shape]),
                codec=ts.CodecSpec(_codec(zarr, sharded=shard_values is not None)),
            ),
            path,
        )  # fmt: skip
        self._parts: list[NDArray[Any]] = []
        self._buffered = self._flushed = 0
        self._limit = self._unit * max(1, _BUFFERED // each // self._unit)

    @property
    def length(self) -> int:
        """Values so far."""
        return self._flushed + self._buffered

    def fitting(self, values: NDArray[Any], number: int) -> NDArray[Any]:
        """The values in the array's type; DataError if shape or values do not fit."""
        shape = f"(any,) {self._dtype}" if self._ragged else f"{self._shape} {self._dtype}"
        whole = values.dtype.kind in "iu" and self._dtype.kind in "iu"
        if (values.ndim != 1) if self._ragged else (values.shape != self._shape):
            what = f"has shape {values.shape}"
        elif values.size and not (whole or np.can_cast(values.dtype, self._dtype, "same_kind")):
            what = f"has type {values.dtype}"
        else:
            cast = values.astype(self._dtype)  # a copy, since the caller may use its array again
            if values.dtype == self._dtype or not whole or np.array_equal(cast, values):
                return cast
            what = f"holds values from {values.min()} to {values.max()}"
        raise DataError(
            f"document {number} for {self._path} {what}, {shape} is needed; give dtypes= (or dense=) for this field",
            path=self._path, record=number,
        )  # fmt: skip

    def append(self, values: NDArray[Any]) -> None:
        self._parts.append(values)
        self._buffered += len(values)
        if self._buffered >= self._limit:
            self._flush(self._buffered - self._buffered % self._unit)

    def close(self) -> None:
        self._flush(self._buffered)

    def _flush(self, count: int) -> None:
        if not count:
            return
        values = np.concatenate(self._parts)
        start, stop = self._flushed, self._flushed + count
        self._array = _written(
            self._array.resize(exclusive_max=[stop, *self._shape], resize_metadata_only=True), self._path
        )
        _written(self._array[start:stop].write(values[:count]), self._path)
        self._parts, self._buffered, self._flushed = [values[count:]], self._buffered - count, stop


def _codec(zarr: int, *, sharded: bool) -> dict[str, Any]:
    if zarr == 2:
        return {"driver": "zarr", "compressor": {"id": "zstd", "level": 3}}
    codecs: list[dict[str, Any]] = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "zstd", "configuration": {"level": 3}},
        {"name": "crc32c"},
    ]
    if sharded:
        codecs = [{"name": "sharding_indexed", "configuration": {"codecs": codecs}}]
    return {"driver": "zarr3", "codecs": codecs}


def _numbers(name: str, value: Any, number: int, path: str) -> NDArray[Any]:
    array = np.asarray(canonical(value))
    if array.dtype.kind not in "biufc" and array.dtype.kind != "V":
        raise DataError(
            f"document {number} for {path}: {name!r} holds {str(value)[:40]!r}; a token store holds numbers, and text as uint8",
            path=path, record=number,
        )  # fmt: skip
    return array


# -- tensorstore -----------------------------------------------------------------------------------------------------------


def kvstore(path: str) -> dict[str, Any]:
    """What tensorstore is asked to open for a folder: a local one, or a prefix in object storage."""
    if not is_remote(path):
        return {"driver": "file", "path": os.path.abspath(path) + "/"}
    from zephon_jax.sources import remote as objects

    scheme, bucket, key = objects.split(path)
    return {**objects.spec(scheme, bucket), "path": key.rstrip("/") + "/"}


def result(future: Any, path: str) -> Any:
    """What a tensorstore future gives, waited for within bounds; its ValueError tells storage and content apart by text."""
    try:
        return future.result(timeout=request_timeout_s() if is_remote(path) else None)
    except TimeoutError as error:
        raise DataError(
            f"{path}: no answer within {request_timeout_s():g} s; set ZEPHON_JAX_REQUEST_TIMEOUT_S if the network is that slow",
            path=path,
        ) from error


def _written(future: Any, path: str) -> Any:
    try:
        return result(future, path)
    except ValueError as error:
        raise DataError(f"{path}: cannot be written: {error}", path=path) from error
