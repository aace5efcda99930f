"""Tasks on an executor that somebody else runs: a pool, a Dask or Ray cluster, MPI ranks.

Only `submit`, and of its futures `result`, `done` and `cancel`, are used. Operators go along with the first tasks, until
each worker knows them. The executor is its owner's: it is never shut down here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor
from typing import Any

from zephon_jax.ops.interrupt import Interrupted
from zephon_jax.runners.outcome import ATTEMPTS, TaskLost, Unknown, opened, run_elsewhere
from zephon_jax.runners.stop import Stop
from zephon_jax.runners.watch import Watch

__all__ = ["ExecutorWorkers"]

_SMALL_BYTES = 100_000
"""Operators up to this size travel with every task: cheaper than asking."""


class ExecutorWorkers:
    """Calls on an executor of somebody else's."""

    deaths = 0
    ready = True

    def __init__(self, executor: Executor, blobs: Mapping[str, bytes], stop: Stop):
        self._executor, self._blobs, self._stop = executor, dict(blobs), stop

    def call(
        self, key: str, parts: Sequence[Any], watch: Watch, timeout_s: float | None, attempts: int = ATTEMPTS
    ) -> Any:
        """As `ProcessWorkers.call`; `timeout_s` counts from the submission, since nobody says when a task begins."""
        blob, plain = self._blobs[key], [bytes(part) for part in parts]
        first = blob if len(blob) <= _SMALL_BYTES else b""
        for attempt in range(1, attempts + 1):
            try:
                try:
                    return opened(self._run(key, first, plain, timeout_s), watch)
                except Unknown:
                    return opened(self._run(key, blob, plain, timeout_s), watch)
            except _Failed as failure:
                error = failure.error
                if attempt == attempts or isinstance(error, BrokenExecutor):
                    what = f"{type(self._executor).__name__} gave no result: {type(error).__name__}: {error}"
                    raise TaskLost(what) from error
                self.deaths += 1
        raise AssertionError("unreachable")

    def _run(self, key: str, blob: bytes, parts: list[bytes], timeout_s: float | None) -> list[bytes]:
        try:
            future = self._executor.submit(run_elsewhere, key, blob, parts)
        except Exception as error:
            raise _Failed(error) from error
        if not self._stop.settled(future, timeout_s):
            future.cancel()
            if self._stop.is_set():
                raise Interrupted
            raise TaskLost(
                f"gave no result within operator_timeout_s={timeout_s:g} after it was submitted to "
                f"{type(self._executor).__name__}"
            )
        try:
            return future.result()
        except BaseException as error:  # the task itself never raises: this is the executor's
            raise _Failed(error) from error

    def kill(self) -> None:
        """Nothing of it is ours."""

    close = kill


class _Failed(Exception):
    def __init__(self, error: BaseException):
        super().__init__(error)
        self.error = error
