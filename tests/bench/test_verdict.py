"""The words that figures are given: which stage is named, and what to do. Figures made up, so that no clock decides."""

from __future__ import annotations

import dataclasses

import pytest

from zephon_jax.bench.measure import OperatorTime, Run, SourceRun
from zephon_jax.bench.verdict import verdict_of

SOURCE = SourceRun(records=100_000, seconds=1.0, first_s=0.01)


def run(executor: str = "threads", **changed) -> Run:
    """Ten seconds of a pipeline in which nothing stands out; two workers on four cores."""
    operators = changed.pop("busy", {})
    kinds = {"fetch": "read", "map": "record", "pack": "in order", "map_batch": "after batch"}
    made = tuple(
        OperatorTime(name, kind, 1_000, 1_000, operators.get(name, 0.1)) for name, kind in kinds.items()
    )  # fmt: skip
    given = {"seconds": 10.0, "passes": 1, "batches": 100, "rows": 1_000, "cpu_s": 10.0, "operators": made}
    return dataclasses.replace(Run(executor, 2, 4), **{**given, **changed})


@pytest.mark.parametrize(
    ("given", "gil", "stage", "advice"),
    [
        (run("inline", busy={"map": 8.3}), {"map": 0.9}, "map", "executor='processes'"),
        (run("inline", busy={"map": 8.3}), {"map": 0.1}, "map", "executor='threads'"),
        (run("inline", busy={"pack": 7}), {}, "pack", "executor='threads'"),
        (run("inline", busy={"fetch": 7}), {}, "fetch", "executor='threads'"),
        (run("inline", busy={"map_batch": 7}), {}, "map_batch", "in front of batch()"),
        (run("inline"), {}, "batching", "more rows in a batch"),
        (run(busy={"map": 18}, workers_wait_s=8.0), {"map": 0.9}, "map", "executor='processes'"),
        (run(busy={"map": 18}, workers_wait_s=8.0), {"map": 0.1}, "map", "more threads (max_workers=4)"),
        (run(busy={"map": 18}, workers_wait_s=8.0, cpu_s=39.0), {"map": 0.1}, "map", "all 4 cores are busy"),
        # Its waits for the lock look like work of the lanes' thread: still the operator is to blame.
        (run(busy={"map": 9}, workers_wait_s=0.3), {"map": 0.9}, "map", "executor='processes'"),
        (run(busy={"pack": 8}), {}, "pack", "dp_degree"),
        (run(busy={"map_batch": 8}), {}, "map_batch", "in front of batch()"),
        (
            run(busy={"fetch": 18}, workers_wait_s=8.0, cpu_s=1.0),
            {"fetch": 0.0},
            "fetch",
            "more threads (max_workers=4)",
        ),
        (run("processes", busy={"map": 18}, workers_wait_s=8.0), {"map": 0.9}, "map", "max_workers=4"),
        (run("processes", busy={"map": 18}, workers_wait_s=8.0, cpu_s=39.0), {"map": 0.9}, "map", "make it cheaper"),
    ],
)
def test_the_stage_and_what_to_do(given, gil, stage, advice) -> None:
    found = verdict_of(given, SOURCE, gil)
    assert found is not None
    assert found.stage == stage
    assert advice in found.advice, found
    assert ("holds the GIL" in found.text) == (gil.get(stage, 0) > 0.5)


def test_shares_are_of_the_time_that_the_text_names() -> None:
    found = verdict_of(run("inline", busy={"map": 8.3}), SOURCE, {"map": 0.9})
    assert found is not None
    assert str(found) == "map takes 83 % of the working time and holds the GIL: executor='processes'"
    found = verdict_of(run(busy={"map": 17.9}, workers_wait_s=8.0), SOURCE, {"map": 0.9})  # and 0.1 in fetch
    assert found is not None
    assert found.share == pytest.approx(17.9 / 18.0)


def test_an_executor_that_was_tried_and_is_slower_is_no_advice() -> None:
    given = run("inline", busy={"map": 8.3})
    tried = verdict_of(given, SOURCE, {"map": 0.9}, {"processes": 60.0})
    assert tried is not None
    assert "tried and is no faster (0.60 x)" in tried.advice
    faster = verdict_of(given, SOURCE, {"map": 0.9}, {"processes": 180.0})
    assert faster is not None
    assert "executor='processes', which was 1.8 x as fast here" in faster.advice


def test_on_a_crowded_machine_what_was_tried_proves_nothing() -> None:
    given = run("inline", busy={"map": 8.3}, others_cpu_s=20.0)
    tried = verdict_of(given, SOURCE, {"map": 0.9}, {"processes": 60.0})
    assert tried is not None
    assert "tried and was no faster (0.60 x), while other processes were on the cores" in tried.advice


@pytest.mark.parametrize("rows_per_s", [{"inline": 250.0}, {"inline": 250.0, "processes": 240.0}])
@pytest.mark.parametrize(
    ("given", "gil"),
    [
        (run(busy={"map": 18}, workers_wait_s=8.0), {"map": 0.9}),
        (run(busy={"map": 18}, workers_wait_s=8.0), {"map": 0.1}),
        (run(busy={"map": 18}, workers_wait_s=8.0), {}),
        (run(busy={"fetch": 18}, workers_wait_s=8.0, cpu_s=1.0), {}),
        (run(busy={"pack": 8}), {}),
        (run(busy={"map_batch": 8}), {}),
        (run(), {}),
    ],
)
def test_where_another_executor_was_faster_it_alone_is_the_advice(given, gil, rows_per_s) -> None:
    found = verdict_of(given, SOURCE, gil, rows_per_s)
    assert found is not None
    assert found.advice == "executor='inline', which was 2.5 x as fast here"


@pytest.mark.parametrize("others", [{"threads": 60.0, "processes": 20.0}, {"threads": 104.0, "processes": 0.0}])
@pytest.mark.parametrize("crowded_s", [0.0, 20.0])
@pytest.mark.parametrize("gil", [{}, {"map": 0.1, "fetch": 0.1}, {"map": 0.9, "fetch": 0.9}])
@pytest.mark.parametrize("slow", ["map", "fetch", "pack"])
def test_the_fastest_is_not_told_to_change(others, crowded_s, gil, slow) -> None:
    found = verdict_of(run("inline", busy={slow: 8.0}, others_cpu_s=crowded_s), SOURCE, gil, others)
    assert found is not None
    for executor in ("threads", "processes"):
        assert f"executor='{executor}'" not in found.advice.replace(f"executor='{executor}' was tried and", "")


def test_threads_as_the_fastest_are_not_told_to_be_processes() -> None:
    given = run(busy={"map": 18}, workers_wait_s=8.0)
    found = verdict_of(given, SOURCE, {}, {"processes": 60.0, "inline": 50.0})
    assert found is not None
    assert found.advice == "more threads (max_workers=4)"


def test_a_source_at_its_limit_is_said_to_be() -> None:
    slow = SourceRun(records=110, seconds=1.0, first_s=0.1)
    found = verdict_of(run("inline", busy={"fetch": 9}), slow)
    assert found is not None
    assert "the source alone gives 110 records/s" in found.advice
    quick = verdict_of(run("inline", busy={"fetch": 9}), SOURCE)
    assert quick is not None
    assert "source alone" not in quick.advice


def test_nothing_measured_is_no_verdict() -> None:
    assert verdict_of(run(error="cannot be sent")) is None
    assert verdict_of(run(batches=0)) is None
    assert verdict_of(run(seconds=0.0)) is None
