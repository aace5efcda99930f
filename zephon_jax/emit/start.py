"""Iterators that deliver whole steps: how rounds of lanes become them, alone or with other processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from zephon_jax.checkpoint.codec import plain_values
from zephon_jax.checkpoint.marks import DatasetMark
from zephon_jax.coordinate.end import Policy
from zephon_jax.emit.agreed import Agreement, agreed, ended_alone
from zephon_jax.emit.iterator import PipelineIterator
from zephon_jax.emit.rows import HostRound, Padder, finished
from zephon_jax.emit.topology import Topology
from zephon_jax.engine.engine import Delivery, Engine
from zephon_jax.plan.compile import Plan

__all__ = ["step_iterator"]

_ordinals = itertools.count()


def step_iterator(
    plan: Plan,
    marks: Sequence[DatasetMark],
    cpus: int,
    topology: Topology,
    finish: Callable[[HostRound], Any],
    *,
    prefetch: int,
    dtypes: Mapping[str, Any] | None,
    end: Policy = "drop",
    accumulate: int | None = None,
) -> PipelineIterator:
    """An iterator over steps of all lanes together; `finish` makes what `next` returns of this process's rows."""
    assert plan.rows_per_lane is not None
    rows = plan.rows_per_lane
    agreement = _agreement(plan, marks, topology, end, prefetch, accumulate) if topology.processes > 1 else None

    def make(engine: Engine) -> Iterator[Delivery]:
        rounds = engine.rounds() if end == "drop" else engine.padded_rounds()
        if agreement is not None:
            rounds = agreed(engine, rounds, agreement)
        elif end == "pad":
            rounds = ended_alone(engine, rounds)
        padder = Padder(rows) if end == "pad" else None
        return finished(rounds, finish, dtypes=dtypes, padder=padder, accumulate=accumulate)

    return PipelineIterator(
        plan, marks, topology.lanes, cpus, make, by_round=True, prefetch=prefetch, topology=topology,
        rounds_per_step=accumulate or 1,
    )  # fmt: skip


def _agreement(
    plan: Plan, marks: Sequence[DatasetMark], topology: Topology, end: Policy, prefetch: int, accumulate: int | None
) -> Agreement:
    """The keys name the iterator by its number; that processes mean the same by it is compared before the first step."""
    from zephon_jax.coordinate.jaxkv import JaxStore

    assert plan.batch is not None
    built = {
        "plan": plain_values(plan.identity),
        "datasets": {mark.name: [mark.num_samples, mark.fingerprint] for mark in marks},
        "rows_per_lane": plan.rows_per_lane,
        "drop_last": plan.batch.drop_last,
        "end": end,
        "accumulate": accumulate,
    }
    ahead = max(2, 2 * prefetch * (accumulate or 1))
    prefix, timeout_s = f"zephon_jax/steps/{next(_ordinals)}/", plan.options.aggregate_timeout_s
    return Agreement(JaxStore(), prefix, topology, plan.lanes, end, ahead, timeout_s, built)
