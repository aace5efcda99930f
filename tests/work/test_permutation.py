"""The keyed permutation: a bijection for every n, the same for ever, and even enough for a shuffle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_jax.errors import ConfigurationError
from zephon_jax.work.permutation import MAX_SIZE, Permutation, mix_key, mix_key_each, permute_each

FAST = settings(deadline=None, database=None, max_examples=60)


def test_is_a_bijection_for_every_small_n():
    for n in range(400):
        assert sorted(Permutation(n, (n, 1))(np.arange(n)).tolist()) == list(range(n)), n


@FAST
@given(st.integers(0, 2000), st.integers(-(2**63), 2**64))
def test_is_a_bijection_under_any_key(n, seed):
    image = Permutation(n, (seed,))(np.arange(n))
    assert image.dtype == np.int64
    np.testing.assert_array_equal(np.sort(image), np.arange(n))


@pytest.mark.parametrize("n", [10**6 + 3, 2**32 - 1, 2**32 + 1, 10**12, (2**24 - 1) ** 2 + 1, MAX_SIZE - 1, MAX_SIZE])
def test_large_n_stays_in_range_without_collisions(n):
    index = np.concatenate([np.arange(2000), n - 1 - np.arange(2000)])
    image = Permutation(n, (5,))(index)
    assert image.min() >= 0
    assert image.max() < n
    assert len(np.unique(image)) == len(index)


def test_index_is_random_access():
    order = Permutation(1000, (3,))
    whole = order(np.arange(1000))
    picked = np.array([999, 0, 5, 5, 17])
    np.testing.assert_array_equal(order(picked), whole[picked])
    assert len(order(np.arange(0))) == 0


@pytest.mark.parametrize("index", [-1, 10, 11, 2**62])
def test_an_index_outside_is_refused_rather_than_walked_for_ever(index):
    with pytest.raises(IndexError, match=r"range\(n\)"):
        Permutation(10, (0,))(np.array([3, index]))


@pytest.mark.parametrize("n", [-1, MAX_SIZE + 1])
def test_impossible_n_is_refused(n):
    with pytest.raises(ConfigurationError, match=r"cannot permute .* 2\*\*48"):
        Permutation(n, (0,))


@FAST
@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 2**62)), min_size=1, max_size=20), st.data())
def test_each_index_may_have_a_permutation_of_its_own(pieces, data):
    sizes, parts = np.array([n for n, _ in pieces]), np.array([part for _, part in pieces])
    index = np.array([data.draw(st.integers(0, n - 1)) for n, _ in pieces])
    image = permute_each(index, sizes, mix_key_each(mix_key(8), parts))
    assert image.tolist() == [int(Permutation(n, (8, p))(index[i : i + 1])[0]) for i, (n, p) in enumerate(pieces)]


def test_keys_depend_on_order_number_and_value():
    keys = [mix_key(), mix_key(0), mix_key(0, 0), mix_key(1, 0), mix_key(0, 1), mix_key(-1)]
    assert len(set(keys)) == len(keys)
    assert mix_key(-1) == mix_key(2**64 - 1)


@pytest.mark.parametrize("n", [2, 3, 5, 16, 50])
def test_every_item_lands_everywhere_about_equally_often(n):
    keys = mix_key_each(mix_key(0), np.arange(20_000))
    for item in (0, n // 2, n - 1):
        places = permute_each(np.full(len(keys), item), np.full(len(keys), n), keys)
        share = np.bincount(places, minlength=n) * n / len(keys)
        assert np.abs(share - 1).max() < 0.03 + 4 * (n / len(keys)) ** 0.5


def test_neighbours_part():
    image = Permutation(100_000, (1,))(np.arange(100_000))
    assert abs(np.corrcoef(image[:-1], image[1:])[0, 1]) < 0.02
    assert (np.diff(image) == 1).sum() < 10


GOLDEN_KEYS = {(0,): 0xE220A8397B1DCDAF, (7, 1): 0xC574DC9A254998F, (1, 7): 0x3E05A25C667A24B6}
GOLDEN_ORDERS = {
    (5, (0,)): [0, 1, 3, 2, 4],
    (10, (0,)): [6, 5, 3, 4, 7, 0, 8, 9, 1, 2],
    (10, (1,)): [6, 2, 5, 3, 9, 4, 1, 8, 7, 0],
    (2**48, (3, 4)): [49163199037622, 119198519362649, 126589639074181, 89778407157887, 151357164796588],
}


@pytest.mark.parametrize(("parts", "key"), GOLDEN_KEYS.items())
def test_keys_never_change(parts, key):
    assert mix_key(*parts) == key


@pytest.mark.parametrize(("arguments", "order"), GOLDEN_ORDERS.items())
def test_orders_never_change(arguments, order):
    assert Permutation(*arguments)(np.arange(len(order))).tolist() == order
