"""The contract for a work source: which samples a lane is given, in which order.

A work source hands out chunks of sample pointers. Recovery rests on one property: `next_chunk` is a function of the
state, so that after `load_state_dict(s)` the chunks that follow are those that followed when `s` was taken. Chunks
drawn after the last one that a checkpoint keeps are drawn again from the restored source.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

from zephon_jax.types import Int64s, SourceState, WorkChunk

__all__ = ["WorkDataset", "WorkShard", "WorkSource"]


class WorkShard(Protocol):
    """What a work source needs to know of a shard."""

    @property
    def num_samples(self) -> int: ...


class WorkDataset(Protocol):
    """What a work source needs to know of a dataset; `zephon_jax.Dataset` fits."""

    @property
    def name(self) -> str: ...
    @property
    def shards(self) -> Sequence[WorkShard]: ...


class WorkSource(abc.ABC):
    """Hands out the chunks of one lane.

    The object given to `Pipeline` is a description that covers all lanes; the engine calls `clone_for_lane` once per
    lane and iterator and uses only the clones. Methods are called from one thread at a time per clone.
    """

    @property
    @abc.abstractmethod
    def datasets_by_id(self) -> Mapping[int, Any]:
        """The datasets that pointers refer to."""

    @abc.abstractmethod
    def next_chunk(self) -> WorkChunk | None:
        """The lane's next chunk, or `None` at the end of the lane; then `None` again each time."""

    @abc.abstractmethod
    def clone_for_lane(self, lane_id: int, canonical_replicas: int) -> Self:
        """A fresh source at the start of lane `lane_id` of `canonical_replicas`."""

    @abc.abstractmethod
    def state_dict(self) -> SourceState:
        """Where this lane stands: small plain values (msgpack). Taken after every chunk, so it must be cheap."""

    @abc.abstractmethod
    def load_state_dict(self, state: SourceState) -> None:
        """Continue as the source that gave `state`."""

    def identity(self) -> Mapping[str, Any]:
        """Plain values that decide the order of samples; a checkpoint of another identity is refused.

        Dataset contents are fingerprinted apart from it.
        """
        return {"class": f"{type(self).__module__}.{type(self).__qualname__}"}

    def check_lanes(self, canonical_replicas: int) -> None:
        """Raise ConfigurationError if some of so many lanes would have no work. By default any number is taken."""
        return None

    def samples_to_measure(self) -> WorkChunk | None:
        """Samples whose tokens the source must know before it can give its first chunk; `None`, as usual, if none.

        At a fresh start the engine runs them through the operators in front of the first accumulator or batch and
        passes what comes out to `with_measured`. A resumed source has it from its state, and is not asked again.
        """
        return None

    def with_measured(self, tokens: Int64s) -> Self:
        """The same source, told the tokens (n,) that came out of each of `samples_to_measure()`; 0 if it was dropped."""
        raise NotImplementedError(f"{type(self).__qualname__} asks to measure samples, and must define with_measured")

    def for_states(self, states: Mapping[int, SourceState]) -> Self:
        """The source whose clones are to load these states, by lane: what lanes share may be taken from any of them.

        Raise CheckpointMismatch if they contradict each other. By default the source itself.
        """
        return self

    @property
    def draws_per_pass(self) -> int | None:
        """The samples of all lanes in a pass over the datasets; `None` if the source does not know."""
        return None

    @property
    def endless(self) -> bool:
        """Whether no lane ever ends: then processes need not agree on an end. `False` is always safe."""
        return False

    @property
    def mixture(self) -> Mapping[str, float] | None:
        """Dataset name → the weight that it is to have throughout, for `ensure_mixture`; `None` if there is no such."""
        return None

    @property
    def chunk_size_hint(self) -> int:
        """The usual number of samples in a chunk, for choosing how often to flush."""
        return 512
