"""A plain directory as a store: local, or on a file system that all processes share.

Each value is written to a file of its own under a name nobody else uses, flushed to the disk, and then renamed (`put`) or
linked (`create`) to its place, so a process that dies at any moment leaves no half-written value and no lock. That is why
these are our own files: a general key-value store over files was seen to reopen the lock file of a killed writer without
emptying it, and so to keep the tail of an older value.

One key at a time must be linearizable, which a network file system with attribute caching is not: mount it with `noac`, or
use another store.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import uuid
from collections.abc import Generator, Sequence
from typing import Final
from urllib.parse import quote, unquote

from zephon_jax.coordinate.store import poll, sealed, unsealed
from zephon_jax.errors import AggregationFailed, ConfigurationError

__all__ = ["DirectoryStore"]

_MOST_PAUSE_S: Final = 0.1
_TEMPORARY: Final = ".tmp-"  # quoted keys never begin with a dot
_STALE_S: Final = 24 * 3600.0
_CANNOT_LINK: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class DirectoryStore:
    """Keys are file names in `path`, which is made if it is not there. See `zephon_jax.coordinate.store.Store`."""

    def __init__(self, path: str | os.PathLike[str]):
        self._path = os.path.abspath(os.fspath(path))
        try:
            os.makedirs(self._path, exist_ok=True)
            self._sweep()
        except OSError as error:
            raise ConfigurationError(
                f"options(aggregate_dir={self._path!r}) cannot be used: {error}. Every process needs to read and write it"
            ) from error

    def _file(self, key: str) -> str:
        name = quote(key, safe="")
        return os.path.join(self._path, f"%{name}" if name.startswith(".") else name)

    def get(self, key: str) -> bytes | None:
        path = self._file(key)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed(path, error) from error
        return unsealed(data, path)

    def put(self, key: str, value: bytes) -> None:
        path = self._file(key)
        with self._written(value) as temporary:
            try:
                os.replace(temporary, path)
                self._flush()
            except OSError as error:
                raise _failed(path, error) from error

    def create(self, key: str, value: bytes) -> bool:
        path = self._file(key)
        with self._written(value) as temporary:
            try:
                os.link(temporary, path)
                self._flush()
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in _CANNOT_LINK:
                    raise AggregationFailed(
                        f"{self._path}: this file system cannot link files ({error}), which the first of several to write a "
                        "value needs; use another directory, a gs:// or s3:// URL, or aggregate_store='jax://'"
                    ) from error
                raise _failed(path, error) from error
        return True

    @contextlib.contextmanager
    def _written(self, value: bytes) -> Generator[str]:
        temporary = os.path.join(self._path, f"{_TEMPORARY}{uuid.uuid4().hex}")
        try:
            try:
                with open(temporary, "xb") as file:
                    file.write(sealed(value))
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise _failed(temporary, error) from error
            yield temporary
        finally:
            with contextlib.suppress(FileNotFoundError):  # renamed, which is the good case
                os.unlink(temporary)

    def _flush(self) -> None:
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def delete(self, key: str) -> None:
        path = self._file(key)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _failed(path, error) from error

    def list(self, prefix: str) -> list[str]:
        try:
            names = os.listdir(self._path)
        except OSError as error:
            raise _failed(self._path, error) from error
        keys = [unquote(name.removeprefix("%") if name.startswith("%.") else name) for name in names if name[0] != "."]
        return sorted(key for key in keys if key.startswith(prefix))

    def wait(self, key: str, timeout_s: float, seen: bytes | None = None) -> bytes | None:
        return poll(lambda: self.get(key), timeout_s, seen, _MOST_PAUSE_S)

    def get_each(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def delete_each(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)

    def _sweep(self) -> None:
        """Temporary files of processes that were killed while they wrote, once they are a day old."""
        for name in os.listdir(self._path):
            if name.startswith(_TEMPORARY):
                path = os.path.join(self._path, name)
                with contextlib.suppress(FileNotFoundError):  # another process sweeps as well
                    if time.time() - os.stat(path).st_mtime > _STALE_S:
                        os.unlink(path)


def _failed(path: str, error: OSError) -> AggregationFailed:
    return AggregationFailed(f"{path}: {error}; every process must be able to read and write this directory")
