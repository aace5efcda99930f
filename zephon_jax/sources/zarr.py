"""Zarr token stores: documents as long arrays of values, and where each of them starts.

A store is a Zarr group (version 2 or 3, sharded or not, local or in object storage) and is one shard. In it

    tokens          values of all documents, one behind the other: 1-D, any number type
    tokens_splits   int64 of shape (n + 1,): document i is tokens[tokens_splits[i]:tokens_splits[i + 1]]
    score           a field without `_splits`: one number, or one array of a fixed shape, per document: shape (n, ...)

All fields have the same n. `write_token_store` makes one. Chunks are decoded by tensorstore and kept in its cache; reads of
a batch are issued together.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import posixpath
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zephon_jax.columns import Column, Dense, Ragged, concat_columns
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.sources.base import ReadResult, Shard, check_fields, fingerprint_with_fields
from zephon_jax.sources.grouped import starts_of
from zephon_jax.sources.index import Entry, indexed
from zephon_jax.sources.jsonfile import read_json_object
from zephon_jax.sources.recent import DECODED, Recent
from zephon_jax.sources.storage import StoredFile, is_remote, stat_all
from zephon_jax.sources.zarrstore import ATTRIBUTE, SPLITS, kvstore, result, write_token_store
from zephon_jax.types import Int64s

__all__ = ["ZarrSource", "forget", "write_token_store"]

_CACHE_BYTES: Final = 256 << 20
_SPLITS_BLOCK: Final = 1 << 16  # splits are read and kept in blocks of so many
_HASHED_PLACES, _HASHED_VALUES = 16, 256
_ARRAYS: Final[Recent[Any]] = Recent(1024)  # open arrays: metadata only
_CONTENT_ERRORS: Final = ("FAILED_PRECONDITION", "DATA_LOSS", "INVALID_ARGUMENT")
_INDEX_VERSION: Final = 1


class _Store(NamedTuple):
    """A store as it was looked at: its stamp, the version of Zarr, what the arrays hold."""

    path: str
    stored: StoredFile  # its stamp is that of the files that describe the group and its arrays
    zarr: int
    ragged: tuple[str, ...]
    dense: tuple[str, ...]
    complete: bool  # whether chunks that are not there are lost, not empty


class ZarrSource:
    """Samples are documents: 1-D arrays of varying length, and arrays of one shape, in the type in which they are stored.

    The fingerprint is that of the content, so a store that is written again with other chunks has the same: names and
    types, every document's length, and 4,096 values of each field, in 16 places. Chunks that cannot be decoded are
    errors of content of the samples in them. A store must not be changed while it is used, which is not noticed.
    """

    def __init__(self, paths: Sequence[str], fields: Sequence[str] | None = None):
        self._stores = [_looked_at(path) for path in paths]
        by_file = {store.stored: store for store in self._stores}
        files = [store.stored for store in self._stores]
        entries = indexed("zarr", _INDEX_VERSION, files, lambda file: _entry(by_file[file]))
        self._fields = None if fields is None else list(fields)
        self._shards = [
            Shard(store.path, entry.num_samples, fingerprint_with_fields(entry.digest, fields))
            for store, entry in zip(self._stores, entries, strict=True)
        ]
        hints = [int(entry.facts["block_hint"]) for entry in entries if entry.facts["block_hint"]]
        self._block_hint = int(np.median(hints)) if hints else None
        for store, shard in zip(self._stores, self._shards, strict=True):
            if shard.num_samples:
                check_fields(fields, dict.fromkeys((*store.ragged, *store.dense)), store.path)
                break

    @property
    def shards(self) -> Sequence[Shard]:
        return self._shards

    @property
    def block_hint(self) -> int | None:
        """Documents of a typical chunk: read together, they are decoded once."""
        return self._block_hint

    def read(self, shard: int, samples: Int64s) -> ReadResult:
        if not len(samples):
            return {}, {}
        store = self._stores[shard]
        names = [n for n in (*store.ragged, *store.dense) if self._fields is None or n in self._fields]
        try:
            pending = {name: _begin(store, name, samples) for name in names}
            return {name: column.finish() for name, column in pending.items()}, {}
        except _Undecodable:
            return self._read_one_by_one(shard, names, samples)

    def _read_one_by_one(self, shard: int, names: Sequence[str], samples: Int64s) -> ReadResult:
        """After an error of content: which samples have it?"""
        store = self._stores[shard]
        bad: dict[int, DataError] = {}
        rows: list[dict[str, Column]] = []
        for i, sample in enumerate(samples.tolist()):
            try:
                rows.append({name: _begin(store, name, samples[i : i + 1]).finish() for name in names})
            except _Undecodable as problem:
                rows.append({})
                bad[i] = DataError(
                    f"{store.path}, sample {sample}: {problem}. The store is damaged: write it anew, or pass "
                    "options(on_data_error='skip') to drop such samples",
                    path=store.path, shard=shard, record=sample,
                )  # fmt: skip
        return concat_columns(rows, [1] * len(rows)), bad


class _Undecodable(Exception):
    """A chunk whose content cannot be decoded."""


# -- reading ---------------------------------------------------------------------------------------------------------------


class _Pending(NamedTuple):
    """Reads of one field that are on their way; `splits` of the result for a ragged one."""

    store: _Store
    name: str
    parts: list[Any]
    splits: Int64s | None

    def finish(self) -> Column:
        """The column, in memory of its own."""
        parts = [_result(self.store, self.name, part) for part in self.parts]
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return Dense(values) if self.splits is None else Ragged(values, self.splits)


def _begin(store: _Store, name: str, samples: Int64s) -> _Pending:
    if name in store.dense:
        starts, stops, splits = samples, samples + 1, None
    else:
        starts, stops = _splits(store, name, samples), _splits(store, name, samples + 1)
        splits = starts_of(stops - starts)
    array = _array(store, name)
    cuts = np.flatnonzero(starts[1:] != stops[:-1])
    first, last = starts[np.append(0, cuts + 1)].tolist(), stops[np.append(cuts, len(stops) - 1)].tolist()
    return _Pending(store, name, [array[a:b].read() for a, b in zip(first, last, strict=True)], splits)


def _splits(store: _Store, name: str, at: Int64s) -> Int64s:
    """The splits of a ragged field at these places, from blocks that are kept."""
    array = _array(store, name + SPLITS)

    def block(number: int) -> tuple[Int64s, int]:
        stop = min((number + 1) * _SPLITS_BLOCK, int(array.shape[0]))
        values = np.asarray(_result(store, name + SPLITS, array[number * _SPLITS_BLOCK : stop].read())).astype(np.int64)
        return values, values.nbytes

    out = np.empty(len(at), np.int64)
    numbers = at // _SPLITS_BLOCK
    for number in np.unique(numbers).tolist():
        kept: Int64s = DECODED.get(("zarr", store.stored, name, number), lambda n=number: block(n))
        here = numbers == number
        out[here] = kept[at[here] - number * _SPLITS_BLOCK]
    return out


def _result(store: _Store, name: str, future: Any) -> NDArray[Any]:
    try:
        return result(future, posixpath.join(store.path, name))
    except ValueError as error:
        if str(error).startswith(_CONTENT_ERRORS):
            raise _Undecodable(f"field {name!r}: {error}") from error
        raise DataError(f"{posixpath.join(store.path, name)}: cannot be read: {error}", path=store.path) from error


def forget() -> None:
    """Let go of open arrays and of the chunks that tensorstore keeps."""
    _ARRAYS.clear()
    _context.cache_clear()


@functools.cache
def _context() -> Any:
    import tensorstore as ts

    return ts.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})


def _array(store: _Store, name: str) -> Any:
    return _ARRAYS.get((store.stored, name), lambda: (_opened(store, name), 1))


def _opened(store: _Store, name: str) -> Any:
    import tensorstore as ts

    where = posixpath.join(store.path, name)
    spec = {
        "driver": "zarr3" if store.zarr == 3 else "zarr",
        "kvstore": kvstore(where),
        "open": True,
        "recheck_cached_data": "open",
        "recheck_cached_metadata": "open",
        "fill_missing_data_reads": not store.complete,
    }
    try:
        return result(ts.open(spec, context=_context(), read=True), where)
    except ValueError as error:
        raise DataError(f"{where}: cannot be opened as a Zarr array: {error}", path=store.path) from error


# -- what a store holds ------------------------------------------------------------------------------------------------


def _looked_at(path: str) -> _Store:
    """The group at this path; ConfigurationError if there is none or it is no token store."""
    group, zarr, described_by = read_json_object(posixpath.join(path, "zarr.json")), 3, "zarr.json"
    if group is None:
        group, zarr, described_by = read_json_object(posixpath.join(path, ".zgroup")), 2, ".zgroup"
    if group is None:
        raise ConfigurationError(
            f"{path} is no Zarr group: it has neither zarr.json nor .zgroup. A store that is still being written, or whose "
            "writer was stopped, has none"
        )
    if group.get("node_type", "group") != "group":
        raise ConfigurationError(f"{path} is a single Zarr array; a token store is a group of arrays")
    attributes = group.get("attributes", {}) if zarr == 3 else read_json_object(posixpath.join(path, ".zattrs")) or {}
    written = attributes.get(ATTRIBUTE)
    names = sorted(written["arrays"]) if written else sorted(_array_names(path, group, zarr))
    ragged = tuple(name for name in names if name + SPLITS in names)
    dense = tuple(
        name for name in names if name not in ragged and not (name.endswith(SPLITS) and name[: -len(SPLITS)] in ragged)
    )
    if not names:
        raise ConfigurationError(f"{path} is a Zarr group without arrays; a token store has one per field")
    return _Store(path, _stored(path, described_by, zarr, names), zarr, ragged, dense, written is not None)


def _stored(path: str, described_by: str, zarr: int, names: Sequence[str]) -> StoredFile:
    """The store as one file would be: bytes of its arrays, and a stamp that changes when one of them is made anew."""
    array_file = "zarr.json" if zarr == 3 else ".zarray"
    files = [posixpath.join(path, name, array_file) for name in names]
    size = 0
    for file in files:
        described = read_json_object(file)
        if described is None:
            raise DataError(f"{path}: the group lists an array that is not there: {file} is missing", path=path)
        size += math.prod(described["shape"]) * np.dtype(np.int64).itemsize
    stamps = [file.stamp for file in stat_all([posixpath.join(path, described_by), *files])]
    digest = hashlib.blake2b("\n".join(stamps).encode(), digest_size=16).hexdigest()
    changed_ns = 0 if is_remote(path) else max(int(stamp.rpartition("-")[2]) for stamp in stamps)
    return StoredFile(path, size, f"{digest}-{changed_ns}")


def _array_names(path: str, group: dict[str, Any], zarr: int) -> list[str]:
    """Names of the arrays of a store that something else wrote."""
    if zarr == 3 and (consolidated := group.get("consolidated_metadata")):
        return [
            name for name, node in consolidated["metadata"].items() if node["node_type"] == "array" and "/" not in name
        ]
    if zarr == 2 and (consolidated := read_json_object(posixpath.join(path, ".zmetadata"))):
        found = (name.removesuffix("/.zarray") for name in consolidated["metadata"] if name.endswith("/.zarray"))
        return [name for name in found if "/" not in name]
    if is_remote(path):
        raise ConfigurationError(
            f"{path} does not say which arrays it has, and object storage has no folders to look into: consolidate its "
            "metadata (zarr.consolidate_metadata), or write it with zephon_jax.sources.zarr.write_token_store"
        )
    described_by = "zarr.json" if zarr == 3 else ".zarray"
    return [
        name
        for name in os.listdir(path)
        if (node := read_json_object(os.path.join(path, name, described_by)))
        and node.get("node_type", "array") == "array"
    ]


def _entry(store: _Store) -> Entry:
    """The number of documents, the digest of the content, and the documents of a chunk."""
    digest = hashlib.blake2b(digest_size=16)
    counts: dict[str, int] = {}
    hints: list[int] = []
    try:
        for name in sorted((*store.ragged, *store.dense)):
            array = _array(store, name)
            if not array.rank:
                raise DataError(f"{store.path}: {name!r} is a single value, not one per document", path=store.path)
            digest.update(f"{name} {array.dtype.name} {list(array.shape[1:])} {name in store.ragged}\n".encode())
            values = int(array.shape[0])
            if name in store.dense:
                counts[name] = values
            else:
                if array.rank != 1:
                    raise DataError(f"{store.path}: {name!r} has splits, but {array.rank} dimensions", path=store.path)
                counts[name] = _check_splits(store, name, values, digest)
                chunk = int(array.chunk_layout.read_chunk.shape[0])
                hints.append(max(1, chunk * counts[name] // max(1, values)))
            for part in _places(store, name, values):
                digest.update(part)
    except _Undecodable as problem:
        raise DataError(f"{store.path}: {problem}", path=store.path) from problem
    if len(set(counts.values())) > 1:
        raise DataError(f"{store.path}: fields of different numbers of documents: {counts}", path=store.path)
    facts = {"block_hint": min(hints, default=0)}  # the field of the longest documents has the most chunks
    return Entry(next(iter(counts.values())), digest.hexdigest(), {}, facts)


def _check_splits(store: _Store, name: str, values: int, digest: Any) -> int:
    """The number of documents, once every split is known to be in its place; their lengths go into the digest."""
    array, last = _array(store, name + SPLITS), 0
    n = int(array.shape[0]) - 1 if array.rank == 1 else -1
    if n < 0:
        raise DataError(f"{store.path}: {name + SPLITS!r} must have one dimension and n + 1 entries", path=store.path)
    for start in range(0, n + 1, 1 << 20):
        splits = np.asarray(_result(store, name + SPLITS, array[start : min(start + (1 << 20), n + 1)].read())).astype(
            np.int64
        )
        if (start == 0 and splits[0] != 0) or splits[0] < last or (np.diff(splits) < 0).any():
            raise DataError(f"{store.path}: {name + SPLITS!r} must ascend from 0", path=store.path)
        last = int(splits[-1])
        digest.update(splits.astype("<i8").tobytes())
    if last != values:
        raise DataError(
            f"{store.path}: {name + SPLITS!r} ends at {last}, but {name!r} has {values} values: the store is not whole",
            path=store.path,
        )
    return n


def _places(store: _Store, name: str, n: int) -> Iterator[bytes]:
    """What stands in some places of an array. One that cannot be decoded is an error when it is read, not now."""
    array, size = _array(store, name), min(n, _HASHED_VALUES)
    for start in np.unique(np.linspace(0, n - size, _HASHED_PLACES).astype(np.int64)).tolist() if n else ():
        try:
            yield np.ascontiguousarray(_result(store, name, array[start : start + size].read())).tobytes()
        except _Undecodable:
            yield b"undecodable"
