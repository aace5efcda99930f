"""`checkpoint()` of several ranks. They are threads of one process here, over a real directory."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

import zephon_jax as zj
from tests.checkpoint.test_merge import pipeline
from zephon_jax.checkpoint.aggregate import Aggregation
from zephon_jax.checkpoint.codec import encode


def ranked(rank: int, size: int, folder, degree: int | None = None, **options):
    degree = size if degree is None else degree
    given = {"aggregate_timeout_s": 20, "aggregate_dir": folder, **options}
    ranks = {"dp_degree": degree, "dp_group_id": rank * degree // size, "world_size": size, "global_rank": rank}
    return iter(pipeline(**ranks, **given))


def together(calls) -> list:
    def tried(call):
        try:
            return call()
        except zj.ZephonError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(tried, calls))


def take(it, n: int) -> list[list[int]]:
    return [next(it)["value"].tolist() for _ in range(n)]


@pytest.mark.parametrize(("size", "degree"), [(2, 2), (4, 4), (4, 2), (3, 1)])
def test_every_rank_gets_the_state_that_one_process_would_have(tmp_path, size, degree):
    """With fewer groups than ranks, some produce the same lanes, as model-parallel peers do."""
    its = [ranked(r, size, tmp_path, degree) for r in range(size)]
    alone, states = iter(pipeline()), []
    for _ in range(3):
        for it in its:
            take(it, 2 * 4 // degree)
        take(alone, 2 * 4)
        states = together([it.checkpoint for it in its])
        assert {encode(state) for state in states} == {encode(alone.checkpoint())}
        assert len(os.listdir(tmp_path)) == 2
        assert set(together([it.fingerprint for it in its])) == {alone.fingerprint()}
    for it in its:
        it.close()
    assert os.listdir(tmp_path) == []
    following = take(alone, 12)
    again = iter(pipeline())
    again.restore(states[1])
    assert take(again, 12) == following


def test_a_run_goes_on_with_other_ranks(tmp_path):
    """Two ranks, then four, then one: together the rows of the uninterrupted run, lane by lane."""
    state = None
    got: dict[int, list] = {}
    for size in (2, 4, 1):
        its = [ranked(r, size, tmp_path, run_id="r") for r in range(size)]
        for it in its:
            if state is not None:
                it.restore(state)
            for _ in range(3):
                for lane in it.stats().rows:
                    got.setdefault(lane, []).extend(take(it, 1))
        (state, *others) = together([it.checkpoint for it in its])
        assert all(encode(other) == encode(state) for other in others)
        for it in its:
            it.close()
    whole = iter(pipeline())
    wanted = {lane: [] for lane in range(4)}
    for _ in range(9):
        for lane in range(4):
            wanted[lane].extend(take(whole, 1))
    assert got == wanted
    assert os.listdir(tmp_path) == []


def test_ranks_at_different_steps_are_told_and_may_try_again(tmp_path):
    its = [ranked(r, 2, tmp_path) for r in range(2)]
    take(its[0], 2)
    texts = {str(error) for error in together([it.checkpoint for it in its])}
    assert texts == {"rank 1 is at step 0, rank 0 at step 2; every rank must call checkpoint() after the same step"}
    take(its[1], 2)
    first, second = together([it.checkpoint for it in its])
    assert encode(first) == encode(second)


def test_a_rank_with_another_pipeline_is_told(tmp_path):
    its = [ranked(0, 2, tmp_path), ranked(1, 2, tmp_path, flush_every_k_chunks=3)]
    for error in together([it.checkpoint for it in its]):
        with pytest.raises(zj.AggregationFailed, match="rank 1 has another pipeline or other data"):
            raise error


def test_a_rank_that_cannot_take_its_state_fails_all_at_once(tmp_path):
    its = [ranked(0, 2, tmp_path), ranked(1, 2, tmp_path, deterministic=False)]
    for error in together([it.checkpoint for it in its]):
        with pytest.raises(
            zj.AggregationFailed, match=r"rank 1: ConfigurationError: a checkpoint needs options\(deter"
        ):
            raise error
    assert isinstance(its[1], zj.PipelineIterator)


def test_a_rank_that_does_not_come_is_named_with_the_lanes_that_nobody_has(tmp_path, monkeypatch):
    budget_s = [0.2]
    monkeypatch.setattr(Aggregation, "timeout_s", property(lambda self: budget_s[0]))
    its = [ranked(r, 2, tmp_path) for r in range(2)]
    for it in its:
        take(it, 2)
    with pytest.raises(zj.AggregationTimeout, match=r"1 of 2 ranks .*, and nobody lanes \[2, 3\]; missing: rank 1"):
        its[0].checkpoint()
    budget_s[0] = 60.0
    first, second = together([it.checkpoint for it in its])  # a round that it missed does not part it from the others
    assert encode(first) == encode(second)


def test_an_iterator_that_ends_in_an_error_leaves_its_last_round_to_the_others(tmp_path):
    its = [ranked(r, 2, tmp_path) for r in range(2)]
    first, second = together([it.checkpoint for it in its])
    assert encode(first) == encode(second)
    with pytest.raises(KeyError), its[0]:
        raise KeyError("of the consumer")
    assert len(os.listdir(tmp_path)) == 2


def test_without_ranks_or_storage_the_error_says_what_to_pass():
    it = iter(pipeline(dp_degree=2, dp_group_id=0))
    with pytest.raises(zj.ConfigurationError, match=r"pass options\(world_size=, global_rank=\).*get_state"):
        it.checkpoint()
    it = iter(pipeline(dp_degree=2, dp_group_id=0, world_size=2, global_rank=0))
    with pytest.raises(zj.ConfigurationError, match=r"pass options\(aggregate_dir=\)"):
        it.checkpoint()


def test_a_state_in_the_middle_of_a_round_is_refused_by_all_also_where_only_others_have_the_lanes():
    whole = iter(pipeline())
    take(whole, 2 * 4 + 2)  # lanes 0 and 1 are a round ahead of 2 and 3
    p = pipeline()
    for lanes in ([0, 1], [2, 3], [1, 2]):
        it = zj.PipelineIterator(
            p._checked_plan(), p._marks(), lanes, 1, lambda engine: engine.rounds(), by_round=True, prefetch=1
        )
        with pytest.raises(zj.ConfigurationError, match=r"in the middle of a round \(rounds per lane from 2 to 3\)"):
            it.restore(whole.checkpoint())


def test_one_rank_of_one_needs_nobody():
    it = iter(pipeline(world_size=1, global_rank=0))
    take(it, 4)
    assert it.checkpoint() == it.get_state()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"world_size": 2}, "must be given together"),
        ({"world_size": 2, "global_rank": 2}, r"global_rank=2\) must be below world_size=2; ranks count from 0"),
        ({"world_size": 0, "global_rank": 0}, "must be at least 1"),
        ({"aggregate_dir": ""}, "must be a path"),
        ({"aggregate_dir": 3}, "must be a path"),
        ({"aggregate_dir": "d", "aggregate_store": "jax://"}, "exclude each other"),
        ({"aggregate_store": "redis://"}, "must be 'jax://'"),
        ({"aggregate_timeout_s": 0}, "must be a number of seconds above 0"),
        ({"aggregate_timeout_s": True}, "must be a number of seconds above 0"),
        ({"run_id": "a/b"}, "without a slash"),
    ],
)
def test_options_are_checked_where_they_are_given(options, text):
    with pytest.raises(zj.ConfigurationError, match=text):
        pipeline(**options)
