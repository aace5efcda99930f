"""What a step looks like, and how many a pass has, as far as a plan tells without data. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zephon_jax.errors import ConfigurationError
from zephon_jax.ops.base import Fields
from zephon_jax.plan.compile import Plan

__all__ = ["require_field", "row_fields", "steps_per_pass"]


def row_fields(plan: Plan) -> Fields:
    """Shape and dtype of each field of a row; ConfigurationError names the operator that hides them."""
    if plan.batch is None:
        raise ConfigurationError("element_spec() needs a batch() in the pipeline")
    found: Fields | None = None
    hidden = "the source"
    operators = [step.op for stage in plan.stages for step in stage.steps]
    for op in (*operators, *plan.after_batch):
        before, found = found, op.fields(found)
        if found is None and (before is not None or op.name != "fetch"):
            hidden = op.name
    if found is None:
        raise ConfigurationError(
            f"{hidden}: what its records look like is not known without reading data. Shapes are known behind pack(); or take one "
            "step and look at it"
        )
    return found


def require_field(datasets: Iterable[Any], name: str, operator: str) -> None:
    """ConfigurationError if no sample of these datasets seems to have the field; what cannot be looked at is passed over."""
    seen: set[str] = set()
    for dataset in datasets:
        names = dataset.field_names() if hasattr(dataset, "field_names") else None
        if names is None:
            return
        seen |= names
    if name not in seen:
        raise ConfigurationError(f"{operator} needs the field {name!r}; the samples have {sorted(seen)}")


def steps_per_pass(plan: Plan) -> int | None:
    """Whole steps of all lanes in one pass."""
    operators = [step.op for stage in plan.stages for step in stage.steps if step.index >= 0]
    if plan.rows_per_lane is None or not all(op.traits.keeps_count for op in operators):
        return None
    draws = plan.work.draws_per_pass
    return None if draws is None else draws // (plan.lanes * plan.rows_per_lane)
