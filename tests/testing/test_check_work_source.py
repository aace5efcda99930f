"""check_work_source finds each of these wrong work sources, and passes their right twins and the package's own."""

from __future__ import annotations

import random

import numpy as np
import pytest

import zephon_jax as zj
from tests.work.reference import data
from zephon_jax.testing.work_sources import check_work_source
from zephon_jax.work import MixtureSchedule

SIZE = 96


class Right(zj.WorkSource):
    """Every lanes-th chunk of four samples, in file order, once."""

    def __init__(self):
        self.lane, self.lanes, self.at = 0, 1, 0

    @property
    def datasets_by_id(self):
        return {0: data("d", 60, 36)}

    def clone_for_lane(self, lane_id, canonical_replicas):
        clone = type(self)()
        clone.lane, clone.lanes = lane_id, canonical_replicas
        return clone

    def next_chunk(self):
        first = 4 * (self.at * self.lanes + self.lane)
        if first >= SIZE:
            return None
        self.at += 1
        return self.chunk(range(first, first + 4))

    def chunk(self, samples):
        return zj.WorkChunk.from_pointers([(0, int(s >= 60), s - 60 * (s >= 60)) for s in samples])

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        if set(state) != {"at"}:
            raise zj.CheckpointMismatch(f"{state}")
        self.at = state["at"]


class RightAndEndless(Right):
    def next_chunk(self):
        self.at += 1
        return self.chunk([self.at % SIZE, self.lane])


class StateSaysTooLittle(Right):
    """Alternates between two things, and the state does not say which is next."""

    def __init__(self):
        super().__init__()
        self.turn = False

    def next_chunk(self):
        if (chunk := super().next_chunk()) is None:
            return None
        self.turn = not self.turn
        return chunk if self.turn else self.chunk([0])


class Unseeded(Right):
    def chunk(self, samples):
        return super().chunk([random.randrange(60) for _ in samples])


class LoadsNothing(Right):
    def load_state_dict(self, state):
        if set(state) != {"at"}:
            raise zj.CheckpointMismatch(f"{state}")


class LoadsByAdding(Right):
    """Right for a fresh clone only."""

    def load_state_dict(self, state):
        self.at += state["at"]


class TakesAnyState(Right):
    def load_state_dict(self, state):
        self.at = state.get("at", 0)


class NewStateEachTime(Right):
    def state_dict(self):
        return {"at": self.at, "salt": random.random()}

    def load_state_dict(self, state):
        self.at = state["at"]


class DrawsForTheState(Right):
    def state_dict(self):
        self.at += 1
        return {"at": self.at - 1}


class KeepsAHistory(Right):
    def __init__(self):
        super().__init__()
        self.seen = []

    def next_chunk(self):
        if (chunk := super().next_chunk()) is not None:
            self.seen += [[i] * 200 for i in chunk.sample.tolist()]
        return chunk

    def state_dict(self):
        return {"at": self.at, "seen": [list(s) for s in self.seen]}

    def load_state_dict(self, state):
        self.at, self.seen = state["at"], [list(s) for s in state["seen"]]


class NoPlainState(Right):
    def state_dict(self):
        return {"at": np.int64(self.at), "set": {1}}


class ListState(Right):
    def state_dict(self):
        return [self.at]


class StateIsAView(Right):
    def __init__(self):
        super().__init__()
        self.state = {"at": 0}

    def next_chunk(self):
        chunk = super().next_chunk()
        self.state["at"] = self.at
        return chunk

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.state["at"] = self.at


class SharesItsPosition(Right):
    position = {"at": 0}  # noqa: RUF012

    @property
    def at(self):
        return self.position["at"]

    @at.setter
    def at(self, value):
        self.position["at"] = value


class ReturnsItself(Right):
    def clone_for_lane(self, lane_id, canonical_replicas):
        return self


class StartsOver(Right):
    def next_chunk(self):
        if (chunk := super().next_chunk()) is None:
            self.at = 0
        return chunk


class AnotherEnd(Right):
    """Moves on behind its end."""

    def next_chunk(self):
        chunk = super().next_chunk()
        self.at += chunk is None
        return chunk


class OutsideOfAShard(Right):
    def chunk(self, samples):
        return zj.WorkChunk.from_pointers([(0, 0, s) for s in samples])


class OutsideOfTheShards(Right):
    def chunk(self, samples):
        return zj.WorkChunk.from_pointers([(0, s // 30, s % 30) for s in samples])


class AnUnknownDataset(Right):
    def chunk(self, samples):
        return zj.WorkChunk.from_pointers([(1, 0, 0) for _ in samples])


class WideTypes(Right):
    def chunk(self, samples):
        right = super().chunk(samples)
        return zj.WorkChunk(right.dataset.astype(np.int64), right.shard.astype(np.int64), right.sample)


class GivesLists(Right):
    def chunk(self, samples):
        return [(0, 0, s) for s in samples]


class IdentityOfTheObject(Right):
    def identity(self):
        return {"class": "x", "id": id(self)}


class IdentityMoves(Right):
    drawn = 0

    def next_chunk(self):
        type(self).drawn += 1
        return super().next_chunk()

    def identity(self):
        return {"class": "x", "drawn": self.drawn}


class NoPlainIdentity(Right):
    def identity(self):
        return {"class": "x", "fn": print}


class NoChunkSize(Right):
    @property
    def chunk_size_hint(self):
        return 0


class EveryLaneAll(Right):
    """A right source, but its lanes do not partition."""

    def next_chunk(self):
        lanes, self.lanes, self.lane = self.lanes, 1, 0
        chunk = super().next_chunk()
        self.lanes = lanes
        return chunk


WRONG = {
    StateSaysTooLittle: "after chunk 0: chunk 0 from there is .*must be a function of the state",
    Unseeded: "must be a function of the state",
    LoadsNothing: "after chunk 0: its state is another",
    LoadsByAdding: "a clone that had gone on given the state .*its state is another",
    TakesAnyState: "load_state_dict took {'of another source': True}",
    NewStateEachTime: "two states taken at the same place differ",
    DrawsForTheState: "two states taken at the same place differ",
    KeepsAHistory: "more than 4,096: it is taken after every chunk",
    NoPlainState: "cannot be saved|comes back otherwise",
    ListState: "state_dict returned list",
    StateIsAView: "a state that was taken changed",
    SharesItsPosition: "clones share|a clone that had gone on|its state is another|function of the state",
    ReturnsItself: "must return another WorkSource, not itself",
    StartsOver: "None must stay None|its state changed by asking",
    AnotherEnd: "its state changed by asking for a chunk behind the end",
    OutsideOfAShard: r"\(0, 0, 60\) lies outside of dataset 'd', which has 2 shards, this one with 60 samples",
    OutsideOfTheShards: r"\(0, 2, 0\) lies outside of dataset 'd', which has 2 shards$",
    AnUnknownDataset: r"\(1, 0, 0\) names no dataset: there are \[0\]",
    WideTypes: "columns of int64, int64, int64",
    GivesLists: "next_chunk returned list",
    IdentityOfTheObject: "of a clone is not stable",
    IdentityMoves: r"identity\(\) is not stable",
    NoPlainIdentity: "identity.*a checkpoint keeps it",
    NoChunkSize: "chunk_size_hint is 0",
}


@pytest.mark.parametrize(("wrong", "message"), WRONG.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_each_wrong_work_source_is_found(wrong, message):
    with pytest.raises(zj.ContractViolation, match=message) as caught:
        check_work_source(wrong())
    assert caught.value.operator == wrong.__name__


@pytest.mark.parametrize("lanes", [1, 3, 5])
def test_right_work_sources_pass(lanes):
    check_work_source(Right(), lanes=lanes, partition=True)
    check_work_source(Right(), lanes=lanes, chunks=2)
    check_work_source(RightAndEndless(), lanes=lanes, chunks=9)


def test_lanes_that_do_not_partition_are_found_if_they_should():
    check_work_source(EveryLaneAll())
    with pytest.raises(zj.ContractViolation, match="0 pointers are missing, 192 come too often"):
        check_work_source(EveryLaneAll(), partition=True)
    with pytest.raises(zj.ConfigurationError, match="needs the end of lane 0 of 1, which has more than 27 chunks"):
        check_work_source(RightAndEndless(), chunks=9, partition=True)
    with pytest.raises(zj.ConfigurationError, match="needs a WorkSource, got list"):
        check_work_source([])


SETS = [data("a", 30, 0, 25), data("b", 40)]
EVEN = {"a": 1, "b": 1}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mixture": EVEN, "exhausted_policy": {"a": "stop"}, "shuffle_block_size": 4},
        {"mixture": EVEN, "max_repeats": 0, "shuffle_block_size": "global"},
        {"mixture": MixtureSchedule([(0, {"a": 1, "b": 0}), (50, EVEN)], "linear"), "shuffle_within_shard": True},
        {"mixture": EVEN, "weight_by": "tokens"},
    ],
    ids=lambda options: "-".join(options) or "none",
)
def test_the_standard_work_source_passes(options):
    source = zj.StaticMixtureWorkSource(SETS, chunk_size=8, **options)
    check_work_source(source, lanes=3, chunks=30, partition=True)
    endless = {**options, "exhausted_policy": "repeat", "max_repeats": None}
    check_work_source(zj.StaticMixtureWorkSource(SETS, chunk_size=8, **endless), lanes=2, chunks=20)
