"""Two lanes in turn, exhaustively: producers ahead of the consumer, lanes that end at different times, crashes anywhere.

`python -m tests.engine.test_two_lanes` prints the number of states of the larger cases.
"""

from __future__ import annotations

from collections import deque
from copy import deepcopy

import pytest

from tests.engine.toy import Config, World, uninterrupted
from zephon_jax.engine.merge import RoundRobin


class Pair:
    """Two lanes and a consumer that takes, strictly in turn, what is due."""

    def __init__(self, configs, snapshots=(None, None)):
        self.configs = configs
        self.lanes = [World(c, s) for c, s in zip(configs, snapshots, strict=True)]
        self.turns = RoundRobin({i: lane.books.rounds for i, lane in enumerate(self.lanes)})

    def actions(self):
        due = self.turns.turn()
        out = [(i, a) for i, lane in enumerate(self.lanes) for a in lane.actions() if a != "take"]
        if due is not None:
            if self.lanes[due].queues[-1]:
                out.append((due, "take"))
            elif not self.lanes[due].actions():
                out.append((due, "end"))
        return out

    def do(self, action):
        lane, what = action
        if what == "end":
            self.turns.ended(lane)
            return None
        tokens = self.lanes[lane].do(what)
        if tokens is None:
            return None
        self.turns.delivered(lane)
        return lane, tokens

    def crashed(self):
        return Pair(self.configs, [lane.books.snapshot() for lane in self.lanes])

    def snapshot_key(self):
        return tuple(lane.snapshot_key() for lane in self.lanes)

    def key(self):
        return tuple(lane.key() for lane in self.lanes), self.turns.turn()


def in_turn(configs):
    """What round-robin over the lanes' own streams gives; ended lanes are skipped."""
    streams, out = [list(uninterrupted(c)) for c in configs], []
    for t in range(max(map(len, streams), default=0)):
        out += [(i, s[t]) for i, s in enumerate(streams) if t < len(s)]
    return out


def explore(configs, max_crashes=1, limit=250_000):
    base, start, saved = in_turn(configs), Pair(configs), {}
    seen = {(start.key(), 0, 0)}
    todo = deque([(start, 0, 0)])
    while todo:
        pair, position, crashes = todo.popleft()
        key = pair.snapshot_key()
        assert saved.setdefault(position, key) == key  # C9, of both lanes together
        actions = pair.actions()
        if not actions:
            assert position == len(base)
        successors = []
        for action in actions:
            other = deepcopy(pair)
            batch = other.do(action)
            if batch is not None:
                assert base[position] == batch, (position, batch)
            successors.append((other, position + (batch is not None), crashes))
        if crashes < max_crashes:
            successors.append((pair.crashed(), position, crashes + 1))
        for other, at, c in successors:
            k = (other.key(), at, c)
            if k not in seen:
                seen.add(k)
                todo.append((other, at, c))
        assert len(seen) < limit, "the model is too large to be exhausted"
    return len(seen), len(base)


SMALL = (Config(0, None, (1,), 0, 1, 1), Config(4, None, (1,), 0, 1, 1))
LARGER = [
    (Config(0, None, (1,), 0, 1, 1), Config(4, None, (1, 1), 0, 1, 1)),
    (Config(0, 1, (1,), 0, 1, 1), Config(2, 1, (1,), 1, 1, 1)),
]


def test_every_interleaving_of_two_lanes():
    states, batches = explore(SMALL)
    assert states > 100
    assert batches > 1


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("configs", LARGER, ids=str)
def test_every_interleaving_of_two_larger_lanes(configs):
    states, _ = explore(configs)
    assert states > 1_000


if __name__ == "__main__":
    for case in LARGER:
        print(case, "states, batches:", explore(case, max_crashes=2))
