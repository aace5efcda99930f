"""Locks with names, shared by all threads and processes of a machine: a `flock` on a file each, in one folder.

The kernel frees the locks of a dead process. A file is kept for ever, since removing one would be a race.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Generator

__all__ = ["Locks"]


class Locks:
    """Those of one folder."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder

    @contextlib.contextmanager
    def holding(self, name: str) -> Generator[None, None, None]:
        """One process and thread at a time."""
        descriptor = self._opened(name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def now(self, name: str, how: int = fcntl.LOCK_EX) -> int | None:
        """A descriptor that holds the lock until it is closed; None if somebody else has it."""
        descriptor = self._opened(name)
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def is_held(self, name: str) -> bool:
        """Whether somebody has the lock. To look takes it for a moment, shared with others who look."""
        descriptor = self.now(name, fcntl.LOCK_SH)
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is None

    def _opened(self, name: str) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)  # somebody may have emptied the cache meanwhile
        return os.open(self._folder / name, os.O_RDWR | os.O_CREAT, 0o644)
