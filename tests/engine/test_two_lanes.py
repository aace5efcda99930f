"""Two lanes in turn, exhaustively: producers ahead of the consumer, lanes that end at different times, crashes anywhere.

`python -m tests.engine.test_two_lanes` prints the number of states of the larger cases.
"""

from __future__ import annotations

import pytest

from tests.engine.toy import Config, World, search, uninterrupted
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
    """States, and batches of an uninterrupted run; a cut saves one state of both lanes together."""
    base = in_turn(configs)
    return search(Pair(configs), base, max_crashes, limit), len(base)


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
