"""Weights that change at exact draws, in steps and along ramps, for any lanes, executors and resumes."""

import pickle
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zephon_jax as zj
from tests.work.reference import data
from zephon_jax.errors import CheckpointMismatch, ConfigurationError
from zephon_jax.testing import check_resume
from zephon_jax.work import MixtureSchedule, StaticMixtureWorkSource
from zephon_jax.work.schedule import RAMP_PIECES
from zephon_jax.work.segments import DrawSequence, Passes

FAST = settings(deadline=None, database=None, max_examples=25)
A, B = data("a", 700), data("b", 900)
SWITCH = [(0, {"a": 1, "b": 0}), (384, {"a": 0, "b": 1})]


def drawn(source, number, lanes, most):
    """Global draw → dataset, of one lane."""
    clone, found = source.clone_for_lane(number, lanes), []
    while len(found) < most and (chunk := clone.next_chunk()) is not None:
        found += chunk.dataset.tolist()
    return dict(zip(clone._deal.global_draws(np.arange(len(found))).tolist(), found, strict=True))


@pytest.mark.parametrize("lanes", [1, 2, 3, 8])
@pytest.mark.parametrize("start", [1, 383, 384, 385, 1000])
def test_the_change_comes_at_the_exact_global_draw_for_any_lanes(lanes, start):
    schedule = MixtureSchedule([(0, {"a": 1, "b": 0}), (start, {"a": 0, "b": 1})])
    source = StaticMixtureWorkSource([A, B], schedule, exhausted_policy="repeat", chunk_size=32, seed=5)
    all_draws = {}
    for number in range(lanes):
        all_draws |= drawn(source, number, lanes, 1500)
    assert [all_draws[g] for g in range(1200)] == [0] * start + [1] * (1200 - start)


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize(
    "way",
    [
        {"executor": "inline", "micro_batch_records": 3},
        {"executor": "threads", "max_workers": 4, "prefetch": 7},
    ],
    ids=str,
)
def test_whole_deal_rounds_change_at_an_exact_step(lanes, way):
    """384 is a multiple of lanes x block for each of these: so the change falls between two steps of 8 rows."""
    sets = [zj.Dataset.from_source(name, [{"d": k}] * 900, fingerprint=name) for k, name in enumerate("ab")]
    schedule = MixtureSchedule.from_steps([(0, {"a": 1, "b": 0}), (48, {"a": 0, "b": 1})], samples_per_step=8)
    assert schedule.points == MixtureSchedule(SWITCH).points
    work = StaticMixtureWorkSource(sets, schedule, exhausted_policy="repeat", chunk_size=32)
    assert 384 % work.draws_per_round(lanes) == 0
    assert work.draws_per_round(lanes) == lanes * work.clone_for_lane(0, lanes)._deal.block
    pipeline = zj.Pipeline(work).batch(global_batch_size=8).options(canonical_replicas=lanes, **way)
    with pipeline.steps() as steps:
        rows = [next(steps)["d"].tolist() for _ in range(60)]
    assert rows == [[0] * 8] * 48 + [[1] * 8] * 12


@pytest.mark.parametrize("interpolation", ["step", "linear"])
def test_a_schedule_resumes_at_every_cut(interpolation):
    sets = [zj.Dataset.from_source(name, range(60), fingerprint=name) for name in "abc"]
    points = [(0, {"a": 1, "b": 2, "c": 0}), (14, {"a": 1, "b": 0, "c": 1}), (30, {"a": 1, "b": 1, "c": 1})]
    work = StaticMixtureWorkSource(
        sets, MixtureSchedule(points, interpolation), chunk_size=8, exhausted_policy="repeat", max_repeats={"b": 0}
    )
    pipeline = zj.Pipeline(work).shuffle(3).batch(global_batch_size=6)
    check_resume(pipeline.options(canonical_replicas=3, flush_every_k_chunks=2), batches=22)


# -- ramps -----------------------------------------------------------------------------------------------------------
POINT = st.lists(st.integers(0, 50), min_size=3, max_size=3).filter(any)


@FAST
@given(POINT, POINT, st.integers(1, 3000), st.booleans())
def test_a_ramp_holds_its_shares_to_within_two_draws_at_the_end_of_every_piece(before, after, length, by_cost):
    points = [(0, dict(zip("abc", before, strict=True))), (length, dict(zip("abc", after, strict=True)))]
    cost = [Fraction(3), Fraction(1, 7), Fraction(100)] if by_cost else None
    phases = MixtureSchedule(points, "linear").phases("abc", cost)
    assert len(phases) == min(RAMP_PIECES, length) + 1
    for number, (phase, following) in enumerate(pairwise(phases)):
        pieces = len(phases) - 1
        assert (phase.start, following.start) == (length * number // pieces, length * (number + 1) // pieces)
        assert sum(phase.weights) == following.start - phase.start  # they are numbers of draws
    sequence = DrawSequence(phases, [Passes(name) for name in "abc"])
    component, _ = sequence.draws(np.arange(length))
    counted = np.array([np.concatenate([[0], np.cumsum(component == k)]) for k in range(3)])
    if cost is None:
        # Of a straight line the area up to g is known: the first share, and half of what is gained.
        first, last = (np.array(p) / sum(p) for p in (before, after))
        at = np.array([phase.start for phase in phases])
        ideal = np.outer(first, at) + np.outer(last - first, at**2 / (2 * length))
    else:  # no straight line in samples: the pieces' own middles
        ideal, at = middles(before, after, cost, phases, length), np.array([phase.start for phase in phases])
    assert np.abs(counted[:, at] - ideal).max() < 2


def middles(before, after, cost, phases, length):
    found = [np.zeros(3)]
    for phase, following in pairwise(phases):
        t = (phase.start + following.start) / 2 / length
        shares = [(1 - t) * x / sum(before) + t * y / sum(after) for x, y in zip(before, after, strict=True)]
        weights = np.array([share / float(c) for share, c in zip(shares, cost, strict=True)])
        found.append(found[-1] + weights / weights.sum() * (following.start - phase.start))
    return np.array(found).T


def test_a_long_ramp_is_close_to_the_line_everywhere():
    length = 1_000_000
    points = [(0, {"a": 1, "b": 0}), (length, {"a": 0, "b": 1})]
    sequence = DrawSequence(MixtureSchedule(points, "linear").phases("ab"), [Passes("a"), Passes("b")])
    at = np.arange(0, length, 911)
    counted = np.array([sequence.counts(g)[1] for g in at.tolist()])
    assert np.abs(counted - at.astype(float) ** 2 / (2 * length)).max() < 2 + length / (8 * RAMP_PIECES**2)
    assert sequence.counts(length) == [500_000, 500_000]


def test_a_step_stays_and_a_ramp_moves():
    points = [(0, {"a": 3, "b": 1}), (100, {"a": 1, "b": 3})]
    for interpolation, share in [("step", 75), ("linear", 50)]:
        phases = MixtureSchedule(points, interpolation).phases("ab")
        sequence = DrawSequence(phases, [Passes("a"), Passes("b")])
        assert sequence.counts(100) == [share, 100 - share]
        assert np.array(sequence.counts(500)) - sequence.counts(100) == pytest.approx([100, 300], abs=0)


def test_weights_by_cost():
    schedule = MixtureSchedule([(0, {"a": 1, "b": 1}), (110, {"a": 0.0, "b": 2})])
    sequence = DrawSequence(schedule.phases("ab", [Fraction(40), Fraction(400)]), [Passes("a"), Passes("b")])
    assert sequence.counts(110) == [100, 10]
    assert sequence.counts(210) == [100, 110]


# -- what a checkpoint remembers, and errors ---------------------------------------------------------------------
def test_identity_is_plain_and_knows_scales_and_points_apart():
    def identity(points, interpolation="step"):
        return StaticMixtureWorkSource(
            [B, A], MixtureSchedule(points, interpolation), exhausted_policy="repeat"
        ).identity()

    half = [(0, {"a": 1, "b": 1}), (9, {"a": 0, "b": 2.5})]
    assert identity(half)["schedule"] == {"interpolation": "step", "points": [[0, [1, 1]], [9, [1, 0]]]}
    assert "weights" not in identity(half)
    assert identity(half) == identity([(0, {"b": 0.5, "a": 0.5}), (9, {"b": 1, "a": 0})])
    assert identity(half) != identity(half, "linear")
    assert identity(half) != identity([half[0], (10, half[1][1])])
    schedule = MixtureSchedule(half)
    assert pickle.loads(pickle.dumps(schedule)) == schedule


def test_a_state_of_another_schedule_is_refused():
    sets = [zj.Dataset.from_source(name, range(60), fingerprint=name) for name in "ab"]

    def pipeline(start):
        schedule = MixtureSchedule([(0, {"a": 1, "b": 1}), (start, {"a": 1, "b": 3})])
        return zj.Pipeline(StaticMixtureWorkSource(sets, schedule)).batch(4)

    with iter(pipeline(20)) as it:
        next(it)
        state = it.checkpoint()
    with iter(pipeline(24)) as it, pytest.raises(CheckpointMismatch, match=r"work.schedule.points\[1\]\[0\].* 20.* 24"):
        it.restore(state)


def test_what_a_schedule_says_of_itself():
    source = StaticMixtureWorkSource([A, B], MixtureSchedule(SWITCH, "linear"), exhausted_policy="repeat")
    assert source.describe().startswith(
        "a 100.000% to 0.000% of 700 samples in 1 shards; b 0.000% to 100.000% of 900 samples in 1 shards | "
    )


ONE = {"a": 1.0}


@pytest.mark.parametrize(
    ("points", "options", "message"),
    [
        ([], {}, "needs a list of pairs"),
        ({"a": 1}, {}, "needs a list of pairs"),
        ([(0,)], {}, "is a start and weights by name"),
        ([ONE], {}, "is a start and weights by name"),
        ([(1.5, ONE)], {}, "is a start and weights by name"),
        ([(True, ONE)], {}, "is a start and weights by name"),
        ([(5, ONE)], {}, "must start at draw 0, got 5"),
        ([(0, ONE), (-5, ONE)], {}, r"from 0 to 2\*\*62, got -5"),
        ([(0, ONE), (9, ONE), (9, ONE)], {}, "must ascend, but 9 comes behind 9"),
        ([(0, ONE), (9, {"a": 0})], {}, "weights at 9 are all 0"),
        ([(0, ONE), (9, {"a": -1})], {}, r"weights at 9\['a'\] = -1: weights are not negative, finite"),
        ([(0, {"a": float("nan")})], {}, r"weights at 0\['a'\] = nan"),
        ([(0, {"a": "1"})], {}, r"\['a'\] = '1'"),
        (
            [(0, ONE), (9, {"b": 1})],
            {},
            r"at 9 must name the same datasets as the first, \['a'\]; it differs in \['a', 'b'\]",
        ),
        ([(0, ONE)], {"interpolation": "cubic"}, "cubic"),
    ],
    ids=str,
)
def test_impossible_schedules_are_refused(points, options, message):
    with pytest.raises(ConfigurationError, match=message):
        MixtureSchedule(points, **options)


@pytest.mark.parametrize(
    ("points", "options", "message"),
    [
        ([(0, ONE)], {}, "has no weight for 'b'"),
        ([(0, {"a": 1, "b": 1, "c": 1})], {}, "names 'c', but the datasets are 'a', 'b'"),
        ([(0, {"a": 1, "b": 0})], {}, "until 'b' completed its passes, but from draw 0 on it has no weight"),
        ([(0, {"a": 1, "b": 1}), (100, {"a": 1, "b": 0})], {}, "until 'b' completed its passes, but from draw 100 on"),
        (
            [(0, {"a": 1, "b": 0}), (5000, {"a": 0, "b": 1})],
            {"exhausted_policy": "repeat", "max_repeats": 1},
            r"from draw 1,400 on .* \(dropped out: 'a'\)",
        ),
    ],
    ids=str,
)
def test_schedules_that_could_not_go_on_are_refused_at_build(points, options, message):
    with pytest.raises(ConfigurationError, match=message):
        StaticMixtureWorkSource([A, B], MixtureSchedule(points), **options)


@pytest.mark.parametrize("samples_per_step", [0, -1, 2.5, True, None])
def test_steps_need_a_number_of_samples(samples_per_step):
    with pytest.raises(ConfigurationError, match="samples_per_step="):
        MixtureSchedule.from_steps([(0, ONE)], samples_per_step=samples_per_step)


def test_a_dataset_may_stop_the_source_before_a_schedule_would_starve_it():
    source = StaticMixtureWorkSource(
        [A, B], MixtureSchedule([(0, {"a": 1, "b": 1}), (10_000, {"a": 1, "b": 0})]), exhausted_policy={"a": "stop"}
    )
    assert source.num_draws == 1400
