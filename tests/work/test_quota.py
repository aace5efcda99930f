"""Exact shares: against a plain interpreter of the tree, over windows, and far out."""

from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_jax.errors import ConfigurationError
from zephon_jax.work.quota import MAX_TOTAL, Quota, integer_weights

FAST = settings(deadline=None, database=None, max_examples=60)
WEIGHTS = st.lists(st.one_of(st.integers(1, 4), st.integers(1, 1000)), min_size=1, max_size=9)
DEPTHS = st.one_of(st.integers(0, 3000), st.just(10**12), st.integers(0, 2**61))


def sequence(weights, draws):
    """Components of the first draws by the definition: merge the two lightest nodes, give each draw to a child."""
    nodes: list[Any] = [(weight, number, None) for number, weight in enumerate(weights)]
    count = len(weights)
    while len(nodes) > 1:
        light, heavy, *nodes = sorted(nodes, key=lambda node: node[:2])
        nodes.append((light[0] + heavy[0], count, (light, heavy)))
        count += 1
    had = [0] * count

    def take(node):
        weight, number, children = node
        m = had[number]
        had[number] += 1
        if children is None:
            return number
        to_light = [floor(Fraction(k * children[0][0], weight) + Fraction(1, 2)) for k in (m, m + 1)]
        return take(children[0] if to_light[1] > to_light[0] else children[1])

    return [take(nodes[0]) for _ in range(draws)]


@FAST
@given(WEIGHTS)
def test_equals_the_definition(weights):
    quota = Quota(weights)
    component, ordinal = quota.draws(np.arange(300))
    assert component.dtype == np.int32
    assert ordinal.dtype == np.int64
    expected = sequence(quota.weights, 300)
    assert component.tolist() == expected
    assert ordinal.tolist() == [expected[:g].count(c) for g, c in enumerate(expected)]


@FAST
@given(WEIGHTS, DEPTHS, st.randoms(use_true_random=False))
def test_draws_ranks_and_counts_agree_at_any_depth(weights, start, random):
    quota = Quota(weights)
    draws = start + np.arange(200)
    component, ordinal = quota.draws(draws)
    np.testing.assert_array_equal(quota.rank(component, ordinal), draws)
    assert quota.rank(int(component[7]), int(ordinal[7])) == start + 7
    before, after = quota.counts(start), quota.counts(start + 200)
    assert sum(before) == start
    assert (np.array(after) - before).tolist() == np.bincount(component, minlength=len(weights)).tolist()
    scattered = np.array(random.choices(range(200), k=50))
    again, _ = quota.draws(draws[scattered])
    np.testing.assert_array_equal(again, component[scattered])


@FAST
@given(WEIGHTS)
def test_every_prefix_holds_its_exact_share_to_within_two(weights):
    quota = Quota(weights)
    draws = np.arange(4000)
    component, _ = quota.draws(draws)
    for number, weight in enumerate(weights):
        count = np.concatenate([[0], np.cumsum(component == number)])
        error = count - np.arange(4001) * (weight / sum(weights))
        assert np.abs(error).max() < 2


@pytest.mark.parametrize("weights", [[0.7, 0.3], [0.5, 0.2, 0.2, 0.1], [0.9] + [0.01] * 10, [1] * 50, [64, 32, 16, 8]])
def test_usual_mixtures_hold_their_shares_over_any_window(weights):
    component, _ = Quota(weights).draws(np.arange(5000))
    for number, weight in enumerate(weights):
        count = np.concatenate([[0], np.cumsum(component == number)])
        error = count - np.arange(5001) * (weight / sum(weights))
        assert np.abs(error).max() < 1.01
        assert error.max() - error.min() < 1.51  # a window is the difference of two prefixes


def test_light_components_do_not_come_in_bursts():
    component, _ = Quota([0.9] + [0.01] * 10).draws(np.arange(1000))
    light = np.flatnonzero(component > 0)
    assert set(np.diff(light).tolist()) == {10}


@pytest.mark.parametrize("weights", [[0.999, 0.001], [0.4, 0.001, 0.3, 0.299]])
def test_a_thousandth_comes_once_in_a_thousand(weights):
    component, _ = Quota(weights).draws(10**12 + np.arange(5000))
    hits = np.flatnonzero(component == 1)
    assert len(hits) == 5
    assert set(np.diff(hits).tolist()) == {1000}


def test_a_period_holds_exactly_the_weights():
    quota = Quota([6, 15, 1])
    assert quota.period == 22
    for start in (0, 5, 10**12):
        assert np.bincount(quota.draws(start + np.arange(22))[0]).tolist() == [6, 15, 1]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([0.7, 0.3], (7, 3)),
        ([0.1, 0.2], (1, 2)),
        ([2000, 500, 1500], (4, 1, 3)),
        ([1e-3, 1], (1, 1000)),
        ([np.float64(0.25), np.float32(0.75)], (1, 3)),
        ([5], (1,)),
        ([10**9, 10**9 + 1], (10**9, 10**9 + 1)),
    ],
)
def test_weights_become_the_smallest_integers(weights, expected):
    assert integer_weights(weights) == expected


@pytest.mark.parametrize("weights", [[1e-300, 1, 3], [1 / 3, 2 / 3, 0.123456789012345678], [10**30, 1, 1]])
def test_extreme_weights_are_scaled_and_never_lost(weights):
    scaled = integer_weights(weights)
    assert sum(scaled) <= MAX_TOTAL
    assert min(scaled) >= 1
    assert [w / sum(scaled) for w in scaled] == pytest.approx([w / sum(weights) for w in weights], abs=1e-13)
    quota = Quota(weights)
    draws = 2**61 + np.arange(100)
    np.testing.assert_array_equal(quota.rank(*quota.draws(draws)), draws)


def test_weights_up_to_two_to_the_48_are_exact():
    weights = [2**47 - 1, 2**46 + 3, 12345678901]
    quota = Quota(weights)
    assert quota.weights == tuple(weights)
    for start in (0, quota.period - 100, 7 * quota.period - 100, 2**61):
        draws = start + np.arange(200)
        component, ordinal = quota.draws(draws)
        np.testing.assert_array_equal(quota.rank(component, ordinal), draws)
        pairs = zip(component.tolist(), ordinal.tolist(), strict=True)
        assert [quota.rank(c, i) for c, i in pairs] == draws.tolist()
    assert quota.counts(quota.period) == weights


def test_scalar_ranks_are_exact_beyond_64_bits():
    quota = Quota([3, 5])
    assert quota.rank(1, 5 * 10**30 + 2) == 8 * 10**30 + quota.rank(1, 2)


@pytest.mark.parametrize("weights", [[], [0], [1, -1], [float("nan")], [1, float("inf")]])
def test_impossible_weights_are_refused(weights):
    with pytest.raises(ConfigurationError, match="positive, finite"):
        Quota(weights)


GOLDEN = [
    ([0.7, 0.3], [0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1]),
    ([1, 1, 1], [0, 2, 1, 0, 2, 1, 0, 2, 1, 0, 2, 1]),
    ([5, 1, 2, 2], [0, 2, 0, 3, 0, 1, 0, 3, 0, 2, 0, 2]),
]


@pytest.mark.parametrize(("weights", "components"), GOLDEN)
def test_sequences_never_change(weights, components):
    assert Quota(weights).draws(np.arange(12))[0].tolist() == components
