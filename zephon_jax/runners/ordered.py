"""In which order results of tasks come back (rule O3).

A stage has a bounded window of tasks under way; they are taken in the order in which they were submitted, so the
records of a lane arrive as they were sent, whatever the workers do. Control (sentinels, ends) takes its place in the
same window. Who runs a task, and what is done while it is waited for, is the caller's: `submit` and `take`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TypeVar

__all__ = ["bundled", "map_inline", "map_ordered", "map_unordered"]

Item = TypeVar("Item")
Task = TypeVar("Task")
Result = TypeVar("Result")

_LOOK_S = 0.1


def map_inline(
    fn: Callable[[Task], Result], items: Iterable[Task | Item], task_type: type[Task]
) -> Iterator[Result | Item]:
    """Apply `fn` to each item of `task_type`, pass the others on."""
    for item in items:
        yield fn(item) if isinstance(item, task_type) else item  # pyright: ignore[reportReturnType]


def bundled(
    items: Iterable[Task | Item], task_type: type[Task], size: Callable[[], int]
) -> Iterator[list[Task] | Item]:
    """Tasks that follow each other, in lists of up to `size()`: one hand-off for several. Control stays in its place."""
    bundle: list[Task] = []
    for item in items:
        if isinstance(item, task_type):
            bundle.append(item)
            if len(bundle) >= size():
                yield bundle
                bundle = []
            continue
        if bundle:
            yield bundle
            bundle = []
        yield item  # pyright: ignore[reportReturnType]
    if bundle:
        yield bundle


def map_ordered(
    submit: Callable[[Task], Future[Result]],
    take: Callable[[Future[Result]], Result],
    window: Callable[[], int],
    items: Iterable[Task | Item],
    task_type: type[Task],
) -> Generator[Result | Item, None, None]:
    """As `map_inline`, with up to `window()` tasks under way."""
    pending: deque[Future[Result] | Item] = deque()

    def resolved(one: Future[Result] | Item) -> Result | Item:
        return take(one) if isinstance(one, Future) else one  # pyright: ignore[reportUnknownArgumentType]

    try:
        for item in items:
            if isinstance(item, task_type):
                pending.append(submit(item))
            else:
                pending.append(item)  # pyright: ignore[reportArgumentType]
            if len(pending) >= window():
                yield resolved(pending.popleft())
        while pending:
            yield resolved(pending.popleft())
    finally:  # the consumer went away, or a task failed: do not start what nobody will take
        for one in pending:
            if isinstance(one, Future):
                one.cancel()


def map_unordered(
    submit: Callable[[Task], Future[Result]],
    take: Callable[[Future[Result]], Result],
    window: Callable[[], int],
    items: Iterable[Task | Item],
    task_type: type[Task],
    look: Callable[[Sequence[Future[Result]]], None] = lambda _: None,
) -> Generator[Result | Item, None, None]:
    """As `map_ordered`, but results come as they are ready. None passes control, which waits for all before it.

    While none is ready, `look` is called now and then, and may raise.
    """
    pending: list[Future[Result]] = []

    def first() -> Iterator[Result]:
        while not (done := [future for future in pending if future.done()]):
            look(pending)
            wait(pending, _LOOK_S, return_when=FIRST_COMPLETED)
        for future in done:
            pending.remove(future)
            yield take(future)

    try:
        for item in items:
            if isinstance(item, task_type):
                pending.append(submit(item))
                if len(pending) >= window():
                    yield from first()
            else:
                while pending:
                    yield from first()
                yield item  # pyright: ignore[reportReturnType]
        while pending:
            yield from first()
    finally:
        for future in pending:
            future.cancel()
