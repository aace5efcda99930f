"""Whose turn it is: rule O4."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_jax.engine.merge import RoundRobin


def test_lowest_id_of_the_fewest_rounds_first():
    turns = RoundRobin({2: 1, 0: 1, 1: 0})
    order = []
    for _ in range(7):
        lane = turns.turn()
        order.append(lane)
        turns.delivered(lane)
    assert order == [1, 0, 1, 2, 0, 1, 2]


def test_ended_lanes_are_skipped():
    turns = RoundRobin({0: 0, 1: 0})
    turns.ended(0)
    assert turns.turn() == 1
    turns.ended(1)
    assert turns.turn() is None


@settings(deadline=None, database=None, max_examples=100)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(0, 40), st.data())
def test_a_cut_anywhere_continues_the_same_order(lengths, cut, data):
    """The position is rounds per lane: saved anywhere, restored on lanes in any order of listing, it goes on alike."""

    def run(rounds, left, n):
        turns, out = RoundRobin(rounds), []
        rounds, left = dict(rounds), dict(left)
        while (lane := turns.turn()) is not None and len(out) < n:
            if not left[lane]:
                turns.ended(lane)
                continue
            left[lane] -= 1
            rounds[lane] += 1
            turns.delivered(lane)
            out.append(lane)
        return out, rounds, left

    start = dict.fromkeys(range(len(lengths)), 0)
    whole, _, _ = run(start, dict(enumerate(lengths)), 100)
    head, rounds, left = run(start, dict(enumerate(lengths)), cut)
    shuffled = data.draw(st.permutations(sorted(rounds)))
    tail, _, _ = run({lane: rounds[lane] for lane in shuffled}, left, 100)
    assert head + tail == whole
    assert all(whole.count(lane) == n for lane, n in enumerate(lengths))
