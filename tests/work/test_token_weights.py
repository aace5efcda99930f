"""Weights by tokens: measured once on fixed samples, exact afterwards, never measured again by a resume."""

from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest

import zephon_jax as zj
from tests.work.reference import data
from zephon_jax.checkpoint.codec import decode, encode
from zephon_jax.errors import CheckpointMismatch, ConfigurationError
from zephon_jax.testing import check_resume
from zephon_jax.work import MixtureSchedule, StaticMixtureWorkSource
from zephon_jax.work.tokens import samples_to_measure


class Documents:
    """Texts of about `mean` characters, exactly so on average over every 11; counts its reads."""

    def __init__(self, mean, count=3000):
        self.mean, self.count, self.reads = mean, count, 0

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        self.reads += 1
        return {"text": "x" * (self.mean - 5 + index % 11), "n": index}


def tokenize(text):
    return [7] * len(text)


def of(name, documents):
    return zj.Dataset.from_source(name, documents, fingerprint=name)


def work(short, long, **options):
    given = {"weight_by": "tokens", "exhausted_policy": "repeat", "chunk_size": 32, "seed": 3}
    return StaticMixtureWorkSource([of("short", short), of("long", long)], {"short": 1, "long": 1}, **(given | options))


def following(source):
    chunk = source.next_chunk()
    assert chunk is not None
    return chunk


def text_only(record):
    return {"text": record["text"]}


def packed(source, rows=4):
    p = (
        zj.Pipeline(source)
        .map(text_only, name="text_only")
        .tokenize(tokenize, name="tokenize")
        .split(150)
        .pack(512, num_bins=8)
    )
    return p.batch(global_batch_size=rows).options(executor="inline", canonical_replicas=2)


def tokens_by_dataset(it, steps):
    """Per step, the tokens of each dataset that it delivered."""
    found = []
    for _ in range(steps):
        next(it)
        counted = {"short": 0, "long": 0}
        for row in it.provenance().values():
            for dataset, _, _, start, stop in row:
                counted[dataset] += stop - start
        found.append(counted)
    return found


def test_case_19_half_of_the_tokens_each_over_a_thousand_rows_and_locally():
    with packed(work(Documents(40), Documents(400))).steps() as it:
        each = tokens_by_dataset(it, 250)
    short, long = (np.array([step[name] for step in each]) for name in ("short", "long"))
    assert short.sum() + long.sum() > 1000 * 512 * 0.9
    assert abs(short.sum() / (short + long).sum() - 0.5) < 0.01
    ahead = np.concatenate([[0], np.cumsum(short - long)])
    for width in (1, 10, 100):  # two lanes with eight bins of 512 hold 8,192 tokens back at the most
        assert np.abs(ahead[width:] - ahead[:-width]).max() < 8192
    drawn = work(Documents(40), Documents(400)).with_measured(np.repeat([40, 400], 256))
    dataset = np.concatenate([following(drawn).dataset for _ in range(100)])
    ahead = np.cumsum(np.where(dataset == 0, 40, -400))
    assert np.abs(ahead).max() < 2 * 400


def test_an_uneven_mixture_by_tokens():
    source = work(Documents(40), Documents(400))
    mixed = StaticMixtureWorkSource(
        source._datasets, {"short": 3, "long": 1}, weight_by="tokens", exhausted_policy="repeat", chunk_size=32
    )
    with packed(mixed).steps() as it:
        each = tokens_by_dataset(it, 150)
    total = {name: sum(step[name] for step in each) for name in ("short", "long")}
    assert total["short"] / sum(total.values()) == pytest.approx(0.75, abs=0.01)


def test_what_reaches_the_packer_is_measured_and_not_what_is_read():
    """A filter drops half of the short documents, and a map cuts the long ones to a quarter."""

    def cut(record):
        return {"text": record["text"][:100]}

    source = work(Documents(40), Documents(400))
    p = zj.Pipeline(source).filter(lambda r: int(r["n"]) % 2 == 0, name="even").map(cut, name="cut", version=1)
    p = p.tokenize(tokenize, name="t").pack(512).batch(global_batch_size=4).options(executor="inline")
    with p.steps() as it:
        each = tokens_by_dataset(it, 120)
        measured = it.checkpoint()["lanes"][0]["source"]
    total = {name: sum(step[name] for step in each) for name in ("short", "long")}
    assert total["short"] / sum(total.values()) == pytest.approx(0.5, abs=0.015)
    assert measured["samples"] == [256, 256]
    assert measured["tokens"][1] == 100 * sum(s % 2 == 0 for s in samples_to_measure([np.array([3000])]).sample)


@pytest.mark.parametrize("way", [{"executor": "inline"}, {"executor": "threads", "max_workers": 3}], ids=str)
def test_a_resume_measures_nothing_and_goes_on_alike(way):
    short, long = Documents(40), Documents(400)
    pipeline = packed(work(short, long)).options(**way)
    with iter(pipeline) as it:
        whole = [next(it) for _ in range(20)]
    with iter(pipeline) as it:
        for _ in range(9):
            next(it)
        state = encode(it.checkpoint())
    assert len(state) < 2500
    assert [lane["source"] for lane in decode(state)["lanes"]] == [
        {"position": lane["source"]["position"], "tokens": [10252, 102412], "samples": [256, 256]}
        for lane in decode(state)["lanes"]
    ]
    short.reads = long.reads = 0
    with iter(pipeline.options(prefetch=1, micro_batch_records=16)) as it:
        it.restore(decode(state))
        resumed = [next(it) for _ in range(11)]
    assert long.reads < 128  # measured alone they would be 256, and they are drawn once in eleven
    for a, b in zip(resumed, whole[9:], strict=True):
        assert {k: v.tobytes() for k, v in a.items()} == {k: v.tobytes() for k, v in b.items()}


def test_a_resume_draws_on_however_different_the_samples_would_measure_now():
    """The estimates are of the state: an operator whose results changed without its version changes no share."""
    length = {"factor": 1}

    def changing(text):
        return [1] * (len(text) * length["factor"])

    def pipeline():
        p = zj.Pipeline(work(Documents(40), Documents(400))).tokenize(changing, name="changing", version=1)
        return p.batch(2).options(executor="inline")

    with iter(pipeline()) as it:
        whole = [next(it)["n"].tolist() for _ in range(40)]
    with iter(pipeline()) as it:
        for _ in range(10):
            next(it)
        state = it.checkpoint()
    length["factor"] = 3
    with iter(pipeline()) as it:
        it.restore(state)
        assert [next(it)["n"].tolist() for _ in range(30)] == whole[10:]


def test_lanes_that_have_given_nothing_learn_from_those_that_have():
    """After one batch of lane 0 the state of lane 1 is its start, which holds no means."""
    short, long = Documents(40), Documents(400)
    pipeline = packed(work(short, long))
    with iter(pipeline) as it:
        whole = [next(it) for _ in range(8)]
    with iter(pipeline) as it:
        next(it)
        state = it.checkpoint()
    assert [lane["source"]["position"] > 0 for lane in state["lanes"]] == [True, False]
    assert state["lanes"][1]["source"] == {"position": 0}
    short.reads = long.reads = 0
    with iter(pipeline) as it:
        it.restore(state)
        assert encode(it.checkpoint()) == encode(state)
        for expected in whole[1:]:
            batch = next(it)
            assert all(np.array_equal(batch[name], expected[name]) for name in expected)
    assert long.reads < 128


def test_resume_is_exact_at_every_cut():
    check_resume(packed(work(Documents(40), Documents(90))), batches=10)


def test_all_groups_of_lanes_measure_alike():
    whole = zj.Pipeline(work(Documents(40), Documents(400))).tokenize(tokenize, name="t").batch(1)
    whole = whole.options(canonical_replicas=4, executor="inline")
    with iter(whole) as it:
        expected = [next(it)["n"].tolist() for _ in range(40)]
    groups = [iter(whole.options(dp_degree=2, dp_group_id=g, executor="threads")) for g in (0, 1)]
    got = []
    for _ in range(10):
        for it in groups:
            got += [next(it)["n"].tolist() for _ in range(2)]
    for it in groups:
        it.close()
    assert got == expected


def test_a_checkpoint_continues_on_two_groups_and_back_on_one():
    """Of four lanes on one process, then two each on two, bit for bit, without measuring."""
    short, long = Documents(40), Documents(400)
    whole = packed(work(short, long)).options(canonical_replicas=4)

    def taken(it, rounds):
        return [{k: v.tobytes() for k, v in next(it).items()} for _ in range(rounds)]

    with iter(whole) as it:
        expected = taken(it, 40)
    with whole.steps() as it:
        for _ in range(4):
            next(it)
        state = encode(it.checkpoint())
    short.reads = long.reads = 0
    groups = [iter(whole.options(dp_degree=2, dp_group_id=g, executor="threads")) for g in (0, 1)]
    for it in groups:
        it.restore(decode(state))
    got = [taken(it, 2) for _ in range(6) for it in groups]
    for it in groups:
        it.close()
    assert [batch for pair in got for batch in pair] == expected[16:]
    assert long.reads < 128


def test_means_may_be_given():
    def source(**tokens):
        sets = [data("a", 100), data("b", 100)]
        return StaticMixtureWorkSource(sets, {"a": 1, "b": 1}, weight_by="tokens", tokens_per_sample=tokens)

    given = source(a=40, b=400.0)
    assert given.samples_to_measure() is None
    chunk = following(given)
    assert np.bincount(chunk.dataset[:110]).tolist() == [100, 10]
    assert given.state_dict() == {"position": len(chunk)}
    identity = given.identity()
    assert {name: identity[name] for name in ("weight_by", "token_weights", "tokens_per_sample")} == {
        "weight_by": "tokens",
        "token_weights": [1, 1],
        "tokens_per_sample": [40.0, 400.0],
    }
    assert "weights" not in identity
    assert identity == source(b=400, a=40.0).identity() != source(a=41, b=400).identity()


def test_a_schedule_of_tokens():
    schedule = MixtureSchedule([(0, {"a": 1, "b": 1}), (110, {"a": 4, "b": 1})])
    sets = [data("a", 1000), data("b", 1000)]
    source = StaticMixtureWorkSource(
        sets, schedule, weight_by="tokens", tokens_per_sample={"a": 40, "b": 400}, shuffle_shards=False
    )
    dataset = following(source).dataset
    assert np.bincount(dataset[:110]).tolist() == [100, 10]
    assert np.bincount(dataset[110:151]).tolist() == [40, 1]


# -- the source by itself --------------------------------------------------------------------------------------------
def test_samples_are_spread_evenly_and_all_of_a_small_dataset():
    chunk = samples_to_measure([np.array([3, 0, 2]), np.array([1000, 24, 0, 1024])])
    assert np.bincount(chunk.dataset).tolist() == [5, 256]
    small, large = chunk.dataset == 0, chunk.dataset == 1
    assert list(zip(chunk.shard[small].tolist(), chunk.sample[small].tolist(), strict=True)) == [
        (0, 0), (0, 1), (0, 2), (2, 0), (2, 1),
    ]  # fmt: skip
    starts = [0, *accumulate([1000, 24, 0])]
    place = np.array(starts)[chunk.shard[large]] + chunk.sample[large]
    assert place.tolist() == list(range(4, 2048, 8))


def measured(**options):
    sets = [data("a", 40, 60), data("b", 100)]
    source = StaticMixtureWorkSource(sets, {"a": 1, "b": 1}, weight_by="tokens", chunk_size=16, **options)
    return source, source.with_measured(np.repeat([40, 400], 100))


def test_before_it_is_measured():
    source, _ = measured()
    assert (source.num_draws, source.num_lane_draws) == (None, None)
    source.check_lanes(10**6)
    lane = source.clone_for_lane(1, 3)
    assert lane.state_dict() == {"position": 0}
    assert "as long as the tokens make it, which are measured at the start" in source.describe()
    assert "a 50.000% of tokens, 100 samples in 2 shards" in source.describe()
    with pytest.raises(ConfigurationError, match="not measured yet.*tokens_per_sample"):
        lane.next_chunk()
    assert len(source.samples_to_measure()) == 200


def test_once_it_is_measured():
    source, known = measured()
    assert known.samples_to_measure() is None
    assert source.samples_to_measure() is not None
    assert known._means is not None
    assert known._means.cost() == [Fraction(40), Fraction(400)]
    assert known.num_draws == 1095  # b needs 100 draws, of 1 in 11
    with pytest.raises(ConfigurationError, match="905 lanes would have no work"):
        known.check_lanes(2000)
    lane = known.clone_for_lane(1, 3)
    first = following(lane)
    state = lane.state_dict()
    assert state == {"position": 16, "tokens": [4000, 40000], "samples": [100, 100]}
    resumed = source.clone_for_lane(1, 3)  # of a description that was not measured
    resumed.load_state_dict(state)
    assert resumed.samples_to_measure() is None
    assert resumed.num_lane_draws == lane.num_lane_draws == 365
    then = following(lane)
    assert then.sample.tolist() == following(resumed).sample.tolist() != first.sample.tolist()
    assert source.identity() == known.identity()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"position": 16}, "the state of a StaticMixtureWorkSource is {'position': …, 'samples': …, 'tokens': …}"),
        ({"position": 0, "tokens": [1, 1], "samples": [1, 1]}, "is {'position': …}"),
        ({"position": 16, "tokens": [1], "samples": [1]}, "not those of 2 datasets"),
        ({"position": 16, "tokens": [1, 0], "samples": [1, 1]}, "positive whole numbers"),
        ({"position": 16, "tokens": [1, 2.0], "samples": [1, 1]}, "positive whole numbers"),
        ({"position": 16, "tokens": "ab", "samples": [1, 1]}, "not those of 2 datasets"),
        ({"position": 17, "tokens": [4000, 40000], "samples": [100, 100]}, "cannot stand at draw 17"),
        ({"position": 16, "tokens": [4000, 40001], "samples": [100, 100]}, "but the source goes by"),
    ],
    ids=str,
)
def test_impossible_states_are_refused_and_change_nothing(state, message):
    _, known = measured()
    lane = known.clone_for_lane(0, 2)
    with pytest.raises(CheckpointMismatch, match=message):
        lane.load_state_dict(state)
    assert lane.state_dict() == {"position": 0}
    assert lane._means == known._means


def test_lanes_that_disagree_are_refused_by_number():
    source, known = measured()
    lanes = [known.clone_for_lane(i, 3) for i in range(3)]
    for lane in lanes[1:]:
        lane.next_chunk()
    states = {i: dict(lane.state_dict()) for i, lane in enumerate(lanes)}
    assert source.for_states(states)._means == known._means
    assert source.for_states({0: states[0]}) is source
    states[2]["tokens"] = [4000, 40001]
    with pytest.raises(CheckpointMismatch, match="lanes 1 and 2 of the checkpoint disagree on the token means"):
        source.for_states(states)


def test_a_dataset_without_tokens_is_named():
    def pipeline(keep):
        p = zj.Pipeline(work(Documents(40), Documents(400))).filter(keep, name="keep")
        return p.tokenize(tokenize, name="t").batch(2)

    with iter(pipeline(lambda r: len(r["text"]) < 100)) as it:
        with pytest.raises(
            ConfigurationError, match=r"no tokens came out of the measured samples of 'long' \(256 samples\)"
        ):
            next(it)
    no_tokens = zj.Pipeline(work(Documents(40), Documents(400))).batch(2).options(executor="inline")
    with iter(no_tokens) as it, pytest.raises(ConfigurationError, match="'short'.*'long'.*Is there a tokenize"):
        next(it)


def test_an_operator_that_raises_while_measuring_names_the_sample():
    def fails(text):
        if len(text) == 43:
            raise ValueError("43")
        return [1]

    p = zj.Pipeline(work(Documents(40), Documents(400))).tokenize(fails, name="fails").batch(2)
    with (
        iter(p.options(executor="inline")) as it,
        pytest.raises(zj.WorkerError, match="while tokens of samples") as caught,
    ):
        next(it)
    assert caught.value.operator == "tokenize(fails)"
    assert caught.value.pointer is not None
    dataset, _, sample = caught.value.pointer
    assert (dataset, sample % 11) == ("short", 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight_by": "words"}, 'weight_by=\'words\': give "samples" or "tokens"'),
        ({"weight_by": "samples", "tokens_per_sample": {"a": 1, "b": 1}}, 'weight_by="tokens" only'),
        ({"mixture": None}, "needs a mixture"),
        ({"tokens_per_sample": {"a": 1}}, "tokens_per_sample has no mean for 'b'"),
        ({"tokens_per_sample": {"a": 1, "b": 1, "c": 1}}, "tokens_per_sample names 'c'"),
        ({"tokens_per_sample": {"a": 0, "b": 1}}, r"tokens_per_sample\['a'\] = 0"),
    ],
    ids=str,
)
def test_impossible_arguments_are_refused(options, message):
    arguments = {"mixture": {"a": 1, "b": 1}, "weight_by": "tokens"} | options
    with pytest.raises(ConfigurationError, match=message):
        StaticMixtureWorkSource([data("a", 9), data("b", 9)], **arguments)
