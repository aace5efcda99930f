"""One accumulator in one lane: its state per flush epoch, and the law checked at each flush."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from zephon_jax.columns import Laid
from zephon_jax.engine.tasks import StepFailed, broken_law, check_result
from zephon_jax.errors import ContractViolation, ZephonError
from zephon_jax.metrics.counters import OperatorCounts
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import Accumulator, RecordFailure
from zephon_jax.origin import Weight
from zephon_jax.plan.compile import Step
from zephon_jax.types import Int32s, LaneContext

__all__ = ["LaneAccumulator"]


class LaneAccumulator:
    """Feeds an accumulator and renews its state at each sentinel. Used by the lane's thread only."""

    def __init__(
        self,
        step: Step,
        lane: int,
        epoch: int,
        counts: OperatorCounts,
        datasets_of: Callable[[Int32s, Int32s], Int32s],
        epoch_chunks: int = 0,
    ):
        op: Any = step.op
        assert isinstance(op, Accumulator)
        self._op: Accumulator[Any] = op
        self._step, self._lane, self._counts = step, lane, counts
        self._datasets_of, self._epoch_chunks = datasets_of, epoch_chunks
        self._renew(epoch)

    def _renew(self, epoch: int) -> None:
        self._state = self._op.init_state(
            LaneContext(self._lane, epoch, self._step.index, self._datasets_of, self._epoch_chunks)
        )
        self._epoch = epoch
        self._figures: dict[str, int] = {}
        self._in = self._out = Weight(0, 0)

    def push(self, batch: MicroBatch) -> MicroBatch:
        """Records in, records out."""
        if not len(batch):
            return batch
        given = replace(batch, level=self._step.level, operator=self._step.index)
        try:
            out = self._op.push(self._state, given)
        except RecordFailure as failure:
            raise StepFailed(self._op.name, given.origin.cursor(failure.index)) from failure.__cause__
        except ContractViolation as error:
            if error.operator is not None:
                raise
            raise ContractViolation(f"{self._op.name}, lane {self._lane}: {error}", operator=self._op.name) from error
        except ZephonError:
            raise
        except Exception as error:
            raise StepFailed(self._op.name, None) from error
        check_result(self._op.name, self._lane, out)
        self._in, self._out = _add(self._in, given.weight()), _add(self._out, out.weight())
        self._count(len(given), len(out), out.closed.shape[1] - given.closed.shape[1])
        self._counts.padding_tokens += _padding(out)
        self._add_figures()
        return out

    def _add_figures(self) -> None:
        figures = self._op.figures(self._state)
        self._counts.add(figures, self._figures)
        self._figures = dict(figures)

    def flush(self, next_epoch: int | None) -> MicroBatch | None:
        """Everything still held; the accumulator starts the next epoch empty. None: the stream has ended."""
        try:
            out = self._op.flush(self._state)
        except ZephonError:
            raise
        except Exception as error:
            raise StepFailed(self._op.name, None) from error
        if out is not None:
            check_result(self._op.name, self._lane, out)
            self._out = _add(self._out, out.weight())
            self._count(0, len(out), out.closed.shape[1])
            self._counts.left_by_flush += len(out)
            padding = _padding(out)
            self._counts.padding_by_flush_tokens += padding
            self._counts.padding_tokens += padding
        self._add_figures()
        if (text := broken_law(self._in, self._out)) is not None:
            raise ContractViolation(
                f"{self._op.name}, lane {self._lane}: {text} in the flush epoch that begins with chunk {self._epoch}; "
                "flush must return every record that is still held, and what is held belongs into the state: the operator itself "
                "serves all lanes",
                operator=self._op.name,
            )
        if next_epoch is not None:
            self._renew(next_epoch)
        return out

    def _count(self, records_in: int, records_out: int, finished: int) -> None:
        self._counts.records_in += records_in
        self._counts.records_out += records_out
        self._counts.finished += finished


def _padding(batch: MicroBatch) -> int:
    """Tokens of padding in packed rows that are not laid out yet; a shuffle behind a packer counts its rows again."""
    laid = next((c for c in batch.columns.values() if isinstance(c, Laid)), None)
    return 0 if laid is None else sum(row.room for row in laid.items)


def _add(a: Weight, b: Weight) -> Weight:
    return Weight(a.last + b.last, a.net + b.net)
