"""Threads that nobody waits for without a bound, the end that wakes everybody, and results in order."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError, Future
from types import SimpleNamespace

import pytest

from zephon_jax.engine.bundles import Pace
from zephon_jax.runners.ordered import bundled, map_ordered, map_unordered
from zephon_jax.runners.stop import Stop
from zephon_jax.runners.threads import Threads
from zephon_jax.runners.watch import Watch


def test_an_executor_like_any_other():
    with Threads(1, "zephon_jax-test") as pool:
        assert [pool.submit(pow, 2, n).result(10) for n in range(5)] == [1, 2, 4, 8, 16]
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result(10)
        assert pool.submit(lambda: 3).result(10) == 3  # the thread goes on
    with pytest.raises(RuntimeError, match="cannot be submitted any more"):
        pool.submit(int)


def test_closing_cancels_what_waits_and_names_what_still_runs():
    started, release = threading.Event(), threading.Event()
    pool = Threads(1, "zephon_jax-test")
    running = pool.submit(lambda: (started.set(), release.wait(30)))
    waiting = pool.submit(int)
    started.wait(30)
    assert pool.close(0.01) == ["zephon_jax-test-0"]
    with pytest.raises(CancelledError):
        waiting.result()
    release.set()
    assert running.result(30)[1]
    assert pool.close(30) == []


def test_without_cancelling_what_was_submitted_runs():
    pool = Threads(1, "zephon_jax-test")
    gate = threading.Event()
    futures = [pool.submit(gate.wait, 30), *(pool.submit(int, n) for n in range(3))]
    closer = threading.Thread(target=pool.shutdown)
    closer.start()
    gate.set()
    assert [f.result(30) for f in futures] == [True, 0, 1, 2]
    closer.join(30)


def test_a_thread_that_waits_holds_no_result():
    import gc
    import weakref

    class Result:
        pass

    with Threads(1, "zephon_jax-test") as pool:
        future = pool.submit(Result)
        alive = weakref.ref(future.result())
        del future
        deadline = time.monotonic() + 5
        while alive() is not None and time.monotonic() < deadline:  # the thread is about to forget it
            gc.collect()
        assert alive() is None


def test_stop_wakes_whoever_waits_for_a_task():
    stop, never = Stop(), Future()
    assert not stop.settled(never, 0.001)
    seen = []
    waiter = threading.Thread(target=lambda: seen.append(stop.settled(never)), daemon=True)
    waiter.start()
    stop.set()
    stop.set()  # any number of times
    waiter.join(10)
    assert seen == [False]
    done = Future()
    done.set_result(1)
    assert stop.settled(done)


@pytest.mark.parametrize("window", [1, 2, 5, 100])
def test_results_come_in_the_order_of_submission(window):
    """Tasks complete backwards: each future is settled only when a later one is submitted, or it is taken."""
    under_way: list[tuple[int, Future[int]]] = []
    most = 0

    def submit(n):
        nonlocal most
        future: Future[int] = Future()
        under_way.append((n, future))
        most = max(most, len(under_way))
        return future

    def take(future):
        for n, one in reversed(under_way):
            if not one.done():
                one.set_result(n * 10)
        under_way[:] = [pair for pair in under_way if pair[1] is not future]
        return future.result()  # any number of times

    items = [1, 2, "a", 3, "b", "c", 4, 5, 6]
    expected = [10, 20, "a", 30, "b", "c", 40, 50, 60]
    assert list(map_ordered(submit, take, lambda: window, iter(items), int)) == expected
    assert most <= window
    got = list(map_unordered(submit, take, lambda: window, iter(items), int, lambda pending: take(pending[-1])))
    cut = [i for i, item in enumerate(got) if isinstance(item, str)]
    assert [got[i] for i in cut] == ["a", "b", "c"]
    assert [sorted(got[: cut[0]]), sorted(got[cut[0] + 1 : cut[1]]), sorted(got[cut[2] + 1 :])] == [
        [10, 20],
        [30],
        [40, 50, 60],
    ]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, [[1], [2], "a", [3], "b", "c", [4], [5], [6]]),
        (2, [[1, 2], "a", [3], "b", "c", [4, 5], [6]]),
        (9, [[1, 2], "a", [3], "b", "c", [4, 5, 6]]),
    ],
)
def test_control_keeps_its_place_among_bundles(size, expected):
    assert list(bundled([1, 2, "a", 3, "b", "c", 4, 5, 6], int, lambda: size)) == expected


def test_a_pace_is_some_milliseconds_of_work_within_the_ceiling():
    pace = Pace(SimpleNamespace(calls=12))
    assert pace.size == 1  # before it is known
    pace.took(0.004, 2)
    assert pace.size == 5
    pace.took(0.0, 0)  # nothing came out
    assert pace.size == 5
    for _ in range(20):
        pace.took(0.1, 1)
    assert pace.size == 1
    for _ in range(40):
        pace.took(1e-6, 1)
    assert pace.size == 12
    assert Pace(SimpleNamespace(calls=99)).size == 1


def test_what_nobody_will_take_is_cancelled():
    futures = []

    def submit(n):
        futures.append(Future())
        return futures[-1]

    def take(future):
        raise LookupError

    with pytest.raises(LookupError):
        list(map_ordered(submit, take, lambda: 3, iter(range(9)), int))
    assert [f.cancelled() for f in futures] == [False, True, True]


def test_a_watch_adds_up(monkeypatch):
    clock = iter([1.0, 3.0, 3.5, 10.0, 11.0]).__next__
    monkeypatch.setattr("zephon_jax.runners.watch.time.monotonic", clock)
    watch = Watch()
    assert watch.seconds_left(5.0) == 5.0  # it has not begun
    watch.entering(-1)
    watch.entering(2)
    watch.entering(None)
    assert watch.seconds == {-1: 2.0, 2: 0.5}
    watch.entering(2)
    assert watch.seconds_left(0.25) == -0.75
    watch.add({2: 1.0, 4: 1.0})
    assert watch.seconds == {-1: 2.0, 2: 1.5, 4: 1.0}
