"""One pipeline on one executor, run for some seconds; and its source alone. What is seen, not what it means."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from zephon_jax.bench.meters import PeakMemory, machine_cpu_s, tree_cpu_s
from zephon_jax.engine.tasks import StepFailed, run_steps
from zephon_jax.errors import WorkerError, text_of
from zephon_jax.metrics.stats import Stats
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.fetch import pointer_columns
from zephon_jax.origin import Origin, no_contributors
from zephon_jax.pipeline import Pipeline
from zephon_jax.plan.compile import Plan, compile_plan
from zephon_jax.plan.explain import worker_count

__all__ = ["OperatorTime", "Run", "SourceRun", "cores", "inline_plan", "micro_batches", "run_for", "source_for"]

Kind = Literal["read", "record", "in order", "after batch"]

_COUNTING = 0.02
"""The part of the time that counting tokens may take: beyond it batches are taken to be like those counted."""
_MOST_PASSES = 1000
_LANES = 16


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """What an operator did while it was measured. `busy_s`: of all workers together, with waits for the GIL.

    `kind`: "read" is fetch; "record" keeps nothing and may run anywhere; "in order" (a packer, a shuffle) and "after batch"
    share one thread with the lanes.
    """

    name: str
    kind: Kind
    records_in: int
    records_out: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """A pipeline on one executor. Everything but `first_batch_s` and `memory_bytes` is of the time after the first batch.

    `seconds`: how long that was, over all `passes` if the data ended in between. `tokens` is None where no field tells.
    `bytes`: of the arrays delivered. `cpu_s`: of this process and its workers; `others_cpu_s`: of all other processes of the
    machine meanwhile. `wait_s`: the consumer's in `next`; `workers_wait_s`: the lanes' for operators that keep nothing;
    `blocked_s`: the producer's for room in the queue. `memory_bytes`: the peak, without pages of mapped files. `error`: why it
    did not run; the figures are 0 then. `passes` is 0 where no batch came, `batches` where none came after the first.
    """

    executor: str
    workers: int
    cores: int
    first_batch_s: float = 0.0
    seconds: float = 0.0
    passes: int = 0
    batches: int = 0
    rows: int = 0
    tokens: int | None = None
    bytes: int = 0
    cpu_s: float = 0.0
    others_cpu_s: float = 0.0
    wait_s: float = 0.0
    workers_wait_s: float = 0.0
    blocked_s: float = 0.0
    memory_bytes: int = 0
    operators: tuple[OperatorTime, ...] = ()
    error: str | None = None

    def per_s(self, amount: float | None) -> float:
        """`amount` by the seconds; 0 where nothing was measured."""
        return (amount or 0) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class SourceRun:
    """Only fetch, in one thread: records and seconds. `first_s`: until the first micro-batch."""

    records: int
    seconds: float
    first_s: float

    @property
    def records_per_s(self) -> float:
        """0 if nothing was read."""
        return self.records / self.seconds if self.seconds else 0.0


def cores() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on(pipeline: Pipeline, executor: str) -> Pipeline:
    """The same pipeline on this executor; what the executor cannot have is left out."""
    if executor == "inline":
        return pipeline.options(executor="inline", executors=None, operator_timeout_s=None)
    return pipeline.options(executor=executor)


def inline_plan(pipeline: Pipeline) -> Plan:
    """What would run, for looking at its parts."""
    one = on(pipeline, "inline")
    return compile_plan(one.work, one.operators, one.settings)


# -- the whole -----------------------------------------------------------------------------------------------------
class _Counted:
    """Batches, rows, tokens and bytes; `spent_s` is the time that counting took."""

    def __init__(self) -> None:
        self.batches = self.rows = self.bytes = self._tokens = self._rows_counted = 0
        self._knows, self.spent_s = False, 0.0

    def add(self, batch: Any, is_record: bool, elapsed_s: float) -> None:
        self.batches += 1
        began = time.perf_counter()
        fields: Mapping[str, Any] = batch
        rows = 1 if is_record else max((len(v) for v in fields.values() if np.ndim(v)), default=1)
        self.rows += rows
        self.bytes += sum(_bytes_of(value) for value in fields.values())
        if self.spent_s <= _COUNTING * elapsed_s or not self._rows_counted:
            tokens = _tokens_of(fields)
            self._knows |= tokens is not None
            self._tokens += tokens or 0
            self._rows_counted += rows
        self.spent_s += time.perf_counter() - began

    @property
    def tokens(self) -> int | None:
        return self._tokens * self.rows // self._rows_counted if self._knows and self._rows_counted else None


def _tokens_of(fields: Mapping[str, Any]) -> int | None:
    """Places that hold a token: by segment ids where there are some, else all of `tokens` or `inputs`."""
    for name, value in fields.items():
        if name.endswith(("segment_ids", "segmentation")) and isinstance(value, np.ndarray) and value.dtype != object:
            return int(np.count_nonzero(value))
    value = fields.get("tokens", fields.get("inputs"))
    if not isinstance(value, np.ndarray):
        return None
    return sum(len(row) for row in value if np.ndim(row)) if value.dtype == object else value.size


def _bytes_of(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes if value.dtype != object else sum(_bytes_of(one) for one in value.flat)
    return len(value) if isinstance(value, (str, bytes)) else 8


def run_for(pipeline: Pipeline, executor: str, seconds: float, tell: Callable[[str], object] = lambda _: None) -> Run:
    """Iterate for so long after the first batch; from the beginning again where the data ends. Errors are the pipeline's.

    `tell` is told "first" before the first batch, and "rest" after it.
    """
    pipeline = on(pipeline, executor)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes on the pipeline are for those who train with it
        return _run_for(pipeline, executor, seconds, tell)


def _run_for(pipeline: Pipeline, executor: str, seconds: float, tell: Callable[[str], object]) -> Run:
    plan = compile_plan(pipeline.work, pipeline.operators, pipeline.settings)
    workers = 1 if executor == "inline" else worker_count(plan, cores())
    counted, parts, first_s, is_record = _Counted(), [], 0.0, plan.batch is None
    tell("first")
    with PeakMemory() as peak:
        while len(parts) < _MOST_PASSES and sum(part.seconds for part in parts) < seconds:
            began = time.perf_counter()
            with iter(pipeline) as it:
                if next(it, None) is None:
                    break
                if not parts:
                    first_s = time.perf_counter() - began
                    tell("rest")
                before, spent = it.stats(), counted.spent_s
                cpu, machine, start = tree_cpu_s(), machine_cpu_s(), time.perf_counter()
                left = seconds - sum(part.seconds for part in parts)
                batches = counted.batches
                while (now := time.perf_counter() - start) < left and (batch := next(it, None)) is not None:
                    counted.add(batch, is_record, now)
                elapsed = time.perf_counter() - start
                if executor == "inline":  # nothing else ran meanwhile
                    elapsed -= counted.spent_s - spent
                own = tree_cpu_s() - cpu
                others = max(0.0, machine_cpu_s() - machine - own)
                parts.append(_difference(plan, before, it.stats(), (elapsed, own, others)))
            if counted.batches == batches:
                break  # a pass has one batch: it is all start-up
    total = _summed(parts)
    return replace(
        total,
        executor=executor,
        workers=workers,
        cores=cores(),
        first_batch_s=first_s,
        passes=len(parts),
        batches=counted.batches,
        rows=counted.rows,
        tokens=counted.tokens,
        bytes=counted.bytes,
        memory_bytes=peak.bytes,
    )


def _difference(plan: Plan, before: Stats, after: Stats, spent: tuple[float, float, float]) -> Run:
    seconds, cpu_s, others_cpu_s = spent
    operators = tuple(
        OperatorTime(
            name,
            _kind(plan, name),
            now.records_in - before.operators[name].records_in,
            now.records_out - before.operators[name].records_out,
            now.busy_s - before.operators[name].busy_s,
        )
        for name, now in after.operators.items()
    )
    return Run(
        "",
        0,
        0,
        seconds=seconds,
        cpu_s=cpu_s,
        others_cpu_s=others_cpu_s,
        wait_s=after.wait_s - before.wait_s,
        workers_wait_s=after.workers_wait_s - before.workers_wait_s,
        blocked_s=after.blocked_s - before.blocked_s,
        operators=operators,
    )


def _summed(parts: list[Run]) -> Run:
    if not parts:
        return Run("", 0, 0)
    columns = zip(*(part.operators for part in parts), strict=True)
    operators = tuple(
        replace(
            each[0],
            records_in=sum(one.records_in for one in each),
            records_out=sum(one.records_out for one in each),
            busy_s=sum(one.busy_s for one in each),
        )
        for each in columns
    )
    return replace(
        parts[0],
        seconds=sum(part.seconds for part in parts),
        cpu_s=sum(part.cpu_s for part in parts),
        others_cpu_s=sum(part.others_cpu_s for part in parts),
        wait_s=sum(part.wait_s for part in parts),
        workers_wait_s=sum(part.workers_wait_s for part in parts),
        blocked_s=sum(part.blocked_s for part in parts),
        operators=operators,
    )


def _kind(plan: Plan, name: str) -> Kind:
    if any(op.name == name for op in plan.after_batch):
        return "after batch"
    names = plan.names_by_index
    for stage in plan.stages:
        for step in stage.steps:
            if names[step.index] == name:
                return "read" if step.index < 0 else "record" if stage.stateless else "in order"
    return "in order"


# -- the source alone ----------------------------------------------------------------------------------------------
def micro_batches(plan: Plan) -> Iterator[MicroBatch]:
    """Pointers as the lanes would draw them, a chunk of each lane in turn, still to be fetched."""
    work = plan.work
    if (samples := work.samples_to_measure()) is not None:  # only the order depends on it: any lengths will do here
        work = work.with_measured(np.ones(len(samples), np.int64))
    lanes = [(lane, work.clone_for_lane(lane, plan.lanes)) for lane in range(min(plan.lanes, _LANES))]
    most, chunk = plan.options.first_records, 0
    while lanes:
        for lane, source in list(lanes):
            found = source.next_chunk()
            if found is None:
                lanes.remove((lane, source))
                continue
            for start in range(0, len(found), most):
                offsets = np.arange(start, min(start + most, len(found)))
                origin = Origin.of_chunk(chunk, offsets, plan.depth)
                nothing = np.empty((2, 0), np.int32)
                yield MicroBatch(lane, pointer_columns(found, offsets), origin, no_contributors(plan.depth), nothing)
        chunk += 1


def source_for(pipeline: Pipeline, seconds: float) -> SourceRun:
    """Fetch for so long, in one thread, and do nothing with what came."""
    plan = inline_plan(pipeline)
    fetch = plan.stages[0].steps[:1]
    records, began, first_s, start = 0, time.perf_counter(), 0.0, None
    for batch in micro_batches(plan):
        try:
            out, _ = run_steps(fetch, batch)
        except (StepFailed, SystemExit) as failure:
            cause = failure.__cause__ if isinstance(failure, StepFailed) else failure
            name = fetch[0].op.name
            text = f"{name} raised {type(cause).__name__}: {text_of(cause)}; lane {batch.lane}"
            raise WorkerError(text, operator=name) from cause
        now = time.perf_counter()
        if start is None:
            start, first_s = now, now - began
            continue
        records += len(out)
        if now - start >= seconds:
            break
    return SourceRun(records, 0.0 if start is None else time.perf_counter() - start, first_s)


def python_version() -> str:
    """For the report's first line."""
    return ".".join(map(str, sys.version_info[:3]))
