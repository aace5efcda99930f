"""What a notebook shows of a pipeline: its plan as a flow from the datasets to `next()`, and `explain()` as its text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from zephon_jax.display.flow import Flow, FlowDataset, FlowOperator, FlowStage, flow_html
from zephon_jax.display.words import counted
from zephon_jax.ops.base import Operator
from zephon_jax.plan.compile import Plan
from zephon_jax.plan.explain import explain_plan, stage_window, worker_count
from zephon_jax.plan.place import legs_of, place_name

__all__ = ["Shown", "available_cpus", "flow_of"]

_NAMES: Final = ("op", "class", "function")  # of an identity: what the name of the operator says already


class Shown:
    """How a pipeline looks: `str()` is `explain()`, and a notebook draws it. Whoever derives from it has a plan."""

    def _plan(self) -> Plan:
        raise NotImplementedError

    def __str__(self) -> str:
        plan = self._plan()
        return explain_plan(plan, worker_count(plan, available_cpus()))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        plan = self._plan()
        return flow_html(flow_of(plan, worker_count(plan, available_cpus())))


def available_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def flow_of(plan: Plan, workers: int) -> Flow:
    """The plan in the words of the picture."""
    o = plan.options
    pooled = o.executor != "inline"
    window = stage_window(plan, workers)
    stages: list[FlowStage] = []
    waiting = 1
    for i, stage in enumerate(plan.stages):
        cap = window if stage.stateless and pooled else 1
        operators: list[FlowOperator] = []
        for leg in legs_of(plan, stage.steps) if stage.stateless else []:
            operators += [_operator(step.op, place_name(o, leg.place)) for step in leg.steps]
        if not stage.stateless:
            operators += [_operator(step.op, "in order") for step in stage.steps]
        kind = (
            f"{workers if pooled else 1} at a time, any worker"
            if stage.stateless
            else "one lane at a time, holds records"
        )
        before = "" if i == 0 else f"up to {counted(waiting, 'micro-batch', 'micro-batches')} of each lane on the way"
        waiting = cap
        stages.append(
            FlowStage(
                f"stage {i}: {kind}, micro-batches of {o.micro_batch_records or 'some hundred'} records",
                tuple(operators),
                before,
            )
        )
    if plan.batch is not None:
        behind = [_operator(op, "in order") for op in (plan.batch, *plan.after_batch)]
        before = "records; those that were delivered before a resume are dropped"
        stages.append(FlowStage(f"stage {len(stages)}: whole batches", tuple(behind), before))
    flush = f"flush every {plan.every} chunks" if plan.every else "no flushes"
    return Flow(
        datasets=tuple(_datasets(plan)),
        order=_order(plan),
        lanes=f"{counted(plan.lanes, 'lane')}, {flush}",
        stages=tuple(stages),
        ready=f"up to {counted(o.prefetch, 'batch', 'batches')} made ahead" if pooled else "made when asked for",
        step=_step(plan),
        notes=plan.notes,
    )


def _operator(op: Operator, place: str) -> FlowOperator:
    identity: Mapping[str, Any] = op.identity() or {}
    shown = [
        f"{name}={_value(value)}" for name, value in identity.items() if name not in _NAMES and value not in ([], None)
    ]
    return FlowOperator(op.describe(), ", ".join(shown), place)


def _value(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int, float, bool)) else str(value)
    return text if len(text) <= 200 else f"{text[:199]}…"


def _datasets(plan: Plan) -> list[FlowDataset]:
    weights = plan.work.mixture
    total = sum(weights.values()) if weights else 0
    found: list[FlowDataset] = []
    for dataset in plan.work.datasets_by_id.values():
        shards = list(dataset.shards)
        share = weights[dataset.name] / total if weights and total and dataset.name in weights else None
        found.append(FlowDataset(dataset.name, len(shards), sum(shard.num_samples for shard in shards), share))
    return found


def _order(plan: Plan) -> str:
    """A work source tells of shares, order and length; shares that stay the same are drawn, and need no words."""
    describe = getattr(plan.work, "describe", None)
    if not callable(describe):
        return type(plan.work).__qualname__
    text = str(describe())
    return text if plan.work.mixture is None else text.partition(" | ")[2]


def _step(plan: Plan) -> str:
    if plan.rows_per_lane is None:
        return "records, one by one"
    return f"{counted(plan.rows_per_lane, 'row')} per lane and round, {plan.lanes * plan.rows_per_lane} per step"
