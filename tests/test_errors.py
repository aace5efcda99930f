"""Bad input: the right class, at the earliest moment, saying what was seen, what is needed, where, what to do."""

from __future__ import annotations

import time

import numpy as np
import pytest

import zephon_jax as zj
from tests.operators import Wrap


def dataset(n=40, name="n"):
    return zj.Dataset.from_source(name, [{"value": i, "text": "ab" * (i % 7)} for i in range(n)])


def work(n=40, **kw):
    return zj.StaticMixtureWorkSource(dataset(n), chunk_size=4, shuffle_shards=False, **kw)


def ords(text):
    return [ord(c) for c in text]


def only_text(record):
    return {"text": record["text"]}


def ids(text):
    return [1 for _ in text]


BUILD = {
    "missing file": (lambda: zj.Dataset.from_path("x", "/no/such.jsonl"), "no such file: /no/such.jsonl"),
    "unknown suffix": (lambda: zj.Dataset.from_path("x", __file__), "suffix is not one of"),
    "weights name no dataset": (lambda: zj.StaticMixtureWorkSource([dataset()], {"web": 1.0}), "web"),
    "weight of zero": (lambda: zj.StaticMixtureWorkSource([dataset()], {"n": 0.0}), "n"),
    "pipeline of a dataset": (lambda: zj.Pipeline(dataset()), "Pipeline\\(StaticMixtureWorkSource\\(dataset\\)\\)"),
    "unknown field": (lambda: zj.Pipeline(work()).tokenize(ords, field="txet"), "'txet'; the samples have \\['text', 'value'\\]"),
    "pack without tokens": (lambda: zj.Pipeline(work()).pack(8), "'tokens'; the samples have"),
    "not a tokenizer": (lambda: zj.Pipeline(work()).tokenize(3), "got int"),
    "not a function": (lambda: zj.Pipeline(work()).map(3), "function of one record"),
    "not an operator": (lambda: zj.Pipeline(work()).apply(lambda r: r), "apply needs an Operator"),
    "unknown option": (lambda: zj.Pipeline(work()).options(workers=3), "no \\['workers'\\]; there are"),
    "unknown executor": (lambda: zj.Pipeline(work()).options(executor="dask"), "'dask'.*threads"),
    "batch twice": (lambda: zj.Pipeline(work()).batch(2).batch(3), "batch once"),
    "map after batch": (lambda: zj.Pipeline(work()).batch(2).map(dict), "after batch\\(2\\)"),
    "targets before batch": (lambda: zj.Pipeline(work()).lm_targets(), "put it after batch"),
    "batch of nothing": (lambda: zj.Pipeline(work()).batch(), "either batch_size"),
    "lanes that do not divide": (
        lambda: zj.Pipeline(work()).batch(global_batch_size=12).options(canonical_replicas=8),
        "may be one of \\[1, 2, 3, 4, 6, 12\\]",
    ),
    "no flush although records are kept": (
        lambda: zj.Pipeline(work()).shuffle(4).options(flush_every_k_chunks=0), "shuffle\\(4\\) keeps or reorders",
    ),
    "more lanes than samples": (lambda: iter(zj.Pipeline(work(3)).batch(1).options(canonical_replicas=8)), "3"),
    "dp group outside": (lambda: iter(zj.Pipeline(work()).options(canonical_replicas=4, dp_degree=2, dp_group_id=2)), "0 to 1"),
    "dp degree": (lambda: iter(zj.Pipeline(work()).options(canonical_replicas=4, dp_degree=3, dp_group_id=0)), "\\[1, 2, 4\\]"),
}  # fmt: skip


@pytest.mark.parametrize("name", BUILD)
def test_refused_while_building(name):
    """O7 (what stands after batch), P7 (no flush although records are kept), and sizes that cannot work."""
    make, text = BUILD[name]
    with pytest.raises(zj.ConfigurationError, match=text):
        make()


def test_a_monotone_pipeline_takes_no_flushes_and_says_so():
    """P7."""
    pipeline = zj.Pipeline(work()).batch(4).options(flush_every_k_chunks=5, executor="inline")
    with pytest.warns(UserWarning, match="flush_every_k_chunks=5 has no use"):
        it = iter(pipeline)
    next(it)
    assert "no flushes" in pipeline.explain()


# -- states --------------------------------------------------------------------------------------------------------
def text_pipeline(tokenizer=ords, data=None, seed=0, chunk_size=4, split=9, bins=4, shuffle=3, lanes=1, **options):
    source = data or dataset(60)
    w = zj.StaticMixtureWorkSource(source, seed=seed, chunk_size=chunk_size)
    p = zj.Pipeline(w).map(only_text).tokenize(tokenizer).split(split).pack(12, num_bins=bins)
    return p.shuffle(shuffle).batch(2).options(executor="inline", canonical_replicas=lanes, **options)


@pytest.fixture(scope="module")
def state():
    it = iter(text_pipeline())
    next(it)
    return it.checkpoint()


def changed_sample():
    samples = [{"value": i, "text": "ab" * (i % 7)} for i in range(60)]
    samples[0]["text"] = "ax"
    return zj.Dataset.from_source("n", samples)


CHANGES = {
    "tokenizer": ({"tokenizer": ids}, "function: the checkpoint has 'ords', this pipeline 'ids'"),
    "seed": ({"seed": 1}, "work.seed: the checkpoint has 0, this pipeline 1"),
    "chunk size": ({"chunk_size": 5}, "chunk_size: the checkpoint has 4, this pipeline 5"),
    "split": ({"split": 10}, "max_length: the checkpoint has 9, this pipeline 10"),
    "bins": ({"bins": 5}, "num_bins: the checkpoint has 4, this pipeline 5"),
    "shuffle": ({"shuffle": 4}, "buffer_size: the checkpoint has 3, this pipeline 4"),
    "flush": ({"flush_every_k_chunks": 2}, "flush_every_k_chunks: the checkpoint has 8, this pipeline 2"),
    "errors": ({"on_data_error": "skip"}, "on_data_error: the checkpoint has 'raise', this pipeline 'skip'"),
    "lanes": ({"lanes": 2}, "the checkpoint has 1 lanes, this pipeline 2"),
    "content": ({"data": changed_sample()}, "dataset 'n': its content changed"),
    "name": ({"data": dataset(60, "m")}, "the checkpoint has \\['n'\\], this pipeline \\['m'\\]"),
    "size": ({"data": dataset(59)}, "60 samples.*59 samples"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_state_of_another_pipeline_is_refused(name, state):
    """C6: named, never a warning and a fresh start."""
    change, text = CHANGES[name]
    it = iter(text_pipeline(**change))
    with pytest.raises(zj.CheckpointMismatch, match=text):
        it.restore(state)
    assert it.step == 0
    next(it)  # nothing was half-restored


def test_another_operator_is_named(state):
    other = (
        zj.Pipeline(text_pipeline().work)
        .map(only_text)
        .tokenize(ords)
        .apply(Wrap(12))
        .shuffle(3)
        .batch(2)
        .options(executor="inline")
    )
    with pytest.raises(
        zj.CheckpointMismatch,
        match=r"\['map', 'tokenize', 'split', 'pack', 'shuffle'\], this pipeline \['map', 'tokenize', 'wrap', 'shuffle'\]",
    ):
        iter(other).restore(state)


def test_what_may_change(state):
    """C6: batch size, drop_last, lm_targets, executor, workers, prefetch, micro-batches."""
    want = [row for b in text_pipeline() for row in b["tokens"].tolist()][2:]
    p = zj.Pipeline(text_pipeline().work).map(only_text).tokenize(ords).split(9).pack(12, num_bins=4).shuffle(3)
    p = p.batch(5, drop_last=False).options(executor="threads", max_workers=3, prefetch=4, micro_batch_records=3)
    with iter(p) as it:
        it.restore(state)
        got = [row for b in it for row in b["tokens"].tolist()]
    assert got[: len(want)] == want


@pytest.mark.parametrize(
    ("mutate", "text"),
    [
        (lambda s: {}, "no pipeline state"),
        (lambda s: None, "no pipeline state"),
        (lambda s: {**s, "version": 2}, "version 2, this zephon_jax reads version 1; upgrade"),
        (lambda s: {k: v for k, v in s.items() if k != "lanes"}, "'lanes' is missing"),
        (lambda s: {**s, "lanes": []}, "lanes \\[0\\] are missing"),
        (lambda s: {**s, "lanes": [{**s["lanes"][0], "cursor": [99, 0, 0, 0]}]}, "cursor"),
        (lambda s: {**s, "lanes": [{**s["lanes"][0], "source": {"position": -5}}]}, "cannot stand at draw -5"),
    ],
)
def test_broken_states_are_refused(mutate, text, state):
    it = iter(text_pipeline())
    with pytest.raises(zj.CheckpointMismatch, match=text):
        it.restore(mutate(state))


def test_restore_twice_or_late_is_an_error(state):
    it = iter(text_pipeline())
    it.restore(state)
    with pytest.raises(zj.ConfigurationError, match="was restored"):
        it.restore(state)
    it = iter(text_pipeline())
    next(it)
    with pytest.raises(zj.ConfigurationError, match="was used"):
        it.restore(state)


def test_a_checkpoint_must_cover_all_lanes():
    it = iter(text_pipeline(lanes=2, dp_degree=2, dp_group_id=1))
    next(it)
    with pytest.raises(zj.ConfigurationError, match=r"all 2 lanes, but this process produces \[1\]"):
        it.checkpoint()
    partial = it.get_state()
    again = iter(text_pipeline(lanes=2, dp_degree=2, dp_group_id=1))
    again.restore(partial)
    assert np.array_equal(next(again)["tokens"], next(it)["tokens"])
    with pytest.raises(zj.CheckpointMismatch, match=r"lanes \[0\] are missing"):
        iter(text_pipeline(lanes=2)).restore(partial)


# -- operators that raise ------------------------------------------------------------------------------------------
class Odd(Exception):
    """Takes two arguments, so that it cannot be made again from its text."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def raises_at_137(record):
    if record["value"] == 37:
        raise Odd(1, 2)
    return record


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_an_exception_in_an_operator_reaches_next(executor):
    """F1: operator, pointer, original exception as cause; within a second; again at each further next."""
    pipeline = zj.Pipeline(work()).map(raises_at_137).batch(2).options(executor=executor, micro_batch_records=2)
    with iter(pipeline) as it:
        start = time.monotonic()
        with pytest.raises(zj.WorkerError, match=r"map\(raises_at_137\) raised Odd: 1 and 2.*sample 37") as caught:
            for _ in it:
                pass
        assert time.monotonic() - start < 10
        assert isinstance(caught.value.__cause__, Odd)
        assert caught.value.operator == "map(raises_at_137)"
        assert caught.value.pointer == ("n", "n", 37)
        assert it.step == 18
        state = it.checkpoint()
        with pytest.raises(zj.WorkerError, match="raises_at_137"):
            next(it)
    assert state["lanes"][0]["rows"] == 36


def test_a_map_without_return_says_so():
    with pytest.raises(zj.WorkerError, match="returned None; return the record"):
        next(iter(zj.Pipeline(work()).map(lambda r: None, name="forgot").options(executor="inline")))


def test_a_stream_that_never_delivers_ends_with_an_error():
    endless = zj.StaticMixtureWorkSource(dataset(20), chunk_size=4, exhausted_policy="repeat")
    for pipeline in (
        zj.Pipeline(endless).filter(lambda r: False, name="none"),
        zj.Pipeline(endless).filter(lambda r: False, name="none").shuffle(3),
    ):
        with pytest.raises(zj.DataError, match=r"two whole passes.*filter\(none\) dropped"):
            next(iter(pipeline.options(executor="inline")))


# -- operators that break their contract ---------------------------------------------------------------------------
class Reverses(zj.RecordOperator):
    name = "reverses"

    def process(self, batch):
        return batch.take(np.arange(len(batch))[::-1])


class LosesOne(zj.RecordOperator):
    name = "loses"

    def process(self, batch):
        return batch.slice(0, len(batch) - 1)


class Doubles(zj.RecordOperator):
    name = "doubles"

    def process(self, batch):
        return zj.MicroBatch.concat([batch, batch.slice(0, 1)])


class Keeps(zj.Accumulator):
    name = "keeps"

    def init_state(self, ctx):
        return []

    def push(self, state, batch):
        state.append(batch)
        return batch.without_records()

    def flush(self, state):
        return state[0].slice(0, len(state[0])) if state else None


class ReturnsRows(zj.RecordOperator):
    name = "rows"

    def process(self, batch):
        return batch.rows()


class Uneven(zj.RecordOperator):
    name = "uneven"

    def process(self, batch):
        return batch.with_columns({"x": zj.Objects([1])})


class FewerRows(zj.RowOperator):
    name = "fewer"

    def process_rows(self, batch):
        return {k: v[1:] for k, v in batch.items()}


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (Reverses(), "reorders records although its traits"),
        (LosesOne(), "loses, lane 0: 1 samples were lost"),
        (Doubles(), "doubles, lane 0: 1 samples were finished twice"),
        (Keeps(), "keeps, lane 0: .* samples were lost .*flush must return every record"),
        (ReturnsRows(), "rows, lane 0: returned list; return a MicroBatch"),
        (Uneven(), "uneven, lane 0: field 'x' has 1 rows for 4 records"),
    ],
)
def test_a_broken_contract_is_named(op, text):
    """P2, P4, P6: nothing is lost at a flush, nothing is finished twice."""
    pipeline = zj.Pipeline(work()).apply(op).batch(2).options(executor="inline", micro_batch_records=4)
    with pytest.raises(zj.ContractViolation, match=text):
        for _ in pipeline:
            pass


def test_a_row_operator_must_keep_rows():
    """O7."""
    pipeline = zj.Pipeline(work()).batch(4).apply(FewerRows()).options(executor="inline")
    with pytest.raises(zj.ContractViolation, match="fewer, lane 0: after batch an operator must keep the 4 rows"):
        next(iter(pipeline))


def parity(flip):
    return lambda r: (r["value"] + flip) % 3 != 0


@pytest.mark.parametrize(
    ("behind", "text"),
    [
        (False, "is no longer made of its sample.*version="),  # decisions are repeated on what the state knows
        (True, "diverged.*version="),  # a map behind the buffer: the replay runs in full
    ],
)
def test_a_replay_that_diverges_is_noticed(behind, text):
    """A function that changed without another version: never a silent drop of everything."""

    def make(flip):
        p = zj.Pipeline(work()).filter(parity(flip), name="parity").shuffle(12)
        return (p.map(dict, name="same") if behind else p).batch(2).options(executor="inline")

    it = iter(make(0))
    for _ in range(3):
        next(it)
    again = iter(make(1))
    again.restore(it.checkpoint())
    with pytest.raises(zj.ContractViolation, match=text):
        for _ in again:
            pass
