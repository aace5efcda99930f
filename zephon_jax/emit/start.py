"""Iterators that deliver whole steps: how rounds of lanes become them, alone or with other processes."""

from __future__ import annotations

import hashlib
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
    agreement = _agreement(plan, marks, topology, end, prefetch * (accumulate or 1)) if topology.processes > 1 else None

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


def _agreement(plan: Plan, marks: Sequence[DatasetMark], topology: Topology, end: Policy, ahead: int) -> Agreement:
    """Everything that facts about lanes depend on is part of the keys; also which iterator of the run this is."""
    from zephon_jax.coordinate.jaxkv import JaxStore

    assert plan.batch is not None
    of = [
        plain_values(plan.identity),
        [list(mark[:3]) for mark in marks],
        plan.rows_per_lane,
        plan.batch.drop_last,
        end,
    ]
    digest = hashlib.blake2b(repr(of).encode(), digest_size=12).hexdigest()
    prefix = f"zephon_jax/end/{digest}/{next(_ordinals)}/"
    timeout_s = float(getattr(plan.options, "aggregate_timeout_s", 180.0))
    return Agreement(JaxStore(), prefix, topology, plan.lanes, end, max(2, 2 * ahead), timeout_s)
