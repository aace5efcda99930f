"""check_work_source: the contract of a work source of one's own, as checks.

Recovery rests on one property, that the next chunk is a function of the state; most of the checks come to it from
different sides. States go through msgpack on their way, as they do in a checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import msgpack
import numpy as np

from zephon_jax.checkpoint.codec import plain_values, require_plain
from zephon_jax.errors import ConfigurationError, ContractViolation
from zephon_jax.ops.base import checked_int
from zephon_jax.types import SourceState, WorkChunk
from zephon_jax.work.base import WorkSource

__all__ = ["check_work_source"]

Pointers: TypeAlias = list[tuple[int, int, int]]


def check_work_source(
    source: WorkSource, *, lanes: int = 3, chunks: int = 40, partition: bool = False, max_state_bytes: int = 4096
) -> None:
    """Run the contract of a work source on the first `chunks` chunks of each of `lanes` lanes.

    `partition=True` also checks that the lanes together give what a single lane gives, each pointer as often; the source
    must then end within so many chunks of one lane. A source that asks to measure samples is told 100 tokens for each.

    Raises:
        ContractViolation: Saying which part is broken: pointers outside of the datasets, a state that does not decide what
            follows, or is not plain or small, clones that share, an end that does not last, an unstable identity, or
            lanes that do not partition.
    """
    if not isinstance(source, WorkSource):
        raise ConfigurationError(f"check_work_source needs a WorkSource, got {type(source).__name__}")
    checked_int("check_work_source", "lanes", lanes, 1)
    checked_int("check_work_source", "chunks", chunks, 1)
    check = _WorkCheck(source, lanes, chunks, max_state_bytes)
    check.identity()
    for lane in range(lanes):
        check.lane(lane)
    check.clones()
    check.identity()
    if partition:
        check.partition()


class _WorkCheck:
    def __init__(self, source: WorkSource, lanes: int, chunks: int, max_state_bytes: int):
        self.name = type(source).__qualname__
        self.given, self.lanes, self.chunks, self.max_state_bytes = source, lanes, chunks, max_state_bytes
        self.source = _measured(source)
        self.known = plain_values(source.identity())
        self.whole: dict[int, list[Pointers]] = {}

    def fail(self, text: str) -> ContractViolation:
        return ContractViolation(f"{self.name}: {text}", operator=self.name)

    def clone(self, lane: int, lanes: int | None = None) -> WorkSource:
        clone = self.source.clone_for_lane(lane, lanes or self.lanes)
        if clone is self.source or not isinstance(clone, WorkSource):
            raise self.fail("clone_for_lane must return another WorkSource, not itself")
        return clone

    def identity(self) -> None:
        for what, identity in [
            ("identity()", self.given.identity()),
            ("identity() of a clone", self.clone(0).identity()),
        ]:
            try:
                require_plain(identity, what)
            except ConfigurationError as error:
                raise self.fail(f"{error}; a checkpoint keeps it") from error
            if plain_values(identity) != self.known:
                raise self.fail(f"{what} is not stable: {identity} against {self.known}")
        if self.given.chunk_size_hint < 1:
            raise self.fail(f"chunk_size_hint is {self.given.chunk_size_hint}; a number of samples from 1 is needed")

    # -- one lane --------------------------------------------------------------------------------------------------
    def lane(self, lane: int) -> None:
        clone = self.clone(lane)
        states, whole = [self.state(clone)], list[Pointers]()
        while len(whole) < self.chunks and (pointers := self.next(clone)) is not None:
            whole.append(pointers)
            states.append(self.state(clone))
        ended = len(whole) < self.chunks
        self.whole[lane] = whole
        if ended:
            self._ended(clone, lane)
            if states[-1] != self.state(clone):
                raise self.fail(f"lane {lane}: its state changed by asking for a chunk behind the end")
        used = self.clone(lane)
        for at, state in enumerate(states):
            for how, resumed in [("a fresh clone", self._resuming(lane, state)), ("a clone that had gone on", used)]:
                where = f"lane {lane}, {how} given the state after chunk {at - 1}"
                self.load(resumed, state, where)
                if self.state(resumed) != state:
                    raise self.fail(f"{where}: its state is another: {self.state(resumed)} against {state}")
                self._follows(resumed, whole[at : at + 2], states[at + 1 : at + 3], where)
                if ended and at + 2 > len(whole):
                    self._ended(resumed, lane)
        self._refuses(lane, states[-1])

    def _resuming(self, lane: int, state: bytes) -> WorkSource:
        """A clone as a resume makes it: of the description, which may not have measured anything."""
        work = _measured(self.given.for_states({lane: cast(SourceState, msgpack.unpackb(state))}))
        return work.clone_for_lane(lane, self.lanes)

    def _follows(self, resumed: WorkSource, expected: list[Pointers], states: list[bytes], where: str) -> None:
        for number, (pointers, state) in enumerate(zip(expected, states, strict=True)):
            got = self.next(resumed)
            if got != pointers:
                raise self.fail(
                    f"{where}: chunk {number} from there is {_shown(got)} instead of {_shown(pointers)}; next_chunk must be a "
                    "function of the state"
                )
            if self.state(resumed) != state:
                raise self.fail(f"{where}: the state after chunk {number} from there is another")

    def _ended(self, clone: WorkSource, lane: int) -> None:
        for _ in range(2):
            if (chunk := clone.next_chunk()) is not None:
                raise self.fail(f"lane {lane}: behind its end came a chunk of {len(chunk)}; None must stay None")

    def _refuses(self, lane: int, state: bytes) -> None:
        """A state of something else, silently taken, would be a fresh start that nobody asked for."""
        foreign: dict[str, Any] = {"of another source": True}
        if not msgpack.unpackb(state):
            return  # a source without a state cannot tell
        try:
            self.clone(lane).load_state_dict(foreign)
        except Exception:
            return
        raise self.fail(f"load_state_dict took {foreign}, which it cannot have given; raise CheckpointMismatch")

    def next(self, clone: WorkSource) -> Pointers | None:
        chunk = clone.next_chunk()
        if chunk is None:
            return None
        if not isinstance(chunk, WorkChunk):
            raise self.fail(f"next_chunk returned {type(chunk).__name__}; return a WorkChunk or None")
        if (chunk.dataset.dtype, chunk.shard.dtype, chunk.sample.dtype) != (np.int32, np.int32, np.int64):
            raise self.fail(
                f"a chunk has columns of {chunk.dataset.dtype}, {chunk.shard.dtype}, {chunk.sample.dtype}; int32, int32 and "
                "int64 are needed (WorkChunk.from_pointers makes them)"
            )
        pointers = list(zip(chunk.dataset.tolist(), chunk.shard.tolist(), chunk.sample.tolist(), strict=True))
        datasets: Mapping[int, Any] = self.source.datasets_by_id
        for dataset, shard, sample in pointers:
            if dataset not in datasets:
                raise self.fail(
                    f"the pointer {(dataset, shard, sample)} names no dataset: there are {sorted(datasets)}"
                )
            shards = datasets[dataset].shards
            if not 0 <= shard < len(shards) or not 0 <= sample < shards[shard].num_samples:
                size = shards[shard].num_samples if 0 <= shard < len(shards) else None
                raise self.fail(
                    f"the pointer {(dataset, shard, sample)} lies outside of dataset {datasets[dataset].name!r}, which has "
                    f"{len(shards)} shards" + ("" if size is None else f", this one with {size} samples")
                )
        return pointers

    def state(self, clone: WorkSource) -> bytes:
        state = clone.state_dict()
        if not isinstance(state, Mapping):
            raise self.fail(f"state_dict returned {type(state).__name__}; return a dict")
        try:
            require_plain(state, "state_dict()")
        except ConfigurationError as error:
            raise self.fail(str(error)) from error
        packed = cast(bytes, msgpack.packb(plain_values(state)))
        if len(packed) > self.max_state_bytes:
            raise self.fail(
                f"a state has {len(packed):,} bytes, more than {self.max_state_bytes:,}: it is taken after every chunk, and "
                "must not grow with what was drawn"
            )
        again = cast(bytes, msgpack.packb(plain_values(clone.state_dict())))
        if again != packed:
            raise self.fail("two states taken at the same place differ; taking one must change nothing")
        return packed

    def load(self, clone: WorkSource, state: bytes, where: str) -> None:
        try:
            clone.load_state_dict(cast(SourceState, msgpack.unpackb(state)))
        except Exception as error:
            raise self.fail(f"{where}: load_state_dict raised {type(error).__name__}: {error}") from error

    # -- lanes together --------------------------------------------------------------------------------------------
    def clones(self) -> None:
        """Drawn in turns, with a second clone of each beside it, lanes give what they give alone."""
        both = [[self.clone(lane), self.clone(lane)] for lane in range(self.lanes)]
        kept = {lane: (clones[1].state_dict(), self.state(clones[1])) for lane, clones in enumerate(both)}
        for at in range(min(self.chunks, 6)):
            for lane, (first, _) in enumerate(both):
                expected = self.whole[lane][at] if at < len(self.whole[lane]) else None
                if (got := self.next(first)) != expected:
                    raise self.fail(
                        f"lane {lane}: chunk {at} is {_shown(got)} instead of {_shown(expected)} while other lanes are drawn; "
                        "clones share something that changes"
                    )
        for lane, (_, second) in enumerate(both):
            if self.state(second) != kept[lane][1]:
                raise self.fail(f"lane {lane}: a clone moved although only another clone was drawn from")
            taken = second.state_dict()
            before = msgpack.packb(plain_values(taken))
            self.next(second)
            if msgpack.packb(plain_values(taken)) != before:
                raise self.fail("a state that was taken changed when the source went on; return a copy")

    def partition(self) -> None:
        alone = self._drawn(0, 1, self.chunks * self.lanes)
        each = [self._drawn(lane, self.lanes, self.chunks) for lane in range(self.lanes)]
        together = Counter(pointer for pointers in each for pointer in pointers)
        if together != Counter(alone):
            missing, extra = Counter(alone) - together, together - Counter(alone)
            raise self.fail(
                f"{self.lanes} lanes do not give together what one gives: {sum(missing.values())} pointers are missing, "
                f"{sum(extra.values())} come too often, such as {next(iter(missing or extra))}"
            )

    def _drawn(self, lane: int, lanes: int, chunks: int) -> Pointers:
        clone, found = self.clone(lane, lanes), Pointers()
        for _ in range(chunks):
            if (pointers := self.next(clone)) is None:
                return found
            found += pointers
        if self.next(clone) is not None:
            raise ConfigurationError(
                f"check_work_source(partition=True) needs the end of lane {lane} of {lanes}, which has more than {chunks} "
                "chunks; pass a smaller source or more chunks="
            )
        return found


def _measured(source: WorkSource) -> WorkSource:
    """What the engine makes of a source that asks for tokens."""
    samples = source.samples_to_measure()
    return source if samples is None else source.with_measured(np.full(len(samples), 100, np.int64))


def _shown(pointers: Pointers | None) -> str:
    if pointers is None:
        return "the end"
    return f"{pointers[:3]}{' …' if len(pointers) > 3 else ''} ({len(pointers)} pointers)"
