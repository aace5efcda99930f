"""A producer's thread ahead of the consumer, with a bound.

The thread owns the generator it runs; the consumer only takes results. An exception in the producer is raised in the
consumer, which sees it after what was produced before. Nothing here refers to the consumer, so an abandoned iterator
can be collected, and its finaliser stops the thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["Pump"]

T = TypeVar("T")


class Pump(Generic[T]):
    """Iterates `make()` in a thread, at most `depth` counted results ahead. `counted` says which results count."""

    def __init__(self, make: Callable[[], Iterator[T]], depth: int, counted: Callable[[T], bool]):
        self._make, self._depth, self._counted = make, depth, counted
        self._results: deque[T] = deque()
        self._waiting = 0  # counted results in the queue
        self._ended = self._stop = False
        self._error: BaseException | None = None
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
            self._error = error
        finally:
            close = getattr(results, "close", None)
            if close is not None:
                close()
            with self._change:
                self._ended = True
                self._change.notify_all()

    def _put(self, result: T) -> bool:
        with self._change:
            # Results that do not count are bounded too, loosely: the consumer takes them in passing.
            self._change.wait_for(
                lambda: self._stop or (self._waiting < self._depth and len(self._results) < self._depth + 64)
            )
            if self._stop:
                return False
            self._results.append(result)
            self._waiting += self._counted(result)
            self._change.notify_all()
            return True

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._change:
            self._change.wait_for(lambda: self._results or self._ended or self._stop)
            if self._results:
                result = self._results.popleft()
                self._waiting -= self._counted(result)
                self._change.notify_all()
                return result
        if self._error is not None and not self._stop:  # what fails while it is being stopped is no error
            raise self._error
        raise StopIteration

    def close(self) -> None:
        """Stop the producer at its next result and wait for it."""
        with self._change:
            self._stop = True
            self._results.clear()
            self._waiting = 0
            self._change.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def waiting(self) -> int:
        """Counted results that the consumer could take at once."""
        return self._waiting
