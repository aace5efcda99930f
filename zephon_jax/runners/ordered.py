"""Who calls the stateless operators, and in which order results come back (rule O3).

A stage has a bounded window of tasks under way; they are popped in the order in which they were submitted, so the
records of a lane arrive as they were sent, whatever the workers do. Control (sentinels, ends) takes its place in the
same window. Any `concurrent.futures.Executor` will do: only `submit`, `Future.result` and `Future.cancel` are used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from typing import TypeVar

__all__ = ["map_inline", "map_ordered", "map_unordered"]

Item = TypeVar("Item")
Task = TypeVar("Task")
Result = TypeVar("Result")


def map_inline(
    fn: Callable[[Task], Result], items: Iterable[Task | Item], task_type: type[Task]
) -> Iterator[Result | Item]:
    """Apply `fn` to each item of `task_type`, pass the others on."""
    for item in items:
        yield fn(item) if isinstance(item, task_type) else item  # pyright: ignore[reportReturnType]


def map_ordered(
    executor: Executor, window: int, fn: Callable[[Task], Result], items: Iterable[Task | Item], task_type: type[Task]
) -> Iterator[Result | Item]:
    """As `map_inline`, with up to `window` tasks under way in the executor."""
    pending: deque[Future[Result] | Item] = deque()
    try:
        for item in items:
            if isinstance(item, task_type):
                pending.append(executor.submit(fn, item))
            else:
                pending.append(item)  # pyright: ignore[reportArgumentType]
            if len(pending) >= window:
                yield _resolve(pending.popleft())
        while pending:
            yield _resolve(pending.popleft())
    finally:  # the consumer went away, or a task failed: do not start what nobody will take
        for one in pending:
            if isinstance(one, Future):
                one.cancel()


def map_unordered(
    executor: Executor, window: int, fn: Callable[[Task], Result], items: Iterable[Task | Item], task_type: type[Task]
) -> Iterator[Result | Item]:
    """As `map_ordered`, but results come as they are ready. None passes control, which waits for all before it."""
    pending: set[Future[Result]] = set()
    try:
        for item in items:
            if isinstance(item, task_type):
                pending.add(executor.submit(fn, item))
                if len(pending) >= window:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            else:
                while pending:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
                yield item  # pyright: ignore[reportReturnType]
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    finally:
        for future in pending:
            future.cancel()


def _resolve(one: Future[Result] | Item) -> Result | Item:
    return one.result() if isinstance(one, Future) else one  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
