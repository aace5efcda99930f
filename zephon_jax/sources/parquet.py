"""Parquet: each file is a shard, each row group is decoded as a whole and kept for the samples that are asked next.

Bytes come from `storage`, for local files too: no handle stays open, a file that changes is noticed at the next read,
and an error that pyarrow raises can only be about content. What is kept of a file is the size of its row groups; its
metadata is read again when it is needed and was not used lately, since a hundred thousand of them would fill the memory.
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from zephon_jax.errors import DataError
from zephon_jax.sources.arrowcolumns import Batches, load_pyarrow
from zephon_jax.sources.base import ReadResult, Shard, check_fields, fingerprint_with_fields
from zephon_jax.sources.grouped import Part, read_grouped, starts_of
from zephon_jax.sources.index import Entry, indexed
from zephon_jax.sources.recent import DECODED, Recent
from zephon_jax.sources.storage import StoredFile, is_remote, read_ranges, stat_all
from zephon_jax.types import Int64s

__all__ = ["ParquetSource"]

_MAGIC: Final = b"PAR1"
_TAIL_BYTES: Final = 64 << 10  # read at once, in the hope that the footer is in it: most are
_METADATA: Final[Recent[Any]] = Recent(64 << 20)
_READERS_KEPT: Final = 8
_INDEX_VERSION: Final = 1
_LOOKED_AT: Final = 1000  # files that tell the usual size of a row group


class ParquetSource:
    """Samples are rows; fields are the columns of the top level, of which only those in `fields` are read.

    Row groups of 256 to 1,024 rows read fastest, since a group is the least that can be decoded. The fingerprint of a
    file is that of its size and footer: where every page starts and, as most writers have it, the least and greatest
    value of each column. Checksums of pages are verified where the writer made them. A row group that cannot be decoded
    is an error of content of each of its samples.
    """

    def __init__(self, paths: Sequence[str], fields: Sequence[str] | None = None):
        self._fields = None if fields is None else tuple(fields)
        self._files = stat_all(paths)
        load_pyarrow("pyarrow.parquet", "reading Parquet files")
        self._starts: list[Int64s] = []
        self._shards: list[Shard] = []
        checked = False
        for file, entry in zip(self._files, indexed("parquet", _INDEX_VERSION, self._files, _entry), strict=True):
            if entry.num_samples and not checked:
                check_fields(fields, dict.fromkeys(entry.facts["columns"]), file.path)
                checked = True
            self._starts.append(entry.arrays["starts"])
            self._shards.append(Shard(file.path, entry.num_samples, fingerprint_with_fields(entry.digest, fields)))
        rows = np.concatenate([np.zeros(0, np.int64), *map(np.diff, self._starts[:_LOOKED_AT])])
        self._block_hint = int(np.median(rows[rows > 0])) if rows.any() else None

    @property
    def shards(self) -> Sequence[Shard]:
        return self._shards

    @property
    def block_hint(self) -> int | None:
        """Rows of a typical row group: read together, they are decoded once."""
        return self._block_hint

    def read(self, shard: int, samples: Int64s) -> ReadResult:
        return read_grouped(self._starts[shard], samples, lambda group, rows: self._read_group(shard, group, rows))

    def _read_group(self, shard: int, group: int, rows: Int64s) -> Part:
        file, start, stop = self._files[shard], *self._starts[shard][group : group + 2].tolist()
        key = ("parquet", file, self._fields, group)
        pa = load_pyarrow("pyarrow", "reading Parquet files")

        def error(row: int, what: object) -> DataError:
            sample = start + row
            return DataError(
                f"{file.path}, sample {sample} (row group {group}, row {row}): {what}. The file is damaged: write it "
                "anew, or pass options(on_data_error='skip') to drop such samples",
                path=file.path, shard=shard, record=sample,
            )  # fmt: skip

        try:
            batches: Batches = DECODED.get(key, lambda: _decoded(file, group, self._fields))
        except (OSError, pa.ArrowInvalid) as problem:
            return {}, {i: error(row, f"cannot be decoded: {problem}") for i, row in enumerate(rows.tolist())}
        except pa.ArrowNotImplementedError as problem:
            raise DataError(
                f"{file.path}, row group {group}: pyarrow {pa.__version__} cannot decode it: {problem}. Write it another way, "
                "or leave the column out with fields=",
                path=file.path, shard=shard,
            ) from problem  # fmt: skip
        if batches.num_rows != stop - start:
            what = f"the row group has {batches.num_rows} rows, its metadata says otherwise"
            return {}, {i: error(row, what) for i, row in enumerate(rows.tolist())}
        columns, bad = batches.read_part(rows)
        DECODED.spend(key, len(rows), stop - start)
        return columns, {i: error(int(rows[i]), problem) for i, problem in bad.items()}


class _Stored(io.RawIOBase):
    """The bytes of a stored file as pyarrow asks for them. Storage errors are DataErrors and pass through pyarrow as they are."""

    def __init__(self, file: StoredFile):
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        stop = self._file.size if size < 0 else min(self._file.size, self._at + size)
        if stop <= self._at:
            return b""
        content = read_ranges(self._file, [(self._at, stop)])[0]
        self._at += len(content)
        return content


class _Readers(threading.local):
    """A thread's own: pyarrow's are not made for two threads. They hold no file, and making one costs 0.1 ms."""

    def __init__(self) -> None:
        self._kept: OrderedDict[StoredFile, Any] = OrderedDict()

    def take(self, file: StoredFile) -> Any:
        """A reader that is not kept until it is given back: one that failed is not used again."""
        reader = self._kept.pop(file, None)
        if reader is None:
            parquet = load_pyarrow("pyarrow.parquet", "reading Parquet files")
            metadata = _METADATA.get(file, lambda: _metadata(file))
            reader = parquet.ParquetFile(
                _Stored(file), metadata=metadata, pre_buffer=is_remote(file.path), page_checksum_verification=True
            )
        return reader

    def give_back(self, file: StoredFile, reader: Any) -> None:
        if is_remote(file.path):  # it would keep what it has read ahead: the bytes of a whole row group
            return
        self._kept[file] = reader
        if len(self._kept) > _READERS_KEPT:
            self._kept.popitem(last=False)


_READERS: Final = _Readers()


def _decoded(file: StoredFile, group: int, fields: Sequence[str] | None) -> tuple[Batches, int]:
    """A row group, and its bytes."""
    reader = _READERS.take(file)
    table = reader.read_row_group(group, columns=fields, use_threads=False)  # it passes over names that are not there
    _READERS.give_back(file, reader)
    if fields is not None:  # what begins so and goes on with a dot is read as well
        names = table.column_names
        table = table.select([name for name in fields if name in names])
    batches = Batches(table.to_batches())
    return batches, batches.nbytes


def _entry(file: StoredFile) -> Entry:
    """Where each row group starts (int64), the names of the columns, and the digest of size and footer."""
    footer = _footer(file)
    metadata = _parsed(file, footer)
    rows = np.array([metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)], np.int64)
    names = list(metadata.schema.to_arrow_schema().names)
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise DataError(f"{file.path}: several columns are called {twice}; rename them", path=file.path)
    digest = hashlib.blake2b(f"{file.size} ".encode() + footer, digest_size=16).hexdigest()
    return Entry(int(rows.sum()), digest, {"starts": starts_of(rows)}, {"columns": names})


def _metadata(file: StoredFile) -> tuple[Any, int]:
    footer = _footer(file)
    return _parsed(file, footer), len(footer)


def _footer(file: StoredFile) -> bytes:
    """The metadata at the end of a file, as it stands there."""
    tail = read_ranges(file, [(max(0, file.size - _TAIL_BYTES), file.size)])[0] if file.size else b""
    if len(tail) < 12 or tail[-4:] != _MAGIC:
        seen = "is empty" if not tail else f"has {file.size} bytes and ends with {tail[-4:]!r}"
        what = (
            "its footer is encrypted, which is not supported"
            if tail[-4:] == b"PARE"
            else "it is cut off, or another format"
        )
        raise DataError(f"{file.path} {seen}, a Parquet file ends with {_MAGIC!r}: {what}", path=file.path)
    length = int.from_bytes(tail[-8:-4], "little")
    start = file.size - 8 - length
    if start < len(_MAGIC):
        raise DataError(
            f"{file.path}: the footer would have {length} bytes, the whole file has {file.size}: the file is damaged",
            path=file.path,
        )
    if length + 8 <= len(tail):
        return tail[len(tail) - 8 - length : -8]
    return read_ranges(file, [(start, file.size - 8)])[0]


def _parsed(file: StoredFile, footer: bytes) -> Any:
    pa = load_pyarrow("pyarrow", "reading Parquet files")
    parquet = load_pyarrow("pyarrow.parquet", "reading Parquet files")
    try:
        whole = _MAGIC + footer + len(footer).to_bytes(4, "little") + _MAGIC
        return parquet.read_metadata(pa.BufferReader(whole))
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{file.path}: the footer cannot be read: {error}. The file is damaged", path=file.path
        ) from error
