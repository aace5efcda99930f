"""How a stage's micro-batches are run: by whom, how far ahead, how long at most, and what is said when nobody finishes.

A thread takes a micro-batch through all legs of a stage. Where a leg runs elsewhere the thread packs it, waits and unpacks
the answer; so whatever is slow or dies elsewhere is one thread's business, and order, windows and errors are the same for
all executors. Clocks are read here, never in operators.
"""

from __future__ import annotations

import atexit
import hashlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from zephon_jax.engine.sizes import RecordSizes
from zephon_jax.engine.tasks import Counted, StepFailed, run_steps
from zephon_jax.errors import ZephonError
from zephon_jax.metrics.counters import PipelineCounts
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.interrupt import Interrupted, run_while_wanted
from zephon_jax.plan.compile import Plan, Step
from zephon_jax.plan.explain import stage_window
from zephon_jax.plan.place import Leg, legs_of
from zephon_jax.plan.shipping import packed, ship
from zephon_jax.runners.ordered import map_inline, map_ordered, map_unordered
from zephon_jax.runners.others import ExecutorWorkers
from zephon_jax.runners.outcome import TaskLost
from zephon_jax.runners.processes import ProcessWorkers
from zephon_jax.runners.stop import Stop
from zephon_jax.runners.threads import Threads
from zephon_jax.runners.watch import Watch

__all__ = ["Stages"]

_GRACE_S, _EXIT_GRACE_S = 5.0, 0.5
"""Seconds that closing waits for operators which run in threads, and that the end of the interpreter does."""
_exiting = threading.Event()


class _Remote(Protocol):
    deaths: int

    def call(self, key: str, parts: Sequence[Any], watch: Watch, timeout_s: float | None) -> Any: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


class Stages:
    """Runs the stateless operators of a plan, for all lanes of a process.

    Raises ConfigurationError, when made, for operators that another process could not load.
    """

    def __init__(self, plan: Plan, workers: int, lanes: int, counts: PipelineCounts):
        self._plan, self._workers, self._counts = plan, workers, counts
        self._names = plan.names_by_index
        self._legs = {stage.steps: legs_of(plan, stage.steps) for stage in plan.stages if stage.stateless}
        self._keys: dict[tuple[Step, ...], str] = {}
        self._blobs: dict[str, bytes] = {}
        for legs in self._legs.values():
            for leg in legs:
                if leg.place == "remote":
                    self._ship(leg)
        window = stage_window(plan, workers)
        under_way = max(1, lanes * window * len(self._legs))
        self._sizes = RecordSizes(plan.options.prefetch_bytes / 2 / under_way, plan.options.micro_batch_records)
        self._window = window
        self._timeout_s = plan.options.operator_timeout_s
        self.stop = Stop()
        self._threads: Threads | None = None
        self._pool: Executor | None = None
        self._remote: _Remote | None = None
        self._watches: dict[Future[Counted], tuple[Watch, MicroBatch]] = {}
        self._lost = False

    def _ship(self, leg: Leg) -> None:
        for step in leg.steps:  # one by one first: the error is to name the operator
            ship(step, step.op.name) if len(leg.steps) > 1 else None
        blob = ship(partial(run_steps, leg.steps), " or ".join(step.op.name for step in leg.steps))
        key = hashlib.blake2b(blob, digest_size=16).hexdigest()
        self._keys[leg.steps], self._blobs[key] = key, blob

    def open(self) -> None:
        """Start threads and processes; in the thread of the caller, since `__main__` is hidden while processes start."""
        executor = self._plan.options.executor
        if executor == "inline" or self._pool is not None:
            return
        # What is registered last runs first: before the finalisers of iterators, which are as old as their iterators.
        atexit.unregister(_exiting.set)
        atexit.register(_exiting.set)
        if self._blobs:
            if isinstance(executor, Executor):
                self._remote = ExecutorWorkers(executor, self._blobs, self.stop)
            else:
                self._remote = ProcessWorkers(self._workers, self._blobs)
        if isinstance(executor, ThreadPoolExecutor):
            self._pool = executor
        else:
            # Where others do the work, a second thread for each packs and unpacks meanwhile.
            count = self._workers * (2 if self._remote is not None else 1)
            self._pool = self._threads = Threads(count, "zephon_jax-worker")

    # -- running ---------------------------------------------------------------------------------------------------
    @property
    def micro_batch_records(self) -> int:
        """Records for the next micro-batch: as the options say, fewer while they are large."""
        return self._sizes.records

    @property
    def deaths(self) -> int:
        """Workers that died and were replaced."""
        return self._remote.deaths if self._remote is not None else 0

    def __call__(self, steps: tuple[Step, ...], items: Iterator[Any]) -> Iterator[Any]:
        """The results of these steps for the micro-batches among `items`, in order; everything else passes through."""
        legs = self._legs[steps]
        if self._plan.options.executor == "inline":
            return map_inline(partial(self._inline, legs), items, MicroBatch)
        submit = partial(self._submit, legs)
        if self._plan.options.deterministic:
            return map_ordered(submit, self._take, self._window, items, MicroBatch)
        return map_unordered(submit, self._take, self._window, items, MicroBatch, self._look)

    def _inline(self, legs: Sequence[Leg], batch: MicroBatch) -> Counted:
        watch = Watch()
        result = self._through(legs, watch, batch)
        self._counted(watch)
        return result

    def _submit(self, legs: Sequence[Leg], batch: MicroBatch) -> Future[Counted]:
        self.open()
        assert self._pool is not None
        watch = Watch()
        future = self._pool.submit(run_while_wanted, self.stop, partial(self._in_thread, legs, watch), batch)
        self._watches[future] = watch, batch
        return future

    def _take(self, future: Future[Counted]) -> Counted:
        watch, batch = self._watches.pop(future)
        if not future.done():
            began = time.monotonic()
            self._wait(future, watch, batch)
            self._counts.waited_s += time.monotonic() - began
        result = future.result()
        self._counted(watch)
        return result

    def _wait(self, future: Future[Counted], watch: Watch, batch: MicroBatch) -> None:
        limit = self._timeout_s
        while not self.stop.settled(future, None if limit is None else max(0.005, watch.seconds_left(limit))):
            self._require_in_time(watch, batch)

    def _look(self, under_way: Sequence[Future[Counted]]) -> None:
        for future in under_way:
            if not future.done():
                self._require_in_time(*self._watches[future])

    def _require_in_time(self, watch: Watch, batch: MicroBatch) -> None:
        if self.stop.is_set():
            raise Interrupted
        limit, operator = self._timeout_s, watch.operator
        if limit is not None and operator is not None and not watch.elsewhere and watch.seconds_left(limit) <= 0:
            self._lost = True
            text = (
                f"gave no result within operator_timeout_s={limit:g}; its thread, which cannot be ended, is left behind"
            )
            raise self._failed(self._names[operator], batch) from TaskLost(_on(text, batch))

    def _counted(self, watch: Watch) -> None:
        for index, seconds in watch.seconds.items():
            self._counts.operators[self._names[index]].busy_s += seconds

    # -- in a thread of the pool -----------------------------------------------------------------------------------
    def _in_thread(self, legs: Sequence[Leg], watch: Watch, batch: MicroBatch) -> Counted:
        try:
            return self._through(legs, watch, batch)
        except Exception:
            raise
        except BaseException as error:  # SystemExit of an operator would end the trainer if it came out of `next`
            raise self._failed(self._at(watch, legs), batch) from error

    def _through(self, legs: Sequence[Leg], watch: Watch, batch: MicroBatch) -> Counted:
        counts: list[tuple[int, int, int]] = []
        for leg in legs:
            if leg.place == "here" or not len(batch):
                batch, more = run_steps(leg.steps, batch, watch.entering)
            else:
                batch, more = self._elsewhere(leg, watch, batch)
            counts += more
            self._sizes.saw(batch)
        watch.entering(None)
        return batch, counts

    def _elsewhere(self, leg: Leg, watch: Watch, batch: MicroBatch) -> Counted:
        assert self._remote is not None
        watch.entering(None)
        watch.elsewhere = True
        try:
            return self._remote.call(self._keys[leg.steps], packed(batch), watch, self._timeout_s)
        except TaskLost as lost:
            raise self._failed(self._at(watch, [leg]), batch) from TaskLost(_on(str(lost), batch))
        except (StepFailed, ZephonError, Interrupted):
            raise
        except Exception as error:
            raise StepFailed(self._at(watch, [leg]), None) from error
        finally:
            watch.elsewhere = False

    def _at(self, watch: Watch, legs: Sequence[Leg]) -> str:
        """The operator that a task is in, or all that it may be in."""
        if watch.operator is not None:
            return self._names[watch.operator]
        return " or ".join(self._names[step.index] for leg in legs for step in leg.steps)

    @staticmethod
    def _failed(operator: str, batch: MicroBatch) -> StepFailed:
        return StepFailed(operator, batch.origin.cursor(0))

    # -- the end ---------------------------------------------------------------------------------------------------
    def end(self) -> None:
        """Nobody waits for anything any more: tasks end at their next record, processes at once."""
        self.stop.set()
        if self._remote is not None:
            self._remote.kill()

    def close(self) -> list[str]:
        """`end`, and wait a moment for what has begun; the names of threads that still run after it."""
        self.end()
        grace_s = 0.05 if self._lost else _EXIT_GRACE_S if _exiting.is_set() else _GRACE_S
        left = self._threads.close(grace_s) if self._threads is not None else []
        for future in list(self._watches):
            future.cancel()
        self._watches.clear()
        if self._remote is not None:
            self._remote.close()
        return [] if self._lost or _exiting.is_set() else left


def _on(text: str, batch: MicroBatch) -> str:
    return f"{text}, in a micro-batch of {len(batch)} records that begins here"
