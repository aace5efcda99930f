"""JSONL: one JSON value per line, random access by an index of line starts.

The index reads every byte once, so the fingerprint is that of the whole content. Lines of white space only are no
samples; a byte-order mark is passed over. A line that is no JSON is an error of content, known when it is read; it
names file, line and what was seen. Files whose name ends in .gz or .zst are decompressed once, into the shard cache; their
fingerprint is that of the decompressed content.

Lines are parsed by `json`. orjson is three times as fast, but turns integers beyond 64 bits into floats and refuses NaN,
which `json` writes: a document would change with the parser.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zephon_jax.columns import as_rows, columns_from_rows
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.sources.base import ReadResult, Shard, check_fields, fingerprint_with_fields
from zephon_jax.sources.compressed import codec_of, decompressed_copy
from zephon_jax.sources.index import Entry, indexed, summaries
from zephon_jax.sources.storage import StoredFile, changed, is_remote, pread_all, read_ranges, stat, stat_all, stream
from zephon_jax.types import Int64s

__all__ = ["JsonlSource"]

_INDEX_VERSION = 1
_BLOCK_BYTES = 8 << 20
_BOM = b"\xef\xbb\xbf"
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5", b"BZh", b"\xfd7z", b"PK\x03")  # gzip, zstd, bzip2, xz, zip


class _Lines(NamedTuple):
    """Of one file, in bytes: where each sample's line ends, and where it starts and its number from 1 unless that follows.

    `bounds` has shape (samples + 1,). Sample i ends at `bounds[i + 1]`; in a file without blank lines it starts behind
    `bounds[i]`, the newline before it.
    """

    bounds: Int64s
    starts: Int64s | None
    numbers: Int64s | None

    def spans(self, samples: Int64s) -> tuple[list[int], list[int]]:
        """Start and end of each of these samples' lines."""
        starts = self.bounds[samples] + 1 if self.starts is None else self.starts[samples]
        return starts.tolist(), self.bounds[samples + 1].tolist()

    def number(self, sample: int) -> int:
        return sample + 1 if self.numbers is None else int(self.numbers[sample])


class JsonlSource:
    """Each file is a shard. Files are opened for each read, so that no number of shards exhausts file handles."""

    def __init__(self, paths: Sequence[str], fields: Sequence[str] | None = None):
        self._fields = None if fields is None else list(fields)
        self._files = stat_all(paths)
        self._entries = indexed("jsonl", _INDEX_VERSION, self._files, _entry)
        self._lines: dict[int, _Lines] = {}
        self._shards = [
            Shard(file.path, n, fingerprint_with_fields(digest, self._fields))
            for file, (n, digest) in zip(self._files, summaries(self._entries), strict=True)
        ]
        if fields is not None:
            self._check_fields()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lines": {}}  # mapped from the index; the other process maps its own

    @property
    def shards(self) -> Sequence[Shard]:
        return self._shards

    def read(self, shard: int, samples: Int64s) -> ReadResult:
        lines = self._lines_of(shard)
        starts, ends = lines.spans(samples)
        runs = _runs(samples)
        bad: dict[int, DataError] = {}
        values: list[Any] = []
        try:
            blocks = _read(self._files[shard], [(starts[a], ends[b - 1]) for a, b in runs])
        except DataError as error:
            error.shard = shard
            raise
        for (a, b), block in zip(runs, blocks, strict=True):
            base = starts[a]
            for i in range(a, b):
                line = block[starts[i] - base : ends[i] - base]
                values.append(self._parse(line, shard, int(samples[i]), bad, i))
        return columns_from_rows(as_rows(values)), bad

    def _lines_of(self, shard: int) -> _Lines:
        if shard not in self._lines:
            arrays = self._entries[shard].arrays
            self._lines[shard] = _Lines(arrays["bounds"], arrays.get("starts"), arrays.get("numbers"))
        return self._lines[shard]

    def _parse(self, line: bytes, shard: int, sample: int, bad: dict[int, DataError], position: int) -> Any:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:  # bad JSON, bytes that are no UTF-8, nesting without end
            path, number = self._files[shard].path, self._lines_of(shard).number(sample)
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
        for shard in range(len(self._files)):
            if self._shards[shard].num_samples:
                fields, self._fields = self._fields, None
                columns, bad = self.read(shard, np.zeros(1, np.int64))
                self._fields = fields
                if not bad:
                    check_fields(fields, columns, f"{self._files[shard].path}, line {self._lines_of(shard).number(0)}")
                return


def _read(file: StoredFile, ranges: list[tuple[int, int]]) -> list[bytes]:
    """Ranges of the file's lines, decompressed where it is compressed."""
    if codec_of(file.path) is None:
        return read_ranges(file, ranges)
    if not is_remote(file.path) and stat(file.path).stamp != file.stamp:
        raise changed(file.path)
    with decompressed_copy(file) as path, open(path, "rb", buffering=0) as opened:
        return pread_all(opened.fileno(), path, ranges)


def _runs(samples: Int64s) -> list[tuple[int, int]]:
    """Positions [a, b) whose samples are consecutive: one read each."""
    cuts = [0, *(np.flatnonzero(np.diff(samples) != 1) + 1).tolist(), len(samples)]
    return [(a, b) for a, b in itertools.pairwise(cuts) if a < b]


# -- the index ---------------------------------------------------------------------------------------------------------
def _entry(file: StoredFile) -> Entry:
    if codec_of(file.path) is None:
        return _scanned(stream(file, _BLOCK_BYTES), file.path)
    with decompressed_copy(file) as path, contextlib.closing(_blocks(path)) as blocks:
        return _scanned(blocks, file.path)


def _blocks(path: str) -> Generator[bytes, None, None]:
    with open(path, "rb", buffering=0) as opened:
        while block := opened.read(_BLOCK_BYTES):
            yield block


def _scanned(blocks: Iterable[bytes], path: str) -> Entry:
    """Lines and digest of a file's content, in one pass."""
    digest = hashlib.blake2b(digest_size=16)
    ends: list[Int64s] = []
    full: list[Any] = []  # per line: does it hold more than white space
    size, first, open_line = 0, 0, False
    for block in blocks:
        if not size and block.startswith(_COMPRESSED):
            raise ConfigurationError(
                f"{path} is compressed, but its name does not end in .gz or .zst: rename a gzip or zstd file, decompress "
                "any other"
            )
        digest.update(block)
        content = np.frombuffer(block, np.uint8)
        if not size and block.startswith(_BOM):
            first = len(_BOM)
        newlines = np.flatnonzero(content == 10)
        starts = np.concatenate([[first if not size else 0], newlines + 1])
        here = _holding_something(block, content, starts, np.concatenate([newlines, [len(block)]]))
        here[0] |= open_line
        open_line = bool(here[-1])
        ends.append(newlines + size)
        full.append(here[:-1])
        size += len(block)
    ends.append(np.array([size]))
    full.append(np.array([open_line]))
    all_ends, samples = np.concatenate(ends).astype(np.int64, copy=False), np.concatenate(full)
    n = int(samples.sum())
    arrays = {"bounds": np.concatenate([[first - 1], all_ends[samples]])}
    if not samples[:n].all():
        arrays["starts"] = np.concatenate([[first], all_ends[:-1] + 1])[samples]
        arrays["numbers"] = np.flatnonzero(samples) + 1
    return Entry(n, digest.hexdigest(), arrays)


def _holding_something(block: bytes, content: Any, starts: Any, ends: Any) -> Any:
    """Which of these pieces of lines hold more than white space. Only one that begins with some needs a closer look."""
    full = ends > starts
    suspects = np.flatnonzero(full)[content[starts[full]] <= 32]
    for i in suspects.tolist():
        full[i] = bool(block[starts[i] : ends[i]].strip())
    return full
