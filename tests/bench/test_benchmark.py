"""`benchmark(pipeline)`: real runs, small; the operator that is slow on purpose is the one that is named."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

import zephon_jax as zj
from zephon_jax.bench import Report, Verdict, benchmark
from zephon_jax.bench.gil import gil_shares, share_held
from zephon_jax.bench.measure import run_for, source_for


def work(n: int = 400, **options) -> zj.StaticMixtureWorkSource:
    return zj.StaticMixtureWorkSource(zj.Dataset.from_source("numbers", range(n)), **options)


def verdict_of(report: Report) -> Verdict:
    found = report.verdict()
    assert found is not None
    return found


def python_loop(record):
    total = 0
    for i in range(20_000):
        total += i & 3
    return {"x": total}


def small(record):
    return {"x": record["value"]}


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_the_operator_made_slow_is_named(executor: str) -> None:
    pipeline = zj.Pipeline(work()).map(small, name="quick").map(python_loop, name="slow").shuffle(4).batch(8)
    report = benchmark(pipeline, seconds=0.3, executors=[executor])
    verdict = verdict_of(report)
    assert verdict.stage == "map(slow)"
    assert "holds the GIL" in verdict.text
    assert "executor='processes'" in verdict.advice
    assert "map(slow)" in str(report)


@pytest.mark.slow
def test_the_operator_made_slow_is_named_in_processes() -> None:
    pipeline = zj.Pipeline(work()).map(small, name="quick").map(python_loop, name="slow").batch(8)
    report = benchmark(pipeline.options(max_workers=1), seconds=0.3, executors=["processes"])
    assert verdict_of(report).stage == "map(slow)"
    assert report.runs[0].operators[-1].busy_s > 0


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_an_operator_that_runs_in_order_is_named(executor: str) -> None:
    def slow(state, record):
        python_loop(record)
        return [record]

    pipeline = zj.Pipeline(work()).map(small, name="quick").stateful_transform(
        "slow", init_state=dict, push=slow, flush=lambda state: []
    )  # fmt: skip
    report = benchmark(pipeline.batch(8), seconds=0.3, executors=[executor])
    assert "slow" in verdict_of(report).stage
    assert report.runs[0].operators[-1].kind == "in order"


def test_an_operator_after_batch_is_named() -> None:
    def slow(batch):
        for _ in range(20):
            python_loop(None)
        return batch

    report = benchmark(zj.Pipeline(work()).batch(2).map_batch(slow), seconds=0.2, executors=["inline"])
    assert "slow" in verdict_of(report).stage
    assert "in front of batch()" in verdict_of(report).advice


def test_a_slow_source_is_named() -> None:
    class Slow:
        def __len__(self):
            return 400

        def __getitem__(self, index):
            time.sleep(0.0005)
            return {"x": index}

    data = zj.Dataset.from_source("slow", Slow(), fingerprint="slow")
    pipeline = zj.Pipeline(zj.StaticMixtureWorkSource(data)).batch(4).options(micro_batch_records=8)
    report = benchmark(pipeline, seconds=0.3, executors=["inline"])
    assert verdict_of(report).stage == "fetch"
    assert 0 < report.source.records_per_s < 2_000  # half a millisecond each
    assert "the source alone gives" in verdict_of(report).advice


def test_the_probe_does_not_wait_for_whole_micro_batches() -> None:
    """A twentieth of a second a record would make seconds of one."""
    calls = []

    def slow(record):
        calls.append(record)
        time.sleep(0.05)
        return record

    assert gil_shares(zj.Pipeline(work()).map(slow).batch(4)).keys() == {"fetch", next(iter(_names(slow)))}
    assert len(calls) < 40


def _names(fn) -> list[str]:
    return [zj.Pipeline(work()).map(fn).operators[0].name]


def test_the_probe_tells_python_from_waiting() -> None:
    """The best of several, since other load may make a sleeper late; one that waits for the lock is late each time."""
    assert min(share_held(lambda: python_loop(None), 0.1) for _ in range(3)) > 0.5
    assert min(share_held(lambda: time.sleep(0.01), 0.1) for _ in range(5)) < 0.5


def test_counts_are_those_of_the_data() -> None:
    """40 documents of 3 tokens in rows of 8: two documents each, so 20 rows, of which the first 2 are the first batch."""
    samples = [{"tokens": np.full(3, 1 + i, np.int32)} for i in range(40)]
    data = zj.Dataset.from_source("d", samples, fingerprint="d")
    pipeline = zj.Pipeline(zj.StaticMixtureWorkSource(data)).pack(8, num_bins=1).batch(2)
    run = run_for(pipeline, "inline", 0.02)
    assert run.passes >= 1
    assert run.rows == 2 * run.batches
    assert 0 < run.batches <= 9 * run.passes  # passes may be cut short once the time is up
    assert run.tokens == 6 * run.rows
    assert run.bytes == run.rows * 3 * 8 * 4
    assert run.seconds >= 0.02
    assert run.memory_bytes > 1 << 20


def test_records_without_batch_are_counted() -> None:
    run = run_for(zj.Pipeline(work(50)).map(small), "inline", 0.01)
    assert run.rows == run.batches > 0
    assert run.tokens is None


def test_the_source_alone_reads_all_and_no_more() -> None:
    found = source_for(zj.Pipeline(work(1000)).batch(10), 10.0)
    assert found.records == 1000 - 128  # the first micro-batch is start-up


def test_a_mixture_by_tokens_can_be_measured() -> None:
    sets = [zj.Dataset.from_source(n, [{"tokens": [1, 2]}] * 200, fingerprint=n) for n in "ab"]
    mixed = zj.StaticMixtureWorkSource(sets, mixture={"a": 1, "b": 1}, weight_by="tokens", exhausted_policy="repeat")
    report = benchmark(zj.Pipeline(mixed).pack(8).batch(2), seconds=0.05, executors=["inline"])
    assert report.source.records > 0
    assert report.runs[0].tokens


def test_an_executor_that_refuses_is_reported_beside_the_others() -> None:
    import threading

    lock = threading.Lock()

    def locked(record):
        with lock:
            return small(record)

    pipeline = zj.Pipeline(work()).map(locked).batch(4)
    report = benchmark(pipeline, seconds=0.05, executors=["inline", "processes"])
    assert [run.error is None for run in report.runs] == [True, False]
    assert "cannot be sent" in (report.runs[1].error or "")
    assert report.fastest is report.runs[0]
    plain = json.loads(json.dumps(report.as_plain()))
    assert plain["fastest"] == "inline"
    assert plain["runs"][1]["verdict"] is None
    assert plain["runs"][0]["rows_per_s"] > 0
    with pytest.raises(zj.ConfigurationError, match="processes: .*cannot be sent"):
        benchmark(pipeline, seconds=0.05, executors=["processes"])


@pytest.mark.parametrize(
    ("samples", "passes", "text"),
    [(3, 0, "no batch came out of the data:"), (8, 1, "one batch came out of the data and no more")],
)
def test_data_for_one_batch_or_none_is_told_apart(samples: int, passes: int, text: str) -> None:
    report = benchmark(zj.Pipeline(work(samples)).batch(8), seconds=0.05, executors=["inline"])
    assert (report.runs[0].passes, report.runs[0].batches) == (passes, 0)
    assert text in str(report)
    assert report.fastest is None
    assert report.as_plain()["fastest"] is None


def test_the_source_alone_runs_no_operator() -> None:
    calls = []

    def seen(record):
        calls.append(record)
        return record

    assert source_for(zj.Pipeline(work()).map(seen).batch(4), 0.01).records > 0
    assert calls == []


def test_an_operator_that_exits_ends_the_probe_only() -> None:
    def leaves(record):
        raise SystemExit(0)

    assert list(gil_shares(zj.Pipeline(work()).map(leaves).batch(4))) == ["fetch"]


def test_what_runs_is_told() -> None:
    told = []
    pipeline = zj.Pipeline(work()).map(small).batch(4)
    gil_shares(pipeline, told.append)
    run_for(pipeline, "inline", 0.01, told.append)
    assert told == ["fetch", "map(small)", "first", "rest"]


def test_an_operator_that_fails_says_so() -> None:
    def broken(record):
        raise KeyError("no such thing")

    with pytest.raises(zj.WorkerError, match="no such thing"):
        benchmark(zj.Pipeline(work()).map(broken).batch(4), seconds=0.05, executors=["inline"])


def test_a_source_that_fails_says_so() -> None:
    class Broken:
        def __len__(self):
            return 10

        def __getitem__(self, index):
            raise OSError("no such bucket")

    data = zj.Dataset.from_source("broken", Broken(), fingerprint="broken")
    with pytest.raises(zj.ZephonError, match="no such bucket"):
        benchmark(zj.Pipeline(zj.StaticMixtureWorkSource(data)).batch(4), seconds=0.05, executors=["inline"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"seconds": 0}, "seconds=0"),
        ({"seconds": float("inf")}, "seconds=inf"),
        ({"executors": []}, "executors="),
        ({"executors": "inline"}, "executors='inline'"),
        (
            {"executors": ["inline", "nowhere"]},
            r"executor 'nowhere': there are \['inline', 'threads', 'processes', 'auto'\]",
        ),
    ],
)
def test_arguments_are_checked(arguments, text) -> None:
    with pytest.raises(zj.ConfigurationError, match=text):
        benchmark(zj.Pipeline(work()).batch(4), **arguments)


def test_something_else_is_no_pipeline() -> None:
    with pytest.raises(zj.ConfigurationError, match="needs a Pipeline, got list"):
        benchmark([1, 2])
