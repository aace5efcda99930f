"""Where each stateless operator runs: with the process that reads, or in workers elsewhere.

Operators of Python code gain from processes; reading stays here unless samples come from files, whose description is
small, one by one. Samples that are held in memory are never copied to a worker as a whole: they are fetched here, and sent.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Literal, NamedTuple

from zephon_jax.ops.fetch import Fetch
from zephon_jax.options import Options
from zephon_jax.plan.compile import Plan, Step
from zephon_jax.plan.shipping import ship_within

__all__ = ["Leg", "can_read_elsewhere", "legs_as_placed", "legs_of", "place_name", "uses_remote"]

_FETCH_BYTES = 4 << 20
Place = Literal["here", "remote", "auto"]
"""Where a leg runs: in threads of this process, elsewhere, or where the first micro-batches say that it should."""


class Leg(NamedTuple):
    """Steps of one stage that run in one go at one place."""

    steps: tuple[Step, ...]
    place: Place


def legs_of(plan: Plan, steps: Sequence[Step]) -> list[Leg]:
    """A stateless stage, cut where the place changes."""
    after = [step for step in steps if step.index >= 0]
    return legs_as_placed(steps, [_place(plan, step, after) for step in steps])


def legs_as_placed(steps: Sequence[Step], places: Sequence[Place]) -> list[Leg]:
    """These steps, neighbours at one place together."""
    legs: list[Leg] = []
    for step, place in zip(steps, places, strict=True):
        if legs and legs[-1].place == place:
            legs[-1] = Leg((*legs[-1].steps, step), place)
        else:
            legs.append(Leg((step,), place))
    return legs


def uses_remote(plan: Plan) -> bool:
    """Whether any operator runs elsewhere."""
    return any(leg.place == "remote" for stage in plan.stages if stage.stateless for leg in legs_of(plan, stage.steps))


def place_name(options: Options, place: Place) -> str:
    """For `explain()` and for errors."""
    if options.executor == "inline":
        return "inline"
    if place != "remote":
        return "threads" if place == "here" else "auto"
    return type(options.executor).__name__ if isinstance(options.executor, Executor) else "processes"


def _place(plan: Plan, step: Step, after: Sequence[Step]) -> Place:
    executor = plan.options.executor
    chosen = _chosen(plan.options, plan.names_by_index[step.index])
    if executor == "inline" or isinstance(executor, ThreadPoolExecutor) or chosen == "threads":
        return "here"
    if chosen is not None:
        return "remote"
    if executor in ("threads", "auto"):
        return "here" if executor == "threads" else "auto"
    if isinstance(step.op, Fetch):
        # Worth it only where what is read is worked on at once: else whole samples would come back as they are.
        worked_on = bool(after) and _place(plan, after[0], ()) == "remote"
        return "remote" if worked_on and can_read_elsewhere(plan, step.op) else "here"
    return "remote"


def can_read_elsewhere(plan: Plan, fetch: Fetch) -> bool:
    """Whether reading may go along: samples of files, and no blocks that are larger than a micro-batch. Threads share such
    blocks, processes would decode each its own.
    """
    return fetch.block_hint <= plan.options.first_records and _ships(fetch)


def _chosen(options: Options, name: str) -> str | None:
    chosen = dict(options.executors or {})
    return chosen.get(name, chosen.get(name.split("(")[0]))


@functools.lru_cache(maxsize=16)
def _ships(fetch: Fetch) -> bool:
    """Whether reading can go where the operators are: samples of files, described in a few bytes."""
    return fetch.reads_files and ship_within(fetch, _FETCH_BYTES) is not None
