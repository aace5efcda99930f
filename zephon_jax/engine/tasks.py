"""Running operators on one micro-batch, with the law checked and failures named. No state; any worker may run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from zephon_jax.errors import ContractViolation, ZephonError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import RecordFailure, RecordOperator
from zephon_jax.origin import Cursor, Weight
from zephon_jax.plan.compile import Step

__all__ = ["Counted", "StepFailed", "broken_law", "run_steps"]

Counted = tuple[MicroBatch, list[tuple[int, int, int]]]
"""The result, and per operator: records in, records out, contributors finished."""


class StepFailed(Exception):
    """An operator raised; `__cause__` is what. `cursor` is the record's, None if the failure belongs to no single one."""

    def __init__(self, operator: str, cursor: Cursor | None):
        super().__init__(operator, cursor)
        self.operator, self.cursor = operator, cursor


def run_steps(
    steps: Sequence[Step], batch: MicroBatch, entering: Callable[[int | None], None] | None = None
) -> Counted:
    """The micro-batch through stateless operators, one after the other; `entering` is told the index of each."""
    counts: list[tuple[int, int, int]] = []
    weight = batch.weight()
    for step in steps:
        op = step.op
        assert isinstance(op, RecordOperator)
        if not len(batch):  # all dropped, or known to be: nothing for an operator to trip over
            counts.append((0, 0, 0))
            continue
        given = replace(batch, level=step.level, operator=step.index)
        if entering is not None:
            entering(step.index)
        try:
            out = op.process(given)
        except RecordFailure as failure:
            cursor = given.origin.cursor(failure.index) if failure.index < len(given) else None
            raise StepFailed(op.name, cursor) from failure.__cause__
        except ContractViolation as error:
            if error.operator is not None:
                raise
            raise ContractViolation(f"{op.name}, lane {given.lane}: {error}", operator=op.name) from error
        except ZephonError:
            raise
        except Exception as error:
            raise StepFailed(op.name, None) from error
        check_result(op.name, given.lane, out)
        if out.origin.splits is not None and given.origin.splits is None:
            raise ContractViolation(
                f"{op.name}, lane {given.lane}: groups records; only an Accumulator may", operator=op.name
            )
        same = out.origin.table is given.origin.table and out.closed is given.closed
        weight, went_in = weight if same else out.weight(), weight
        if (text := broken_law(went_in, weight)) is not None:
            raise ContractViolation(
                f"{op.name}, lane {given.lane}: {text} in a micro-batch of {len(given)} records from "
                f"{given.origin.cursor(0) if len(given) else 'none'} on; change records with the verbs of MicroBatch only",
                operator=op.name,
            )
        counts.append((len(given), len(out), out.closed.shape[1] - given.closed.shape[1]))
        batch = out
    return batch, counts


def check_result(operator: str, lane: int, out: object) -> None:
    """An operator must return a micro-batch whose columns have one row per record."""
    if not isinstance(out, MicroBatch):
        raise ContractViolation(
            f"{operator}, lane {lane}: returned {type(out).__name__}; return a MicroBatch", operator=operator
        )
    if text := out.ragged_text():
        raise ContractViolation(f"{operator}, lane {lane}: {text}", operator=operator)


def broken_law(went_in: Weight, came_out: Weight) -> str | None:
    """What an operator did to records that it must not do; None if all are accounted for."""
    if went_in == came_out:
        return None
    if came_out.last != went_in.last:
        many = came_out.last - went_in.last
        return f"{abs(many)} samples were {'finished twice' if many > 0 else 'lost (their last child never came out)'}"
    many = came_out.net - went_in.net
    return f"{abs(many)} records were {'made up' if many > 0 else 'lost'}"
