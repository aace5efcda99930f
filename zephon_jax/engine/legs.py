"""How a stage's micro-batches are run: by whom, how far ahead, how long at most, and what is said when nobody finishes.

A thread takes a bundle of micro-batches through all legs of a stage. Where a leg runs elsewhere the thread packs it, waits and
unpacks the answer; so whatever is slow or dies elsewhere is one thread's business, and order, windows and errors are the same
for all executors. Clocks are read here, never in operators.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, Final

from zephon_jax.engine.bundles import Done, Pace, run_bundle
from zephon_jax.engine.carrier import Carrier, Work, failed, lost_in
from zephon_jax.engine.sizes import RecordSizes, UnderWay, batch_bytes, cut_to_size
from zephon_jax.engine.tasks import Counted, run_steps
from zephon_jax.engine.trial import Trial
from zephon_jax.errors import ConfigurationError
from zephon_jax.metrics.counters import PipelineCounts
from zephon_jax.metrics.stats import Buffer
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.fetch import Fetch
from zephon_jax.ops.interrupt import Interrupted, run_while_wanted
from zephon_jax.plan.choose import Place, choose
from zephon_jax.plan.compile import Plan, Step
from zephon_jax.plan.explain import stage_window
from zephon_jax.plan.place import Leg, can_read_elsewhere, legs_as_placed, legs_of
from zephon_jax.plan.shipping import ship
from zephon_jax.runners.ordered import bundled, map_inline, map_ordered, map_unordered
from zephon_jax.runners.others import ExecutorWorkers
from zephon_jax.runners.outcome import TaskLost
from zephon_jax.runners.processes import ProcessWorkers
from zephon_jax.runners.stop import Stop
from zephon_jax.runners.threads import Threads
from zephon_jax.runners.watch import Watch
from zephon_jax.sources.recent import DECODED

__all__ = ["Stages"]

_GRACE_S, _EXIT_GRACE_S = 5.0, 0.5
"""Seconds that closing waits for operators which run in threads, and that the end of the interpreter does."""
_exiting = threading.Event()


_FIXED: Final[Mapping[str, Place | None]] = {"here": "threads", "remote": "processes", "auto": None}
"""Where `executors=` puts an operator, by the place of its leg."""


class Stages:
    """Runs the stateless operators of a plan, for all lanes of a process.

    Raises ConfigurationError, when made, for operators that another process could not load.
    """

    def __init__(self, plan: Plan, workers: int, lanes: int, counts: PipelineCounts):
        self._plan, self._workers, self._counts = plan, workers, counts
        self._names = plan.names_by_index
        self._legs = {stage.steps: legs_of(plan, stage.steps) for stage in plan.stages if stage.stateless}
        self._blobs: dict[str, bytes] = {}
        auto = plan.options.executor == "auto"
        window = stage_window(plan, workers)
        under_way = max(1, lanes * window * sum(stage.stateless for stage in plan.stages))
        ceiling, most = plan.options.prefetch_bytes / 2 / under_way, plan.options.micro_batch_records
        self._sizes = {steps: RecordSizes(ceiling, most, lanes) for steps in self._legs}
        self._under_way = UnderWay()
        self._timeout_s = plan.options.operator_timeout_s
        self._carrier = Carrier(self._names, self._timeout_s, patient=auto)
        for legs in self._legs.values():
            for leg in legs:
                if leg.place == "remote":
                    self._ship(leg)
                    for single in [Leg((step,), "remote") for step in leg.steps] if auto else []:  # for the measurement
                        self._ship(single)
                        self._carrier.asked.add(single.steps)
        self._trials = {steps: Trial(steps, workers > 1) for steps in self._legs} if auto else {}
        for leg in (leg for steps in self._trials for leg in self._legs[steps]):
            for step in leg.steps:
                undecided = counts.operators[self._names[step.index]]
                undecided.place = "processes" if leg.place == "remote" else "threads"
                undecided.why = "not decided yet: the first micro-batches are measured"
        self._in_order: set[tuple[Step, ...]] = set()  # stages that the producer runs itself
        self._paces = {steps: Pace(sizes) for steps, sizes in self._sizes.items()}
        self._window = window
        self.stop = Stop()
        self._threads: Threads | None = None
        self._pool: Executor | None = None
        self._starting = threading.Lock()
        self._watches: dict[Future[Done], tuple[Watch, list[MicroBatch]]] = {}
        self._held: dict[Future[Done], int] = {}
        self._lost = False

    def _ship(self, leg: Leg) -> None:
        for step in leg.steps:  # one by one first: the error is to name the operator
            ship(step, step.op.name) if len(leg.steps) > 1 else None
        blob = ship(partial(run_bundle, leg.steps), " or ".join(step.op.name for step in leg.steps))
        key = hashlib.blake2b(blob, digest_size=16).hexdigest()
        self._carrier.keys[leg.steps], self._blobs[key] = key, blob

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
                self._carrier.remote = ExecutorWorkers(executor, self._blobs, self.stop)
            else:
                self._carrier.remote = ProcessWorkers(self._workers, self._blobs)
        if isinstance(executor, ThreadPoolExecutor):
            self._pool = executor
        else:
            # Where others do the work, a second thread for each packs and unpacks meanwhile.
            count = self._workers * (2 if self._carrier.remote is not None else 1)
            self._pool = self._threads = Threads(count, "zephon_jax-worker")

    # -- running ---------------------------------------------------------------------------------------------------
    @property
    def micro_batch_records(self) -> int:
        """Records for the next micro-batch: as the options say, fewer while they are large."""
        first = self._plan.stages[0].steps
        trial, records = self._trials.get(first), self._sizes[first].records
        return records if trial is None else min(trial.records, records)

    @property
    def deaths(self) -> int:
        """Workers that died and were replaced."""
        return self._carrier.remote.deaths if self._carrier.remote is not None else 0

    def buffers(self) -> dict[str, Buffer]:
        """What waits between operators, and what is kept for all iterators of this process."""
        held, workers = self._under_way, self._carrier.remote
        found = {"records under way": Buffer(held.bytes, held.most_bytes, self._plan.options.prefetch_bytes // 2)}
        if isinstance(workers, ProcessWorkers):
            shared = workers.shared_bytes
            found["memory shared with processes"] = Buffer(shared, shared, shared)
        found["decoded blocks"] = Buffer(DECODED.cost, None, DECODED.limit)
        return found

    def __call__(self, steps: tuple[Step, ...], items: Iterator[Any]) -> Iterator[Any]:
        """The results of these steps for the micro-batches among `items`, in order; everything else passes through."""
        items = cut_to_size(items, self._sizes[steps])
        if self._plan.options.executor == "inline":
            return map_inline(partial(self._inline, steps), items, MicroBatch)
        return self._tried(steps, items) if steps in self._trials else self._pooled(steps, items)

    def _pooled(self, steps: tuple[Step, ...], items: Iterator[Any]) -> Iterator[Any]:
        legs, pace = self._legs[steps], self._paces[steps]
        work = partial(self._carrier.through, legs)
        if steps in self._in_order:
            for item in items:
                yield from self._produced(steps, work, item) if isinstance(item, MicroBatch) else (item,)
            return
        # A hand-off between threads is cheap, and what is under way is kept in mind until it is delivered.
        several = self._may_bundle and any(leg.place == "remote" for leg in legs)
        bundles = bundled(items, MicroBatch, lambda: pace.size if several else 1)
        submit, take = partial(self._submit, steps, work), partial(self._take, steps)
        sizes = self._sizes[steps]

        def window() -> int:
            return self._window if sizes.known else 1

        if self._plan.options.deterministic:
            results = map_ordered(submit, take, window, bundles, list)
        else:
            # Several at once also while nothing is known: what is slow is to be overtaken.
            results = map_unordered(submit, take, lambda: self._window, bundles, list, self._look)
        try:
            for result in results:
                if isinstance(result, Done):
                    yield from result.each()
                else:
                    yield result
        finally:
            results.close()  # an error that is kept would keep it open, and tasks that nobody will take would begin

    @property
    def _may_bundle(self) -> bool:
        # Nobody says when a task begins on an executor of others, so that a limit is one of the whole task.
        return self._timeout_s is None or not isinstance(self._carrier.remote, ExecutorWorkers)

    def _inline(self, steps: tuple[Step, ...], batch: MicroBatch) -> Counted:
        watch, given = Watch(), len(batch)
        counts: list[tuple[int, int, int]] = []
        for leg in self._legs[steps]:
            batch, more = run_steps(leg.steps, batch, watch.entering)
            counts += more
            watch.held = max(watch.held, batch_bytes(batch))
        watch.entering(None)
        self._under_way.ended(0, watch.held)
        self._finished(steps, watch, given)
        return batch, counts

    def _produced(self, steps: tuple[Step, ...], work: Work, batch: MicroBatch) -> Iterator[Counted]:
        """By the thread that produces batches."""
        watch = Watch()
        done = run_while_wanted(self.stop, partial(work, watch), [batch])
        self._under_way.ended(0, watch.held)
        self._finished(steps, watch, len(batch))
        return done.each()

    def _submit(self, steps: tuple[Step, ...], work: Work, batches: list[MicroBatch]) -> Future[Done]:
        self.open()
        assert self._pool is not None
        watch = Watch()
        future = self._pool.submit(run_while_wanted, self.stop, partial(work, watch), batches)
        self._watches[future] = watch, batches
        self._held[future] = held = self._sizes[steps].expected(sum(map(len, batches)))
        self._under_way.begun(held)
        return future

    def _take(self, steps: tuple[Step, ...], future: Future[Done], paced: bool = True) -> Done:
        watch, batches = self._watches.pop(future)
        if not future.done():
            began = time.monotonic()
            self._wait(future, watch, batches)
            self._counts.waited_s += time.monotonic() - began
        self._under_way.ended(self._held.pop(future), watch.held)
        done = future.result()
        self._finished(steps, watch, sum(map(len, batches)))
        if paced:
            self._paces[steps].took(sum(watch.seconds.values()), len(done.results))
        return done

    def _wait(self, future: Future[Done], watch: Watch, batches: list[MicroBatch]) -> None:
        limit = self._timeout_s
        while not self.stop.settled(future, None if limit is None else max(0.005, watch.seconds_left(limit))):
            self._require_in_time(watch, batches)

    def _look(self, under_way: Sequence[Future[Done]]) -> None:
        for future in under_way:
            if not future.done():
                self._require_in_time(*self._watches[future])

    def _require_in_time(self, watch: Watch, batches: list[MicroBatch]) -> None:
        if self.stop.is_set():
            raise Interrupted
        limit, operator = self._timeout_s, watch.operator
        if limit is not None and operator is not None and not watch.elsewhere and watch.seconds_left(limit) <= 0:
            self._lost = True
            text = (
                f"gave no result within operator_timeout_s={limit:g}; its thread, which cannot be ended, is left behind"
            )
            batch = batches[min(watch.at, len(batches) - 1)]
            raise failed(self._names[operator], batch) from TaskLost(lost_in(text, batch))

    def _finished(self, steps: tuple[Step, ...], watch: Watch, records: int) -> None:
        """A call for so many records is over: what it held and took is known, for the next ones and for `stats()`."""
        self._sizes[steps].saw(watch.held, records, sum(watch.seconds.values()))
        for index, seconds in watch.seconds.items():
            self._counts.operators[self._names[index]].busy_s += seconds

    # -- executor="auto" -------------------------------------------------------------------------------------------
    def _tried(self, steps: tuple[Step, ...], items: Iterator[Any]) -> Iterator[Any]:
        """As `_pooled`, after the first micro-batches have shown where these steps should run."""
        items = iter(items)
        for item in items:
            trial = self._trials.get(steps)
            if trial is None:  # it was decided meanwhile, for another lane
                yield from self._pooled(steps, chain([item], items))
                return
            if not isinstance(item, MicroBatch) or not len(item):
                yield from self._pooled(steps, iter([item]))
                continue
            # All is measured and decided before anything is handed on: other lanes run while this one waits in a yield.
            pair = trial.next == "pair"
            rest = list(_up_to_records(items)) if pair else []
            done: list[Done] = []
            if rest and isinstance(rest[-1], MicroBatch):
                beside = partial(self._one_by_one, partial(trial.beside, other=trial.pair()))
                under_way = [self._submit(steps, beside, [batch]) for batch in (item, rest.pop())]
                done = [self._take(steps, future, paced=False) for future in under_way]
            else:
                how = trial.warm if trial.next == "warm" else trial.alone
                under_way = self._submit(steps, partial(self._one_by_one, how), [item])
                done = [self._take(steps, under_way, paced=False)]
            pause = trial.pause() if pair else 0
            if trial.over:
                self._decide(steps, trial)
            elif pause:
                for step in steps:
                    self._counts.operators[
                        self._names[step.index]
                    ].why = "not decided yet: the machine is busy, it will be measured again"
            yield from done[0].each()
            yield from self._pooled(steps, iter(rest))
            for second in done[1:]:
                yield from second.each()
            if pause:
                yield from self._pooled(steps, _some(items, pause))

    def _one_by_one(self, how: Callable[..., MicroBatch], watch: Watch, batches: list[MicroBatch]) -> Done:
        """One micro-batch through single operators, for whoever measures them."""
        (batch,) = batches
        counts: list[tuple[int, int, int]] = []
        at = Leg((), "here")

        def run(step: Step, given: MicroBatch) -> MicroBatch:
            nonlocal at
            at = Leg((step,), "remote" if (step,) in self._carrier.keys else "here")
            done, error = self._carrier.leg(at, watch, [given])
            watch.entering(None)
            if error is not None:
                raise error
            counts.extend(done[0][1])
            watch.held = max(watch.held, batch_bytes(done[0][0]))
            return done[0][0]

        try:
            return Done([(how(run, batch), counts)], None)
        except BaseException as error:
            return Done([], self._carrier.caught(error, at, watch, batch))

    def _decide(self, steps: tuple[Step, ...], trial: Trial) -> None:
        fixed: dict[Step, Place | None] = {step: _FIXED[leg.place] for leg in self._legs[steps] for step in leg.steps}
        work = self._plan.work
        choice = choose(
            trial.figures([fixed[step] for step in steps], self._why_not_elsewhere),
            cpus=_cpus(),
            workers=self._workers,
            samples=None if work.endless else sum(map(len, work.datasets_by_id.values())),
            may_inline=self._timeout_s is None,
        )
        try:
            self._place(steps, choice.places)
        except (OSError, ConfigurationError) as error:  # it goes on in threads
            choice = choice.without_processes(f"processes could not be had: {error}")
            self._place(steps, choice.places)
        for step, place, why in zip(steps, choice.places, choice.reasons, strict=True):
            counts = self._counts.operators[self._names[step.index]]
            counts.place, counts.why = place, why
        del self._trials[steps]

    def _place(self, steps: tuple[Step, ...], places: Sequence[Place]) -> None:
        legs = legs_as_placed(steps, ["remote" if place == "processes" else "here" for place in places])
        for leg in legs:
            if leg.place == "remote" and leg.steps not in self._carrier.keys:
                self._ship(leg)
                if any((step,) in self._carrier.asked for step in leg.steps):
                    self._carrier.asked.add(leg.steps)
        if any(leg.place == "remote" for leg in legs):
            with self._starting:
                if isinstance(self._carrier.remote, ProcessWorkers):
                    self._carrier.remote.learn(self._blobs)
                elif not self.stop.is_set():
                    self._carrier.remote = ProcessWorkers(self._workers, self._blobs)
                    assert self._threads is not None
                    self._threads.grow(2 * self._workers)
        self._legs[steps] = legs
        if set(places) == {"inline"}:
            self._in_order.add(steps)

    def _why_not_elsewhere(self, step: Step) -> str:
        """Why this operator cannot run in another process; empty if it can."""
        if isinstance(step.op, Fetch) and not can_read_elsewhere(self._plan, step.op):
            return "what it reads cannot be sent in a few bytes, or is decoded in blocks that threads share"
        try:
            ship(step, step.op.name)
        except ConfigurationError as error:
            return str(error).split(". ")[0]
        return ""

    # -- the end ---------------------------------------------------------------------------------------------------
    def end(self) -> None:
        """Nobody waits for anything any more: tasks end at their next record, processes at once."""
        self.stop.set()
        with self._starting:  # processes that start at this moment are ended as well
            if self._carrier.remote is not None:
                self._carrier.remote.kill()

    def close(self) -> list[str]:
        """`end`, and wait a moment for what has begun; the names of threads that still run after it."""
        self.end()
        grace_s = 0.05 if self._lost else _EXIT_GRACE_S if _exiting.is_set() else _GRACE_S
        left = self._threads.close(grace_s) if self._threads is not None else []
        for future in list(self._watches):
            future.cancel()
        self._watches.clear()
        for held in self._held.values():
            self._under_way.ended(held)
        self._held.clear()
        if self._carrier.remote is not None:
            self._carrier.remote.close()
        return [] if self._lost or _exiting.is_set() else left


def _some(items: Iterator[Any], micro_batches: int) -> Iterator[Any]:
    """Items with so many micro-batches."""
    for item in items:
        yield item
        micro_batches -= isinstance(item, MicroBatch)
        if not micro_batches:
            return


def _up_to_records(items: Iterator[Any]) -> Iterator[Any]:
    """Items up to the next micro-batch that has records, which is the last one."""
    for item in items:
        yield item
        if isinstance(item, MicroBatch) and len(item):
            return


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
