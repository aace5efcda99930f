"""Files that a library opens by itself, by a local path: those used last stay open, 64 of them in a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from zephon_jax.sources.recent import Recent
from zephon_jax.sources.storage import StoredFile, changed, is_remote, local_copy, stat

__all__ = ["forget", "opened"]

T = TypeVar("T")

_OPEN: Final[Recent[Any]] = Recent(64)  # each keeps a file descriptor


def opened(kind: str, file: StoredFile, open_path: Callable[[str], T]) -> T:
    """What `open_path` made of the file's local path, now or before. DataError if the file is not the one that was indexed."""
    if not is_remote(file.path) and stat(file.path) != file:
        raise changed(file.path)

    def make() -> tuple[T, int]:
        with local_copy(file) as path:  # which can be evicted from then on: what is open can be read to its end
            return open_path(path), 1

    return _OPEN.get((kind, file), make)


def forget() -> None:
    """Let go of every file that is kept open."""
    _OPEN.clear()
