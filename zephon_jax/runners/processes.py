"""Worker processes of our own, one task at a time each, and a bounded answer to a worker that dies or hangs.

Each worker has a pipe and a block of shared memory to itself; a thread of the parent leases it for one task. So a death
concerns exactly the task that the worker had, a hung worker can be killed alone, and closing is killing. In the pool of
`concurrent.futures` one death breaks all tasks under way, a task that hangs cannot be ended, and the interpreter waits for it.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing import connection
from queue import SimpleQueue
from typing import Any

from zephon_jax.ops.interrupt import Interrupted
from zephon_jax.runners.hidden import hidden_main
from zephon_jax.runners.memory import Channel, SharedMemory
from zephon_jax.runners.outcome import ATTEMPTS, TaskLost, opened
from zephon_jax.runners.watch import Watch
from zephon_jax.runners.worker import serve

__all__ = ["ProcessWorkers"]

_DEATHS, _TASKS_PER_DEATH = 4, 1000
"""So many workers may die, and one more for each so many tasks done: an accident is survived, a habit is reported."""
_GRACE_S = 2.0

_live: weakref.WeakSet[ProcessWorkers] = weakref.WeakSet()


class _Died(Exception):
    """The worker is gone."""


class _Worker:
    def __init__(self) -> None:
        self.memory = SharedMemory() if hasattr(os, "memfd_create") else None
        here, there = hidden_main.Pipe()
        self.process = hidden_main.Process(
            target=serve, args=(there, self.memory), name="zephon_jax-worker", daemon=False
        )
        try:
            self.process.start()
        except BaseException:
            here.close()
            if self.memory is not None:
                self.memory.close()
            raise
        finally:
            there.close()
        self.channel = Channel(here, self.memory, parent=True)
        self.has: set[str] = set()

    def run(
        self, key: str, blob: bytes, parts: Sequence[Any], watch: Watch, timeout_s: float | None
    ) -> list[bytearray] | None:
        """The packed outcome, None if the time was up. Raises _Died."""
        try:
            self.channel.send(key, [b"" if key in self.has else blob, *parts])
            if not self._wait(watch, timeout_s):
                return None
            _, answer = self.channel.receive()
        except (EOFError, OSError, ValueError) as error:  # ValueError: the memory was closed under us
            raise _Died from error
        self.has.add(key)
        return answer

    def _wait(self, watch: Watch, timeout_s: float | None) -> bool:
        link, sentinel = self.channel.connection, self.process.sentinel
        if timeout_s is None:
            connection.wait([link, sentinel])
            return link.poll() or self._raise()
        turn, since = -1, time.monotonic()
        while not connection.wait([link, sentinel], min(0.5, max(0.005, timeout_s / 20))):
            now = self.channel.marked()
            if now[0] != turn:
                turn, since = now[0], time.monotonic()
                watch.entering(now[1])
            elif now[1] is not None and time.monotonic() - since > timeout_s:
                return False
        watch.operator = None
        return link.poll() or self._raise()

    @staticmethod
    def _raise() -> bool:
        raise _Died

    def end(self) -> int | None:
        """Kill it if it lives, and free what it had; its exit code if it had ended by itself."""
        self.process.join(0.2)  # one that closed its pipe is about to end
        code = self.process.exitcode
        self.process.kill()
        self.process.join(_GRACE_S)
        self.free()
        return code

    def free(self) -> None:
        self.channel.connection.close()
        if self.memory is not None:
            self.memory.close()
        if self.process.exitcode is not None:
            self.process.close()


class ProcessWorkers:
    """`count` processes. Make it in the thread of the caller: for the moment of a start, `__main__` is hidden."""

    def __init__(self, count: int, blobs: Mapping[str, bytes]):
        self._blobs, self._pid = dict(blobs), os.getpid()
        self._idle: SimpleQueue[_Worker | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._all: set[_Worker] = set()
        self._closed = False
        self._done = self.deaths = 0
        self._given_up = ""  # why no more workers are started
        _live.add(self)
        try:
            for _ in range(count):
                self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        with self._lock:
            if self._closed:
                raise Interrupted
            worker = _Worker()
            self._all.add(worker)
        self._idle.put(worker)

    def learn(self, blobs: Mapping[str, bytes]) -> None:
        """Operators that may be asked for from now on."""
        self._blobs = {**self._blobs, **blobs}

    @property
    def ready(self) -> bool:
        """Whether all workers have started: until then a task had to wait for an interpreter to do so."""
        try:
            return all(worker.channel.ready for worker in list(self._all))
        except ValueError:  # the memory was closed under us
            return True

    @property
    def shared_bytes(self) -> int:
        """Of the memory that workers share with this process; it is committed as it is touched."""
        return sum(worker.memory.size for worker in list(self._all) if worker.memory is not None)

    @property
    def pids(self) -> list[int]:
        """Of the workers that live."""
        return [pid for worker in list(self._all) if (pid := worker.process.pid) is not None]

    def call(
        self, key: str, parts: Sequence[Any], watch: Watch, timeout_s: float | None, attempts: int = ATTEMPTS
    ) -> Any:
        """Run the operators of `key` on a packed argument; blocks, for threads of the parent.

        `attempts`: times that it is given to a worker which then dies.

        Raises:
            TaskLost: Workers died of it, or an operator took longer than `timeout_s`.
            Interrupted: This was closed.
            Exception: What the task raised.
        """
        for attempt in range(1, attempts + 1):
            worker = self._lease()
            try:
                answer = worker.run(key, self._blobs[key], parts, watch, timeout_s)
            except _Died:
                died = self._replace(worker)
                if attempt == attempts:
                    raise TaskLost(f"{died} each of the {attempts} times that it was given these records") from None
                continue
            except BaseException:
                self._replace(worker)
                raise
            if answer is None:
                self._replace(worker)
                raise TaskLost(f"gave no result within operator_timeout_s={timeout_s:g}; its worker process was killed")
            with self._lock:
                self._done += 1
            self._idle.put(worker)
            return opened(answer, watch)
        raise AssertionError("unreachable")

    def _lease(self) -> _Worker:
        worker = self._idle.get()
        if worker is None or self._closed or self._given_up:
            self._idle.put(worker)  # for the next who waits
            if self._given_up and not self._closed:
                raise TaskLost(self._given_up)
            raise Interrupted
        return worker

    def _replace(self, worker: _Worker) -> str:
        """Another worker for this one; what became of it, in words."""
        with self._lock:
            if self._closed:
                raise Interrupted
            self._all.discard(worker)
        code = worker.end()
        if code is not None:
            with self._lock:
                self.deaths += 1
                too_many = self.deaths > _DEATHS + self._done // _TASKS_PER_DEATH
            if too_many:
                self._given_up = f"{_ended(code)}; {self.deaths} worker processes have died in {self._done} tasks"
                self._idle.put(None)  # nobody takes this one's place, and others may wait for it
                raise TaskLost(self._given_up)
        self._start()
        return _ended(code)

    def kill(self) -> None:
        """End all workers at once; tasks that wait for them raise Interrupted."""
        if os.getpid() != self._pid:  # a forked child has the numbers of its parent's workers
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._idle.put(None)
        for worker in self._all:
            worker.process.kill()

    def close(self) -> None:
        """As `kill`, and free what they had, once no task is under way."""
        if os.getpid() != self._pid:
            return
        self.kill()
        while self._all:
            worker = self._all.pop()
            worker.process.join(_GRACE_S)
            worker.free()


def _ended(code: int | None) -> str:
    if code is None:
        return "its worker process closed its pipe"
    if code >= 0:
        return f"its worker process ended with exit status {code}"
    hint = " (as the kernel does when memory runs out)" if -code == signal.SIGKILL else ""
    return f"its worker process was killed by {signal.Signals(-code).name}{hint}"


def _kill_all() -> None:
    for workers in list(_live):
        workers.kill()


# Before multiprocessing's own exit function, which waits for processes: that was registered when it was imported above.
atexit.register(_kill_all)
