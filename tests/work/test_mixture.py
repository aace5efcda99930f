"""The standard work source: each draw once over all lanes, exact ends, resumes, and errors that say what to do."""

import pickle
from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.work.reference import data
from zephon_jax.errors import CheckpointMismatch, ConfigurationError
from zephon_jax.work import StaticMixtureWorkSource, WorkSource

FAST = settings(deadline=None, database=None, max_examples=40)
LANES = [1, 2, 3, 8, 11]


WEB, CODE = data("web", 7, 0, 5, 9), data("code", 4, 6)
ALL = [(0, s, i) for s, n in enumerate((7, 0, 5, 9)) for i in range(n)]
ALL += [(1, s, i) for s, n in enumerate((4, 6)) for i in range(n)]


def joined(lists):
    return list(chain.from_iterable(lists))


def pointers(chunk):
    return list(zip(chunk.dataset.tolist(), chunk.shard.tolist(), chunk.sample.tolist(), strict=True))


def chunks(source, limit=10_000):
    found = []
    while len(found) < limit and (chunk := source.next_chunk()) is not None:
        found.append(pointers(chunk))
    return found


def lane(source, number=0, lanes=1, limit=10_000):
    return joined(chunks(source.clone_for_lane(number, lanes), limit))


def all_lanes(source, lanes):
    return [lane(source, number, lanes) for number in range(lanes)]


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle_shards": False},
        {"shuffle_within_shard": True},
        {"shuffle_block_size": 2},
        {"shuffle_block_size": "global"},
        {"shuffle_within_shard": True, "shuffle_block_size": 2},
    ],
    ids=str,
)
def test_without_a_mixture_each_sample_comes_exactly_n_times(lanes, options):
    source = StaticMixtureWorkSource([WEB, CODE], chunk_size=8, stop_after_passes=3, **options)
    assert source.num_draws == 93
    dealt = all_lanes(source, lanes)
    assert Counter(joined(dealt)) == dict.fromkeys(ALL, 3)
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


@FAST
@given(
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4).filter(any), min_size=1, max_size=4),
    st.lists(st.integers(1, 9), min_size=4, max_size=4),
    st.sampled_from([None, "stop", "repeat"]),
    st.integers(1, 2),
    st.sampled_from(LANES),
    st.integers(1, 40),
    st.integers(0, 2**63 - 1),
)
def test_over_all_lanes_each_draw_comes_once(shards, weights, policy, passes, lanes, chunk_size, seed):
    sets = [data(str(i), *sizes) for i, sizes in enumerate(shards)]
    mixture = {d.name: w for d, w in zip(sets, weights, strict=False)}
    options = {"seed": seed, "stop_after_passes": passes, "exhausted_policy": policy, "chunk_size": chunk_size}
    source = StaticMixtureWorkSource(sets, mixture, **options)
    whole = lane(source)
    assert len(whole) == source.num_draws
    counts = Counter(whole)
    sizes = [sum(s) for s in shards]
    completed = [sum(n for (d, _, _), n in counts.items() if d == i) / size for i, size in enumerate(sizes)]
    if policy == "stop":
        assert max(completed) == passes
    else:
        assert min(completed) >= passes
        assert passes in completed
    if lanes <= len(whole):
        dealt = all_lanes(source, lanes)
        assert Counter(joined(dealt)) == counts
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


@pytest.mark.parametrize("lanes", LANES)
def test_every_pass_is_partitioned_over_the_lanes(lanes):
    source = StaticMixtureWorkSource(data("a", *[50] * 40), chunk_size=16, stop_after_passes=2)
    dealt = all_lanes(source, lanes)
    block = 16 if lanes < 2 else {2: 8, 3: 8, 8: 2, 11: 2}[lanes]
    rounds = 2000 // (block * lanes)
    first = [pointer for number in dealt for pointer in number[: rounds * block]]
    assert len(first) == len(set(first))
    assert Counter(joined(dealt)) == dict.fromkeys([(0, s, i) for s in range(40) for i in range(50)], 2)


def test_lanes_take_turns_in_blocks_and_share_the_last_round():
    source = StaticMixtureWorkSource(data("a", 1000), chunk_size=64, shuffle_shards=False)
    samples = [[sample for _, _, sample in number] for number in all_lanes(source, 3)]
    assert [s[:6] for s in samples] == [[0, 1, 2, 3, 12, 13], [4, 5, 6, 7, 16, 17], [8, 9, 10, 11, 20, 21]]
    assert [s[-2:] for s in samples] == [[987, 996], [991, 997], [998, 999]]


def test_one_lane_unshuffled_is_file_order():
    source = StaticMixtureWorkSource(WEB, chunk_size=4, shuffle_shards=False)
    assert lane(source) == [p for p in ALL if p[0] == 0]
    assert [len(chunk) for chunk in chunks(source)] == [4, 4, 4, 4, 4, 1]


def test_lanes_do_not_alias_with_the_mixture():
    sets = [data("a", 1500), data("b", 1500)]
    source = StaticMixtureWorkSource(sets, {"a": 1, "b": 1}, chunk_size=1)
    shares = [np.mean([p[0] for p in number]) for number in all_lanes(source, 2)]
    assert shares == pytest.approx([0.5, 0.5], abs=0.06)


def test_shares_are_exact_and_small_datasets_repeat():
    sets = [data("big", 900), data("small", 10)]
    source = StaticMixtureWorkSource(sets, {"big": 0.75, "small": 0.25}, seed=3)
    drawn = lane(source)
    assert source.num_draws == len(drawn) == 1200
    assert Counter(p for p in drawn if p[0] == 1) == dict.fromkeys([(1, 0, i) for i in range(10)], 30)


@pytest.mark.parametrize(
    ("policy", "passes", "draws"),
    [(None, None, 13), (None, 2, 27), ("stop", None, 9), ("stop", 2, 17), ("repeat", 2, 27), ("repeat", None, None)],
)
def test_where_a_mixture_ends(policy, passes, draws):
    sets = [data("a", 10), data("b", 2)]
    source = StaticMixtureWorkSource(sets, {"a": 3, "b": 1}, stop_after_passes=passes, exhausted_policy=policy)
    assert source.num_draws == source.num_lane_draws == draws


def test_repeat_goes_on_for_ever():
    source = StaticMixtureWorkSource(WEB, exhausted_policy="repeat", chunk_size=50).clone_for_lane(2, 5)
    source.load_state_dict({"position": 50 * 10**14})
    assert source.num_draws is None
    assert [len(chunk) for chunk in chunks(source, 3)] == [50, 50, 50]


def test_passes_differ_and_are_reproducible():
    options: dict[str, Any] = {"seed": 5, "stop_after_passes": 3, "shuffle_block_size": "global"}
    drawn = lane(StaticMixtureWorkSource(WEB, **options))
    passes = [drawn[i * 21 : i * 21 + 21] for i in range(3)]
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert [sorted(p) for p in passes] == [[p for p in ALL if p[0] == 0]] * 3
    assert lane(StaticMixtureWorkSource(WEB, **options)) == drawn
    fixed = lane(StaticMixtureWorkSource(WEB, **options, reshuffle_on_repeat=False))
    assert fixed == passes[0] * 3


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("mixture", [None, {"web": 0.8, "code": 0.2}])
def test_resume_at_every_chunk_equals_the_uninterrupted_run(lanes, mixture):
    source = StaticMixtureWorkSource([WEB, CODE], mixture, chunk_size=5, stop_after_passes=3, shuffle_block_size=2)
    for number in range(lanes):
        whole = chunks(source.clone_for_lane(number, lanes))
        running = source.clone_for_lane(number, lanes)
        for done in range(len(whole) + 1):
            resumed = source.clone_for_lane(number, lanes)
            resumed.load_state_dict(running.state_dict())
            assert resumed.state_dict() == running.state_dict()
            assert chunks(resumed) == whole[done:]
            assert resumed.next_chunk() is None
            running.next_chunk()


def test_clones_are_independent_and_the_source_pickles():
    source = StaticMixtureWorkSource([WEB, CODE], chunk_size=5)
    first, second = source.clone_for_lane(0, 2), source.clone_for_lane(0, 2)
    expected = chunks(first)
    assert chunks(second) == expected == chunks(pickle.loads(pickle.dumps(source.clone_for_lane(0, 2))))
    assert first.state_dict() == {"position": first.num_lane_draws}
    assert source.state_dict() == {"position": 0}
    assert chunks(first.clone_for_lane(0, 2)) == expected


def test_what_it_tells_the_engine():
    source = StaticMixtureWorkSource([WEB, CODE], {"code": 0.25, "web": 0.75}, seed=4, chunk_size=100)
    assert isinstance(source, WorkSource)
    assert source.datasets_by_id == {0: WEB, 1: CODE}
    assert source.chunk_size_hint == 100
    assert source.identity() == {
        "class": "StaticMixtureWorkSource",
        "order_version": 1,
        "datasets": ["web", "code"],
        "weights": [3, 1],
        "seed": 4,
        "chunk_size": 100,
        "shuffle_shards": True,
        "shuffle_within_shard": False,
        "shuffle_block_size": None,
        "stop_after_passes": None,
        "exhausted_policy": None,
        "reshuffle_on_repeat": True,
    }
    assert source.clone_for_lane(1, 2).identity() == source.identity()
    assert source.describe() == (
        "web 75.000% of 21 samples in 4 shards; code 25.000% of 10 samples in 2 shards | shards shuffled, seed 4 | "
        "38 draws, chunks of 100"
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shuffle_shards": False}, "file order"),
        ({"shuffle_within_shard": True}, "shards shuffled, samples shuffled within each shard"),
        ({"shuffle_block_size": "auto"}, "blocks of 256 shuffled over each dataset"),
        ({"shuffle_block_size": "global"}, "samples shuffled over each dataset"),
        ({"exhausted_policy": "repeat"}, "endless"),
    ],
)
def test_describes_its_order(options, text):
    described = StaticMixtureWorkSource([data(str(i), 5) for i in range(6)], **options).describe()
    assert text in described
    assert "; 2 more |" in described


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([],), {}, "at least one dataset"),
        (([WEB, WEB],), {}, "'web' came more than once"),
        (([WEB, data("void", 0)],), {}, "no samples in 'void'"),
        (([WEB, CODE], {"web": 1, "cod": 1}), {}, "mixture names 'cod', but the datasets are 'web', 'code'"),
        (([WEB, CODE], {"web": 1}), {}, "no weight for 'code'"),
        (([WEB, CODE], {"web": 1, "code": 0}), {}, r"mixture\['code'\] = 0"),
        (([WEB, CODE], {"web": 1, "code": -0.5}), {}, r"mixture\['code'\] = -0.5"),
        (([WEB, CODE], {"web": float("nan"), "code": 1}), {}, r"mixture\['web'\] = nan"),
        (([WEB, CODE], {"web": float("inf"), "code": 1}), {}, r"mixture\['web'\] = inf"),
        (([WEB, CODE], {"web": "1", "code": 1}), {}, r"mixture\['web'\] = '1'"),
        ((WEB,), {"chunk_size": 0}, "chunk_size=0"),
        ((WEB,), {"chunk_size": 2.0}, "chunk_size=2.0"),
        ((WEB,), {"seed": -1}, "seed=-1"),
        ((WEB,), {"seed": None}, "seed=None"),
        ((WEB,), {"stop_after_passes": 0}, "stop_after_passes=0"),
        ((WEB,), {"stop_after_passes": 2**60}, r"more than 2\*\*62"),
        ((WEB,), {"shuffle_block_size": 0}, "shuffle_block_size=0"),
        ((WEB,), {"shuffle_block_size": "some"}, "shuffle_block_size='some'"),
        ((WEB,), {"exhausted_policy": "restart"}, "exhausted_policy='restart'"),
    ],
)
def test_impossible_arguments_are_refused(arguments, options, message):
    with pytest.raises(ConfigurationError, match=message):
        StaticMixtureWorkSource(*arguments, **options)


def test_lanes_without_work_are_refused():
    source = StaticMixtureWorkSource([WEB, CODE])
    source.check_lanes(31)
    assert {len(number) for number in all_lanes(source, 31)} == {1}
    with pytest.raises(ConfigurationError, match=r"2 lanes would have no work. Use at most canonical_replicas=31"):
        source.clone_for_lane(0, 33)
    for number, lanes in [(0, 0), (-1, 2), (2, 2)]:
        with pytest.raises(ConfigurationError, match="lane"):
            source.clone_for_lane(number, lanes)


@pytest.mark.parametrize(
    "state",
    [{}, None, {"position": "5"}, {"position": True}, {"position": 5.0}, {"position": 5, "lane": 0}]
    + [{"position": wrong} for wrong in (-5, 3, 30, 32, 35)],
    ids=str,
)
def test_impossible_states_are_refused(state):
    source = StaticMixtureWorkSource([WEB, CODE], chunk_size=5).clone_for_lane(0, 1)
    if state == {"position": 30}:
        source.load_state_dict(state)  # on a chunk boundary: possible
        return
    with pytest.raises(CheckpointMismatch, match=r"StaticMixtureWorkSource is|cannot stand at draw"):
        source.load_state_dict(state)
    assert source.state_dict() == {"position": 0}


HINTED = [
    data("none", 3000),
    data("small", 3000, hint=10),
    data("fits", 3000, hint=100),
    data("huge", 3000, hint=10**6),
]


def test_auto_blocks_are_each_datasets_own_within_bounds_and_stand_in_the_identity():
    source = StaticMixtureWorkSource(HINTED, shuffle_block_size="auto")
    blocks = {"none": 256, "small": 64, "fits": 100, "huge": 1024}
    assert source.identity()["shuffle_block_size"] == blocks
    assert "blocks of 256 (none), 64 (small), 100 (fits), 1024 (huge) shuffled over each dataset" in source.describe()
    drawn = [[s for d, _, s in lane(source) if d == number] for number in range(4)]
    for own, block in zip(drawn, blocks.values(), strict=True):
        starts = [i for i in range(len(own)) if i == 0 or own[i] != own[i - 1] + 1]
        assert all(own[i] % block == 0 for i in starts)
        assert len(starts) > 3000 // block * 0.6
    # What was resolved can be given, so that a resume does not depend on a hint that has changed since.
    for number, block in enumerate(blocks.values()):
        plain = [data(d.name, 3000) for d in HINTED]
        given = StaticMixtureWorkSource(plain, shuffle_block_size=blocks)
        assert given.identity() == source.identity()
        assert [s for d, _, s in lane(given) if d == number] == drawn[number], block


@pytest.mark.parametrize("hint", [None, 256, 0, -5, 2.5, True, "1000"])
def test_a_hint_that_is_none_means_256(hint):
    source = StaticMixtureWorkSource(data("a", 3000, hint=hint), shuffle_block_size="auto")
    assert source.identity()["shuffle_block_size"] == 256


def test_blocks_by_name():
    source = StaticMixtureWorkSource([WEB, CODE], shuffle_block_size={"web": 2})
    assert source.identity()["shuffle_block_size"] == {"web": 2}
    assert "blocks of 2 (web) shuffled over each dataset" in source.describe()
    with pytest.raises(ConfigurationError, match="shuffle_block_size names 'wob', but the datasets are 'web', 'code'"):
        StaticMixtureWorkSource([WEB, CODE], shuffle_block_size={"wob": 2})
    with pytest.raises(ConfigurationError, match=r"shuffle_block_size\['code'\]=0"):
        StaticMixtureWorkSource([WEB, CODE], shuffle_block_size={"code": 0})


def test_values_by_name_that_are_all_alike_are_one_value():
    named = {"stop_after_passes": {"web": 2, "code": 2}, "exhausted_policy": {"web": "stop", "code": "stop"}}
    alike = {"stop_after_passes": 2, "exhausted_policy": "stop", "max_repeats": None}
    assert (
        StaticMixtureWorkSource([WEB, CODE], **named).identity()
        == StaticMixtureWorkSource([WEB, CODE], **alike).identity()
    )
    some = StaticMixtureWorkSource([WEB, CODE], exhausted_policy={"web": "repeat"}, max_repeats={"code": 3}).identity()
    assert (some["exhausted_policy"], some["max_repeats"]) == ({"web": "repeat"}, {"code": 3})


# Seed, shuffle_within_shard, shuffle_block_size: the first dataset:shard:sample of lane 0 of 2.
GOLDEN = {
    (0, False, None): "0:0:0 0:0:1 1:0:1 0:0:5 0:0:6 1:0:3 0:2:2 0:2:3 0:3:0 0:3:1 0:3:2 0:3:4",
    (1, False, None): "1:0:0 0:2:2 1:0:1 0:3:0 1:0:2 1:0:3 0:3:4 1:1:0 0:3:7 1:1:1 1:1:2 0:0:1",
    (0, False, 2): "0:2:0 0:2:1 1:1:1 0:3:4 0:3:5 1:0:3 0:0:6 0:3:6 0:2:2 0:2:3 0:0:2 0:2:4",
    (1, True, "global"): "1:0:0 0:2:3 1:0:3 0:3:3 1:0:2 1:0:1 0:3:0 1:1:3 0:3:6 1:1:5 1:1:2 0:0:4",
}


@pytest.mark.parametrize(("arguments", "expected"), GOLDEN.items(), ids=str)
def test_orders_never_change(arguments, expected):
    seed, inside, block = arguments
    source = StaticMixtureWorkSource(
        [WEB, CODE],
        {"web": 0.7, "code": 0.3},
        seed=seed,
        chunk_size=12,
        shuffle_within_shard=inside,
        shuffle_block_size=block,
    )
    first = pointers(source.clone_for_lane(0, 2).next_chunk())
    assert " ".join(f"{dataset}:{shard}:{sample}" for dataset, shard, sample in first) == expected
