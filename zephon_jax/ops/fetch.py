"""fetch: sample pointers → records. The engine puts it first in every pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from zephon_jax.columns import Columns, Dense, concat_columns, take
from zephon_jax.errors import ContractViolation, DataError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import RecordOperator
from zephon_jax.origin import CHUNK, LINEAGE
from zephon_jax.types import Int32s, Int64s, WorkChunk

__all__ = ["Fetch", "Reader", "pointer_columns"]


class Reader(Protocol):
    """What fetch needs of a dataset: a batched read. `zephon_jax.Dataset` fits."""

    @property
    def name(self) -> str: ...

    def read(self, shard: int, samples: Int64s) -> tuple[Columns, dict[int, DataError]]:
        """The samples' columns, and position → error of those whose *content* is broken (their rows are undefined)."""
        ...


def pointer_columns(work: WorkChunk, offsets: Int64s) -> Columns:
    """The columns of a micro-batch that is still to be fetched."""
    return {
        "dataset": Dense(work.dataset[offsets]),
        "shard": Dense(work.shard[offsets]),
        "sample": Dense(work.sample[offsets]),
    }


_LONG_RUN = 16
"""Neighbours of one shard that are worth a call of their own; shorter runs are sorted by shard first, and back afterwards."""


def _starts_of_runs(dataset: Int64s, shard: Int64s) -> Int64s:
    changes = (dataset[1:] != dataset[:-1]) | (shard[1:] != shard[:-1])
    return np.concatenate([[0], np.flatnonzero(changes) + 1])


class Fetch(RecordOperator):
    """Reads each record, one call per (dataset, shard), or per long run of one; records keep the pointers' order.

    With `skip_unreadable`, samples of broken content are finished and marked as skipped; errors of storage and time are
    always raised.
    """

    name = "fetch"

    def __init__(self, datasets: Mapping[int, Reader], *, skip_unreadable: bool):
        self._datasets, self._skip = datasets, skip_unreadable

    @property
    def reads_files(self) -> bool:
        """Whether another process can read all samples as well, given no more than the description of files."""
        return all(getattr(dataset, "reads_files", False) for dataset in self._datasets.values())

    @property
    def block_hint(self) -> int:
        """The most samples that a dataset reads together at the price of one; 1 if it does not matter."""
        return max([getattr(dataset, "block_hint", None) or 1 for dataset in self._datasets.values()], default=1)

    def identity(self) -> None:
        return None  # datasets are fingerprinted, the policy is an option of the plan

    def process(self, batch: MicroBatch) -> MicroBatch:
        if not len(batch):
            return batch.with_columns({})
        dataset, shard, sample = (self._pointers(batch, name) for name in ("dataset", "shard", "sample"))
        order = np.arange(len(batch))
        groups = _starts_of_runs(dataset, shard)
        if scattered := len(groups) > 1 + len(order) // _LONG_RUN:
            order = np.lexsort((order, shard, dataset))
            groups = _starts_of_runs(dataset[order], shard[order])
        parts: list[Columns] = []
        lengths: list[int] = []
        bad: dict[int, DataError] = {}
        for a, b in zip(groups.tolist(), [*groups[1:].tolist(), len(order)], strict=True):
            at = order[a:b]
            columns, broken = self._dataset(int(dataset[at[0]])).read(int(shard[at[0]]), sample[at])
            parts.append(columns)
            lengths.append(b - a)
            bad.update({int(at[i]): error for i, error in broken.items()})
        columns = concat_columns(parts, lengths)
        if scattered:
            back = np.empty(len(order), np.int64)
            back[order] = np.arange(len(order))
            columns = {name: take(column, back) for name, column in columns.items()}
        out = batch.with_columns(columns)
        return self._without(out, bad) if bad else out

    def _dataset(self, number: int) -> Reader:
        if number not in self._datasets:
            raise ContractViolation(
                f"the work source hands out samples of dataset {number}, but its datasets_by_id are {sorted(self._datasets)}"
            )
        return self._datasets[number]

    @staticmethod
    def _pointers(batch: MicroBatch, name: str) -> Any:
        column = batch.columns[name]
        assert isinstance(column, Dense)
        return column.values

    def _without(self, batch: MicroBatch, bad: dict[int, DataError]) -> MicroBatch:
        if not self._skip:
            raise bad[min(bad)]
        mask = np.ones(len(batch), np.bool_)
        mask[list(bad)] = False
        skipped: Int32s = batch.origin.table[CHUNK:LINEAGE, ~mask]
        kept = batch.keep(mask)
        return MicroBatch(
            kept.lane,
            kept.columns,
            kept.origin,
            kept.closed,
            np.concatenate([kept.skipped, skipped], axis=1),
            kept.level,
        )
