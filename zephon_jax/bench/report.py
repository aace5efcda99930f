"""All runs of a pipeline side by side, in words and as plain values: what `benchmark` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from zephon_jax.bench.gil import gil_shares
from zephon_jax.bench.measure import Run, SourceRun, cores, python_version, run_for, source_for
from zephon_jax.bench.verdict import CROWDED, Verdict, holds_gil, verdict_of
from zephon_jax.errors import ConfigurationError, ZephonError
from zephon_jax.pipeline import Pipeline
from zephon_jax.plan.compile import compile_plan
from zephon_jax.plan.explain import worker_count

__all__ = ["EXECUTORS", "Report", "benchmark", "checked_executors", "failed_run"]

EXECUTORS = ("inline", "threads", "processes")
_NO_BATCH = "no batch came out of the data: fewer rows than one batch needs, or operators let nothing through"
_ONE_BATCH = "one batch came out of the data and no more, so there is no rate: measure with more data"


@dataclass(frozen=True, slots=True)
class Report:
    """Runs in the order of the executors asked for; `source` is fetch alone in one thread. `str(report)` is for people.

    `gil`: operator → the part of the time for which other threads waited while it ran, of operators in front of the first
    that keeps records back; above a half it is said to hold the lock.
    """

    runs: tuple[Run, ...]
    source: SourceRun
    gil: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def fastest(self) -> Run | None:
        """The run with the most rows a second; None if none worked."""
        done = [run for run in self.runs if _measured(run)]
        return max(done, key=lambda run: run.per_s(run.rows), default=None)

    def verdict(self, executor: str | None = None) -> Verdict | None:
        """What holds this run back, or the fastest one; None if it did not work."""
        run = self.fastest if executor is None else next((r for r in self.runs if r.executor == executor), None)
        return None if run is None else self._verdict_of(run)

    def _verdict_of(self, run: Run) -> Verdict | None:
        others = {r.executor: r.per_s(r.rows) if _measured(r) else 0.0 for r in self.runs if r is not run}
        return verdict_of(run, self.source, self.gil, others)

    def as_plain(self) -> dict[str, Any]:
        """Everything as values that JSON can carry, rates and verdicts included."""
        runs = [
            asdict(run)
            | {
                "rows_per_s": run.per_s(run.rows),
                "tokens_per_s": None if run.tokens is None else run.per_s(run.tokens),
                "bytes_per_s": run.per_s(run.bytes),
                "batches_per_s": run.per_s(run.batches),
                "verdict": asdict(found) if (found := self._verdict_of(run)) else None,
            }
            for run in self.runs
        ]
        best = self.fastest
        return {
            "cores": cores(),
            "runs": runs,
            "source": asdict(self.source) | {"records_per_s": self.source.records_per_s},
            "gil": dict(self.gil),
            "fastest": None if best is None else best.executor,
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield (
            f"{cores()} cores, Python {python_version()}; the source alone (fetch, one thread): "
            f"{self.source.records_per_s:,.0f} records/s, first after {self.source.first_s:.2f} s"
        )
        yield ""
        yield (
            f"{'executor':12s}{'workers':>8s}{'first batch':>13s}{'batches/s':>12s}{'rows/s':>12s}{'tokens/s':>14s}"
            f"{'MB/s':>9s}{'cores used':>12s}{'peak MB':>9s}"
        )
        for run in self.runs:
            if run.error is not None:
                yield f"{run.executor:12s}{run.workers:8d}  {run.error}"
                continue
            if not run.passes:
                yield f"{run.executor:12s}{run.workers:8d}  {_NO_BATCH}"
                continue
            if not run.batches:
                yield f"{run.executor:12s}{run.workers:8d}{run.first_batch_s:11.3f} s  {_ONE_BATCH}"
                continue
            tokens = "-" if run.tokens is None else f"{run.per_s(run.tokens):,.0f}"
            yield (
                f"{run.executor:12s}{run.workers:8d}{run.first_batch_s:11.3f} s{run.per_s(run.batches):12,.1f}"
                f"{run.per_s(run.rows):12,.0f}{tokens:>14s}{run.per_s(run.bytes) / 1e6:9,.1f}"
                f"{run.per_s(run.cpu_s):12.2f}{run.memory_bytes / 1e6:9,.0f}"
            )
        for run in self.runs:
            if _measured(run):
                yield from self._stages(run)
        best = self.fastest
        if best is not None and (found := self.verdict()) is not None:
            yield ""
            yield f"Fastest here: {best.executor}. {found}"

    def _stages(self, run: Run) -> Iterator[str]:
        yield ""
        waits = f"consumer waited {_percent(run.wait_s, run)}, lanes for workers {_percent(run.workers_wait_s, run)}"
        again = f", {run.passes} passes over the data" if run.passes > 1 else ""
        if (others := run.per_s(run.others_cpu_s)) > CROWDED * run.cores:
            again += f", while other processes used {others:.1f} cores (expect more on a quiet machine)"
        yield f"{run.executor}, {run.seconds:.1f} s after the first batch{again}: {waits}"
        for o in run.operators:
            each = f"{1e6 * o.busy_s / o.records_in:10.1f} µs a record" if o.records_in else ""
            held = {True: "holds the GIL", False: "leaves the GIL", None: ""}[holds_gil(self.gil, o.name)]
            yield f"  {o.name:32s}{o.kind:12s}busy {_percent(o.busy_s, run):>6s} {each:22s} {held}".rstrip()
        if (found := self._verdict_of(run)) is not None:
            yield f"  -> {found}"


def _measured(run: Run) -> bool:
    """Whether there are figures: it ran, and batches came after the first."""
    return run.error is None and run.seconds > 0 and run.batches > 0


def _percent(seconds: float, run: Run) -> str:
    return f"{100 * run.per_s(seconds):.0f} %"


def checked_executors(executors: Sequence[str]) -> tuple[str, ...]:
    """The executors, without repetition; checked before anything runs."""
    if isinstance(executors, str) or not executors or not all(isinstance(one, str) and one for one in executors):
        raise ConfigurationError(f"executors={executors!r}: give names such as {list(EXECUTORS)}")
    if wrong := [one for one in executors if one not in (*EXECUTORS, "auto")]:
        raise ConfigurationError(f"executor {wrong[0]!r}: there are {[*EXECUTORS, 'auto']}")
    return tuple(dict.fromkeys(executors))


def checked_seconds(seconds: float) -> float:
    """Above 0 and finite."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
        raise ConfigurationError(
            f"seconds={seconds!r}: give a number above 0, and a second or more for figures to trust"
        )
    return float(seconds)


def benchmark(
    pipeline: Pipeline,
    *,
    seconds: float = 3.0,
    executors: Sequence[str] = EXECUTORS,
    progress: Callable[[str], object] | None = None,
) -> Report:
    """Run a pipeline on each executor for `seconds`, and say how fast it is and which stage holds it back.

    Runs in this process, one after the other, after its source alone; data that ends sooner is begun again. An executor that
    refuses the pipeline is reported in its run's `error`; that a run fails on the way is raised. Memory is that of this
    process with all that it held before: `zephon-jax bench` gives each executor a process of its own.

    Args:
        pipeline: It is iterated as by `iter(pipeline)`: all its lanes, NumPy batches, no devices.
        seconds: For each executor and the source, after the first batch.
        executors: As in `options(executor=)`.
        progress: Told what is run, before it is.

    >>> import zephon_jax as zj
    >>> from zephon_jax.bench import benchmark
    >>> work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("n", range(1000)))
    >>> report = benchmark(zj.Pipeline(work).batch(10), seconds=0.05, executors=["inline"])
    >>> report.runs[0].rows > 0, report.fastest.executor
    (True, 'inline')
    """
    if not isinstance(pipeline, Pipeline):
        raise ConfigurationError(f"benchmark needs a Pipeline, got {type(pipeline).__name__}")
    chosen, seconds = checked_executors(executors), checked_seconds(seconds)
    tell = progress or (lambda _: None)
    tell("source")
    source = source_for(pipeline, seconds)
    gil = gil_shares(pipeline)
    runs: list[Run] = []
    for executor in chosen:
        tell(executor)
        try:
            runs.append(run_for(pipeline, executor, seconds))
        except ConfigurationError as error:
            runs.append(failed_run(pipeline, executor, error))
    if not any(run.error is None for run in runs):
        raise ConfigurationError("; ".join(f"{run.executor}: {run.error}" for run in runs))
    return Report(tuple(runs), source, gil)


def failed_run(pipeline: Pipeline, executor: str, error: ZephonError) -> Run:
    """In place of figures."""
    plan = compile_plan(pipeline.work, pipeline.operators, pipeline.settings)
    return Run(executor, worker_count(plan, cores()), cores(), error=str(error))
