"""How many tokens samples have once the stateless operators are done with them, for a work source that asks.

The same operators run on the same samples as later in the stream, without lanes, books or receipts: nothing of this is
delivered, and nothing of it is kept but the counts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zephon_jax.columns import MISSING, row_values
from zephon_jax.engine.chain import StageRunner
from zephon_jax.engine.replay import Replayed
from zephon_jax.engine.tasks import StepFailed
from zephon_jax.errors import DataError, WorkerError, ZephonError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.fetch import pointer_columns
from zephon_jax.origin import OFFSET, Origin, no_contributors
from zephon_jax.plan.compile import Plan
from zephon_jax.types import Exhausted, Flush, Int64s, WorkChunk

__all__ = ["measured_tokens"]


def measured_tokens(plan: Plan, samples: WorkChunk, run_stage: StageRunner) -> Int64s:
    """Tokens (n,) of all that the plan's first stage makes of each sample; 0 for those that it drops.

    Raises:
        WorkerError: An operator raised; it names the sample.
        DataError: A sample cannot be read, and the plan does not say to skip such.
    """
    tokens = np.zeros(len(samples), np.int64)

    try:
        for result in run_stage(plan.stages[0].steps, _batches(plan, samples)):
            assert not isinstance(result, (Replayed, Flush, Exhausted))  # none of these went in
            batch = result[0]
            if (column := batch.columns.get("tokens")) is not None:
                each = [0 if value is MISSING else np.size(value) for value in row_values(column)]
                np.add.at(tokens, batch.origin.table[OFFSET], np.array(each, np.int64))
    except StepFailed as failure:
        raise _explained(failure, plan, samples) from failure.__cause__
    return tokens


def _batches(plan: Plan, samples: WorkChunk) -> Iterator[MicroBatch]:
    size = plan.options.first_records
    for start in range(0, len(samples), size):
        offsets = np.arange(start, min(start + size, len(samples)))
        origin = Origin.of_chunk(0, offsets, plan.depth)
        nothing = no_contributors(plan.depth)
        yield MicroBatch(0, pointer_columns(samples, offsets), origin, nothing, np.empty((2, 0), np.int32))


def _explained(failure: StepFailed, plan: Plan, samples: WorkChunk) -> ZephonError:
    cause, at, pointer = failure.__cause__, "while tokens of samples were measured", None
    if failure.cursor is not None:
        i = failure.cursor[1]
        dataset = plan.work.datasets_by_id[int(samples.dataset[i])]
        pointer = (dataset.name, dataset.shards[int(samples.shard[i])].name, int(samples.sample[i]))
        at += f" (dataset {pointer[0]!r}, shard {pointer[1]!r}, sample {pointer[2]})"
    if isinstance(cause, DataError):
        return DataError(f"{cause}; {at}", path=pointer[1] if pointer else None, record=pointer[2] if pointer else None)
    if isinstance(cause, ZephonError):
        return cause
    text = f"{failure.operator} raised {type(cause).__name__}: {cause}; {at}"
    return WorkerError(text, operator=failure.operator, pointer=pointer)
