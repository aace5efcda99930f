"""A plan in words: stages, places, executors, parallelism, bounds of queues, eviction, replay filter."""

from __future__ import annotations

from zephon_jax.ops.base import Operator
from zephon_jax.plan.compile import Plan, Stage
from zephon_jax.plan.place import legs_of, place_name

__all__ = ["explain_plan", "stage_window", "worker_count"]


def worker_count(plan: Plan, cpus: int) -> int:
    """Threads or processes of the pool, or tasks at a time on an executor of the user's."""
    return plan.options.max_workers or max(1, min(8, cpus))


def stage_window(plan: Plan, workers: int) -> int:
    """Micro-batches of a lane that a stage may have under way: enough for all workers, two lanes overlapping."""
    return max(2, -(-2 * workers // min(plan.lanes, 2)))


def explain_plan(plan: Plan, workers: int) -> str:
    """Several lines of text; stable enough to diff, not a format."""
    o = plan.options
    pooled = o.executor != "inline"
    flush = f"flush every {plan.every} chunks" if plan.every else "no flushes"
    lines = [
        f"Pipeline: {plan.lanes} lanes, {_rows(plan)}",
        f"Work: {_describe(plan.work)}",
        f"Eviction: {plan.strategy}, {flush}",
        f"Replay: {_replay(plan)}",
        f"On broken data: {o.on_data_error}",
        *(f"Note: {note}" for note in plan.notes),
    ]
    window = stage_window(plan, workers)
    for i, stage in enumerate(plan.stages):
        last = i == len(plan.stages) - 1
        cap, ways = (window, workers) if stage.stateless and pooled else (1, 1)
        legs = legs_of(plan, stage.steps) if stage.stateless else []
        runners = [place_name(o, leg.place) for leg in legs] or ["inline"]
        lines.append(
            f"Stage[{i}] place=local runner={'+'.join(dict.fromkeys(runners))} cap={cap} "
            f"mode={'microbatches' if stage.stateless else 'lane_stream'} records={o.micro_batch_records or 'auto'}"
        )
        if "auto" in runners:
            lines.append("  auto: decided at the first batch, by measuring; see stats().operators then")
        names = [f"{step.op.describe()}@p{ways}" for step in stage.steps]
        if len(legs) > 1:  # then say which of them runs where
            places = [runner for leg, runner in zip(legs, runners, strict=True) for _ in leg.steps]
            names = [f"{name}:{place}" for name, place in zip(names, places, strict=True)]
        lines.append("  " + f" -[in_q={cap}]-> ".join(names))
        lines.append("" if last else f"  --[stage_out={cap}]-->")
    lines[-1] = f"Stage[{len(plan.stages)}] place=local runner=inline cap=1 mode=rows"
    tail = [f"{filter_name(plan)}@p1"]
    if plan.batch is not None:
        tail += [f"{plan.batch.describe()}@p1", *(f"{op.describe()}@p1" for op in plan.after_batch)]
    lines.append("  " + " -> ".join(tail))
    lines.append(f"  ==[final_prefetch={o.prefetch if pooled else 0}]==> pipeline_end")
    return "\n".join(lines)


def filter_name(plan: Plan) -> str:
    """The replay filter is named after the operator it sits next to."""
    if plan.batch is not None:
        return "batch_replay_filter"
    last: Stage = plan.stages[-1]
    op: Operator = last.steps[-1].op
    return f"{op.name}_replay_filter"


def _replay(plan: Plan) -> str:
    if not plan.options.deterministic:
        return "none: checkpoints are refused with deterministic=False"
    if not plan.replays_on_lengths:
        return "in full (a stateless operator stands behind an accumulator, or one needs payloads, or lengths that pad hides)"
    return f"on {'lengths' if plan.keeps_lengths else 'identities'}; only records still to be delivered are read again"


def _rows(plan: Plan) -> str:
    if plan.rows_per_lane is None:
        return "records one by one"
    return f"{plan.rows_per_lane} rows per lane and round, {plan.lanes * plan.rows_per_lane} rows per step"


def _describe(work: object) -> str:
    describe = getattr(work, "describe", None)
    return str(describe()) if callable(describe) else type(work).__qualname__
