"""The node-local shard cache: copies of remote files for libraries that open local ones, and decompressed files.

A folder below the cache folder, shared by all processes of a machine:

    shards/NAME/data      the copy; NAME is a hash of the source's path and stamp, so another content is another entry
    shards/NAME/checksum  of the copy, taken while it was written
    shards/tmp/…          entries being written, entries being removed
    shards/locks/…        one of 256 locks serialises the writing of an entry, `room` the eviction; `turn` and `short`: below

Rules. An entry appears whole (written under another name, synced, renamed) or not at all. A process that uses one holds a
shared `flock` on its file, and one that evicts needs an exclusive one; the kernel frees the locks of a dead process, so
there is nothing to repair after SIGKILL except leftovers in `tmp`, which the next process sweeps. What leaves first is
what was used longest ago. Room for an entry is taken before it is written, by setting the length of its file, so that
processes that download at once see each other. A copy is compared with its checksum when a process first opens it.

Copies that are written at once may not fit together, and one whose size is not known takes its room bit by bit. So that
they never wait for each other, only one of all processes, who holds `turn`, waits for room while it occupies some: whoever
else finds none gives up what it has begun, waits for its turn and starts again. While that one is `short` of room, nobody
begins; those that have begun finish or give up, so it gets the room unless readers keep it.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import NamedTuple

from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.sources.locks import Locks

__all__ = ["ShardCache", "Wanted", "cache_folder", "shard_cache"]

_STEP_BYTES = 64 << 20  # by which room is taken for an entry whose size is not known
_READ_BYTES = 4 << 20
_WAIT_S = 30.0  # for room that readers occupy
_STALLED_S = 300.0  # for room that other copies occupy, since one of them was last seen to go on
_POLL_S = 0.02  # others read or write entries, which takes them a moment
_KEPT = 16  # entries that stay pinned after `keep`: enough for as many threads to open what they were given


class Wanted(NamedTuple):
    """An entry: the path it is made of, that file's stamp, the entry's size if known, and how to get its bytes."""

    path: str
    stamp: str
    size: int | None
    blocks: Callable[[], Iterable[bytes]]


class _Copy:
    """One that is being written: its file, how long that shall be, and the descriptor of the lock `turn` once it is held."""

    def __init__(self, descriptor: int, wanted: Wanted):
        self.descriptor, self.wanted, self.asked = descriptor, wanted, 0
        self.turn: int | None = None


class _Patience:
    """Of one wait for room: when the others were last seen to go on, and by what that was seen."""

    def __init__(self) -> None:
        self.since, self.written_ns, self.moved_ns = time.monotonic(), 0, 0


class _GivenUp(Exception):
    """There is no room for a copy, and it is not its turn to wait for some while it occupies what it has."""


def cache_folder() -> pathlib.Path:
    """Where copies and indexes are kept: `ZEPHON_JAX_CACHE_DIR`, else below the user's cache folder."""
    if given := os.environ.get("ZEPHON_JAX_CACHE_DIR"):
        return pathlib.Path(given).expanduser().absolute()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return pathlib.Path(base) / "zephon_jax"
    try:
        return pathlib.Path("~/.cache").expanduser() / "zephon_jax"
    except RuntimeError:  # a container whose user has no home
        return pathlib.Path(tempfile.gettempdir()) / f"zephon_jax-{os.getuid()}"


_caches: dict[tuple[pathlib.Path, str | None, int], ShardCache] = {}
_caches_lock = threading.Lock()


def shard_cache() -> ShardCache:
    """The cache of this process, as the environment says now."""
    key = cache_folder(), os.environ.get("ZEPHON_JAX_CACHE_BYTES") or None, os.getpid()
    with _caches_lock:
        if key not in _caches:
            _caches[key] = ShardCache(key[0] / "shards", None if key[1] is None else _parse_bytes(key[1]))
        return _caches[key]


def _parse_bytes(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ConfigurationError(f"ZEPHON_JAX_CACHE_BYTES={text!r} must be a positive number of bytes")
    return int(text)


class ShardCache:
    """See the module. `bound_bytes` None: half of what is free and of what the cache holds, when it is made."""

    def __init__(self, folder: pathlib.Path, bound_bytes: int | None = None):
        self._folder, self._tmp = folder, folder / "tmp"
        self._locks = Locks(folder / "locks")
        self._holding = self._locks.holding
        try:
            self._tmp.mkdir(parents=True, exist_ok=True)
            with self._holding("room"):
                self._sweep()
            if bound_bytes is None:
                bound_bytes = (shutil.disk_usage(folder).free + sum(size for _, size, _ in self._entries())) // 2
        except OSError as error:
            raise self._cannot_write(error) from error
        self.bound_bytes = bound_bytes
        self._verified: set[tuple[str, int, int]] = set()
        self._kept: collections.OrderedDict[str, contextlib.ExitStack] = collections.OrderedDict()
        self._lock = threading.Lock()

    # -- using an entry --------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def pinned(self, wanted: Wanted) -> Generator[str, None, None]:
        """The path of the entry, made if it is not there; it is not evicted while the block runs.

        Raises:
            DataError: It cannot be fetched, is larger than the bound, finds no room among entries in use, or the folder
                cannot be written.
        """
        descriptor = self._opened(wanted)
        try:
            yield str(self._entry(wanted) / "data")
        finally:
            os.close(descriptor)

    def keep(self, wanted: Wanted) -> str:
        """The path of the entry, which stays pinned until sixteen others were asked for or room runs short."""
        name = self._entry(wanted).name
        stack = contextlib.ExitStack()
        path = stack.enter_context(self.pinned(wanted))
        with self._lock:
            old = [self._kept.pop(name)] if name in self._kept else []
            self._kept[name] = stack
            while len(self._kept) > _KEPT:
                old.append(self._kept.popitem(last=False)[1])
        for one in old:
            one.close()
        return path

    def release(self, at_most: int = _KEPT) -> int:
        """Unpin what `keep` gave longest ago; how many these were."""
        with self._lock:
            stacks = [self._kept.popitem(last=False)[1] for _ in range(min(at_most, len(self._kept)))]
        for stack in stacks:
            stack.close()
        return len(stacks)

    def _entry(self, wanted: Wanted) -> pathlib.Path:
        key = f"{wanted.path}\0{wanted.stamp}".encode("utf-8", "surrogatepass")
        return self._folder / hashlib.blake2b(key, digest_size=16).hexdigest()

    def _opened(self, wanted: Wanted) -> int:
        """A descriptor of the entry's file, locked against eviction and found intact."""
        entry = self._entry(wanted)
        try:
            while True:
                if (descriptor := _locked(entry / "data")) is None:
                    with self._holding(entry.name[:2]):
                        if (descriptor := _locked(entry / "data")) is None:
                            descriptor = self._made(entry, wanted)
                if descriptor is not None:
                    if self._intact(entry, descriptor):
                        with contextlib.suppress(OSError):  # on a read-only file system nothing is evicted either
                            os.utime(entry)
                        return descriptor
                    fcntl.flock(descriptor, fcntl.LOCK_UN)  # who waits for a lock occupies no room meanwhile
                    with self._holding(entry.name[:2]):
                        if _is_at(descriptor, entry / "data"):  # else another thread has replaced it by a good one
                            self._remove(entry)
                    os.close(descriptor)
                    warnings.warn(
                        f"the copy of {wanted.path} in the cache ({entry}) was damaged; it is fetched again",
                        stacklevel=2,
                    )
        except OSError as error:
            raise self._cannot_write(error, wanted.path) from error

    def _intact(self, entry: pathlib.Path, descriptor: int) -> bool:
        """Compared with its checksum when this process first sees this file."""
        seen = _identity(entry, descriptor)
        if seen in self._verified:
            return True
        digest, at = hashlib.blake2b(digest_size=16), 0
        while block := os.pread(descriptor, _READ_BYTES, at):
            digest.update(block)
            at += len(block)
        with contextlib.suppress(FileNotFoundError):
            if (entry / "checksum").read_text() == digest.hexdigest():
                self._verified.add(seen)
                return True
        return False

    # -- making one ------------------------------------------------------------------------------------------------
    def _made(self, entry: pathlib.Path, wanted: Wanted) -> int | None:
        """Write the entry and put it in its place; None if somebody emptied the cache meanwhile."""
        size = wanted.size
        if size is not None and size > self.bound_bytes:
            raise self._too_large(wanted.path, size)
        self._remove(entry)  # what is left of one whose file somebody deleted
        folder = self._tmp / uuid.uuid4().hex
        with self._holding("room"):  # as `_sweep` does: an entry without a lock is a dead process's
            folder.mkdir(parents=True)
            descriptor = os.open(folder / "data", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            checksum = self._written(descriptor, wanted)
            _write_synced(folder / "checksum", checksum.encode())
            _sync_folder(folder)
            with self._holding("room"):  # or one who counts would find it in neither place
                fcntl.flock(descriptor, fcntl.LOCK_SH)  # lets go for a moment, in which nobody evicts
                os.rename(folder, entry)
            _sync_folder(self._folder)
            if _is_at(descriptor, entry / "data"):
                self._verified.add(_identity(entry, descriptor))
                return descriptor
        except BaseException:
            os.close(descriptor)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        os.close(descriptor)
        return None

    def _written(self, descriptor: int, wanted: Wanted) -> str:
        """Write the copy, from its start again if there is no room for it now; its checksum."""
        copy = _Copy(descriptor, wanted)
        try:
            while True:
                with contextlib.suppress(_GivenUp):
                    return self._copied(copy)
                os.ftruncate(descriptor, 0)
                self._await_turn(copy)
        finally:
            if copy.turn is not None:
                os.close(copy.turn)

    def _copied(self, copy: _Copy) -> str:
        digest, at, reserved, size = hashlib.blake2b(digest_size=16), 0, 0, copy.wanted.size
        if size:
            self._reserve(copy, reserved := size)
        for block in copy.wanted.blocks():
            if at + len(block) > reserved:
                step = 0 if size is not None else min(_STEP_BYTES, self.bound_bytes // 8)
                reserved = max(at + len(block), min(reserved + step, self.bound_bytes))
                self._reserve(copy, reserved)
            digest.update(block)
            view = memoryview(block)
            while view:
                written = os.pwrite(copy.descriptor, view, at)
                view, at = view[written:], at + written
        os.ftruncate(copy.descriptor, at)
        os.fsync(copy.descriptor)
        return digest.hexdigest()

    def _reserve(self, copy: _Copy, size: int) -> None:
        """Make the copy's file this long, after making room for it; `_GivenUp` if another has its turn."""
        if size > self.bound_bytes:
            raise self._too_large(copy.wanted.path, size)
        copy.asked = size
        if copy.turn is None and not os.fstat(copy.descriptor).st_size:
            patience = _Patience()
            while self._locks.is_held("short"):
                self._pause(copy, patience)
        if self._taken(copy):
            return
        if copy.turn is None:
            copy.turn = self._locks.now("turn")  # one need not start again
            if copy.turn is None:
                raise _GivenUp
        patience = _Patience()
        with self._holding("short"):
            while not self._taken(copy):
                self._pause(copy, patience)

    def _taken(self, copy: _Copy) -> bool:
        """Whether there was room to make the copy's file as long as was asked for."""
        while True:
            with self._holding("room"):
                if self._free(copy.asked - os.fstat(copy.descriptor).st_size) <= self.bound_bytes:
                    os.ftruncate(copy.descriptor, copy.asked)
                    return True
            if not self.release(1):
                return False

    def _await_turn(self, copy: _Copy) -> None:
        patience = _Patience()
        while copy.turn is None:
            copy.turn = self._locks.now("turn")
            if copy.turn is None:
                self._pause(copy, patience)

    def _pause(self, copy: _Copy, patience: _Patience) -> None:
        """Wait for a moment; DataError if for long nobody has written, finished or evicted anything."""
        others = [
            status.st_mtime_ns
            for status in map(_status, self._tmp.glob("*/data"))
            if status is not None and status.st_size and not os.path.samestat(status, os.fstat(copy.descriptor))
        ]
        written_ns, moved_ns = max(others, default=0), self._folder.stat().st_mtime_ns  # in this order: see `_made`
        now = time.monotonic()
        if written_ns > patience.written_ns or moved_ns != patience.moved_ns:  # one that vanishes has achieved nothing
            patience.since, patience.moved_ns = now, moved_ns
            patience.written_ns = max(written_ns, patience.written_ns)
        limit_s = _STALLED_S if others else _WAIT_S
        if now - patience.since > limit_s:
            raise DataError(
                f"no room for a copy of {copy.wanted.path} ({copy.asked:,} bytes) in the cache {self._folder}: it is bounded "
                f"to {self.bound_bytes:,} bytes, and the rest has been in use for {limit_s:g} s by this or other processes. Set "
                "ZEPHON_JAX_CACHE_BYTES higher, or ZEPHON_JAX_CACHE_DIR to a larger disk",
                path=copy.wanted.path,
            )
        if not self.release(1):
            time.sleep(_POLL_S)

    # -- room ------------------------------------------------------------------------------------------------------
    def _free(self, more: int) -> int:
        """Evict until `more` bytes fit, as far as possible; the total there would be with them."""
        self._sweep()
        entries = sorted(self._entries())
        total = more + sum(size for _, size, _ in entries) + sum(map(_size, self._tmp.glob("*/data")))
        for _, size, entry in entries:
            if total <= self.bound_bytes:
                break
            descriptor = _locked(entry / "data", fcntl.LOCK_EX | fcntl.LOCK_NB)
            if descriptor is not None:
                self._remove(entry)
                os.close(descriptor)
                total -= size
        return total

    def _entries(self) -> Iterator[tuple[int, int, pathlib.Path]]:
        """When each was last used, its size and its folder."""
        for folder in os.scandir(self._folder):
            if len(folder.name) == 32:
                with contextlib.suppress(FileNotFoundError):
                    yield folder.stat().st_mtime_ns, os.stat(f"{folder.path}/data").st_size, pathlib.Path(folder.path)

    def _remove(self, entry: pathlib.Path) -> None:
        gone = self._tmp / uuid.uuid4().hex
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            os.rename(entry, gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what dead processes left in `tmp`: nobody holds the lock of these."""
        for folder in self._tmp.iterdir():
            descriptor = _locked(folder / "data", fcntl.LOCK_EX | fcntl.LOCK_NB)
            if descriptor is not None or not (folder / "data").exists():
                shutil.rmtree(folder, ignore_errors=True)
            if descriptor is not None:
                os.close(descriptor)

    # -- errors ----------------------------------------------------------------------------------------------------
    def _too_large(self, path: str, size: int) -> DataError:
        return DataError(
            f"{path}: a local copy has {size:,} bytes or more, and the cache {self._folder} is bounded to "
            f"{self.bound_bytes:,}. Set ZEPHON_JAX_CACHE_BYTES higher, or use smaller shards",
            path=path,
        )

    def _cannot_write(self, error: OSError, path: str | None = None) -> DataError:
        what = "" if path is None else f"{path} needs a local copy: "
        return DataError(
            f"{what}the cache folder {self._folder} cannot be used: {error}. Set ZEPHON_JAX_CACHE_DIR to a folder on a local "
            "disk that can be written and has room",
            path=path,
        )


def _locked(path: pathlib.Path, how: int = fcntl.LOCK_SH) -> int | None:
    """A descriptor of the file, locked; None if it does not exist or, without waiting, if someone else has it."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)


def _is_at(descriptor: int, path: pathlib.Path) -> bool:
    """Whether the path still leads to this open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _identity(entry: pathlib.Path, descriptor: int) -> tuple[str, int, int]:
    status = os.fstat(descriptor)
    return entry.name, status.st_ino, status.st_mtime_ns


def _status(path: pathlib.Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _size(path: pathlib.Path) -> int:
    return 0 if (status := _status(path)) is None else status.st_size


def _write_synced(path: pathlib.Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
