"""What a work source may cost, in counts and bytes: the small version of `python -m tests.benchmarks.work`."""

import pickle

import pytest

from tests.benchmarks.work import CHUNK, DEPTHS, ORDERS, dataset, measure, several
from zephon_jax.work import StaticMixtureWorkSource


@pytest.mark.parametrize("order", ORDERS)
def test_memory_grows_with_shards_and_never_with_samples(order):
    few, many = (measure([dataset("d", samples, 1000)], **ORDERS[order]) for samples in (10**5, 10**9))
    for cost in (few, many):
        assert cost.peak_bytes < 1000 * 400 + 1_500_000  # what a chunk takes, however many shards
        assert cost.state_bytes <= len(b"\x81\xa8position") + 9
        assert cost.passes_laid_out <= len(DEPTHS) + 2  # each position needs one pass, or two where it straddles
    assert many.peak_bytes < few.peak_bytes + 300_000


def test_a_hundred_thousand_shards_take_less_than_a_hundred_megabytes():
    cost = measure([dataset("d", 10**9, 10**5)], shuffle_block_size=256)
    assert cost.peak_bytes < 100e6


def test_eight_datasets_share_nothing_that_grows():
    cost = measure(several(10**7, 1000), shuffle_block_size="global")
    assert cost.peak_bytes < 2_000 * 400 + 3_000_000
    assert cost.state_bytes < 20


def test_what_a_pickled_lane_holds_grows_with_shards_alone():
    sizes = []
    for samples in (10**5, 10**8):
        source = StaticMixtureWorkSource([dataset("d", samples, 100)], chunk_size=CHUNK, shuffle_block_size="global")
        lane = source.clone_for_lane(1, 4)
        lane.next_chunk()
        sizes.append(len(pickle.dumps(lane)))
    assert abs(sizes[0] - sizes[1]) < 500
