"""Which samples a row is made of, in names. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from zephon_jax.origin import CHUNK, OFFSET, START, TOKENS, Origin
from zephon_jax.types import WorkChunk

__all__ = ["Contribution", "contributions"]

Contribution: TypeAlias = tuple[str, str, int, int, int | None]
"""Dataset, shard, index of the sample in the shard, and tokens start to stop of it; stop None where not counted."""


def contributions(
    rows: Origin, work_of: Callable[[int], WorkChunk | None], datasets: Mapping[int, Any]
) -> list[list[Contribution]]:
    """Per row its contributors, in the order in which the row has them."""
    pieces = [_contribution(column, work_of, datasets) for column in rows.table.T.tolist()]
    splits = np.arange(len(rows) + 1) if rows.splits is None else rows.splits
    return [pieces[a:b] for a, b in zip(splits.tolist(), splits[1:].tolist(), strict=False)]


def _contribution(
    column: list[int], work_of: Callable[[int], WorkChunk | None], datasets: Mapping[int, Any]
) -> Contribution:
    work, offset = work_of(column[CHUNK]), column[OFFSET]
    assert work is not None  # the books keep the chunks of the last delivery
    dataset = datasets[int(work.dataset[offset])]
    start, tokens = column[START], column[TOKENS]
    stop = None if tokens < 0 else start + tokens
    return dataset.name, dataset.shards[int(work.shard[offset])].name, int(work.sample[offset]), start, stop
