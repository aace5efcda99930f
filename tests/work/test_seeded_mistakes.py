"""The checks themselves, checked: each mistake below is planted in a copy of a module, and must be noticed."""

import inspect
from collections import Counter
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest

from zephon_jax.work import cursor, mixture, permutation, quota


def check_permutation(module):
    for n in [*range(12), 17, 1000, 1023]:
        assert sorted(module.Permutation(n, (1,))(np.arange(n)).tolist()) == list(range(n))
    with pytest.raises(IndexError):
        module.Permutation(10, (1,))(np.array([10]))
    one, other = (module.Permutation(1000, (key,))(np.arange(1000)) for key in (1, 2))
    assert (one != other).any()
    assert (np.diff(one) != 1).sum() > 900
    sizes = 3 + np.arange(60) % 5  # small, so that many walks take a second step
    index = np.arange(60) % sizes
    mixed = module.permute_each(index, sizes, module.mix_key_each(module.mix_key(1), np.arange(60)))
    alone = [module.Permutation(n, (1, i))(index[i : i + 1])[0] for i, n in enumerate(sizes.tolist())]
    assert mixed.tolist() == alone


def check_quota(module):
    for weights in ([1, 1], [7, 3], [3, 15, 2, 1], [2**47 - 1, 2**46 + 3, 987654321], [*range(20, 44)]):
        subject = module.Quota(weights)
        for start in (0, 10**12):
            draws = start + np.arange(3000)
            component, ordinal = subject.draws(draws)
            assert subject.rank(component, ordinal).tolist() == draws.tolist()
            assert subject.rank(int(component[9]), int(ordinal[9])) == start + 9
            gained = np.array(subject.counts(start + 3000)) - subject.counts(start)
            assert gained.tolist() == np.bincount(component, minlength=len(weights)).tolist()
            for number, weight in enumerate(weights):
                count = np.concatenate([[0], np.cumsum(component == number)])
                error = count - np.arange(3001) * (weight / sum(weights))
                assert error.max() - error.min() < 2.5
    assert module.Quota([3, 1]).draws(np.arange(4))[0].tolist() == [0, 1, 0, 0]


def check_cursor(module):
    sizes = [40, 43, 7, 0, 80, 8]
    everything = [(shard, sample) for shard, size in enumerate(sizes) for sample in range(size)]

    def one_pass(number, *options):
        order = module.SampleOrder(sizes, 5, *options)
        shard, sample = order.locate(number * len(everything) + np.arange(len(everything)))
        return list(zip(shard.tolist(), sample.tolist(), strict=True))

    for inside in (False, True):
        for block in (None, 1, 8, 64):
            passes = [one_pass(number, True, inside, block) for number in (0, 1)]
            assert [sorted(seen) for seen in passes] == [everything] * 2
            assert passes[0] != passes[1]
            assert one_pass(1, True, inside, block, False) == passes[0]
            starts = [i for i, (_, sample) in enumerate(passes[0]) if sample % (block or 1) == 0]
            for begin, stop in zip(starts, [*starts[1:], len(everything)], strict=True):
                (shard, first), seen = passes[0][begin], passes[0][begin:stop]
                assert seen == [(shard, first + i) for i in range(len(seen))]
    assert one_pass(0, False) == everything
    tails = [i for i, (shard, sample) in enumerate(one_pass(0, True, False, 6)) if sample == sizes[shard] // 6 * 6]
    assert max(np.diff([0, *tails, len(everything)])) < len(everything) / 3


def check_mixture(module):
    def data(name, *sizes):
        return SimpleNamespace(name=name, shards=[SimpleNamespace(num_samples=size) for size in sizes])

    def lane(source, number=0, lanes=1):
        clone, found, positions = source.clone_for_lane(number, lanes), [], []
        while (chunk := clone.next_chunk()) is not None:
            found.append(list(zip(chunk.dataset.tolist(), chunk.shard.tolist(), chunk.sample.tolist(), strict=True)))
            positions.append(clone.state_dict())
        resumed = source.clone_for_lane(number, lanes)
        resumed.load_state_dict(positions[0])
        assert [chunk.sample.tolist() for chunk in iter(resumed.next_chunk, None)] == [
            [sample for _, _, sample in chunk] for chunk in found[1:]
        ]
        return list(chain.from_iterable(found))

    sets = [data("a", 300, 250), data("b", 99)]
    source = module.StaticMixtureWorkSource(sets, chunk_size=16, stop_after_passes=2)
    for lanes in (1, 2, 5):
        dealt = [lane(source, number, lanes) for number in range(lanes)]
        counts = Counter(chain.from_iterable(dealt))
        assert len(counts) == 649
        assert set(counts.values()) == {2}
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    weights = {"a": 1, "b": 1}
    for policy, end in [(None, 1099), ("stop", 199)]:
        assert module.StaticMixtureWorkSource(sets, weights, exhausted_policy=policy).num_draws == end
    even = module.StaticMixtureWorkSource(sets, weights, chunk_size=1)
    for number in (0, 1):
        assert 0.4 < np.mean([dataset for dataset, _, _ in lane(even, number, 2)]) < 0.6


CHECKS = {permutation: check_permutation, quota: check_quota, cursor: check_cursor, mixture: check_mixture}

MISTAKES = [
    (permutation, "no cycle walking", "while len(outside):", "while False:"),
    (permutation, "a grid smaller than n", "(size + rows - 1) // rows", "size // rows"),
    (permutation, "an index outside is walked", "(cell >= grid.size).any()", "(cell > grid.size).any()"),
    (permutation, "key ignored", "_mix(key + _COUNTERS)", "_mix(0 * key + _COUNTERS)"),
    (permutation, "walks on with keys of others", "self.keys[:, chosen]", "self.keys[:, : len(chosen)]"),
    (quota, "tie given to the other child", "before, whole) >= whole", "before, whole) > whole"),
    (quota, "rank one too high", "part - 1 - phase, part) - 1", "part - 1 - phase, part)"),
    (quota, "scalar rank rounds down", "+ part - 1 - _phase", "- _phase"),
    (quota, "products left inexact", "return guess + _residue(x, y, add, guess, z) // z", "return guess"),
    (quota, "periods forgotten", "before += periods * part", "pass"),
    (quota, "a tree like a list", "heapq.heappush(heap, (lighter + heavier, node))", "heap.insert(0, (0, node))"),
    (quota, "counts round otherwise", "(had[node] * part + whole // 2) // whole", "had[node] * part // whole"),
    (cursor, "tail placed twice", "past_start < self.tail_sizes[last]", "past_start <= self.tail_sizes[last]"),
    (cursor, "tail lost", "past_tail < tail)", "past_tail < tail - 1)"),
    (cursor, "tails not counted", "position - self.tail_before[passed]", "position"),
    (cursor, "tails all at the end", "halves * (total // twice) + halves * (total % twice)", "total * twice"),
    (cursor, "empty shards hit", 'self.starts, position, "right"', 'self.starts, position, "left"'),
    (cursor, "all passes alike", "key = (self._seed, number)", "key = (self._seed, 0)"),
    (cursor, "a new order although told not to", "shuffled and reshuffle_on_repeat", "shuffled"),
    (cursor, "sizes of other shards", "_starts(self._sizes[shards])", "_starts(self._sizes)"),
    (mixture, "partial chunk lost", "if stop <= self._position:", "if stop < self._position + self._chunk_size:"),
    (mixture, "blocks dealt without stride", "number * (self.lanes - 1) + place", "number * self.lanes + place"),
    (mixture, "last round cut unevenly", "place * left // self.lanes + draw", "place * (left // self.lanes) + draw"),
    (mixture, "last round dealt like the others", "np.where(number < rounds, dealt, last)", "dealt"),
    (mixture, "lanes alias with the mixture", "turned.astype(np.int64) + self.lane", "0 * number + self.lane"),
    (mixture, "end one draw early", "drawn) + 1", "drawn)"),
    (mixture, "stops with the last dataset", "end = min(", "end = max("),
    (mixture, "state ignored", "self._position = position", "pass"),
]


def planted(module, right, wrong):
    """A copy of the module with one piece of its text replaced."""
    source = inspect.getsource(module)
    assert source.count(right) == 1, f"{right!r} must occur once to be replaced; it occurs {source.count(right)} times"
    copied = {"__name__": module.__name__}  # dataclasses look their module up by it
    exec(compile(source.replace(right, wrong), module.__file__, "exec"), copied)
    return SimpleNamespace(**copied)


@pytest.mark.parametrize("module", CHECKS, ids=lambda module: module.__name__)
def test_the_right_code_passes(module):
    CHECKS[module](module)


@pytest.mark.parametrize(
    ("module", "what", "right", "wrong"), MISTAKES, ids=lambda value: getattr(value, "__name__", value)
)
def test_each_mistake_is_noticed(module, what, right, wrong):
    mistaken = planted(module, right, wrong)
    with pytest.raises((AssertionError, IndexError, pytest.fail.Exception)):
        CHECKS[module](mistaken)
