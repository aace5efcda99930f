"""States taken apart by lane and put together again: the bytes of a single process."""

from __future__ import annotations

import pytest

import zephon_jax as zj
from zephon_jax.checkpoint.codec import encode
from zephon_jax.checkpoint.merge import (
    joined,
    lacking_lanes,
    lane_mark,
    mapping_digest,
    owners_of,
    plan_digest,
    shares_of,
)


def pipeline(seed: int = 1, **options) -> zj.Pipeline:
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("n", range(400)), chunk_size=8, seed=seed)
    return zj.Pipeline(work).shuffle(8).batch(2).options(canonical_replicas=4, executor="inline", **options)


def state(rounds: int, **options) -> dict:
    it = iter(pipeline(**options))
    for _ in range(rounds * len(it.stats().rows)):
        next(it)
    return it.get_state()


def test_parts_of_groups_join_to_the_state_of_one_process():
    whole = state(5)
    for degree in (1, 2, 4):
        parts = [state(5, dp_degree=degree, dp_group_id=g) for g in range(degree)]
        shares = [(lane, packed) for part in reversed(parts) for lane, _, packed in shares_of(part)]
        assert encode(joined(parts[0], shares)) == encode(whole)
        assert {plan_digest(part) for part in parts} == {plan_digest(whole)}


def test_another_plan_has_another_digest():
    assert plan_digest(state(0)) != plan_digest(iter(pipeline(seed=2)).get_state())


def test_the_mark_is_of_what_was_delivered():
    marks = [[mark for _, mark, _ in shares_of(state(n))] for n in (5, 5, 6)]
    assert marks[0] == marks[1]
    assert not set(marks[0]) & set(marks[2])
    assert lane_mark(state(5)["lanes"][0]).startswith("10 rows (fingerprint ")


def test_lanes_that_are_lacking():
    parts = [state(1, dp_degree=4, dp_group_id=g) for g in (0, 2)]
    assert lacking_lanes(*parts) == [1, 3]
    assert lacking_lanes(state(1)) == []


def test_owners_and_their_digest():
    owners = owners_of({0: (0,), 1: (0, 1), 2: (1,)}, 3)
    assert owners == ((0, 1), (1, 2), ())
    assert mapping_digest(owners) != mapping_digest(((0, 1), (2,), ()))


def test_a_broken_part_is_refused_by_lane():
    plain = state(2)
    shares = [(lane, packed) for lane, _, packed in shares_of(plain)]
    with pytest.raises(zj.CheckpointMismatch, match="lane 2: its part of the state is broken"):
        joined(plain, [*shares[:2], (2, shares[2][1][:-5]), shares[3]])
