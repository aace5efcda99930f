"""Threads that run tasks in the order of submission, and that the interpreter does not wait for.

`concurrent.futures.ThreadPoolExecutor` joins its threads when the interpreter exits, so one operator that hangs would
keep the process from ending for ever. These are daemons: whoever closes them waits a bounded time, and says what still ran.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, TypeVar

__all__ = ["Threads"]

Result = TypeVar("Result")
_Task = tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Threads(Executor):
    """At most `count` threads, started as tasks come."""

    def __init__(self, count: int, name: str):
        self._count, self._name = count, name
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def grow(self, count: int) -> None:
        """Allow so many threads from now on."""
        self._count = max(self._count, count)

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """As `Executor.submit`."""
        future: Future[Result] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name}: tasks cannot be submitted any more")
            self._tasks.put((future, fn, args, kwargs))
            if len(self._threads) < self._count:
                name = f"{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As `Executor.shutdown`; with `wait`, without a bound."""
        self._close(cancel_futures)
        if wait:
            for thread in self._threads:
                thread.join()

    def close(self, grace_s: float) -> list[str]:
        """Cancel what has not begun and wait so long for the rest; the names of threads that still run."""
        self._close(True)
        deadline = time.monotonic() + grace_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return [t.name for t in self._threads if t.is_alive() and t is not threading.current_thread()]

    def _close(self, cancel: bool) -> None:
        with self._lock:
            self._closed = True
            kept: list[_Task] = []
            while not self._tasks.empty():
                task = self._tasks.get()
                if task is not None and not (cancel and task[0].cancel()):
                    kept.append(task)
            for task in kept:
                self._tasks.put(task)
            for _ in self._threads:
                self._tasks.put(None)


def _work(tasks: SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        future, fn, args, kwargs = task
        del task
        if not future.set_running_or_notify_cancel():
            continue
        try:
            result = fn(*args, **kwargs)
        except BaseException as error:  # it belongs to whoever waits for the task
            future.set_exception(error)
        else:
            future.set_result(result)
            del result
        del future, fn, args, kwargs  # a thread that waits for its next task keeps no micro-batch alive
