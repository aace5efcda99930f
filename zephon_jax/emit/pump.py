"""A producer's thread ahead of the consumer, with a bound.

The thread owns the generator it runs; the consumer only takes results. An exception in the producer is raised in the
consumer, which sees it after what was produced before. Nothing here refers to the consumer, so an abandoned iterator
can be collected, and its finaliser stops the thread.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["Pump"]

T = TypeVar("T")

_GRACE_S = 5.0


class Pump(Generic[T]):
    """Iterates `make()` in a thread, at most `depth` counted results ahead, and no more than `most_bytes` with one at least.

    `counted` says which results count, `size` how many bytes one holds.
    """

    def __init__(
        self,
        make: Callable[[], Iterator[T]],
        depth: int,
        counted: Callable[[T], bool],
        size: Callable[[T], int] = lambda _: 0,
        most_bytes: float = float("inf"),
    ):
        self._make, self._depth, self._counted, self._size, self._most = make, depth, counted, size, most_bytes
        self._results: deque[tuple[T, int]] = deque()
        self._waiting = 0  # counted results in the queue
        self._bytes = 0
        self.most_waiting_bytes = 0
        """The most that the queue has held."""
        self.taken = 0
        """Results that were taken out of the queue: who was interrupted can tell whether one was lost on the way."""
        self.blocked_s = 0.0
        """Seconds for which the producer waited for room."""
        self._ended = self._stop = False
        self.error: BaseException | None = None
        """What the producer raised; the consumer gets it from `next`."""
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="zephon_jax-pump", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        results = self._make()
        try:
            for result in results:
                if not self._put(result):
                    break
        except BaseException as error:
            self.error = error
        finally:
            close = getattr(results, "close", None)
            if close is not None:
                close()
            with self._change:
                self._ended = True
                self._change.notify_all()

    def _put(self, result: T) -> bool:
        size = self._size(result)
        with self._change:
            if not self._room(size):
                began = time.monotonic()
                self._change.wait_for(lambda: self._stop or self._room(size))
                self.blocked_s += time.monotonic() - began
            if self._stop:
                return False
            self._results.append((result, size))
            self._waiting += self._counted(result)
            self._bytes += size
            self.most_waiting_bytes = max(self.most_waiting_bytes, self._bytes)
            self._change.notify_all()
            return True

    def _room(self, size: int) -> bool:
        # Results that do not count are bounded too, loosely: the consumer takes them in passing.
        if self._waiting >= self._depth or len(self._results) >= self._depth + 64:
            return False
        return not self._waiting or self._bytes + size <= self._most

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._change:
            self._change.wait_for(lambda: self._results or self._ended or self._stop)
            if self._results:
                self.taken += 1
                result, size = self._results.popleft()
                self._waiting -= self._counted(result)
                self._bytes -= size
                self._change.notify_all()
                return result
        if self.error is not None and not self._stop:  # what fails while it is being stopped is no error
            raise self.error
        raise StopIteration

    def close(self) -> None:
        """Stop the producer at its next result and wait for it, but not for ever: user code runs in it, and may hang."""
        with self._change:
            self._stop = True
            self._results.clear()
            self._waiting = self._bytes = 0
            self._change.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(_GRACE_S)
            if self._thread.is_alive():
                warnings.warn(
                    "an operator that runs in order (with a memory, or after batch) does not return; its thread is left behind",
                    RuntimeWarning,
                    stacklevel=2,
                )

    @property
    def waiting(self) -> int:
        """Counted results that the consumer could take at once."""
        return self._waiting

    @property
    def waiting_bytes(self) -> int:
        """What the queue holds."""
        return self._bytes
