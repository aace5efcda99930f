"""Bytes at rest, wherever they rest: local paths and object storage, by one small interface.

A file is looked at once, with `stat` or `stat_all`; what was seen then, its size and stamp, travels with it as a
`StoredFile`, and every later read checks that the file is still that one. Local files are opened for each read, so that
no number of shards exhausts file handles. Nothing here knows of samples.
"""

from __future__ import annotations

import contextlib
import os
import stat as modes
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.sources import cache

__all__ = [
    "StoredFile",
    "is_remote",
    "local_copy",
    "local_path",
    "read_ranges",
    "settled",
    "stat",
    "stat_all",
    "stream",
]

_BLOCK_BYTES = 8 << 20
_RACY_NS = 2_000_000_000  # times of change are as coarse as this on some file systems


class StoredFile(NamedTuple):
    """A file as it was when it was looked at. `stamp` changes when the content does (size and time, or an etag)."""

    path: str
    size: int
    stamp: str


def is_remote(path: str) -> bool:
    """Whether the path is a URL of object storage."""
    return path.startswith(("s3://", "gs://"))


def stat(path: str) -> StoredFile:
    """Size and stamp of a file; DataError if it cannot be read. For many files, `stat_all` is much faster."""
    return stat_all([path])[0]


def stat_all(paths: Sequence[str]) -> list[StoredFile]:
    """Size and stamp of each file, in order; requests to object storage are issued together.

    Raises:
        ConfigurationError: One of them is a pipe, a socket or a device, which cannot be read at random.
        DataError: One of them is missing or cannot be read; the first such is named.
    """
    remote = [path for path in paths if is_remote(path)]
    if not remote:
        return [_stat_local(path) for path in paths]
    from zephon_jax.sources import remote as objects

    found = iter(objects.stat_all(remote))
    return [StoredFile(path, *next(found)) if is_remote(path) else _stat_local(path) for path in paths]


def _stat_local(path: str) -> StoredFile:
    try:
        status = os.stat(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}", path=path) from error
    if not modes.S_ISREG(status.st_mode) and not modes.S_ISDIR(status.st_mode):
        raise ConfigurationError(
            f"{path} is a pipe, a socket or a device ({modes.filemode(status.st_mode)}), a file was expected: samples are "
            "read at random and more than once. Write the content to a file"
        )
    return StoredFile(path, status.st_size, _stamp(status))


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}"


def settled(file: StoredFile, at_ns: int) -> bool:
    """Whether a change after the moment `at_ns` is certain to have changed the stamp.

    A file that was written twice within one tick of the file system's clock has one time of change for two contents:
    a stamp that young says nothing tomorrow.
    """
    return is_remote(file.path) or int(file.stamp.rpartition("-")[2]) < at_ns - _RACY_NS


def read_ranges(file: StoredFile, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Bytes [start, stop) of each range, in order, issued together. Any thread.

    Raises:
        DataError: The file cannot be read, has changed since it was looked at, or ends before a range does.
    """
    if is_remote(file.path):
        from zephon_jax.sources import remote as objects

        return objects.read_ranges(file.path, file.size, file.stamp, ranges)
    try:
        with open(file.path, "rb", buffering=0) as opened:
            _check_unchanged(file, opened.fileno())
            return pread_all(opened.fileno(), file.path, ranges)
    except OSError as error:
        raise DataError(f"{file.path}: cannot be read: {error}", path=file.path) from error


def pread_all(descriptor: int, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Bytes [start, stop) of each range of an open file, whole or an error."""
    blocks: list[bytes] = []
    for start, stop in ranges:
        block = os.pread(descriptor, stop - start, start)
        while len(block) < stop - start:  # one call gives at most 2 GiB
            more = os.pread(descriptor, stop - start - len(block), start + len(block))
            if not more:
                raise DataError(
                    f"{path} is shorter than when it was indexed: byte {stop} is gone. A dataset must not change while it "
                    "is read",
                    path=path,
                )
            block += more
        blocks.append(block)
    return blocks


def _check_unchanged(file: StoredFile, descriptor: int) -> None:
    if _stamp(os.fstat(descriptor)) != file.stamp:
        raise changed(file.path)


def changed(path: str) -> DataError:
    """The error about a file that is no longer the one that was looked at."""
    return DataError(
        f"{path} has changed since it was indexed; a dataset must not change while it is used. Make the Dataset again, "
        "so that checkpoints are compared with its new content",
        path=path,
    )


def stream(file: StoredFile, block_bytes: int = _BLOCK_BYTES) -> Iterator[bytes]:
    """The whole file from its start, in blocks of this many bytes (the last one is shorter).

    Raises:
        ConfigurationError: The path is a folder.
        DataError: The file cannot be read, or changed before or while it was read.
    """
    if is_remote(file.path):
        from zephon_jax.sources import remote as objects

        yield from objects.stream(file.path, file.size, file.stamp, block_bytes)
        return
    try:
        with open(file.path, "rb", buffering=0) as opened:
            _check_unchanged(file, opened.fileno())
            while block := opened.read(block_bytes):
                yield block
            _check_unchanged(file, opened.fileno())
    except IsADirectoryError as error:
        raise ConfigurationError(f"{file.path} is a folder, a file was expected") from error
    except OSError as error:
        raise DataError(f"{file.path}: cannot be read: {error}", path=file.path) from error


def local_path(file: StoredFile) -> str:
    """A path that a library can open now: the file itself, or its copy in the node-local shard cache.

    The copy may be evicted once several other files were asked for; a reader that has it open by then keeps it. Ask
    again rather than keep the path.
    """
    return file.path if not is_remote(file.path) else cache.shard_cache().keep(_copy(file))


@contextlib.contextmanager
def local_copy(file: StoredFile) -> Generator[str, None, None]:
    """As `local_path`, for a block of code during which the copy cannot be evicted."""
    if not is_remote(file.path):
        yield file.path
        return
    with cache.shard_cache().pinned(_copy(file)) as path:
        yield path


def _copy(file: StoredFile) -> cache.Wanted:
    return cache.Wanted(file.path, file.stamp, file.size, lambda: stream(file))
