"""What hurts a new user: functions that look alike, files edited under way, threads left, fields of mixed kinds."""

from __future__ import annotations

import functools
import gc
import json
import threading
import time

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import zephon_jax as zj


def numbers(n=40):
    ds = zj.Dataset.from_source("m", [{"n": i} for i in range(n)])
    return zj.Pipeline(zj.StaticMixtureWorkSource(ds, chunk_size=8, shuffle_shards=False))


def add(record, k):
    return {"n": record["n"] + k}


class Scaled:
    def __init__(self, by):
        self.by = by

    def map(self, record):
        return {"n": record["n"] * self.by}

    def __call__(self, record):
        return self.map(record)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (functools.partial(add, k=1), functools.partial(add, k=2)),
        (Scaled(1), Scaled(2)),
        (Scaled(1).map, Scaled(2).map),
        (functools.partial(add, k=1), functools.partial(Scaled.map)),
    ],
    ids=["partial", "object", "method", "functions of partials"],
)
def test_functions_with_other_arguments_are_other_functions(one, other):
    it = iter(numbers().map(one).batch(4).options(executor="inline"))
    next(it)
    with pytest.raises(zj.CheckpointMismatch, match="function"):
        iter(numbers().map(other).batch(4).options(executor="inline")).restore(it.checkpoint())
    iter(numbers().map(one).batch(4).options(executor="inline")).restore(it.checkpoint())


def test_a_partial_of_an_object_needs_a_name():
    with pytest.raises(zj.ConfigurationError, match="pass name="):
        numbers().map(functools.partial(add, k=object()))
    numbers().map(functools.partial(add, k=object()), name="add")


def test_a_file_edited_under_way_is_noticed(tmp_path):
    path = tmp_path / "e.jsonl"

    def write(word):
        path.write_text("".join(json.dumps({"text": f"{word} {i:03d}"}) + "\n" for i in range(40)))

    write("old")
    p = zj.Pipeline(zj.StaticMixtureWorkSource(zj.Dataset.from_path("e", path), chunk_size=4)).batch(4)
    it = iter(p.options(executor="inline"))
    next(it)
    write("new")  # the same size, and the index would still fit
    with pytest.raises(zj.DataError, match=r"e\.jsonl has changed since it was indexed"):
        next(it)


def boom(record):
    if record["n"] == 9:
        raise ValueError("no")
    return record


def test_failed_and_finished_iterators_leave_no_threads():
    before = threading.active_count()
    for _ in range(10):
        it = iter(numbers().map(boom).batch(4).options(micro_batch_records=1))
        with pytest.raises(zj.WorkerError):
            for _ in it:
                pass
        done = iter(numbers().batch(4))
        assert sum(1 for _ in done) == 10
        assert done.checkpoint()["lanes"][0]["rows"] == it.step * 4 + 40 - it.step * 4
    gc.collect()
    assert threading.active_count() == before


def test_closing_waits_for_a_record_not_for_a_micro_batch():
    started = threading.Event()
    seen = []

    def slow(record):
        seen.append(int(record["n"]))
        started.set()
        time.sleep(0.05)
        return record

    it = numbers(4000).map(slow).batch(128).to_global(on(1))
    waiting = []

    def consume():
        try:
            next(it)
        except zj.ConfigurationError as error:
            waiting.append(str(error))

    thread = threading.Thread(target=consume)
    thread.start()
    started.wait()
    it.close()
    thread.join()
    assert waiting == ["this iterator was closed while next() was waiting for a batch"]
    assert len(seen) < 100  # of some 500 that were under way


def on(devices):
    return NamedSharding(Mesh(np.array(jax.devices()[:devices]), ("data",)), P("data"))


def mixed(fields):
    ds = zj.Dataset.from_source("m", [fields(i) for i in range(64)])
    work = zj.StaticMixtureWorkSource(ds, chunk_size=8, shuffle_shards=False)
    return zj.Pipeline(work).batch(global_batch_size=16).options(executor="inline", canonical_replicas=8)


def test_integers_among_floats_need_a_type_by_name():
    p = mixed(lambda i: {"x": i, "score": 1 if i % 3 else 0.5})
    with p.to_global(on(4), dtypes={"score": np.float32}) as it:
        for batch in it:
            assert batch["score"].dtype == np.float32
            assert np.asarray(batch["score"]).tolist() == [
                1.0 if x % 3 else 0.5 for x in np.asarray(batch["x"]).tolist()
            ]


def test_a_field_of_one_type_per_lane_is_refused_with_advice():
    p = mixed(lambda i: {"score": 1 if i % 2 else 0.5})
    with p.to_global(on(4)) as it, pytest.raises(zj.DataError, match=r"several types in one step.*dtypes=\{'score'"):
        list(it)


def test_ragged_and_missing_fields_are_kept_apart():
    p = mixed(lambda i: {"x": i, "r": list(range(i % 4)), **({"t": "a"} if i % 5 else {})})
    with p.to_global(on(4)) as it:
        for batch in it:
            assert list(batch) == ["x"]
            for x, r, t in zip(np.asarray(batch["x"]).tolist(), it.host()["r"], it.host()["t"], strict=True):
                assert r.tolist() == list(range(x % 4))
                assert t == ("a" if x % 5 else None)


def test_not_one_step_is_said():
    with numbers().batch(global_batch_size=128).to_global(on(1)) as it:
        with pytest.warns(UserWarning, match="not one whole step of 8 lanes x 16 rows"):
            assert next(it, None) is None


class ForgetsWhatWasClosed(zj.RecordOperator):
    name = "forgets"

    def process(self, batch):
        return zj.MicroBatch.concat([batch.slice(i, i + 1) for i in range(len(batch))])


def test_check_operator_feeds_what_was_finished_before():
    records = [{"n": i} for i in range(12)]
    with pytest.raises(zj.ContractViolation, match="samples were lost"):
        zj.testing.check_operator(ForgetsWhatWasClosed(), records)


def test_checks_of_nothing_are_refused():
    with pytest.raises(zj.ConfigurationError, match="needs an Operator, got function"):
        zj.testing.check_operator(boom, [{"n": 1}] * 5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(zj.ConfigurationError, match=r"check_resume\(batches=0\)"):
        zj.testing.check_resume(numbers().batch(2), batches=0)
