"""Who may call `next`, and for how long they waited: one thread at a time, of the process that made the iterator."""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType
from typing import Self

from zephon_jax.errors import ConfigurationError

__all__ = ["Consumer"]


_forks = 0
"""How many forks lie between the first process and this one. Asking for a process's id is a system call, at each `next`."""


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class Consumer:
    """Wraps each `next`: refuses a second thread and a forked child, and keeps the time."""

    def __init__(self) -> None:
        self._pid, self._forks, self._busy = os.getpid(), _forks, threading.Lock()
        self._first: float | None = None
        self._entered = 0.0
        self.first_wait_s = self.wait_s = 0.0

    def __enter__(self) -> Self:
        if not self.here:
            raise ConfigurationError(
                f"this iterator belongs to process {self._pid}, and process {os.getpid()} is forked from it: threads and queues "
                "do not survive a fork. Make the iterator in the process that uses it"
            )
        if not self._busy.acquire(blocking=False):
            raise ConfigurationError(
                "next() of this iterator runs in another thread at this moment; use an iterator from one thread, or put a lock "
                "around it"
            )
        self._entered = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = time.monotonic()
        if self._first is None:  # starting workers and filling queues is no sign of a pipeline that is too slow
            self._first, self.first_wait_s = now, now - self._entered
        else:
            self.wait_s += now - self._entered
        self._busy.release()

    @property
    def here(self) -> bool:
        """Whether this is the process that made it."""
        return _forks == self._forks

    @property
    def elapsed_s(self) -> float:
        """Since the first `next` returned."""
        return 0.0 if self._first is None else time.monotonic() - self._first
