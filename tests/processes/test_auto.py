"""executor="auto": whatever is measured and chosen, the same stream, each operator once per record, and the same errors."""

from __future__ import annotations

import os
import threading
import time

import pytest

import zephon_jax as zj
from tests.processes.everything import everything, taken
from zephon_jax.checkpoint.codec import decode, encode
from zephon_jax.engine import legs
from zephon_jax.engine.trial import Trial
from zephon_jax.plan.choose import Figures, choose

SLOW = pytest.mark.slow
CHEAP = Figures(wall_us=1, cpu_us=1, held=1.0, bytes_in=8, bytes_out=8)
PYTHON = Figures(wall_us=500, cpu_us=500, held=1.0, bytes_in=8, bytes_out=8)
FREE = Figures(wall_us=500, cpu_us=500, held=0.0, bytes_in=8, bytes_out=8)
MEASURED = {"inline": CHEAP, "threads": FREE, "processes": PYTHON}


def numbers(n=600):
    return zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", range(n)), shuffle_shards=False)


def mapped(fn, n=600, **options):
    given = {"executor": "auto", "max_workers": 2, "micro_batch_records": 32, **options}
    return zj.Pipeline(numbers(n)).map(fn, name="fn").batch(8).options(**given)


@pytest.fixture(params=["inline", "threads", "processes"])
def chosen(request, monkeypatch):
    """All stateless operators measure so that they are placed there, whatever this machine does at the moment."""
    place(monkeypatch, MEASURED[request.param])
    return request.param


def place(monkeypatch, figures):
    def measured(self, fixed, stays):
        return [
            Figures(
                *(getattr(figures, f) for f in ("wall_us", "cpu_us", "held", "bytes_in", "bytes_out")), one, stays(step)
            )
            for step, one in zip(self._steps, fixed, strict=True)
        ]

    def enough(self):
        self.over = True
        return 0

    monkeypatch.setattr(Trial, "figures", measured)
    monkeypatch.setattr(Trial, "pause", enough)  # however busy the machine is
    monkeypatch.setattr(
        legs, "choose", lambda figures, **given: choose(figures, **{**given, "cpus": 4, "samples": None})
    )


@SLOW
def test_the_same_stream_and_checkpoints_wherever_operators_run(tmp_path, chosen):
    with everything(tmp_path, executor="inline").steps() as it:
        reference = taken(it)
    for options in ({"micro_batch_records": 5}, {"max_workers": 1, "micro_batch_records": 64}):
        with everything(tmp_path, executor="auto", **options).steps() as it:
            assert taken(it) == reference  # batches and the checkpoint after each
            places = {c.place for c in it.stats().operators.values() if c.place}
        if options.get("max_workers") != 1:
            assert chosen in places
    with everything(tmp_path, executor="auto", max_workers=2).steps() as it:
        it.restore(decode(reference[9][1]))
        assert taken(it, 4) == reference[10:14]


def test_sentinels_keep_their_place_among_micro_batches_that_are_measured(monkeypatch):
    place(monkeypatch, FREE)
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", range(200)), chunk_size=4)
    p = zj.Pipeline(work).map(lambda record: record, name="fn").shuffle(8).batch(4)
    p = p.options(flush_every_k_chunks=1, max_workers=2)  # a sentinel after each micro-batch
    with iter(p.options(executor="inline")) as a, iter(p.options(executor="auto")) as b:
        for left, right in zip(a, b, strict=True):
            assert left["value"].tolist() == right["value"].tolist()
            assert encode(a.checkpoint()) == encode(b.checkpoint())


@SLOW
def test_what_this_machine_measures_changes_nothing(tmp_path):
    with everything(tmp_path, executor="inline").steps() as it:
        reference = taken(it)
    with everything(tmp_path, executor="auto").steps() as it:
        assert taken(it) == reference


def test_each_operator_runs_once_per_record(monkeypatch):
    for figures in (CHEAP, FREE):
        place(monkeypatch, figures)
        seen, lock = [], threading.Lock()

        def fn(record, seen=seen, lock=lock):
            with lock:
                seen.append(int(record["value"]))
            return record

        with iter(mapped(fn)) as it:
            got = [value for batch in it for value in batch["value"].tolist()]
        assert got == list(range(600))
        assert sorted(seen) == got


@SLOW
def test_processes_take_over_when_they_are_there(monkeypatch):
    place(monkeypatch, PYTHON)
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", range(64)), exhausted_policy="repeat")
    p = zj.Pipeline(work).map(lambda record: {"pid": os.getpid()}, name="fn").batch(8)
    with iter(p.options(executor="auto", max_workers=2)) as it:
        assert int(next(it)["pid"][0]) == os.getpid()  # nobody waits for an interpreter to start
        deadline = time.monotonic() + 30
        while int(next(it)["pid"][0]) == os.getpid() and time.monotonic() < deadline:
            pass
        assert int(next(it)["pid"][0]) != os.getpid()
        counts = it.stats().operators["map(fn)"]
        assert (counts.place, counts.why) == (
            "processes",
            "500.0 µs a record, 0 % of it without the lock; 8 bytes there and 8 back",
        )


def test_what_cannot_be_sent_stays_and_says_why(monkeypatch):
    place(monkeypatch, PYTHON)
    lock = threading.Lock()

    def fn(record):
        with lock:
            return record

    with iter(mapped(fn)) as it:
        assert len(list(it)) == 75
        counts = it.stats().operators["map(fn)"]
    assert counts.place in ("inline", "threads")
    assert "map(fn) cannot be sent to a worker process: TypeError: cannot pickle '_thread.lock' object" in counts.why


def test_processes_that_cannot_be_started_are_threads(monkeypatch):
    place(monkeypatch, PYTHON)

    class Refused:
        def __init__(self, *_):
            raise OSError("no memory")

    monkeypatch.setattr(legs, "ProcessWorkers", Refused)
    with iter(mapped(lambda record: record)) as it:
        assert len(list(it)) == 75
        counts = it.stats().operators["map(fn)"]
    assert counts.place == "threads"
    assert counts.why.endswith("processes could not be had: no memory")


@SLOW
def test_options_hold_also_while_it_is_measured(monkeypatch):
    place(monkeypatch, PYTHON)
    p = (
        zj.Pipeline(numbers())
        .map(lambda record: {"pid": os.getpid()}, name="a")
        .map(lambda r: {**r, "b": os.getpid()}, name="b")
    )
    p = p.batch(8).options(executor="auto", max_workers=2, executors={"map(a)": "processes", "map(b)": "threads"})
    with iter(p) as it:
        for batch in it:
            assert (batch["pid"] != os.getpid()).all()
            assert (batch["b"] == os.getpid()).all()
        operators = it.stats().operators
    assert (operators["map(a)"].place, operators["map(b)"].place) == ("processes", "threads")


@pytest.mark.parametrize("at", [0, 20, 70, 90, 137, 599])
def test_an_error_names_its_record_and_comes_behind_what_came_before(monkeypatch, at):
    place(monkeypatch, FREE)

    def fn(record):
        if int(record["value"]) == at:
            raise ValueError("bad")
        return record

    got = []
    with iter(mapped(fn)) as it, pytest.raises(zj.WorkerError) as found:
        got.extend(value for batch in it for value in batch["value"].tolist())
    assert str(found.value).startswith("map(fn) raised ValueError: bad; lane 0, record (")
    assert found.value.pointer == ("d", "d", at)
    assert got == list(range(len(got)))
    assert at - 40 < len(got) <= at


def test_a_system_exit_is_an_error_also_in_the_thread_that_produces(monkeypatch):
    place(monkeypatch, CHEAP)

    def fn(record):
        if int(record["value"]) == 500:
            raise SystemExit(3)
        return record

    with iter(mapped(fn)) as it, pytest.raises(zj.WorkerError, match=r"map\(fn\) raised SystemExit: 3; lane 0, record"):
        list(it)


def test_a_hung_operator_is_an_error_in_time_also_while_it_is_measured():
    release = threading.Event()

    def fn(record):
        if int(record["value"]) == 3:
            release.wait(60)
        return record

    with iter(mapped(fn, operator_timeout_s=0.3)) as it, pytest.raises(zj.WorkerError, match="operator_timeout_s=0.3"):
        list(it)
    release.set()
    while any(t.name.startswith("zephon_jax") for t in threading.enumerate()):
        time.sleep(0.01)


def test_closing_in_the_middle_of_the_measurement():
    it = iter(mapped(lambda record: time.sleep(0.001) or record))
    threads = threading.active_count()
    next(it)
    it.close()
    assert threading.active_count() <= threads


def test_it_is_told_that_it_is_not_decided_yet():
    text = mapped(lambda record: record).explain()
    assert "Stage[0] place=local runner=auto cap=4" in text
    assert "\n  auto: decided at the first batch" in text
    text = mapped(lambda record: record, executors={"map": "processes"}).explain()
    assert "fetch@p2:auto -[in_q=4]-> map(fn)@p2:processes" in text
