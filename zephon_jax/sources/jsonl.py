"""JSONL: one JSON value per line, random access by an index of line starts.

The index reads every byte once, so the fingerprint is that of the whole content. Lines of white space only are no
samples; a byte-order mark is passed over. A line that is no JSON is an error of content, known when it is read; it
names file, line and what was seen.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zephon_jax.columns import as_rows, columns_from_rows
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.sources.base import ReadResult, Shard, check_fields
from zephon_jax.types import Int64s

__all__ = ["JsonlSource"]

_BLOCK_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5", b"BZh", b"\xfd7z", b"PK\x03")  # gzip, zstd, bzip2, xz, zip


class _Index(NamedTuple):
    """Of one file: where each sample's line starts and ends (int64 bytes), and its line number from 1."""

    starts: Int64s
    ends: Int64s
    lines: Int64s
    digest: str
    stamp: tuple[int, int]  # size and time of change when it was read


class JsonlSource:
    """Each file is a shard. Files are opened for each read, so that no number of shards exhausts file handles."""

    def __init__(self, paths: Sequence[str], fields: Sequence[str] | None = None):
        self._paths, self._fields = list(paths), None if fields is None else list(fields)
        self._index = [_build_index(path) for path in self._paths]
        self._shards = [
            Shard(path, len(index.starts), _with_fields(index.digest, self._fields))
            for path, index in zip(self._paths, self._index, strict=True)
        ]
        if fields is not None:
            self._check_fields()

    @property
    def shards(self) -> Sequence[Shard]:
        return self._shards

    def read(self, shard: int, samples: Int64s) -> ReadResult:
        index, path = self._index[shard], self._paths[shard]
        starts, ends = index.starts[samples], index.ends[samples]
        bad: dict[int, DataError] = {}
        values: list[Any] = []
        try:
            with open(path, "rb") as file:
                if _stamp(file.fileno()) != index.stamp:
                    raise DataError(
                        f"{path} has changed since it was indexed; a dataset must not change while it is used. Make the "
                        "Dataset again, so that checkpoints are compared with its new content",
                        path=path,
                        shard=shard,
                    )
                for a, b in _runs(samples):
                    base = int(starts[a])
                    size = int(ends[b - 1]) - base
                    block = os.pread(file.fileno(), size, base)
                    if len(block) < size:
                        raise DataError(
                            f"{path} is shorter than when it was indexed: byte {base + size} is gone. A dataset must not "
                            "change while it is read",
                            path=path,
                            shard=shard,
                            record=int(samples[a]),
                        )
                    for i in range(a, b):
                        line = block[int(starts[i]) - base : int(ends[i]) - base]
                        values.append(self._parse(line, shard, int(samples[i]), bad, i))
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error}", path=path, shard=shard) from error
        return columns_from_rows(as_rows(values)), bad

    def _parse(self, line: bytes, shard: int, sample: int, bad: dict[int, DataError], position: int) -> Any:
        path, number = self._paths[shard], int(self._index[shard].lines[sample])
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:  # bad JSON, bytes that are no UTF-8, nesting without end
            seen = line[:60].decode("utf-8", "backslashreplace")
            bad[position] = DataError(
                f"{path}, line {number}: not valid JSON ({error}); the line begins {seen!r} and has {len(line)} "
                "bytes. Mend or remove it, or pass options(on_data_error='skip') to drop such samples",
                path=path, shard=shard, record=sample,
            )  # fmt: skip
            return {}
        if self._fields is not None and isinstance(value, Mapping):
            return {f: value[f] for f in self._fields if f in value}  # pyright: ignore[reportUnknownVariableType]
        return value

    def _check_fields(self) -> None:
        for shard in range(len(self._paths)):
            if self._shards[shard].num_samples:
                fields, self._fields = self._fields, None
                columns, bad = self.read(shard, np.zeros(1, np.int64))
                self._fields = fields
                if not bad:
                    check_fields(fields, columns, f"{self._paths[shard]}, line {int(self._index[shard].lines[0])}")
                return


def _stamp(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns


def _with_fields(digest: str, fields: Sequence[str] | None) -> str:
    """Other fields of a file are other samples."""
    if fields is None:
        return digest
    return hashlib.blake2b(f"{digest} {sorted(fields)}".encode(), digest_size=16).hexdigest()


def _runs(samples: Int64s) -> list[tuple[int, int]]:
    """Positions [a, b) whose samples are consecutive: one read each."""
    cuts = [0, *(np.flatnonzero(np.diff(samples) != 1) + 1).tolist(), len(samples)]
    return [(a, b) for a, b in itertools.pairwise(cuts) if a < b]


def _build_index(path: str) -> _Index:
    digest = hashlib.blake2b(digest_size=16)
    newlines: list[Int64s] = []
    size = 0
    try:
        with open(path, "rb") as file:
            head = file.read(len(_BOM))
            file.seek(0)
            stamp = _stamp(file.fileno())
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                newlines.append(np.flatnonzero(np.frombuffer(block, np.uint8) == 10) + size)
                size += len(block)
    except IsADirectoryError as error:
        raise ConfigurationError(f"{path} is a folder, a file was expected") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}", path=path) from error
    if head.startswith(_COMPRESSED):
        raise ConfigurationError(f"{path} is compressed; this version reads plain JSONL, so decompress it first")
    ends = np.concatenate([*newlines, np.array([size])]).astype(np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])
    if head == _BOM:
        starts[0] = len(_BOM)
    full = _not_blank(path, starts, ends)
    return _Index(starts[full], ends[full], np.flatnonzero(full) + 1, digest.hexdigest(), stamp)


def _not_blank(path: str, starts: Int64s, ends: Int64s) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which lines hold more than white space. Only a line that begins with white space needs a closer look."""
    full = ends > starts
    if not full.any():
        return full
    content = np.memmap(path, np.uint8, "r")
    suspects = np.flatnonzero(full)[content[starts[full]] <= 32]
    for i in suspects.tolist():
        full[i] = bool(content[starts[i] : ends[i]].tobytes().strip())
    return full
