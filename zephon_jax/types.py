"""The nouns that every room shares: a chunk of work, and what else travels in a lane's stream.

Control is not data: `Flush` and `Exhausted` travel in band, in order per lane, as their own types. Operators see only
micro-batches. This module knows nothing of files, threads or operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Exhausted", "Flush", "Int32s", "Int64s", "LaneContext", "SourceState", "WorkChunk", "no_datasets"]

Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]
SourceState: TypeAlias = Mapping[str, Any]
"""What `WorkSource.state_dict` returns: plain values that msgpack can carry."""


@dataclass(frozen=True, slots=True, eq=False)
class WorkChunk:
    """A group of sample pointers handed out for a lane; offset i of the chunk is `(dataset[i], shard[i], sample[i])`.

    `dataset` and `shard` are int32 and `sample` int64, all of shape (n,). `dataset` is an id of the work source's
    `datasets_by_id`, `shard` an index into that dataset's shards, `sample` an index within the shard.
    """

    dataset: Int32s
    shard: Int32s
    sample: Int64s

    def __post_init__(self) -> None:
        if not (self.dataset.shape == self.shard.shape == self.sample.shape and self.dataset.ndim == 1):
            raise ValueError(
                "a WorkChunk needs three 1-D arrays of one length, got shapes "
                f"{self.dataset.shape}, {self.shard.shape}, {self.sample.shape}"
            )

    @classmethod
    def from_pointers(cls, pointers: Iterable[tuple[int, int, int]]) -> WorkChunk:
        """Build a chunk from `(dataset_id, shard_id, sample_idx)` tuples.

        >>> len(WorkChunk.from_pointers([(0, 0, 5), (0, 0, 6)]))
        2
        """
        table = np.asarray(list(pointers), np.int64).reshape(-1, 3)
        return cls(table[:, 0].astype(np.int32), table[:, 1].astype(np.int32), table[:, 2].copy())

    def __len__(self) -> int:
        return len(self.dataset)


class Flush(NamedTuple):
    """A sentinel: every record of the lane's chunks below `boundary` came before it in the lane's stream."""

    boundary: int


class Exhausted(NamedTuple):
    """The end of a lane's stream; nothing comes after it."""


def no_datasets(chunks: Int32s, offsets: Int32s) -> Int32s:
    """Everything comes from dataset 0: what a context without a work source says."""
    return np.zeros(len(chunks), np.int32)


class LaneContext(NamedTuple):
    """Where an accumulator's state lives: what its randomness may be keyed by (rule O2).

    `epoch` is the first chunk of the flush epoch; `operator` the operator's index in the pipeline. `datasets_of` tells which
    dataset each sample came from: (chunks, offsets), int32 of shape (n,), → dataset ids, int32 of shape (n,); for the
    samples of records that are being pushed, not for those pushed before. `epoch_chunks`: how many chunks the flush epoch
    has, 0 where that is not known; the last one of the stream may have fewer.
    """

    lane: int
    epoch: int
    operator: int
    datasets_of: Callable[[Int32s, Int32s], Int32s] = no_datasets
    epoch_chunks: int = 0
