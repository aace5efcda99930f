"""ArrayRecord: each file is a shard, each record a sample `{"value": bytes}`.

What the bytes mean is for a `map` to say: the format does not know. Files are read by the library, from a local path;
those in object storage are copied to the node's cache first.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from zephon_jax.columns import Objects
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.sources.base import ReadResult, Shard
from zephon_jax.sources.index import Entry, indexed
from zephon_jax.sources.opened import opened
from zephon_jax.sources.optional import optional
from zephon_jax.sources.recent import DECODED
from zephon_jax.sources.storage import StoredFile, read_ranges, stat_all
from zephon_jax.types import Int64s

__all__ = ["ArrayRecordSource"]

_FIELD: Final = "value"
_OPTIONS: Final = "readahead_buffer_size:0,max_parallelism:0"  # what the library advises for random access
_BUFFER_BYTES: Final = 32 << 10
_TAIL_BYTES: Final = 1 << 20
_INDEX_VERSION: Final = 1
_CORRUPTED: Final = "Corrupted Riegeli"
_OBJECT_BYTES: Final = 40  # what a bytes object takes beside its content


class ArrayRecordSource:
    """Samples are records, as bytes. Files of `group_size:1` read fastest in random order, larger groups in sequence.

    A group is decoded as a whole and kept for the samples that are asked next. The fingerprint of a file is that of its
    size and last MiB, where the library keeps the places and sizes of records. Checksums of content are verified by the
    library: a record that fails is an error of content, of each sample of its group.
    """

    def __init__(self, paths: Sequence[str], fields: Sequence[str] | None = None):
        _library()
        if fields is not None and list(fields) != [_FIELD]:
            raise ConfigurationError(
                f"fields={list(fields)}: a record of an ArrayRecord file is bytes, its only field {_FIELD!r}; decode it "
                "in a map, which can leave out what is not wanted"
            )
        self._files = stat_all(paths)
        entries = list(indexed("arrayrecord", _INDEX_VERSION, self._files, _entry))
        self._groups = [int(entry.facts["group_size"]) for entry in entries]
        self._shards = [
            Shard(file.path, entry.num_samples, entry.digest) for file, entry in zip(self._files, entries, strict=True)
        ]

    @property
    def shards(self) -> Sequence[Shard]:
        return self._shards

    @property
    def block_hint(self) -> int | None:
        """Records of a group, if it has more than one: read together, they are decoded once."""
        largest = max(self._groups, default=1)
        return largest if largest > 1 else None

    def read(self, shard: int, samples: Int64s) -> ReadResult:
        if not len(samples):
            return {}, {}
        return self._read_records(shard, samples) if self._groups[shard] == 1 else self._read_groups(shard, samples)

    def _read_records(self, shard: int, samples: Int64s) -> ReadResult:
        file = self._files[shard]
        asked: list[int] = samples.tolist()
        bad: dict[int, DataError] = {}
        try:
            if asked[-1] - asked[0] == len(asked) - 1 and all(b - a == 1 for a, b in itertools.pairwise(asked)):
                items = _read(file, asked[0], asked[-1] + 1)
            else:
                items = _read(file, asked)
        except _Corrupted:  # one of them: which?
            items = []
            for i, sample in enumerate(asked):
                try:
                    items += _read(file, [sample])
                except _Corrupted as error:
                    items.append(b"")
                    bad[i] = self._error(shard, sample, error)
        return {_FIELD: Objects(items)}, bad

    def _read_groups(self, shard: int, samples: Int64s) -> ReadResult:
        size = self._groups[shard]
        order = np.argsort(samples, kind="stable")
        group, row = np.divmod(samples[order], size)
        cuts = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(group)]
        numbers: list[int] = group[cuts[:-1]].tolist()
        fresh = self._read_side_by_side(shard, numbers)
        rows: list[int] = row.tolist()
        found: list[bytes] = []
        broken: dict[int, DataError] = {}
        for number, a, b in zip(numbers, cuts[:-1], cuts[1:], strict=True):
            try:
                records = self._group(shard, number, b - a, fresh.get(number))
                found += [records[i] for i in rows[a:b]]
            except _Corrupted as error:
                found += [b""] * (b - a)
                broken.update({i: self._error(shard, number * size + rows[i], error) for i in range(a, b)})
        items = [b""] * len(found)
        for at, record in zip(order.tolist(), found, strict=True):
            items[at] = record
        return {_FIELD: Objects(items)}, {int(order[i]): error for i, error in broken.items()}

    def _read_side_by_side(self, shard: int, groups: Sequence[int]) -> dict[int, list[bytes]]:
        """Those of the groups that are not kept and lie next to each other, by one read: twice as fast as one by one."""
        file, size, count = self._files[shard], self._groups[shard], self._shards[shard].num_samples
        out: dict[int, list[bytes]] = {}
        missing = np.array([g for g in groups if ("arrayrecord", file, g) not in DECODED], np.int64)
        for run in np.split(missing, np.flatnonzero(np.diff(missing) != 1) + 1):
            if len(run) > 1:
                first, stop = int(run[0]), int(run[-1]) + 1
                try:
                    records = _read(file, first * size, min(stop * size, count))
                except _Corrupted:
                    continue  # group by group, to see which
                out |= {g: records[(g - first) * size : (g - first + 1) * size] for g in range(first, stop)}
        return out

    def _group(self, shard: int, group: int, wanted: int, fresh: list[bytes] | None) -> list[bytes]:
        """A group's records, just read or not, kept until all of it was wanted."""
        file, size = self._files[shard], self._groups[shard]
        start, stop = group * size, min((group + 1) * size, self._shards[shard].num_samples)
        if fresh is not None and wanted >= stop - start:
            return fresh

        def decode() -> tuple[list[bytes], int]:
            records = _read(file, start, stop) if fresh is None else fresh
            return records, sum(len(record) + _OBJECT_BYTES for record in records)

        key = ("arrayrecord", file, group)
        records: list[bytes] = DECODED.get(key, decode)
        DECODED.spend(key, wanted, stop - start)
        return records

    def _error(self, shard: int, sample: int, problem: Exception) -> DataError:
        path = self._files[shard].path
        return DataError(
            f"{path}, record {sample}: {problem}. The file is damaged: write it anew, or pass "
            "options(on_data_error='skip') to drop such samples",
            path=path, shard=shard, record=sample,
        )  # fmt: skip


class _Corrupted(Exception):
    """Content that fails its checksum; any other failure of the library is one of storage, and a DataError."""


def _library() -> Any:
    return optional("array_record.python.array_record_module", extra="formats", purpose="reading ArrayRecord files")


def _reader(file: StoredFile) -> Any:
    return opened("arrayrecord", file, lambda path: _opened(file, path))


def _opened(file: StoredFile, path: str) -> Any:
    reader = _library().ArrayRecordReader(path, _OPTIONS, file_reader_buffer_size=_BUFFER_BYTES)
    if not reader.ok():
        raise DataError(
            f"{file.path} ({file.size} bytes) is no ArrayRecord file: it has no footer where one should be; it is cut "
            "off, its writer was not closed, or it is another format",
            path=file.path,
        )
    return reader


def _read(file: StoredFile, *which: Any) -> list[bytes]:
    """`which` is what the library's reader takes: a list of records, or start and stop."""
    reader = _reader(file)
    try:
        return reader.read(*which)
    except (RuntimeError, ValueError) as error:
        if str(error).startswith(_CORRUPTED):
            raise _Corrupted(str(error)) from error
        raise DataError(f"{file.path}: cannot be read: {error}", path=file.path) from error


def _entry(file: StoredFile) -> Entry:
    """The number of records, the records in a group, and the digest of size and tail."""
    if not file.size:
        raise DataError(f"{file.path} is empty; an ArrayRecord file of no records has a footer", path=file.path)
    reader = _reader(file)
    written = re.search(r"(?:^|,)group_size:(\d+)", reader.writer_options_string())
    tail = read_ranges(file, [(max(0, file.size - _TAIL_BYTES), file.size)])[0]
    digest = hashlib.blake2b(f"{file.size} ".encode() + tail, digest_size=16)
    facts = {"group_size": max(1, int(written[1])) if written else 1}
    return Entry(int(reader.num_records()), digest.hexdigest(), {}, facts)
