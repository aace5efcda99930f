"""Arrow files on a memory map: folders written by `datasets.Dataset.save_to_disk`, and single `.arrow` files.

Nothing is decoded and nothing is kept but the map: rows are copied out of the page cache. Each data file is a shard.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.sources.arrowcolumns import Batches, load_pyarrow
from zephon_jax.sources.base import ReadResult, Shard, check_fields, fingerprint_with_fields
from zephon_jax.sources.index import Entry, indexed
from zephon_jax.sources.jsonfile import read_json_object
from zephon_jax.sources.opened import opened
from zephon_jax.sources.storage import StoredFile, read_ranges, stat_all
from zephon_jax.types import Int64s

__all__ = ["ArrowSource"]

_FILE_MAGIC: Final = b"ARROW1"
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"
_SUFFIXES: Final = (".arrow", ".feather")
_HASHED_BYTES, _HASHED_PLACES = 64 << 10, 16
_INDEX_VERSION: Final = 1


class ArrowSource:
    """Samples are rows; a path is a folder of `save_to_disk` or a file in Arrow's stream or file format, uncompressed.

    The fingerprint of a file is that of its size and of 16 places of 64 KiB spread over it, first and last included: of
    the whole file up to a MiB. Arrow has no checksums: a changed byte elsewhere is read as it is. A file must not be
    cut short while it is in use, since the process would die of it: that is how memory maps fail.
    """

    def __init__(self, paths: Sequence[str], fields: Sequence[str] | None = None):
        load_pyarrow("pyarrow.ipc", "reading Arrow files")
        self._fields = None if fields is None else tuple(fields)
        self._files = stat_all([file for path in paths for file in _files_of(path)])
        entries = list(indexed("arrow", _INDEX_VERSION, self._files, _entry))
        self._shards = [
            Shard(file.path, entry.num_samples, fingerprint_with_fields(entry.digest, fields))
            for file, entry in zip(self._files, entries, strict=True)
        ]
        for file, entry in zip(self._files, entries, strict=True):
            if entry.num_samples:
                check_fields(fields, dict.fromkeys(entry.facts["columns"]), file.path)
                break

    @property
    def shards(self) -> Sequence[Shard]:
        return self._shards

    def read(self, shard: int, samples: Int64s) -> ReadResult:
        file = self._files[shard]
        batches = _batches(file)
        try:
            columns, bad = batches.read(samples, self._fields)
        except DataError as error:
            raise DataError(f"{file.path}: {error}", path=file.path, shard=shard) from error
        errors = {
            i: DataError(
                f"{file.path}, sample {int(samples[i])}: {problem}. The file is damaged: write it anew, or pass "
                "options(on_data_error='skip') to drop such samples",
                path=file.path, shard=shard, record=int(samples[i]),
            )
            for i, problem in bad.items()
        }  # fmt: skip
        return columns, errors


def _files_of(path: str) -> list[str]:
    """The data files of a folder that `save_to_disk` wrote, in its order; a file stands for itself."""
    if path.endswith(_SUFFIXES):
        return [path]
    state = read_json_object(posixpath.join(path, "state.json"))
    if state is None:
        splits = read_json_object(posixpath.join(path, "dataset_dict.json"))
        if splits is not None:
            names = splits.get("splits", [])
            raise ConfigurationError(
                f"{path} holds the splits {names} of a DatasetDict; give the path of one of them, "
                f"{posixpath.join(path, str(names[0]) if names else '<split>')!r} for example"
            )
        raise ConfigurationError(
            f"{path} has no state.json: a folder written by datasets' save_to_disk has one. Name {' or '.join(_SUFFIXES)} "
            "files one by one"
        )
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise ConfigurationError(
            f"{path} keeps the order of its samples in a file of indices, as old versions of datasets wrote it; load it "
            "and call flatten_indices() before save_to_disk"
        )
    try:
        return [posixpath.join(path, str(file["filename"])) for file in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}/state.json lists no _data_files: {error!r}", path=path) from error


def _batches(file: StoredFile) -> Batches:
    return opened("arrow", file, lambda path: _mapped(file, path))


def _mapped(file: StoredFile, path: str) -> Batches:
    """The batches of the file, as views of a memory map."""
    pa, ipc = load_pyarrow("pyarrow", "reading Arrow files"), load_pyarrow("pyarrow.ipc", "reading Arrow files")
    try:
        mapped = pa.memory_map(path)
        whole = mapped.read_buffer(file.size)
        if whole.size < file.size:
            raise OSError(f"it has {whole.size} bytes, {file.size} when it was looked at")
        if whole[: len(_FILE_MAGIC)].to_pybytes() == _FILE_MAGIC:
            reader = ipc.open_file(whole)
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        else:
            if whole[max(0, file.size - len(_END_OF_STREAM)) :].to_pybytes() != _END_OF_STREAM:
                raise OSError("it does not end as an Arrow stream does: it is cut off, or another format")
            batches = list(ipc.open_stream(whole))
        for batch in batches:
            batch.validate()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{file.path}: cannot be read as an Arrow file: {error}", path=file.path) from error
    if not all(_lies_within(batch, whole) for batch in batches[:1]):
        raise ConfigurationError(
            f"{file.path} is compressed, so that it cannot be read from a memory map; write it without compression, or as "
            "Parquet"
        )
    return Batches(batches)


def _lies_within(batch: Any, whole: Any) -> bool:
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None and buffer.size:
                return bool(whole.address <= buffer.address < whole.address + whole.size)
    return True


def _entry(file: StoredFile) -> Entry:
    """The number of rows, the names of the columns, and the digest of size and places."""
    batches = _batches(file)
    starts = np.linspace(0, max(0, file.size - _HASHED_BYTES), _HASHED_PLACES).astype(np.int64)
    ranges = [(a, min(a + _HASHED_BYTES, file.size)) for a in np.unique(starts).tolist()]
    digest = hashlib.blake2b(f"{file.size} ".encode(), digest_size=16)
    for part in read_ranges(file, ranges):
        digest.update(part)
    return Entry(batches.num_rows, digest.hexdigest(), {}, {"columns": list(batches.names)})
