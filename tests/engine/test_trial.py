"""What is made of the figures of threads, by hand; that something is measured at all is seen in tests/processes/test_auto.py."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from zephon_jax.columns import columns_from_rows
from zephon_jax.engine import trial as trials
from zephon_jax.engine.trial import Trial
from zephon_jax.microbatch import MicroBatch
from zephon_jax.origin import Origin, no_contributors

STEPS: tuple = ("a", "b")


def micro_batch(n, size=8):
    rows = [{"x": np.zeros(size, np.uint8)}] * n
    return MicroBatch(
        0, columns_from_rows(rows), Origin.of_chunk(0, np.arange(n), 0), no_contributors(0), np.empty((2, 0), np.int32)
    )


def measured(trial):
    return trial.figures([None, "threads"], lambda step: "cannot" if step == "b" else "")


def spent(monkeypatch, *figures):
    """The next readings of a thread's clocks: (wall, cpu, queued)."""
    values = iter(figures)
    monkeypatch.setattr(trials, "_spent", lambda: trials._Spent(*next(values)))


def test_one_alone(monkeypatch):
    trial = Trial(STEPS, pairs=True)
    assert trial.next == "warm"
    assert trial.records == 16
    trial.warm(lambda step, batch: batch, micro_batch(16))
    assert trial.next == "alone"
    # a: 0.3 s, of it 0.1 at work and 0.1 without a processor; b: 0.2 s at work
    spent(monkeypatch, (0, 0, 0), (0.3, 0.1, 0.1), (0.3, 0.1, 0.1), (0.5, 0.3, 0.1))
    trial.alone(lambda step, batch: micro_batch(100, 16) if step == "a" else batch, micro_batch(100))
    assert trial.next == "pair"
    assert not trial.over
    a, b = measured(trial)
    assert (a.wall_us, a.cpu_us) == pytest.approx((2000, 1000))
    assert (b.wall_us, b.cpu_us) == pytest.approx((2000, 2000))
    assert (a.bytes_in, a.bytes_out, b.bytes_in, b.bytes_out) == (8, 16, 16, 16)
    assert (a.fixed, b.fixed, a.stays, b.stays, a.held) == (None, "threads", "", "cannot", None)


@pytest.mark.parametrize(
    ("wall", "cpu", "pairs", "over"),
    [(0.1, 0.1, True, False), (0.1, 0.1, False, True), (1e-4, 1e-4, True, True), (0.1, 0.01, True, True)],
)
def test_the_lock_is_looked_at_only_where_it_matters(monkeypatch, wall, cpu, pairs, over):
    """Not with one worker, not for cheap operators, and not for those that wait."""
    trial = Trial(STEPS[:1], pairs=pairs)
    trial.warm(lambda step, batch: batch, micro_batch(1))
    spent(monkeypatch, (0, 0, 0), (wall, cpu, 0))
    trial.alone(lambda step, batch: batch, micro_batch(100))
    assert trial.over is over


@pytest.mark.parametrize(
    ("first", "second", "held"),
    [
        # (blocked, queued) of each, for 0.1 s at work
        ((0.0, 0.0), (0.1, 0.0), 1.0),
        ((0.0, 0.0), (0.0, 0.0), 0.0),
        ((0.02, 0.0), (0.05, 0.0), 0.5),
        ((0.0, 0.0), (0.3, 0.0), 1.0),
        ((0.0, 0.2), (0.0, 0.0), None),  # it had no processor for so long that the other was done
    ],
)
def test_the_lock_is_held_for_as_long_as_the_second_one_is_blocked(monkeypatch, first, second, held):
    trial = Trial(STEPS[:1], pairs=True)
    trial.warm(lambda step, batch: batch, micro_batch(1))
    spent(monkeypatch, (0, 0, 0), (0.1, 0.1, 0))
    trial.alone(lambda step, batch: batch, micro_batch(10))
    pause = -1
    for _ in range(2):
        together = trial.pair()
        monkeypatch.setattr(together, "meet", lambda: 0.0)
        for blocked, queued in (first, second):
            spent(monkeypatch, (0, 0, 0), (0.1 + blocked + queued, 0.1, queued))
            trial.beside(lambda step, batch: batch, micro_batch(10), together)
        pause = trial.pause()
    (found,) = trial.figures([None], lambda step: "")
    assert found.held == (None if held is None else pytest.approx(held))
    assert (trial.over, pause) == (held is not None, 0)
    if held is None:
        trial.pair()
        assert trial.pause() == 8  # later again, when the machine may be less busy


def test_two_meet_before_each_operator_and_one_that_fails_lets_the_other_go():
    trial = Trial(STEPS, pairs=True)
    together, met = trial.pair(), []

    def run(step, batch):
        met.append(step)
        if step == "b" and threading.current_thread().name == "fails":
            raise ValueError
        return batch

    def fails():
        with pytest.raises(ValueError):
            trial.beside(run, micro_batch(1), together)

    thread = threading.Thread(target=fails, name="fails")
    thread.start()
    began = time.monotonic()
    assert len(trial.beside(run, micro_batch(2), together)) == 2
    thread.join(10)
    assert sorted(met) == ["a", "a", "b", "b"]
    assert time.monotonic() - began < 10


def test_the_kernel_tells_how_long_a_thread_had_no_processor():
    assert trials._queued_s() >= 0.0
