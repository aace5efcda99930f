"""check_operator finds each of these wrong operators, and passes their correct twins."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

import zephon_jax as zj
from tests.operators import Repeat, Wrap
from zephon_jax import ops
from zephon_jax.testing import check_operator, check_resume

RECORDS = [{"n": i, "tokens": list(range(1, i % 7 + 2))} for i in range(36)]
TOKENS = [{"tokens": r["tokens"]} for r in RECORDS]


class Stateless(zj.RecordOperator):
    name = "wrong"


class Reorders(Stateless):
    def process(self, batch):
        return batch.take(np.argsort([-int(r["n"]) for r in batch.rows()], kind="stable"))


class LosesLastChild(Stateless):
    traits = zj.OpTraits(expands=True)

    def process(self, batch):
        out = batch.repeat(np.full(len(batch), 3))
        return out.slice(0, len(out) - 1)


class LosesMiddleChild(Stateless):
    traits = zj.OpTraits(expands=True)

    def process(self, batch):
        out = batch.repeat(np.full(len(batch), 3))
        return out.take(np.array([i for i in range(len(out)) if i % 3 != 1]))


class ForgetsTombstone(Stateless):
    """A filter by hand: the records go, and nothing says that they are finished."""

    def process(self, batch):
        return batch.take(np.flatnonzero([int(r["n"]) % 2 == 0 for r in batch.rows()]))


class DropsWhatWasClosed(Stateless):
    def process(self, batch):
        kept = batch.keep(np.array([int(r["n"]) % 2 == 0 for r in batch.rows()]))
        return replace(kept, closed=kept.closed[:, :0])


class Duplicates(Stateless):
    def process(self, batch):
        return zj.MicroBatch.concat([batch, replace(batch, closed=batch.closed[:, :0])])


class ExpandsUndeclared(Stateless):
    def process(self, batch):
        return batch.repeat(np.full(len(batch), 2))


class CountsRecords(Stateless):
    """A running number: another after a resume, and another with other workers."""

    def __init__(self):
        self.seen = 0

    def process(self, batch):
        out = batch.with_rows([{"n": self.seen + i} for i in range(len(batch))])
        self.seen += len(batch)
        return out


class NormalisesByMicroBatch(Stateless):
    def process(self, batch):
        mean = np.mean([int(r["n"]) for r in batch.rows()])
        return batch.with_rows([{"x": float(r["n"]) - mean} for r in batch.rows()])


class Unseeded(Stateless):
    def process(self, batch):
        return batch.with_rows([{"x": random.random()} for _ in range(len(batch))])


class WritesToItsInput(Stateless):
    def process(self, batch):
        for row in batch.rows():
            row["tokens"][0] = 0
        return batch


class TooFewRows(Stateless):
    def process(self, batch):
        return batch.with_columns({"x": zj.Objects([1] * (len(batch) - 1))})


class ReturnsDicts(Stateless):
    def process(self, batch):
        return batch.rows()


class GroupsInPairs(Stateless):
    """What is in a pair depends on where the micro-batch begins."""

    def process(self, batch):
        ends = [*range(0, len(batch), 2), len(batch)]
        firsts = batch.rows()[::2]
        return batch.group(np.array(ends), zj.MicroBatch.with_rows(batch.slice(0, len(firsts)), firsts).columns)


class Held(zj.Accumulator):
    """Correct: holds `size` records, hands out the oldest."""

    name = "held"
    traits = zj.OpTraits(preserves_cursor_order=True)
    size = 3

    def init_state(self, ctx):
        return {"held": None, "ctx": ctx}

    def push(self, state, batch):
        rest = batch.without_records()
        bare = batch.slice(0, len(batch))
        held = bare if state["held"] is None else zj.MicroBatch.concat([state["held"], bare])
        n = max(0, len(held) - self.size)
        state["held"] = held.slice(n, len(held))
        return replace(held.slice(0, n), closed=rest.closed, skipped=rest.skipped)

    def flush(self, state):
        return state["held"]


class HeldReversed(Held):
    def flush(self, state):
        held = state["held"]
        return None if held is None else held.take(np.arange(len(held))[::-1])


class ForgetsAtFlush(Held):
    def flush(self, state):
        held = state["held"]
        return None if held is None else held.slice(0, max(len(held) - 1, 0))


class KeepsItAll(Held):
    def flush(self, state):
        return None


class FlushesTwice(Held):
    def flush(self, state):
        held = state["held"]
        return None if held is None else zj.MicroBatch.concat([held, held])


class SurvivesTheFlush(Held):
    """The size grows with every epoch: state outside of the state."""

    def __init__(self):
        self.epochs = 0

    def init_state(self, ctx):
        self.epochs += 1
        return super().init_state(ctx)

    def push(self, state, batch):
        out = super().push(state, batch)
        return out.with_rows([{"epochs": self.epochs} for _ in range(len(out))])


class SharesLanes(Held):
    """One buffer for all lanes would mix their records; this one only counts over them."""

    def __init__(self):
        self.pushed = 0

    def push(self, state, batch):
        self.pushed += len(batch)
        out = super().push(state, batch)
        return out.with_rows([{"pushed": self.pushed // 10_000, "parity": self.pushed % 2} for _ in range(len(out))])


class LooksAtPayloads(zj.Accumulator):
    """Sorts by a field, and says that identities are enough."""

    name = "looks"
    traits = zj.OpTraits(preserves_cursor_order=False, replays_on_lengths=True)

    def init_state(self, ctx):
        return []

    def push(self, state, batch):
        state.append(batch.slice(0, len(batch)))
        return batch.without_records()

    def flush(self, state):
        if not state:
            return None
        held = zj.MicroBatch.concat(state)
        return held.take(np.argsort([-int(r.get("n", 0)) for r in held.rows()], kind="stable"))


class DropsRows(zj.RowOperator):
    name = "wrong"

    def process_rows(self, batch):
        return {k: v[::2] for k, v in batch.items()}


class WritesRows(zj.RowOperator):
    name = "wrong"

    def process_rows(self, batch):
        batch["n"] += 1
        return batch


class RemembersRows(zj.RowOperator):
    name = "wrong"

    def __init__(self):
        self.batches = 0

    def process_rows(self, batch):
        self.batches += 1
        return {"n": batch["n"] + self.batches}


class RandomRows(zj.RowOperator):
    name = "wrong"

    def process_rows(self, batch):
        return {"x": np.random.default_rng().random(len(batch["n"]))}


class ReturnsList(zj.RowOperator):
    name = "wrong"

    def process_rows(self, batch):
        return {"n": batch["n"].tolist()}


WRONG = [
    (Reorders, "micro-batches of 1|preserves_cursor_order"),
    (LosesLastChild, "lost \\(their last child never came out\\)"),
    (LosesMiddleChild, "records were lost"),
    (ForgetsTombstone, "samples were lost"),
    (DropsWhatWasClosed, "samples were lost"),
    (Duplicates, "finished twice"),
    (ExpandsUndeclared, "repeat\\(\\) needs OpTraits\\(expands=True\\)"),
    (CountsRecords, "came out otherwise when run after another|micro-batches"),
    (NormalisesByMicroBatch, "run in micro-batches of 1"),
    (Unseeded, "run twice on the same records"),
    (WritesToItsInput, "writes to its input"),
    (TooFewRows, "rows for"),
    (ReturnsDicts, "returned list; return a MicroBatch"),
    (GroupsInPairs, "groups records; only an Accumulator may"),
    (HeldReversed, "out of order although its traits say"),
    (ForgetsAtFlush, "flush must return every record"),
    (KeepsItAll, "flush must return every record"),
    (FlushesTwice, "finished twice"),
    (SurvivesTheFlush, "run after another flush epoch|run with another lane"),
    (SharesLanes, "run with another lane in between|micro-batches|another flush epoch"),
    (LooksAtPayloads, "replays_on_lengths=True, but without payloads it decides otherwise"),
    (DropsRows, "must keep the rows"),
    (WritesRows, "writes to its input"),
    (RemembersRows, "the second of two equal batches"),
    (RandomRows, "second of two equal batches|another run"),
    (ReturnsList, "must keep the rows"),
]


@pytest.mark.parametrize(("make", "text"), WRONG, ids=[m.__name__ for m, _ in WRONG])
def test_a_wrong_operator_is_found(make, text):
    with pytest.raises(zj.ContractViolation, match=text) as caught:
        check_operator(make(), RECORDS)
    assert caught.value.operator == make().name


class KeepsEven(Stateless):
    def process(self, batch):
        return batch.keep(np.array([int(r["n"]) % 2 == 0 for r in batch.rows()]))


class Thrice(Stateless):
    traits = zj.OpTraits(expands=True)

    def process(self, batch):
        out = batch.repeat(np.full(len(batch), 3))
        return out.keep(np.array([i % 3 != 1 for i in range(len(out))]))


class Adds(zj.RowOperator):
    name = "adds"

    def process_rows(self, batch):
        return {"n": batch["n"] + 1}


def running(name="sums"):
    def push(memory, record):
        memory.append(int(record["n"]))
        return [{"sum": sum(memory)}]

    return ops.StatefulTransform(name, init_state=list, push=push, flush=lambda memory: [])


RIGHT = [
    KeepsEven(), Thrice(), Held(), Repeat(3), Adds(), running(),
    ops.Map(lambda r: {"n": r["n"]}, name="n"), ops.Filter(lambda r: r["n"] % 3, name="f"), ops.Split(2), ops.Shuffle(5, seed=1),
    ops.MapBatch(lambda b: {"n": b["n"] * 2}, name="twice"),
]  # fmt: skip


@pytest.mark.parametrize("op", RIGHT, ids=lambda op: op.name)
def test_a_right_operator_passes(op):
    check_operator(op, RECORDS)


@pytest.mark.parametrize(
    "op",
    [
        Wrap(5),
        ops.Pack(9, num_bins=3),
        ops.Pack(4, on_overlong="drop"),
        ops.Pack(4, on_overlong="truncate"),
        ops.Pack(3),
    ],
    ids=lambda op: op.name,
)
def test_packers_pass(op):
    check_operator(op, TOKENS)


def test_an_operator_that_raises_is_named():
    def fails(record):
        raise ValueError("no")

    with pytest.raises(zj.ContractViolation, match=r"map\(f\) raised ValueError: no"):
        check_operator(ops.Map(fails, name="f"), RECORDS)


def test_too_few_records_prove_nothing():
    with pytest.raises(zj.ConfigurationError, match="at least 4 records, got 3"):
        check_operator(KeepsEven(), RECORDS[:3])


# -- check_resume --------------------------------------------------------------------------------------------------
def numbers():
    ds = zj.Dataset.from_source("n", [{"n": i} for i in range(60)])
    return zj.Pipeline(zj.StaticMixtureWorkSource(ds, chunk_size=4)).shuffle(5)


def test_check_resume_passes_a_right_pipeline():
    check_resume(numbers().apply(KeepsEven()).batch(2).options(flush_every_k_chunks=3), batches=12)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (CountsRecords, "batch 0|checkpoint"),
        (Unseeded, "field 'x'"),
        (NormalisesByMicroBatch, "field 'x'"),
        (SharesLanes, "parity"),
        (SurvivesTheFlush, "epochs"),
    ],
)
def test_check_resume_finds_what_breaks_a_resume(make, text):
    pipeline = numbers().apply(make()).batch(2).options(flush_every_k_chunks=3, executor="inline")
    with pytest.raises(zj.ContractViolation, match=text):
        check_resume(pipeline, batches=20)
