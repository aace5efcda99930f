"""What became of a task elsewhere: a result or a failure, as plain parts that always arrive.

An exception that cannot be pickled, or that needs arguments to be made again, breaks whatever carries results between
processes. So a worker never raises: it describes the failure, with the traceback as text, and the exception itself only if
the worker has seen that it survives the way. Here too is what runs in the worker, the same on every kind of executor.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from zephon_jax.errors import text_of
from zephon_jax.plan.shipping import packed, unpacked
from zephon_jax.runners.watch import Watch

__all__ = [
    "ATTEMPTS",
    "LostException",
    "RemoteTraceback",
    "Stopped",
    "TaskLost",
    "Unknown",
    "opened",
    "perform",
    "run_elsewhere",
]

ATTEMPTS = 3
"""Times that a task is given to a worker which then dies."""
_DEEPEST_CAUSE = 8
_tasks: dict[str, Any] = {}


class TaskLost(Exception):
    """A task that nobody will finish: its worker died too often, or took too long."""


class RemoteTraceback(Exception):
    """The traceback of an exception raised in another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class LostException(Exception):
    """Stands for an exception that could not be pickled; its class has the name of the original's, its text is kept."""


class Stopped(Exception):
    """Raised by a task of several parts: `done` has the results of the first ones, `error` is what the next one raised."""

    def __init__(self, done: list[Any], error: BaseException):
        super().__init__(done, error)
        self.done, self.error = done, error


class Unknown(Exception):
    """The worker does not have the operators of this key yet."""


class _Failure(NamedTuple):
    kind: str
    text: str
    trace: str
    pickled: bytes | None
    cause: Any


def perform(
    key: str, blob: Any, parts: Sequence[Any], entering: Callable[[int | None], None] | None = None
) -> list[Any]:
    """Run the operators of `key` on a packed argument, in the worker. Returns a packed outcome for `opened`; never raises.

    `blob` has the operators the first time; `entering` is told which one is at work.
    """
    clock = _Clock(entering)
    result: Any = []
    error: BaseException | None = None
    try:
        task = _tasks.get(key)
        if task is None:
            if not len(blob):
                return packed(("unknown", None, {}, None, []))
            task = _tasks[key] = pickle.loads(blob)
        result = task(unpacked(parts), clock.entering)
        clock.entering(None)
    except Stopped as stopped:
        result, error = stopped.done, stopped.error
    except BaseException as raised:  # also SystemExit of an operator: the worker goes on
        error = raised
    try:
        return _outcome(clock, result, error)
    except Exception as refused:  # the result cannot be pickled; of several parts, the first ones may be
        error = TypeError(f"what it returned cannot be sent to the main process: {refused}")
        error.__cause__ = refused
        clock.entering(None)
        return _outcome(
            clock, list(itertools.takewhile(_can_be_packed, result if isinstance(result, list) else ())), error
        )


def _outcome(clock: _Clock, result: Any, error: BaseException | None) -> list[Any]:
    if error is None:
        return packed(("ok", result, clock.seconds, None, []))
    return packed(("failed", _described(error, 0), clock.seconds, clock.operator, result))


def _can_be_packed(value: Any) -> bool:
    try:
        packed(value)
    except Exception:  # no error: whoever asks tells it
        return False
    return True


def run_elsewhere(key: str, blob: bytes, parts: list[bytes]) -> list[bytes]:
    """As `perform`, in bytes: what is submitted to executors of others."""
    return [bytes(part) for part in perform(key, blob, [bytearray(part) for part in parts])]


def opened(parts: Sequence[Any], watch: Watch) -> Any:
    """The result, in the main process; the watch learns of seconds, and of the operator that failed.

    Raises:
        Unknown: Send the operators as well.
        Stopped: As the task raised it.
        Exception: What the task raised, with its traceback as `__cause__`, or a `LostException` of its name.
    """
    kind, value, seconds, operator, done = unpacked(parts)
    if kind == "unknown":
        raise Unknown
    watch.entering(None)
    watch.add(seconds)
    if kind == "failed":
        watch.operator = operator
        if done:
            raise Stopped(done, _restored(value))
        raise _restored(value)
    return value


class _Clock(Watch):
    __slots__ = ("_tell",)

    def __init__(self, entering: Callable[[int | None], None] | None):
        super().__init__()
        self._tell = entering

    def entering(self, operator: int | None) -> None:
        super().entering(operator)
        if self._tell is not None:
            self._tell(operator)


def _described(error: BaseException, depth: int) -> _Failure:
    ours = type(error).__module__.startswith("zephon_jax.")
    cause = error.__cause__ if ours and depth < _DEEPEST_CAUSE else None
    text = text_of(error)
    trace = "".join(traceback.format_exception(error))
    return _Failure(
        type(error).__qualname__, text, trace, _proven(error), None if cause is None else _described(cause, depth + 1)
    )


def _proven(error: BaseException) -> bytes | None:
    """The exception as bytes, if it comes out of them as what it was."""
    try:
        blob = b"".join(packed(error)[:1])
        again = unpacked([blob])
        return blob if type(again) is type(error) and str(again) == str(error) else None
    except BaseException:  # anything may happen in methods of the user's: then it does not survive
        return None


def _restored(failure: Any) -> BaseException:
    kind, text, trace, blob, cause = failure
    error: BaseException = type(kind, (LostException,), {"__module__": LostException.__module__})(text)
    if blob is not None:
        with contextlib.suppress(BaseException):  # as above: what is known of it is shown
            error = unpacked([blob])
    error.__cause__ = _restored(cause) if cause is not None else RemoteTraceback(trace)
    return error
