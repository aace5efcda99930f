"""The aggregation round, searched exhaustively with crashes, time-outs, lost answers, lagging lists and leftovers."""

from __future__ import annotations

import pytest

from tests.coordinate.mistakes import MISTAKES, SOON
from tests.coordinate.search import noticed, suite
from zephon_jax.coordinate.protocol import Merged, Part, Ranks, Share, Stamp, describe, lead, merge


@pytest.mark.slow
def test_every_interleaving_of_two_ranks():
    assert suite(say=lambda _: None, size=-1) > 100_000


@pytest.mark.slow
@pytest.mark.parametrize("name", SOON)
def test_a_seeded_mistake_is_noticed(name):
    assert noticed(*MISTAKES[name], size=-1) is not None


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_every_interleaving_of_three_ranks():
    assert suite(size=2) > 5_000_000


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [name for name in MISTAKES if name not in SOON])
def test_a_seeded_mistake_is_noticed_by_the_longer_search(name):
    assert noticed(*MISTAKES[name]) is not None


def part(rank: int, *lanes: int, mark: str = "m", step: int = 3, error: str = "") -> Part:
    shares = tuple(Share(lane, mark, b"state of %d by %d" % (lane, rank)) for lane in lanes)
    return Part(rank, f"nonce{rank}", Stamp("plan", "mapping", step), lanes, shares, error)


def test_each_lane_comes_from_its_lowest_producer():
    ranks = Ranks(3, ((0, 1), (1, 2)))
    merged = merge("000001.x", part(0, 0, 1), ranks, {0: part(0, 0, 1), 1: part(1, 1, 2)})
    assert isinstance(merged, Merged)
    assert merged.lanes == ((0, 0, b"state of 0 by 0"), (1, 0, b"state of 1 by 0"), (2, 1, b"state of 2 by 1"))
    assert merged.parts == ((0, "nonce0"), (1, "nonce1"))


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (part(1, 1, 2, step=4), "rank 1 is at step 4, rank 0 at step 3; every rank must call checkpoint() after the same step"),
        (part(1, 1, 2, error="DataError: x"), "rank 1: DataError: x"),
        (part(1, 1), "rank 1 owns lanes [1], by the mapping it should own [1, 2]"),
        (part(1, 1, 2, mark="n"), "lane 1: rank 0 has delivered m, rank 1 n; it must be the same"),
        (
            part(1, 1, 2)._replace(shares=()),
            "rank 1 reports no state of lanes [1, 2], which it owns; missing: rank 1 with lanes [1, 2]",
        ),
        (
            part(1, 1, 2)._replace(stamp=Stamp("other", "mapping", 3)),
            "rank 1 has another pipeline or other data (other) than rank 0 (plan); compare explain() and the datasets of both",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(other, text):
    ranks = Ranks(3, ((0, 1), (1, 2)))
    failed = merge("000001.x", part(0, 0, 1), ranks, {0: part(0, 0, 1), 1: other})
    assert not isinstance(failed, Merged)
    assert describe(failed) == text


def test_a_lane_of_a_group_that_no_rank_has_is_named():
    ranks = Ranks(3, (None, None))
    failed = merge("000001.x", part(0, 0), ranks, {0: part(0, 0), 1: part(1, 0)})
    assert not isinstance(failed, Merged)
    assert describe(failed) == "no rank owns lanes [1, 2]; every dp_group_id below dp_degree needs a rank"


def test_all_deadlines_of_a_call_are_its_own():
    steps = lead(part(0, 0), Ranks(1, ((0,),)), 7.0)
    assert type(next(steps)).__name__ == "Get"  # a round of one asks for the announcement first, and never waits
