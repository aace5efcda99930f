"""Which stage holds a run back, and what to do about it: figures in, words out. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zephon_jax.bench.measure import OperatorTime, Run, SourceRun

__all__ = ["CROWDED", "Verdict", "holds_gil", "verdict_of"]

_GIL = 0.5
"""An operator for which others wait longer than this part of the time is said to hold the lock."""
_FULL = 0.85
"""Of all cores: a machine this busy has nothing left to give."""
_SOURCE_LIMIT = 0.7
CROWDED = 0.15
"""Of the cores: beyond it the load of other processes shows in the figures."""
_BETTER = 1.1
"""Times as fast: less than this is noise."""
REST = "batching"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What holds a run back.

    `stage`: an operator's name, or "batching" for what is none: making batches and keeping books. `share`: of the time that
    `text` names. `advice`: what to do.
    """

    stage: str
    share: float
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.text}: {self.advice}"


def holds_gil(gil: Mapping[str, float], operator: str) -> bool | None:
    """None where it was not probed."""
    return gil[operator] > _GIL if operator in gil else None


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the words are made of: a run, what is known of its operators and source, and of the other runs."""

    run: Run
    source: SourceRun | None
    gil: Mapping[str, float]
    rows_per_s: Mapping[str, float]

    @property
    def full(self) -> bool:
        return self.run.cpu_s > _FULL * self.run.cores * self.run.seconds

    @property
    def crowded(self) -> bool:
        return self.run.others_cpu_s > CROWDED * self.run.cores * self.run.seconds

    def on(self, executor: str, why: str, otherwise: str) -> str:
        """Another executor is the advice, unless it was tried; `faster` has seen to those that are better."""
        own, other = self.run.per_s(self.run.rows), self.rows_per_s.get(executor)
        if other is None:
            return f"executor={executor!r}{why}"
        if not other:
            return f"executor={executor!r} was tried and gave nothing to measure; {otherwise}"
        if self.crowded:
            return (
                f"executor={executor!r} was tried and was no faster ({other / own:.2f} x), while other processes were on the "
                f"cores: measure again on a quiet machine; {otherwise}"
            )
        return f"executor={executor!r} was tried and is no faster ({other / own:.2f} x); {otherwise}"

    @property
    def faster(self) -> str | None:
        """The fastest of the other executors, if it was faster than this run: then nothing else is the advice."""
        own = self.run.per_s(self.run.rows)
        executor, other = max(self.rows_per_s.items(), key=lambda item: item[1], default=("", 0.0))
        return f"executor={executor!r}, which was {other / own:.1f} x as fast here" if other > _BETTER * own else None


def verdict_of(
    run: Run,
    source: SourceRun | None = None,
    gil: Mapping[str, float] | None = None,
    rows_per_s: Mapping[str, float] | None = None,
) -> Verdict | None:
    """None if nothing was measured. `rows_per_s`: of the runs on other executors, by executor."""
    if run.error is not None or not run.seconds or not run.batches:
        return None
    seen = _Seen(run, source, gil or {}, rows_per_s or {})
    in_workers = [o for o in run.operators if o.kind in ("read", "record")]
    in_order = [o for o in run.operators if o.kind not in ("read", "record")]
    if run.executor == "inline":
        rest = run.seconds - sum(o.busy_s for o in run.operators)
        slowest = max(run.operators, key=lambda o: o.busy_s)
        if rest > slowest.busy_s:
            return _rest(seen, rest / run.seconds)
        return _said(seen, slowest, run.seconds, "the working time")
    busy, slowest = sum(o.busy_s for o in in_workers), max(in_workers, key=lambda o: o.busy_s)
    working = max(run.seconds - run.blocked_s, 1e-9)
    # Threads that hold the lock in turns keep the lanes' thread from running: its waits look like work.
    locked = (
        run.executor == "threads" and sum(o.busy_s for o in in_workers if holds_gil(seen.gil, o.name)) > run.seconds / 2
    )
    if locked or run.workers_wait_s > working / 2 or busy > _FULL * run.workers * run.seconds:
        return _said(seen, slowest, busy, "the workers' time")
    rest = max(working - sum(o.busy_s for o in in_order) - run.workers_wait_s, 0.0)
    ordered = max(in_order, key=lambda o: o.busy_s, default=None)
    if ordered is None or ordered.busy_s < rest:
        return _rest(seen, rest / working)
    return _said(seen, ordered, working, "the time of the thread that runs in order")


def _said(seen: _Seen, slowest: OperatorTime, total_s: float, of_what: str) -> Verdict:
    share = min(1.0, slowest.busy_s / total_s) if total_s > 0 else 0.0
    held = holds_gil(seen.gil, slowest.name)
    how = " and holds the GIL" if held else ""
    text = f"{slowest.name} takes {100 * share:.0f} % of {of_what}{how}"
    return Verdict(slowest.name, share, text, _advice(seen, slowest, held))


def _rest(seen: _Seen, share: float) -> Verdict:
    return Verdict(
        REST,
        share,
        f"making batches, keeping books and handing over takes {100 * share:.0f} % of the working time, no operator more",
        seen.faster
        or "that is the framework's own share: more rows in a batch, larger micro_batch_records and fewer lanes make it smaller",
    )


def _advice(seen: _Seen, slowest: OperatorTime, held: bool | None) -> str:
    if seen.faster is not None:
        return (_reading_limit(seen, slowest) if slowest.kind == "read" else "") + seen.faster
    match slowest.kind:
        case "after batch":
            return "it runs in order on whole batches; as map or map_columns in front of batch() workers can share it"
        case "in order":
            fewer = (
                "it runs in order, in one thread of each process: fewer bins or a smaller buffer make it cheaper, and more "
                "processes (dp_degree) share its lanes"
            )
            if seen.run.executor == "inline":
                return seen.on("threads", " leaves the consumer's thread to it alone", fewer)
            return fewer
        case "read":
            return _advice_on_reading(seen, slowest, held)
        case "record":
            return _advice_on_records(seen, held)


def _advice_on_reading(seen: _Seen, fetch: OperatorTime, held: bool | None) -> str:
    run, limit = seen.run, _reading_limit(seen, fetch)
    cheaper = "fields= leaves out columns that nobody uses, and a larger shuffle_block_size= costs less a record"
    if run.executor == "inline":
        return limit + seen.on("threads", " reads ahead in several threads", cheaper)
    if not seen.full and not held:
        return limit + f"the cores are not busy: more threads (max_workers={2 * run.workers}) wait for storage together"
    return limit + cheaper


def _reading_limit(seen: _Seen, fetch: OperatorTime) -> str:
    """That the source can do no more, if so."""
    alone = seen.source.records_per_s if seen.source is not None else 0.0
    if not alone or seen.run.per_s(fetch.records_in) <= _SOURCE_LIMIT * alone:
        return ""
    return f"the source alone gives {alone:,.0f} records/s in one thread, so reading is the limit; "


def _advice_on_records(seen: _Seen, held: bool | None) -> str:
    run, cheaper = seen.run, "make it cheaper (map_columns takes many records at once), or feed from more hosts"
    if run.executor == "processes":
        if seen.full or run.workers >= run.cores:
            return f"{run.workers} processes share {run.cores} cores: {cheaper}"
        return f"{run.workers} processes share it; more (max_workers={run.cores}) help while cores are free"
    if held:
        return seen.on("processes", "", cheaper)
    if run.executor == "inline":
        if held is None and "processes" not in seen.rows_per_s:
            threads = "executor='threads', or " if "threads" not in seen.rows_per_s else ""
            return f"{threads}executor='processes' if it is Python code"
        return seen.on("threads", "", cheaper)
    if seen.full:
        return f"all {run.cores} cores are busy: {cheaper}"
    more = f"more threads (max_workers={2 * run.workers})"
    if held is None:
        return more if "processes" in seen.rows_per_s else f"executor='processes' if it is Python code, else {more}"
    return f"it leaves the GIL to others: {more}"
