"""Samples of a Python object with `__len__` and `__getitem__(int)`; with `__getitems__(list)`, read in batches by that.

Grain's sources of ArrayRecord files and torch's map-style datasets have the latter, and are several times as fast by it.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zephon_jax.columns import as_rows, canonical, columns_from_rows
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.sources.base import RandomAccess, ReadResult, Shard
from zephon_jax.types import Int64s

__all__ = ["MemorySource"]

_SAMPLES_HASHED = 16


class MemorySource:
    """One shard; a sample is read by indexing, or many at once where the object offers it."""

    def __init__(self, name: str, source: RandomAccess, fingerprint: str | None):
        n = len(source)
        if n < 0:
            raise ConfigurationError(f"dataset {name!r}: __len__ returned {n}")
        self._name, self._source = name, source
        self._shards = (Shard(name, n, fingerprint if fingerprint is not None else self._sampled_fingerprint(n)),)

    @property
    def shards(self) -> Sequence[Shard]:
        return self._shards

    def read(self, shard: int, samples: Int64s) -> ReadResult:
        return columns_from_rows([_apart(row) for row in as_rows(self._get_all(samples.tolist()))]), {}

    def _get_all(self, indices: list[int]) -> Sequence[Any]:
        get = getattr(self._source, "__getitems__", None)
        if get is None or len(indices) < 2:
            return [self._get(i) for i in indices]
        try:
            values: Sequence[Any] = get(indices)
        except Exception:
            return [self._get(i) for i in indices]  # one of them, whose number the error is to name
        if len(values) != len(indices):
            raise DataError(
                f"dataset {self._name!r}: __getitems__ was asked for {len(indices)} samples and returned {len(values)}",
                path=self._name, shard=0, record=indices[0],
            )  # fmt: skip
        return values

    def _get(self, i: int) -> Any:
        try:
            return self._source[i]
        except Exception as error:
            raise DataError(
                f"dataset {self._name!r}: sample {i} could not be read: {type(error).__name__}: {error}",
                path=self._name, shard=0, record=i,
            ) from error  # fmt: skip

    def _sampled_fingerprint(self, n: int) -> str:
        digest = hashlib.blake2b(f"{n}".encode(), digest_size=16)
        for i in np.unique(np.linspace(0, n - 1, _SAMPLES_HASHED).astype(np.int64)).tolist() if n else ():
            row = as_rows([self._get(i)])[0]
            for key in sorted(row):
                digest.update(key.encode() + b"\0" + _content(canonical(row[key])) + b"\0")
        return digest.hexdigest()


def _apart(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row with copies of what an operator could change in place, or it would change the user's own data and later passes.

    Lists of numbers become arrays anyway.
    """
    nested = [name for name, value in row.items() if isinstance(value, (dict, set)) or _is_nested_list(value)]
    return {**row, **{name: copy.deepcopy(row[name]) for name in nested}} if nested else row


def _is_nested_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and not isinstance(value[0], (int, float, np.generic))


def _content(value: Any) -> bytes:
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        return f"{value.dtype.str}{value.shape}".encode() + value.tobytes()
    if isinstance(value, bytes):
        return value
    if isinstance(value, (list, tuple)):
        return b"[" + b",".join(_content(v) for v in value) + b"]"
    if isinstance(value, dict):
        return b"{" + b",".join(_content(k) + b":" + _content(v) for k, v in value.items()) + b"}"
    if isinstance(value, (str, int, float, type(None))):
        return repr(value).encode()
    return type(value).__qualname__.encode()  # its repr may hold an address
