"""The end of an iterator as something that can be waited for together with a task.

A task that hangs never completes, and a thread that waits for it alone would never learn that nobody wants it any more.
Everything here that waits for a task waits for the end as well. No polling: the end is a future like any other.
"""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

__all__ = ["Stop"]


class Stop(threading.Event):
    """An event, set once; `settled` waits for a future or for it, whichever comes first."""

    def __init__(self) -> None:
        super().__init__()
        self._raised: Future[None] = Future()
        self._once = threading.Lock()

    def set(self) -> None:
        """Wake everybody who waits."""
        with self._once:
            if self.is_set():
                return
            super().set()
        self._raised.set_result(None)

    def settled(self, future: Future[Any], timeout_s: float | None = None) -> bool:
        """Wait until the future is done, this is set, or the time is up; whether the future is done."""
        if not future.done():
            wait((future, self._raised), timeout_s, FIRST_COMPLETED)
        return future.done()
