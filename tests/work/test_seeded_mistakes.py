"""The checks themselves, checked: each mistake below is planted in a copy of a module, and must be noticed."""

import inspect
import random
from collections import Counter
from fractions import Fraction
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest

import zephon_jax as zj
from tests.work.reference import NeverEnds, reference
from zephon_jax.engine import measure
from zephon_jax.engine.tasks import run_steps
from zephon_jax.errors import CheckpointMismatch, ConfigurationError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops import Split
from zephon_jax.runners.ordered import map_inline
from zephon_jax.types import WorkChunk
from zephon_jax.work import arguments, cursor, deal, mixture, permutation, quota, schedule, segments, tokens


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


def check_deal(module):
    for end in (None, 1, 7, 1000, 1003):
        for lanes in (1, 2, 5):
            key = 9 if lanes == 5 else None
            dealt = [module.Deal(lane, lanes, 16, end, key) for lane in range(lanes)]
            lengths = [d.num_draws if end is not None else 512 for d in dealt]
            draws = [d.global_draws(np.arange(n)).tolist() for d, n in zip(dealt, lengths, strict=True)]
            assert sorted(chain.from_iterable(draws)) == list(range(sum(lengths)))
            assert end is None or sum(lengths) == end
            assert max(lengths) - min(lengths) <= 1
            for own in draws:
                assert own == sorted(own)
    places = [module.Deal(lane, 2, 1, None, 4).global_draws(np.arange(1000)) % 2 for lane in (0, 1)]
    assert all(400 < place.sum() < 600 for place in places)
    assert module.deal_block(1 << 20, 8, 512) == 512
    assert module.deal_block(1 << 12, 8, 512) == 8


def random_mixture(rng):
    names = [f"d{i}" for i in range(rng.randint(1, 5))]
    sizes = {name: rng.randint(1, 25) for name in names}

    def weights():
        found = [rng.randint(0, 5) for _ in names]
        return found if any(found) else [1] * len(names)

    starts = sorted({0, *(rng.randint(1, 150) for _ in range(rng.randint(0, 2)))})
    phases = [(start, weights()) for start in starts]
    passes = {name: rng.randint(1, 3) for name in names if rng.random() < 0.4}
    policy = {name: rng.choice(["stop", "repeat"]) for name in names if rng.random() < 0.5}
    repeats = {name: rng.randint(passes.get(name, 1) - 1, 3) for name in names if rng.random() < 0.4}
    return sizes, phases, passes, policy, repeats


def check_segments(module, rules=arguments.checked_passes):
    for seed in range(60):
        sizes, phases, passes, policy, repeats = random_mixture(random.Random(seed))
        given_phases = [module.Phase(start, tuple(weights)) for start, weights in phases]
        found, _ = rules(list(sizes), list(sizes.values()), passes, policy, repeats)
        found = [module.Passes(*p) for p in found]
        try:
            expected, ends = reference(sizes, phases, passes, policy, repeats, most=400)
        except NeverEnds:
            with pytest.raises(ConfigurationError):
                module.DrawSequence(given_phases, found)
            continue
        try:
            sequence = module.DrawSequence(given_phases, found)
        except ConfigurationError:  # it looks further ahead than the reference
            assert not ends
            continue
        assert not ends or sequence.end == len(expected)
        assert ends or sequence.end is None or sequence.end >= len(expected)
        component, ordinal = sequence.draws(np.arange(len(expected)))
        assert list(zip(component.tolist(), ordinal.tolist(), strict=True)) == expected
        for g in (0, len(expected) // 2, len(expected)):
            assert sequence.counts(g) == np.bincount([c for c, _ in expected[:g]], minlength=len(sizes)).tolist()

    stopped = [module.Phase(0, (1, 0)), module.Phase(5, (1, 3))]
    assert module.DrawSequence(stopped, [module.Passes("a", stop=4), module.Passes("b")]).end == 4
    gone = [module.Passes("a", drop=2), module.Passes("b", drop=3)]
    assert module.DrawSequence([module.Phase(0, (1, 1))], gone).end == 5
    starved = [module.Passes("a"), module.Passes("b", required=1)]
    for weights in ([(1, 0)], [(1, 0), (1, 0)]):
        with pytest.raises(ConfigurationError):
            module.DrawSequence([module.Phase(9 * i, w) for i, w in enumerate(weights)], starved)


def check_arguments(module):
    check_segments(segments, module.checked_passes)
    with pytest.raises(ConfigurationError):
        module.checked_passes(["a"], [5], {"b": 1}, None, None)
    with pytest.raises(ConfigurationError):
        module.checked_passes(["a"], [5], 3, None, 1)
    module.checked_passes(["a"], [5], 2, None, 1)
    module.checked_passes(["a"], [5], None, "repeat", 0)
    sets = [SimpleNamespace(name=str(hint), shards=[], block_hint=hint) for hint in (None, 1, 100, 5000, True, 0)]
    assert module.checked_blocks(sets, "auto") == [256, 64, 100, 1024, 256, 256]
    assert module.checked_blocks(sets, {"None": 7, "100": "auto", "1": "global"}) == [7, 1, 100, None, None, None]


def check_schedule(module):
    for before, after, length in [
        ((1, 0, 3), (2, 5, 1), 2600),
        ((0, 0, 1), (1, 1, 0), 700),
        ((1, 5, 5), (5, 1, 1), 37),
    ]:
        points = [(0, dict(zip("abc", before, strict=True))), (length, dict(zip("abc", after, strict=True)))]
        phases = module.MixtureSchedule(points, "linear").phases("abc")
        sequence = segments.DrawSequence(phases, [segments.Passes(name) for name in "abc"])
        first, last = (np.array(p) / sum(p) for p in (before, after))
        for phase in phases:
            area = first * phase.start + (last - first) * phase.start**2 / (2 * length)
            assert np.abs(sequence.counts(phase.start) - area).max() < 2
        gained = np.array(sequence.counts(length + 300)) - sequence.counts(length)
        assert np.abs(gained - 300 * last).max() < 2
    costly = module.MixtureSchedule([(0, {"a": 1, "b": 1}), (10, {"a": 1, "b": 3})])
    for interpolation, weights in [("step", [(10, 1), (10, 3)]), ("linear", [None, (10, 3)])]:
        costly = module.MixtureSchedule(costly.points, interpolation)
        for phase, expected in zip([costly.phases("ab", [1, 10])[i] for i in (0, -1)], weights, strict=True):
            assert expected is None or phase.weights[0] / phase.weights[1] == Fraction(*expected)
    assert costly.phases("ab", [1, 100])[0].weights == (1, 0)
    assert [start for start, _ in module.MixtureSchedule.from_steps(costly.points, samples_per_step=7).points] == [
        0,
        70,
    ]


def check_tokens(module):
    sizes = [np.array([3, 0, 2]), np.array([1000, 24, 0, 1024])]
    chunk = module.samples_to_measure(sizes)
    for number, shards in enumerate(sizes):
        own = chunk.dataset == number
        place = (np.cumsum(shards) - shards)[chunk.shard[own]] + chunk.sample[own]
        assert (chunk.sample[own] < shards[chunk.shard[own]]).all()
        step = shards.sum() // len(place)
        assert place.tolist() == list(range(step // 2, shards.sum(), step))
    means = module.TokenMeans.of_counts("ab", np.array([0, 0, 1]), np.array([4, 0, 9]))
    assert means.cost() == [2, 9]
    assert module.TokenMeans.from_state(means.state(), 2) == means
    with pytest.raises(ConfigurationError):
        module.TokenMeans.of_counts("ab", np.array([0, 0, 1]), np.array([4, 0, 0]))


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
    check_measured(module, sets, lane)


def check_measured(module, sets, lane):
    source = module.StaticMixtureWorkSource(sets, {"a": 1, "b": 1}, chunk_size=16, weight_by="tokens")
    chunk = source.samples_to_measure()
    known = source.with_measured(np.where(chunk.dataset == 0, 10, 30))
    drawn = lane(known.clone_for_lane(0, 1))
    assert known.num_draws == known.num_lane_draws == len(drawn)
    assert [dataset for dataset, _, _ in drawn[:8]].count(0) == 6
    assert known.samples_to_measure() is None
    first = known.clone_for_lane(0, 2)
    assert set(first.state_dict()) == {"position"}
    first.next_chunk()
    state = first.state_dict()
    resumed = source.clone_for_lane(0, 2)
    resumed.load_state_dict(state)
    assert resumed.next_chunk().sample.tolist() == first.next_chunk().sample.tolist()
    assert source.for_states({0: {"position": 0}, 1: state}).samples_to_measure() is None
    other = {**state, "tokens": [1, 1]}
    with pytest.raises(CheckpointMismatch):
        source.for_states({0: state, 1: other})
    with pytest.raises(CheckpointMismatch):
        known.clone_for_lane(0, 2).load_state_dict(other)
    dear = module.StaticMixtureWorkSource(
        sets, {"a": 1, "b": 1}, weight_by="tokens", tokens_per_sample={"a": 10, "b": 30}, chunk_size=16
    )
    assert lane(dear) == drawn


def check_measure(module):
    """Samples of 0 to 9 tokens, of which those of 7 are dropped and the others split into pieces of 4; some have none."""

    def measured(fill, *operators):
        samples = [{"tokens": list(range(n % 10))} if n % 4 else fill for n in range(40)]
        work = mixture.StaticMixtureWorkSource(zj.Dataset.from_source("d", samples))
        pipeline = zj.Pipeline(work).filter(lambda r: len(r.get("tokens", ())) != 7, name="not_seven")
        for operator in operators:
            pipeline = pipeline.apply(operator)
        plan = pipeline.options(micro_batch_records=7).batch(1)._plan()
        pointers = WorkChunk.from_pointers([(0, 0, n) for n in (3, 5, 7, 39, 8, 4, 17, 2, 9, 9)])

        def run(steps, items):
            return map_inline(lambda batch: run_steps(steps, batch), items, MicroBatch)

        return module.measured_tokens(plan, pointers, run).tolist()

    expected = [3, 5, 0, 9, 0, 0, 0, 2, 9, 9]
    assert measured({"tokens": []}, Split(4)) == expected
    assert measured({"text": ""}) == expected


CHECKS = {
    permutation: check_permutation,
    quota: check_quota,
    cursor: check_cursor,
    deal: check_deal,
    segments: check_segments,
    arguments: check_arguments,
    schedule: check_schedule,
    tokens: check_tokens,
    mixture: check_mixture,
    measure: check_measure,
}

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
    (deal, "blocks dealt without stride", "number * (self.lanes - 1) + place", "number * self.lanes + place"),
    (deal, "last round cut unevenly", "place * left // self.lanes + draw", "place * (left // self.lanes) + draw"),
    (deal, "last round dealt like the others", "np.where(number < rounds, dealt, last)", "dealt"),
    (deal, "lanes alias with the mixture", "turned.astype(np.int64) + self.lane", "0 * number + self.lane"),
    (deal, "blocks as large as a chunk", "num_samples // (lanes * _BLOCKS_PER_PASS)", "chunk_size"),
    (segments, "drops out one draw early", "segment.before(c, drop - 1) + 1", "segment.before(c, drop - 1)"),
    (segments, "all that will drop out are gone at once", "if draws == cut}", "if draws}"),
    (segments, "ordinals begin anew", "ordinal + self._used[leaf]", "ordinal"),
    (segments, "components by their leaf", "self._members[leaf]", "leaf"),
    (segments, "completed one draw early", "segment.before(c, required - 1) + 1)", "segment.before(c, required - 1))"),
    (segments, "the first completed ends it", "if completed and not waiting", "if completed"),
    (segments, "the last end counts", "segment.start + min(ends)", "segment.start + max(ends)"),
    (segments, "ends count from the segment", "segment.start + min(ends)", "min(ends)"),
    (segments, "stops although weights change before", "or segment.before(c, stop) < cut", "or True"),
    (segments, "stops with a pass begun", "within(c, stop + 1)", "within(c, stop + 2)"),
    (
        segments,
        "a change comes one draw late",
        'np.searchsorted(self._starts, draw, "right")',
        'np.searchsorted(self._starts, draw, "left")',
    ),
    (segments, "the next phase too early", "        if cut == length:", "        if number + 1 < len(phases):"),
    (
        segments,
        "draws not counted from the segment",
        "self.quota.draws(draw - self.start)\n",
        "self.quota.draws(draw)\n",
    ),
    (segments, "starved and nobody told", "            if waiting:", "            if False:"),
    (segments, "all dropped out goes on", "if len(dropped) == len(passes)", "if False"),
    (arguments, "one repeat too few", "(1 + m) * total", "max(1, m) * total"),
    (
        arguments,
        "what stops also drops out",
        "Passes(name, stop=ends)",
        "Passes(name, None, ends, None if m is None else (1 + m) * total)",
    ),
    (arguments, "repeat decides the end", 'policy != "repeat" or n is not None', "True"),
    (arguments, "repeat with passes does not decide", 'policy != "repeat" or n is not None', 'policy != "repeat"'),
    (arguments, "contradiction accepted", "(n or 1) > 1 + m", "False"),
    (
        arguments,
        "other names accepted",
        "    checked_names(argument, list(named), names)\n    return [None",
        "    return [None",
    ),
    (arguments, "hints without bounds", "min(max(int(hint), _LEAST_HINT), _MOST_HINT)", "int(hint)"),
    (
        schedule,
        "rounding adds up",
        "_rounded(_whole_shares(wanted), b - a, carry)",
        "_rounded(_whole_shares(wanted), b - a, [0] * len(carry))",
    ),
    (schedule, "weights of a piece's start", "Fraction(a + b, 2 * length)", "Fraction(a, length)"),
    (schedule, "weights interpolated, not shares", "[w / sum(weights) for w in weights]", "list(weights)"),
    (schedule, "steps cost nothing", "tuple(w / c for w, c in", "tuple(w for w, c in"),
    (schedule, "ramps cost nothing", "((1 - middle) * x + middle * y) / c", "((1 - middle) * x + middle * y)"),
    (
        schedule,
        "behind the ramp its first point",
        "(s / c for s, c in zip(shares[-1]",
        "(s / c for s, c in zip(shares[0]",
    ),
    (schedule, "steps taken for draws", "start * samples_per_step", "start"),
    (
        tokens,
        "samples at the start of each part",
        "2 * np.arange(wanted, dtype=np.int64) + 1",
        "2 * np.arange(wanted, dtype=np.int64)",
    ),
    (
        tokens,
        "the first sample of a shard taken for the next of the last",
        'np.searchsorted(ends, place, "right")',
        'np.searchsorted(ends, place, "left")',
    ),
    (
        tokens,
        "dropped samples not counted",
        "np.bincount(dataset, minlength=each)",
        "np.bincount(dataset[tokens > 0], minlength=each)",
    ),
    (tokens, "no tokens are no mistake", "if without:", "if False:"),
    (
        measure,
        "of split samples the last piece",
        "np.add.at(tokens, batch.origin.table[OFFSET], np.array(each, np.int64))",
        "tokens[batch.origin.table[OFFSET]] = each",
    ),
    (measure, "records counted", "0 if value is MISSING else np.size(value)", "0 if value is MISSING else 1"),
    (measure, "the last micro-batch left out", "range(0, len(samples), size)", "range(0, len(samples) - size, size)"),
    (mixture, "partial chunk lost", "if stop <= self._position:", "if stop < self._position + self._chunk_size:"),
    (mixture, "state ignored", "self._position = position", "pass"),
    (mixture, "means not in the state", "**measured}", "}"),
    (
        mixture,
        "means in the first state",
        "if self._means is None or not self._position else",
        "if self._means is None else",
    ),
    (mixture, "means of the state ignored", "lane = self._with_means(means)", "pass"),
    (mixture, "other means accepted", "if self._means is not None:\n", "if False:\n"),
    (mixture, "lanes that disagree", "if known[lane] != known[first]", "if False"),
    (mixture, "the end from before measuring", "clone._start_lane(self._deal.lane, self._deal.lanes)", "pass"),
    (mixture, "weights multiplied by tokens", "Fraction(str(w)) / c", "Fraction(str(w)) * c"),
    (
        mixture,
        "given means not used",
        "self._sequence = self._draw_sequence(given)",
        "self._sequence = self._draw_sequence(None)",
    ),
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
    with pytest.raises((AssertionError, IndexError, ConfigurationError, CheckpointMismatch, pytest.fail.Exception)):
        CHECKS[module](mistaken)
