"""What figures say, by hand, and that an iterator fills them in."""

from __future__ import annotations

from dataclasses import replace

import pytest

import zephon_jax as zj
from zephon_jax.metrics.counters import OperatorCounts
from zephon_jax.metrics.stats import limiting, scalars

STATS = zj.Stats(
    step=1200, rows={0: 10, 1: 12}, rounds={0: 5, 1: 6}, chunks_in_flight={0: 1, 1: 2}, skipped={0: 0, 1: 0},
    operators={
        "fetch": OperatorCounts(9, 9, 0, busy_s=1.0), "map(f)": OperatorCounts(9, 7, 2, busy_s=3.0),
        "pack": OperatorCounts(7, 3, 0, busy_s=2.0),
    },
    batches_ready=1, chunks_drawn=4, chunks_replayed=0, rows_replayed=0, samples_loaded=0, prefetch=2,
    bytes_ready=2_500_000, first_wait_s=0.5, elapsed_s=10.0, steps_taken=101, wait_s=4.0,
)  # fmt: skip
WORKERS = frozenset({"fetch", "map(f)"})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"steps_taken": 1}, ""),
        ({"wait_s": 0.4}, "the pipeline keeps up"),
        ({"workers_wait_s": 8.0}, "starved by map(f): 75 % of the workers' time"),
        ({"workers_wait_s": 1.0, "blocked_s": 7.0}, "starved by pack, which runs in order: 57 % of the time"),
        ({"workers_wait_s": 1.0}, "starved by batching and placing arrays"),
    ],
)
def test_what_the_step_waits_for(changes, text):
    assert limiting(replace(STATS, **changes), WORKERS) == text


def test_one_line_of_health():
    assert str(STATS) == "step 1,200: 10 steps/s, waited 40.0 % of 10.0 s, 1 of 2 batches ready (2.5 MB)"
    assert str(replace(STATS, skipped={0: 3}, workers_lost=1, limit="x")).endswith(
        "(2.5 MB), 3 samples skipped, 1 workers lost; x"
    )


def test_numbers_for_curves():
    flat = scalars(STATS)
    assert flat["step"] == 1200
    assert flat["rows"] == 22
    assert flat["steps_per_second"] == 10
    assert flat["operator/map(f)/finished"] == 2
    assert flat["operator/pack/busy_seconds"] == 2.0


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_an_iterator_fills_them_in(executor):
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", range(100)), shuffle_shards=False)
    p = zj.Pipeline(work).map(lambda r: r, name="same").shuffle(3).batch(10).options(executor=executor)
    with iter(p) as it:
        fresh = it.stats()
        assert (fresh.limit, fresh.steps_per_s, fresh.wait_fraction) == ("", 0, 0)
        for _ in range(3):
            next(it)
        stats = it.stats()
    assert stats.steps_taken == 3
    assert 0 <= stats.wait_s <= stats.elapsed_s
    assert stats.first_wait_s > 0
    assert all(stats.operators[name].busy_s > 0 for name in ("fetch", "map(same)", "shuffle(3)"))
    assert stats.prefetch == (2 if executor == "threads" else 0)
