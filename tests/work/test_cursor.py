"""The order of one dataset's samples: each pass a permutation, blocks whole, tails spread, memory by shards."""

import pickle
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_jax.errors import ConfigurationError
from zephon_jax.work.cursor import SampleOrder, block_size_of

FAST = settings(deadline=None, database=None, max_examples=80)
SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)
BLOCKS = st.sampled_from([None, 1, 2, 3, 7, 64, "auto", "global"])


def pointers(order, draws):
    shard, sample = order.locate(np.asarray(draws, np.int64))
    assert shard.dtype == np.int32
    assert sample.dtype == np.int64
    return list(zip(shard.tolist(), sample.tolist(), strict=True))


def one_pass(order, number=0):
    return pointers(order, number * order.num_samples + np.arange(order.num_samples))


def in_file_order(sizes):
    return [(shard, sample) for shard, size in enumerate(sizes) for sample in range(size)]


@FAST
@given(SIZES, st.booleans(), st.booleans(), BLOCKS, st.booleans(), st.integers(0, 2**63 - 1))
def test_each_pass_has_each_sample_once(sizes, shards, inside, block, reshuffle, seed):
    order = SampleOrder(sizes, seed, shards, inside, block, reshuffle)
    assert order.num_samples == sum(sizes)
    for number in (0, 1, 10**9):
        assert sorted(one_pass(order, number)) == in_file_order(sizes)


@FAST
@given(SIZES, st.booleans(), BLOCKS, st.data())
def test_any_draws_in_any_order_are_located_alike(sizes, inside, block, data):
    order = SampleOrder(sizes, 3, True, inside, block)
    passes = one_pass(order) + one_pass(order, 1) + one_pass(order, 2)
    picked = data.draw(st.lists(st.integers(0, len(passes) - 1), max_size=30))
    assert pointers(SampleOrder(sizes, 3, True, inside, block), picked) == [passes[i] for i in picked]


def test_unshuffled_is_file_order():
    sizes = [3, 0, 5, 1]
    order = SampleOrder(sizes, seed=9, shuffle_shards=False)
    assert one_pass(order) == one_pass(order, 5) == in_file_order(sizes)


def test_shuffled_shards_stay_whole():
    order = SampleOrder([4] * 30, seed=1)
    seen = one_pass(order)
    turns = [shard for shard, sample in seen if sample == 0]
    assert seen == [(shard, sample) for shard in turns for sample in range(4)]
    assert sorted(turns) == list(range(30)) != turns


def test_shuffling_within_shards_keeps_to_the_shard():
    order = SampleOrder([50, 60], seed=1, shuffle_shards=False, shuffle_within_shard=True)
    seen = one_pass(order)
    assert [shard for shard, _ in seen] == [0] * 50 + [1] * 60
    first, second = [s for _, s in seen[:50]], [s for _, s in seen[50:]]
    assert first != sorted(first)
    assert second != sorted(second)
    assert [s for s in second if s < 50] != first


def runs(seen):
    """Maximal runs of consecutive samples: (shard, first sample, length)."""
    found = []
    for shard, sample in seen:
        if found and found[-1][0] == shard and found[-1][1] + found[-1][2] == sample:
            found[-1][2] += 1
        else:
            found.append([shard, sample, 1])
    return found


def test_blocks_stay_whole_and_aligned_and_mix_over_the_dataset():
    sizes = [40, 43, 7, 80, 8]
    seen = one_pass(SampleOrder(sizes, seed=2, shuffle_block_size=8))
    assert all(first % 8 == 0 for _, first, _ in runs(seen))
    assert all(first + length == sizes[shard] or length % 8 == 0 for shard, first, length in runs(seen))
    assert len({shard for shard, _ in seen[:64]}) >= 3


def test_tails_are_spread_evenly():
    seen = one_pass(SampleOrder([101] * 20, seed=2, shuffle_block_size=10))
    places = [i for i, (_, sample) in enumerate(seen) if sample == 100]
    assert places == [50 + 101 * i for i in range(20)]
    assert [seen[i][0] for i in places] != list(range(20))


def test_shards_smaller_than_a_block_are_permuted_whole():
    seen = one_pass(SampleOrder([3, 5, 2, 4, 1, 6], seed=2, shuffle_block_size=256))
    turns = [shard for shard, sample in seen if sample == 0]
    assert seen == [(shard, sample) for shard in turns for sample in range([3, 5, 2, 4, 1, 6][shard])]
    assert turns != sorted(turns)


def test_blocks_within_shards_leave_no_shard_before_it_is_done():
    sizes = [43, 43, 43, 43]
    seen = one_pass(SampleOrder(sizes, 2, shuffle_within_shard=True, shuffle_block_size=8))
    assert [len({shard for shard, _ in seen[43 * i : 43 * i + 43]}) for i in range(4)] == [1] * 4
    tails = [i % 43 for i, (_, sample) in enumerate(seen) if sample == 40]
    assert all(place % 8 == 0 for place in tails)
    assert len(set(tails)) > 1


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle_within_shard": True}, {"shuffle_block_size": 4}, {"shuffle_block_size": "global"}],
    ids=str,
)
def test_passes_differ_unless_told_and_come_again_by_seed(options):
    sizes = [9] * 11
    order = SampleOrder(sizes, 4, **options)
    passes = [one_pass(order, number) for number in range(3)]
    assert passes[0] != passes[1] != passes[2] != passes[0]
    again = SampleOrder(sizes, 4, **options)
    assert [one_pass(again, number) for number in (2, 1, 0)] == passes[::-1]
    assert one_pass(SampleOrder(sizes, 5, **options)) != passes[0]
    fixed = SampleOrder(sizes, 4, **options, reshuffle_on_repeat=False)
    assert one_pass(fixed) == one_pass(fixed, 1) == passes[0]


def test_pickles_and_serves_many_threads():
    order = SampleOrder([13] * 50, 7, shuffle_block_size=4)
    passes = [one_pass(order, number) for number in range(6)]
    assert [one_pass(pickle.loads(pickle.dumps(order)), number) for number in range(6)] == passes
    wrong = []

    def read(offset):
        for i in range(30):
            if one_pass(order, (i + offset) % 6) != passes[(i + offset) % 6]:
                wrong.append(i)

    threads = [threading.Thread(target=read, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("options", [{}, {"shuffle_within_shard": True}, {"shuffle_block_size": 300}], ids=str)
def test_a_billion_samples_in_a_hundred_thousand_shards(options):
    sizes = np.full(100_000, 10_000)
    tracemalloc.start()
    try:
        shard, _ = SampleOrder(sizes, 1, **options).locate(17 * 10**9 + np.arange(512))
        assert tracemalloc.get_traced_memory()[1] < 30e6
    finally:
        tracemalloc.stop()
    assert shard.max() < 100_000


@pytest.mark.parametrize(("given_size", "size"), [(None, None), (5, 5), (np.int64(5), 5), ("auto", 256), ("global", 1)])
def test_block_sizes(given_size, size):
    assert block_size_of(given_size) == size


@pytest.mark.parametrize("wrong", [0, -1, "whole", 2.5, True])
def test_impossible_block_sizes_are_refused(wrong):
    with pytest.raises(ConfigurationError, match=r'shuffle_block_size=.*"auto", "global"'):
        SampleOrder([5], shuffle_block_size=wrong)


@pytest.mark.parametrize("sizes", [[-1], [[1, 2]], [2**48, 1]])
def test_impossible_shards_are_refused(sizes):
    with pytest.raises(ConfigurationError, match="shard sizes"):
        SampleOrder(sizes)


def test_an_empty_dataset_cannot_be_drawn_from():
    with pytest.raises(ConfigurationError, match="without samples"):
        pointers(SampleOrder([0, 0]), [0])
    assert pointers(SampleOrder([0]), []) == []


# Seed, shuffle_shards, shuffle_within_shard, shuffle_block_size, pass: the first shard:sample.
GOLDEN = {
    (0, True, False, None, 0): "0:0 0:1 0:2 0:3 0:4 0:5 0:6 2:0 2:1 2:2 2:3 2:4",
    (1, True, False, None, 0): "2:0 2:1 2:2 2:3 2:4 3:0 3:1 3:2 3:3 3:4 3:5 3:6",
    (0, True, True, None, 0): "0:5 0:1 0:0 0:6 0:2 0:4 0:3 2:1 2:4 2:2 2:0 2:3",
    (1, False, True, None, 1): "0:4 0:3 0:5 0:2 0:6 0:0 0:1 2:4 2:3 2:1 2:2 2:0",
    (0, True, False, 2, 0): "0:2 0:3 0:6 3:0 3:1 3:6 3:7 2:0 2:1 2:4 3:4 3:5",
    (1, True, False, 2, 1): "0:2 0:3 0:6 3:2 3:3 3:4 3:5 3:0 3:1 2:4 3:6 3:7",
    (0, True, True, 2, 0): "0:6 0:2 0:3 0:0 0:1 0:4 0:5 2:4 2:0 2:1 2:2 2:3",
    (1, True, False, "global", 0): "3:8 3:7 0:2 0:4 0:5 3:5 2:2 0:6 3:4 3:0 2:4 3:2",
}


@pytest.mark.parametrize(("options", "samples"), GOLDEN.items())
def test_orders_never_change(options, samples):
    *options, number = options
    seen = one_pass(SampleOrder([7, 0, 5, 9], *options), number)
    assert " ".join(f"{shard}:{sample}" for shard, sample in seen[:12]) == samples
