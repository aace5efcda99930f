"""The file that holds an index: entries of many files, in one that is mapped into memory.

Layout: 16 bytes of magic; the entries' arrays, each at a multiple of 8 bytes; a msgpack header in columns; its offset,
length and CRC-32, and the magic again. Each entry has a CRC-32 of its own, which is compared when the entry is first
used, so that opening costs what the header costs. Nothing here knows when an entry is up to date.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgpack
import numpy as np
from numpy.typing import NDArray

from zephon_jax.errors import DataError

__all__ = ["Damaged", "Entry", "IndexFile", "write_index"]

_MAGIC = b"zephon-jax idx1\n"
_FOOTER = struct.Struct("<QQI4x")


class Damaged(Exception):
    """An index file is cut off or altered. Never leaves the room: the index is built again."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """Of one file. `digest`: hexadecimal, of its content. `arrays`: by name, one-dimensional. `facts`: plain values (msgpack)."""

    num_samples: int
    digest: str
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


class IndexFile:
    """One index file, mapped, or its content. The columns of its header by row; `row` by name.

    Raises:
        FileNotFoundError: There is none.
        Damaged: It is not what was written.
    """

    def __init__(self, path: str, content: bytes | None = None):
        self.path, self._in_memory = path, content
        if content is None:
            with open(path, "rb") as file:
                if not os.fstat(file.fileno()).st_size:
                    raise Damaged("empty")
                self.content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        else:
            self.content = content
        end = len(self.content) - len(_MAGIC) - _FOOTER.size
        if end < len(_MAGIC) or self.content[: len(_MAGIC)] != _MAGIC or self.content[-len(_MAGIC) :] != _MAGIC:
            raise Damaged("no index, or cut off")
        at, size, checksum = _FOOTER.unpack_from(self.content, end)
        packed = self.content[at : at + size]
        if at + size != end or zlib.crc32(packed) != checksum:
            raise Damaged("its header has another checksum")
        header = msgpack.unpackb(packed, unicode_errors="surrogateescape")
        self.names: list[str] = header["names"]
        self.stamps: list[str] = header["stamps"]
        self.digests: list[str] = header["digests"]
        self.facts: list[Any] = header["facts"]
        self.layouts: list[list[list[str]]] = header["layouts"]
        self.counts, self.layout, self.at, self.checksums, self.lengths = (
            np.frombuffer(header[name], np.int64) for name in ("counts", "layout", "at", "checksums", "lengths")
        )
        per_row = np.array([len(layout) for layout in self.layouts], np.int64)[self.layout]
        self.first_length = np.cumsum(per_row) - per_row
        self.verified = np.zeros(len(self.names), bool)
        self._row: dict[str, int] | None = None
        with contextlib.suppress(OSError):
            os.utime(path)  # so that it is known to be in use

        self._checksum = checksum

    def __reduce__(self) -> tuple[Any, ...]:
        if self._in_memory is not None:
            return IndexFile, (self.path, self._in_memory)
        return _same, (self.path, self._checksum)

    @property
    def row(self) -> Mapping[str, int]:
        if self._row is None:
            self._row = {name: i for i, name in enumerate(self.names)}
        return self._row

    def arrays(self, row: int) -> Mapping[str, NDArray[Any]] | None:
        """The arrays of an entry, mapped; None if they are not what was written."""
        layout, first, start = self.layouts[self.layout[row]], int(self.first_length[row]), int(self.at[row])
        found: dict[str, NDArray[Any]] = {}
        at = start
        for (name, dtype), length in zip(layout, self.lengths[first : first + len(layout)].tolist(), strict=True):
            found[name] = np.frombuffer(self.content, dtype, length, at)
            at += _padded(found[name].nbytes)
        if not self.verified[row]:
            with memoryview(self.content) as view, view[start:at] as body:
                if zlib.crc32(body) != self.checksums[row]:
                    return None
            self.verified[row] = True
        return found


def _same(path: str, checksum: int) -> IndexFile:
    """In another process: the very same index, or an error."""
    with contextlib.suppress(OSError, Damaged):
        found = IndexFile(path)
        if found._checksum == checksum:  # pyright: ignore[reportPrivateUsage]
            return found
    raise DataError(f"{path}: the index was removed or replaced while it was in use; make the Dataset again", path=path)


def _padded(size: int) -> int:
    return -(-size // 8) * 8


def write_index(file: BinaryIO, names: list[str], stamps: list[str], entries: Iterable[Entry]) -> None:
    """Write the entries of these names (paths below the index's folder), in order, each as it comes."""
    file.write(_MAGIC)
    layouts: dict[tuple[tuple[str, str], ...], int] = {}
    digests: list[str] = []
    facts: list[Any] = []
    counts: list[int] = []
    layout: list[int] = []
    at: list[int] = []
    checksums: list[int] = []
    lengths: list[int] = []
    position = len(_MAGIC)
    for entry in entries:
        arrays = {name: np.ascontiguousarray(array).reshape(-1) for name, array in sorted(entry.arrays.items())}
        shape = tuple((name, array.dtype.str) for name, array in arrays.items())
        checksum = 0
        at.append(position)
        for array in arrays.values():
            body = array.tobytes()
            body += bytes(_padded(len(body)) - len(body))
            checksum = zlib.crc32(body, checksum)
            position += file.write(body)
            lengths.append(len(array))
        digests.append(entry.digest)
        facts.append(dict(entry.facts) or None)
        counts.append(entry.num_samples)
        layout.append(layouts.setdefault(shape, len(layouts)))
        checksums.append(checksum)
    header: dict[str, Any] = {"names": names, "stamps": stamps, "digests": digests, "facts": facts}
    header["layouts"] = [[list(pair) for pair in shape] for shape in layouts]
    for name, column in (
        ("counts", counts),
        ("layout", layout),
        ("at", at),
        ("checksums", checksums),
        ("lengths", lengths),
    ):
        header[name] = np.array(column, np.int64).tobytes()
    packed = msgpack.packb(header, unicode_errors="surrogateescape")
    assert isinstance(packed, bytes)
    file.write(packed)
    file.write(_FOOTER.pack(position, len(packed), zlib.crc32(packed)))
    file.write(_MAGIC)
