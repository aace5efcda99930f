"""Seats of several ranks on a real directory: the same outcome for all, what is left, what is said. Ranks are threads here."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from zephon_jax.coordinate.directory import DirectoryStore
from zephon_jax.coordinate.drive import packed, unpacked
from zephon_jax.coordinate.protocol import Failed, Merged, Part, Ranks, Share, Stamp
from zephon_jax.coordinate.round import Contribution, Seat, next_ordinal
from zephon_jax.errors import AggregationFailed, AggregationTimeout

MAPPING = ((0, 1), (2,), (2, 3))


def contribution(rank: int, step: int = 5, **changes: Any) -> Contribution:
    shares = [(lane, f"{step} rows", b"lane %d by %d" % (lane, rank)) for lane in MAPPING[rank]]
    given = {"plan": "p", "mapping": "m", "step": step, "owned": MAPPING[rank], "shares": shares, **changes}
    return Contribution(**given)


def seats(store, prefix: str = "x/", known: bool = True) -> list[Seat]:
    owners = MAPPING if known else (None,) * len(MAPPING)
    return [Seat(store, rank, Ranks(4, owners), prefix) for rank in range(len(MAPPING))]


def together(calls) -> list[Any]:
    """What each call returned or raised."""

    def tried(call):
        try:
            return call()
        except (AggregationFailed, AggregationTimeout) as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(tried, calls))


def test_all_get_the_same_merge_and_two_keys_remain_and_then_none(tmp_path):
    store = DirectoryStore(tmp_path)
    ranks = seats(store)
    for step in (1, 2, 3):
        got = together([lambda r=r, step=step: ranks[r].agree(contribution(r, step), 20.0) for r in range(3)])
        assert got[0] == got[1] == got[2]
        assert got[0].stamp == Stamp("p", "m", step)
        assert got[0].lanes == (
            (0, 0, b"lane 0 by 0"), (1, 0, b"lane 1 by 0"), (2, 1, b"lane 2 by 1"), (3, 2, b"lane 3 by 2"),
        )  # fmt: skip
        assert sorted(store.list("")) == ["x/announce", f"x/r/{got[0].round}-result"]
    for seat in reversed(ranks):
        seat.close()
    assert os.listdir(tmp_path) == []
    for seat in ranks:
        seat.close()  # nothing is left to do


@pytest.mark.parametrize(
    ("rank", "changes", "text"),
    [
        (1, {"error": "DataError: no such shard"}, "rank 1: DataError: no such shard"),
        (0, {"error": "DataError: no such shard"}, "rank 0: DataError: no such shard"),
        (2, {"plan": "q"}, r"rank 2 has another pipeline or other data \(q\) than rank 0 \(p\)"),
        (2, {"mapping": "n"}, r"rank 2 maps lanes otherwise \(n\) than rank 0 \(m\)"),
        (1, {"step": 6}, "rank 1 is at step 6, rank 0 at step 5"),
        (2, {"owned": (3,)}, r"rank 2 owns lanes \[3\], by the mapping it should own \[2, 3\]"),
        (2, {"shares": [(3, "5 rows", b"")]}, r"rank 2 reports no state of lanes \[2\]"),
        (2, {"shares": [(2, "4 rows", b""), (3, "5 rows", b"")]}, "lane 2: rank 1 has delivered 5 rows, rank 2 4 rows"),
    ],
)  # fmt: skip
def test_all_raise_the_same_text_also_who_comes_late_and_the_next_round_is_good(tmp_path, rank, changes, text):
    ranks = seats(DirectoryStore(tmp_path))
    turn = threading.Barrier(3)

    def call(r: int):
        turn.wait()
        if r == 1:
            time.sleep(0.05)  # after the others have all they need to fail; the outcome does not depend on it
        return ranks[r].agree(contribution(r, **(changes if r == rank else {})), 20.0)

    got = together([lambda r=r: call(r) for r in range(3)])
    assert [type(error) for error in got] == [AggregationFailed] * 3
    assert len({str(error) for error in got}) == 1
    with pytest.raises(AggregationFailed, match=text):
        raise got[0]
    good = together([lambda r=r: ranks[r].agree(contribution(r, 7), 20.0) for r in range(3)])
    assert good[0].stamp.step == good[1].stamp.step == good[2].stamp.step == 7


@pytest.mark.parametrize(
    ("known", "text"),
    [
        (True, r"1 of 3 ranks did not report their state in time; missing: rank 2 with lanes \[2, 3\]"),
        (False, r"1 of 3 ranks did not report their state in time, and nobody lanes \[3\]; missing: rank 2"),
    ],
)
def test_who_does_not_come_is_named_to_all_within_the_budget(tmp_path, known, text):
    ranks = seats(DirectoryStore(tmp_path), known=known)
    begin = time.monotonic()
    got = together([lambda: ranks[0].agree(contribution(0), 0.4), lambda: ranks[1].agree(contribution(1), 20.0)])
    assert time.monotonic() - begin < 10
    for error in got:
        with pytest.raises(AggregationTimeout, match=text):
            raise error
    good = together([lambda r=r: ranks[r].agree(contribution(r), 20.0) for r in range(3)])
    assert good[0] == good[1] == good[2]


def test_a_follower_whose_time_is_up_first_ends_the_round_and_names_who_is_missing(tmp_path):
    ranks = seats(DirectoryStore(tmp_path))
    got = together([lambda: ranks[0].agree(contribution(0), 20.0), lambda: ranks[1].agree(contribution(1), 0.4)])
    for error in got:
        with pytest.raises(AggregationTimeout, match=r"missing: rank 2 with lanes \[2, 3\]"):
            raise error


def test_without_a_leader_the_error_says_so(tmp_path):
    with pytest.raises(
        AggregationTimeout,
        match=r"rank 1 waited for rank 0, .* in the same order\?; missing: rank 0 with lanes \[0, 1\]",
    ):
        seats(DirectoryStore(tmp_path))[1].agree(contribution(1), 0.1)


def test_what_is_checked_by_rank_0_is_refused_for_all(tmp_path):
    ranks = seats(DirectoryStore(tmp_path))
    seen: list[Merged] = []

    def check(merged: Merged) -> str:
        seen.append(merged)
        return "lanes_00001_of_00002.zst is not there"

    got = together([lambda r=r: ranks[r].agree(contribution(r), 20.0, check) for r in range(3)])
    assert [str(error) for error in got] == ["lanes_00001_of_00002.zst is not there"] * 3
    assert len(seen) == 1


def test_leftovers_of_a_dead_run_are_told_apart_and_swept(tmp_path):
    """The dead run's leader had announced, one follower had joined, and the outcome of the round before was there."""
    store = DirectoryStore(tmp_path)
    dead = Part(1, "dead", Stamp("p", "m", 5), (2,), (Share(2, "5 rows", b"dead"),))
    merged = Merged("000007.dead", Stamp("p", "m", 5), ((0, "dead"), (1, "dead"), (2, "dead")), ((2, 1, b"dead"),))
    store.put("x/announce", packed("000008.dead"))
    store.put("x/r/000008.dead-state-1", packed(dead))
    store.put("x/r/000007.dead-result", packed(merged))
    ranks = seats(store)
    got = together([lambda r=r: ranks[r].agree(contribution(r), 20.0) for r in range(3)])
    assert got[0] == got[1] == got[2]
    assert got[0].round.startswith("000009.")
    assert b"dead" not in [state for *_, state in got[0].lanes]
    assert len(store.list("")) == 2


def test_values_come_back_as_they_were():
    part = Part(3, "n", Stamp("p", "m", 2**40), (1, 2), (Share(1, "m", b"\x00\xff"), Share(2, "", b"")), "ö")
    failed = Failed("why", ((3, (1, 2)), (4, ())), "timeout")
    for value in (part, failed, Merged("r", part.stamp, ((0, "a"),), ((1, 0, b"s"),)), "000001.x"):
        back = unpacked(packed(value), "k")
        assert back == value
        assert type(back) is type(value)
        assert packed(back) == packed(value)


@pytest.mark.parametrize("data", [b"", b"nothing", packed("000001.x")[:-1], packed(Failed("x"))[:9]])
def test_what_is_not_understood_is_a_declared_error(data):
    with pytest.raises(AggregationFailed, match="x/announce holds what this version of zephon_jax does not understand"):
        unpacked(data, "x/announce")


def test_iterators_of_a_run_have_keys_of_their_own(tmp_path):
    store, ranks = DirectoryStore(tmp_path), Ranks(1, ((0,),))
    for n in (0, 1, 7):
        seat = Seat.of_run(store, 0, ranks, "my run", n, 1.0)
        seat.agree(Contribution("p", "m", 1, (0,), [(0, "x", b"")]), 1.0)
        assert f"zephon_jax/round/my run/-/{n}/announce" in store.list("")
    assert [next_ordinal(str(tmp_path), run, 0, 2) for run in ("a", "b", "a", None, "run")] == [0, 0, 1, 0, 1]
