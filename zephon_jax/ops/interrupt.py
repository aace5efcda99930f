"""Stopping between records: a task that runs user code asks here, record by record, whether it is still wanted.

A thread cannot be ended from outside, so closing an iterator would otherwise wait for a whole micro-batch of a slow
function. The worker that runs a task says whose it is; outside of a worker nothing is ever stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Interrupted", "check_wanted", "run_while_wanted"]

Task = TypeVar("Task")
Result = TypeVar("Result")

_running = threading.local()


class Interrupted(Exception):
    """The iterator was closed; nobody waits for this task any more."""


def check_wanted() -> None:
    """Raise `Interrupted` if the task of this thread is no longer wanted."""
    stop: Any = getattr(_running, "stop", None)
    if stop is not None and stop.is_set():
        raise Interrupted


def run_while_wanted(stop: threading.Event, fn: Callable[[Task], Result], task: Task) -> Result:
    """Run a task in this thread, until `stop` is set."""
    _running.stop = stop
    try:
        return fn(task)
    finally:
        _running.stop = None
