"""Whether an operator holds the interpreter lock (GIL) while it works: seen from outside, by a thread that wants it.

An operator that holds the lock gains nothing from threads. The probe runs it in a thread on real records, while another
sleeps for a moment at a time: waking up late means that nobody else could run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from zephon_jax.bench.measure import inline_plan, micro_batches
from zephon_jax.engine.tasks import StepFailed, run_steps
from zephon_jax.errors import ZephonError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.pipeline import Pipeline
from zephon_jax.plan.compile import Step

__all__ = ["gil_shares", "share_held"]

_PROBE_S, _NAP_S, _CALL_S = 0.15, 0.0005, 0.05


def share_held(work: Callable[[], object], probe_s: float = _PROBE_S) -> float:
    """The part of the time, 0 to 1, for which others waited while `work` ran again and again in a thread."""
    done, failed = threading.Event(), list[BaseException]()

    def run() -> None:
        end = time.perf_counter() + probe_s
        try:
            while time.perf_counter() < end:
                work()
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=run, name="bench-gil", daemon=True)
    began = time.perf_counter()
    late_s = 0.0
    thread.start()
    while not done.is_set():
        before = time.perf_counter()
        time.sleep(_NAP_S)
        late_s += time.perf_counter() - before - _NAP_S
    thread.join()
    if failed:
        raise failed[0]
    return min(1.0, late_s / (time.perf_counter() - began))


def gil_shares(pipeline: Pipeline, tell: Callable[[str], object] = lambda _: None) -> dict[str, float]:
    """Operator → `share_held`, of those in front of the first that keeps records back, up to one that fails.

    `tell` is told each operator's name before it runs.
    """
    plan = inline_plan(pipeline)
    names, batch, shares = plan.names_by_index, next(micro_batches(plan), None), dict[str, float]()
    for step in plan.stages[0].steps:
        if batch is None or not len(batch):
            break
        tell(names[step.index])
        try:
            batch = batch.slice(0, _enough(step, batch))

            def work(step: Step = step, batch: MicroBatch = batch) -> None:
                run_steps((step,), batch)

            shares[names[step.index]] = share_held(work)
            batch = run_steps((step,), batch)[0]
        except (StepFailed, ZephonError, SystemExit):
            break  # the run itself will say so, with the record
    return shares


def _enough(step: Step, batch: MicroBatch) -> int:
    """Records that take a moment only: an operator may need a second for each."""
    began = time.perf_counter()
    run_steps((step,), batch.slice(0, 1))
    each_s = time.perf_counter() - began
    return max(1, min(len(batch), int(_CALL_S / max(each_s, 1e-9))))
