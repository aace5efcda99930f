"""Mixtures with policies, drop-outs and schedules: equal to a draw-by-draw reference, for any lanes, from any chunk."""

from collections import Counter
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.work.reference import NeverEnds, data, reference
from zephon_jax.errors import ConfigurationError
from zephon_jax.work import MixtureSchedule, StaticMixtureWorkSource
from zephon_jax.work.segments import DrawSequence, Passes, Phase

FAST = settings(deadline=None, database=None, max_examples=60)
MOST = 1200  # draws that are compared of a source that goes on


@st.composite
def mixtures(draw, largest=40):
    names = [f"d{i}" for i in range(draw(st.integers(1, 8)))]
    size = st.one_of(st.integers(1, 6), st.integers(1, largest))
    sizes = {name: draw(size) for name in names}

    def maybe_named(values, absent=None):
        if draw(st.booleans()):
            return draw(st.one_of(st.just(absent), values))
        return {name: draw(values) for name in names if draw(st.booleans())}

    options = {
        "stop_after_passes": maybe_named(st.integers(1, 3)),
        "exhausted_policy": maybe_named(st.sampled_from(["stop", "repeat", None])),
        "max_repeats": maybe_named(st.integers(0, 3)),
    }
    points = [(0, draw(weights(names)))]
    for _ in range(draw(st.integers(0, 3))):
        points.append((points[-1][0] + draw(st.integers(1, 120)), draw(weights(names))))
    return sizes, points, options


def weights(names):
    each = st.lists(st.integers(0, 9), min_size=len(names), max_size=len(names)).filter(any)
    return each.map(lambda found: dict(zip(names, found, strict=True)))


def sequence_of(source):
    assert source._sequence is not None
    return source._sequence


def pointers(chunk):
    return list(zip(chunk.dataset.tolist(), chunk.shard.tolist(), chunk.sample.tolist(), strict=True))


def chunks(source, most=10**9):
    found = []
    while sum(map(len, found)) < most and (chunk := source.next_chunk()) is not None:
        found.append(pointers(chunk))
    return found


def contradicts(sizes, options):
    """A dataset asked for more passes than max_repeats lets it have."""

    def of(name, dataset):
        value = options[name]
        return value.get(dataset) if isinstance(value, dict) else value

    return any(
        (n := of("stop_after_passes", d)) is not None and (m := of("max_repeats", d)) is not None and n > 1 + m
        for d in sizes
    )


@FAST
@given(mixtures(), st.integers(1, 40), st.sampled_from([1, 2, 3, 8]), st.sampled_from([None, 1, 3]))
def test_any_mixture_equals_the_reference_for_any_lanes_and_from_any_chunk(mixture, chunk_size, lanes, block):
    sizes, points, options = mixture
    sets = [data(name, size // 2, size - size // 2) for name, size in sizes.items()]
    phases = [(start, list(by_name.values())) for start, by_name in points]
    arguments = {"chunk_size": chunk_size, "seed": 3, "shuffle_block_size": block, **options}
    if contradicts(sizes, options):
        with pytest.raises(ConfigurationError, match="drops out after"):
            StaticMixtureWorkSource(sets, MixtureSchedule(points), **arguments)
        return
    try:
        expected, ends = reference(sizes, phases, *options.values(), most=MOST)
    except NeverEnds:
        with pytest.raises(
            ConfigurationError, match="has no weight|gives weight only to datasets that have dropped out"
        ):
            StaticMixtureWorkSource(sets, MixtureSchedule(points), **arguments)
        return
    try:
        source = StaticMixtureWorkSource(sets, MixtureSchedule(points), **arguments)
    except ConfigurationError:  # it finds out beyond the draws compared here
        assert not ends
        return
    assert not ends or source.num_draws == len(expected)
    assert ends or source.num_draws is None or source.num_draws >= MOST
    whole = list(chain.from_iterable(chunks(source.clone_for_lane(0, 1), MOST)))[:MOST]
    assert [dataset for dataset, _, _ in whole] == [dataset for dataset, _ in expected]
    check_passes(sizes, whole)
    if ends and lanes <= len(expected):
        dealt = [chunks(source.clone_for_lane(number, lanes)) for number in range(lanes)]
        counts = [sum(map(len, number)) for number in dealt]
        assert Counter(chain.from_iterable(chain.from_iterable(dealt))) == Counter(whole)
        assert max(counts) - min(counts) <= 1
        check_every_resume(source, lanes - 1, lanes, dealt[-1])


def check_passes(sizes, drawn):
    """Every whole pass of a dataset has each of its samples once, the begun one none twice."""
    for number, size in enumerate(sizes.values()):
        own = [pointer for pointer in drawn if pointer[0] == number]
        for at in range(0, len(own), size):
            turn = own[at : at + size]
            assert len(set(turn)) == len(turn)


def check_every_resume(source, number, lanes, whole):
    running = source.clone_for_lane(number, lanes)
    for done in range(len(whole) + 1):
        resumed = source.clone_for_lane(number, lanes)
        resumed.load_state_dict(running.state_dict())
        assert chunks(resumed, sum(map(len, whole[done : done + 2]))) == whole[done : done + 2]
        running.next_chunk()


@settings(FAST, max_examples=15)
@given(mixtures(largest=10**6), st.data())
def test_large_mixtures_find_their_segments_without_stepping(mixture, picks):
    sizes, points, options = mixture
    assume(not contradicts(sizes, options))
    phases = [(start, list(by_name.values())) for start, by_name in points]
    try:
        expected, ends = reference(sizes, phases, *options.values(), most=20_000)
        source = StaticMixtureWorkSource([data(*item) for item in sizes.items()], MixtureSchedule(points), **options)
    except (NeverEnds, ConfigurationError):
        return
    assert not ends or source.num_draws == len(expected)
    sequence = sequence_of(source)
    assert len(sequence.starts) <= len(points) + len(sizes)
    picked = picks.draw(st.lists(st.integers(0, len(expected) - 1), max_size=50))
    component, ordinal = sequence.draws(np.array(picked, np.int64))
    assert list(zip(component.tolist(), ordinal.tolist(), strict=True)) == [expected[i] for i in picked]
    for g in picked[:5]:
        assert sequence.counts(g) == np.bincount([c for c, _ in expected[:g]], minlength=len(sizes)).tolist()


@FAST
@given(mixtures())
def test_shares_are_exact_over_any_window_of_a_segment(mixture):
    sizes, points, options = mixture
    options = {**options, "stop_after_passes": None}
    try:
        source = StaticMixtureWorkSource([data(*item) for item in sizes.items()], MixtureSchedule(points), **options)
    except ConfigurationError:
        return
    sequence = sequence_of(source)
    end = sequence.end or sequence.starts[-1] + 300
    component, _ = sequence.draws(np.arange(end))
    for start, stop in pairwise([*sequence.starts, end]):
        inside = component[start:stop]
        by_name = [w for at, w in points if at <= start][-1]
        members = np.unique(inside) if stop - start > 300 else None
        given_weights = np.array(list(by_name.values()), float)
        taken = np.array([sequence.counts(start)[k] for k in range(len(sizes))])
        gone = [
            m is not None and taken[k] >= (1 + m) * size and policy != "stop"
            for k, (name, size) in enumerate(sizes.items())
            for m in [of(options["max_repeats"], name)]
            for policy in [of(options["exhausted_policy"], name)]
        ]
        given_weights[gone] = 0
        shares = given_weights / given_weights.sum()
        if members is not None:
            assert set(members.tolist()) <= set(np.flatnonzero(shares).tolist())
        for k, share in enumerate(shares):
            error = np.concatenate([[0], np.cumsum(inside == k)]) - share * np.arange(stop - start + 1)
            assert np.abs(error).max(initial=0) < 2
            assert error.max() - error.min() < 4


def of(value, name):
    return value.get(name) if isinstance(value, dict) else value


# -- literals ------------------------------------------------------------------------------------------------------
def letters(source, draws):
    names = [dataset.name for dataset in source.datasets_by_id.values()]
    drawn = chain.from_iterable(chunks(source.clone_for_lane(0, 1), draws))
    return "".join(names[dataset] for dataset, _, _ in drawn)[:draws]


A3, B6, C1 = data("a", 3), data("b", 6), data("c", 1)
EVEN = {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "abababababab"),
        ({"exhausted_policy": "stop"}, "ababab"),
        ({"exhausted_policy": {"a": "stop"}}, "ababab"),
        ({"exhausted_policy": {"b": "stop"}}, "ababa"),  # a is required, and completed before b stops
        ({"exhausted_policy": {"a": "repeat", "b": "stop"}}, "abababababab" + "a"),
        ({"exhausted_policy": {"b": "repeat"}}, "ababa"),  # only a decides
        ({"exhausted_policy": {"b": "repeat"}, "stop_after_passes": {"b": 1}}, "abababababab"),
        ({"max_repeats": 0}, "abababbbb"),
        ({"max_repeats": {"a": 0}}, "abababbbb"),
        ({"max_repeats": {"a": 1}}, "abababababab"),  # a drops out together with the end
        ({"exhausted_policy": "repeat", "max_repeats": 1}, "abababababab" + "b" * 6),
        ({"exhausted_policy": "repeat", "max_repeats": {"a": 1, "b": 0}}, "abababababab"),
        ({"stop_after_passes": {"a": 2}}, "abababababab"),
        ({"stop_after_passes": {"a": 3}}, "ababababababababa"),
        ({"stop_after_passes": {"a": 3}, "max_repeats": {"b": 0}}, "abababababab" + "aaa"),
        ({"exhausted_policy": "stop", "max_repeats": 5}, "ababab"),  # what stops the source never drops out
    ],
    ids=str,
)
def test_who_decides_the_end(options, expected):
    source = StaticMixtureWorkSource([A3, B6], EVEN, **options)
    assert letters(source, 100) == expected
    assert source.num_draws == len(expected)


def test_the_others_go_on_in_the_ratio_of_their_weights():
    sets = [data("a", 2), data("b", 1000), data("c", 1000)]
    source = StaticMixtureWorkSource(
        sets, {"a": 4, "b": 2, "c": 1}, exhausted_policy="repeat", max_repeats={"a": 1}, chunk_size=64
    )
    drawn = letters(source, 1000)
    last = drawn.rindex("a")
    assert drawn.count("a") == 4
    after = drawn[last + 1 :]
    for n in range(len(after)):
        assert abs(after[:n].count("b") - n * 2 / 3) < 2
    assert source.num_draws is None


def test_an_endless_source_may_drop_datasets_and_goes_on():
    source = StaticMixtureWorkSource([A3, B6], EVEN, exhausted_policy="repeat", max_repeats={"a": 10**6})
    assert source.num_draws is None
    sequence = sequence_of(source)
    assert sequence.starts == [0, 2 * 3 * (10**6 + 1) - 1]  # a comes first of the two
    component, ordinal = sequence.draws(sequence.starts[1] + np.arange(-2, 3))
    assert component.tolist() == [1, 0, 1, 1, 1]
    assert ordinal.tolist() == [3 * (10**6 + 1) - 2, 3 * (10**6 + 1) - 1, *(3 * (10**6 + 1) - 1 + i for i in range(3))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_after_passes": 3, "max_repeats": 1}, "3 passes of 'a', but with max_repeats=1 it drops out after 2"),
        ({"stop_after_passes": {"b": 2}, "max_repeats": {"b": 0}}, "2 passes of 'b'.*Raise max_repeats to 1"),
        ({"stop_after_passes": {"x": 2}}, "stop_after_passes names 'x', but the datasets are 'a', 'b'"),
        ({"exhausted_policy": {"a": "stop", "y": "stop"}}, "exhausted_policy names 'y', but the datasets are 'a', 'b'"),
        ({"max_repeats": {"z": 0}}, "max_repeats names 'z'"),
        ({"exhausted_policy": {"a": "halt"}}, r"exhausted_policy\['a'\]='halt': give \"stop\", \"repeat\" or None"),
        ({"stop_after_passes": {"a": 0}}, r"stop_after_passes\['a'\]=0: give an integer from 1"),
        ({"max_repeats": -1}, "max_repeats=-1: give an integer from 0"),
        ({"max_repeats": {"a": 1.5}}, r"max_repeats\['a'\]=1.5"),
        ({"exhausted_policy": "repeat", "max_repeats": 2**62}, r"more than 2\*\*62"),
    ],
    ids=str,
)
def test_impossible_policies_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        StaticMixtureWorkSource([A3, B6], EVEN, **options)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("policy", [None, "stop", "repeat"])
def test_case_23_an_empty_dataset_is_refused_by_name_wherever_it_stands(place, policy):
    sets = [A3, B6]
    sets.insert(place, data("void", 0, 0))
    with pytest.raises(ConfigurationError, match="no samples in 'void'"):
        StaticMixtureWorkSource(sets, {"a": 1, "b": 1, "void": 1}, exhausted_policy=policy)


def test_a_sequence_of_draws_by_itself():
    phases = [Phase(0, (1, 0, 2)), Phase(10, (1, 1, 0))]
    sequence = DrawSequence(phases, [Passes("a"), Passes("b", stop=4), Passes("c", drop=3)])
    component, ordinal = sequence.draws(np.arange(17))
    assert component.tolist() == [2, 0, 2, 2, *[0] * 6, 0, 1, 0, 1, 0, 1, 0]
    assert ordinal.tolist() == [0, 0, 1, 2, 1, 2, 3, 4, 5, 6, 7, 0, 8, 1, 9, 2, 10]
    assert sequence.end == 19
    assert sequence.starts == [0, 4, 10]
    assert sequence.counts(12) == [8, 1, 3]
    assert [array.tolist() for array in sequence.draws(np.empty(0, np.int64))] == [[], []]
