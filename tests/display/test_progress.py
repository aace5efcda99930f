"""The bar of a training loop: with tqdm and without, on a terminal and in a log, and that it changes nothing."""

from __future__ import annotations

import builtins
import io
import os
import pty
import threading

import numpy as np
import pytest

import zephon_jax as zj
from tests.display.pictures import pipeline


class Screen(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """Every look at it takes so long; `pass_` lets time go by."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def no_tqdm(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == "tqdm":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)


def steps(clock, n, wait=1.0):
    """Batches that each take `wait` seconds to come."""
    for _ in range(n):
        clock.now += wait
        yield {"tokens": np.zeros((4, 100), np.int32), "loss": np.zeros(4)}


def loop(bar, clock, work=3.0):
    for _ in bar:
        clock.now += work


def test_rates_by_hand():
    """Five steps, a second of waiting and three of training each; what comes before the first is no rate."""
    clock, out = Clock(), io.StringIO()
    clock.now = 100.0
    bar = zj.progress(steps(clock, 5), total=10, file=out, every_s=1000, clock=clock)
    seen = [next(bar)]
    for _ in range(4):
        clock.now += 3.0
        seen.append(next(bar))
    assert len(seen) == bar.steps == 5
    assert bar.steps_per_s == 4 / 16
    assert bar.tokens_per_s == 4 * 400 / 16
    assert bar.wait_fraction == 4 / 16
    assert bar.left_s == 5 / (4 / 16)
    assert str(bar) == "[##########..........] step 5 of 10, 0.25 steps/s, 100 tokens/s, input wait 25 %, 0:20 left"
    assert out.getvalue() == ""
    bar.close()
    assert out.getvalue() == f"{bar}\n"


def test_a_log_gets_a_line_now_and_then():
    clock, out = Clock(), io.StringIO()
    loop(zj.progress(steps(clock, 50), file=out, clock=clock), clock)  # 200 s: a line a minute, and one at the end
    lines = out.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == ["step 16", "step 31", "step 46", "step 50"]
    assert "\r" not in out.getvalue()
    assert "left" not in out.getvalue()


@pytest.mark.usefixtures("no_tqdm")
def test_a_terminal_without_tqdm_has_one_line():
    clock, out = Clock(), Screen()
    loop(zj.progress(steps(clock, 5), total=5, file=out, clock=clock), clock)
    text = out.getvalue()
    assert text.count("\n") == 1 and text.endswith("\n")
    drawn = text.strip("\n").split("\r")[1:]
    assert drawn[0].startswith("[####................] step 1 of 5")
    assert drawn[-1].startswith("[####################] step 5 of 5")
    assert all(len(line) < 80 for line in drawn)


def test_a_terminal_with_tqdm():
    tqdm = pytest.importorskip("tqdm")
    clock, out = Clock(), Screen()
    bar = zj.progress(steps(clock, 5), total=5, file=out, clock=clock)
    loop(bar, clock)
    assert isinstance(bar._bar, tqdm.tqdm)
    assert bar._bar.n == 5
    assert "5/5" in out.getvalue()
    assert "tokens/s, input wait " in out.getvalue()


@pytest.mark.usefixtures("no_tqdm")
def test_a_real_terminal():
    clock = Clock()
    leader, follower = pty.openpty()
    said = []

    def read():
        try:
            while said[-1:] != [b""]:
                said.append(os.read(leader, 100_000))
        except OSError:  # how the end of a terminal shows
            pass

    reader = threading.Thread(target=read)
    with open(follower, "w", encoding="utf-8") as out:
        reader.start()
        bar = zj.progress(steps(clock, 3), total=3, file=out, every_s=1e9, clock=clock)
        loop(bar, clock)
    reader.join(20)
    os.close(leader)
    assert b"[####################] step 3 of 3" in b"".join(said)


@pytest.mark.parametrize("screen", [True, False])
def test_it_changes_nothing(screen):
    with (
        pipeline().steps() as plain,
        pipeline().steps() as it,
        zj.progress(it, file=(Screen if screen else io.StringIO)()) as bar,
    ):
        for _ in range(5):
            a, b = next(plain), next(bar)
            assert {k: v.tolist() for k, v in a.items()} == {k: v.tolist() for k, v in b.items()}
        assert it.fingerprint() == plain.fingerprint()
        assert it.checkpoint() == plain.checkpoint()


def numbers(n, lanes=2, rows=3):
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", range(n)), chunk_size=4)
    return (
        zj.Pipeline(work).map(lambda r: r, name="same").batch(rows).options(canonical_replicas=lanes, executor="inline")
    )


@pytest.mark.parametrize("n", [60, 61, 65, 66, 100, 6])
def test_the_last_step_is_known_where_every_sample_is_a_row(n):
    with numbers(n).steps() as it:
        known = it.last_step()
        assert known == sum(1 for _ in it)
        assert known == it.step
    with pipeline().steps() as it:
        assert it.last_step() is None  # packing


def test_a_resumed_run_goes_on_where_it_was():
    with numbers(60).steps() as it:
        it.skip(4)
        state = it.checkpoint()
    out = io.StringIO()
    with numbers(60).steps() as it:
        it.restore(state)
        assert sum(1 for _ in zj.progress(it, file=out)) == 6
    assert out.getvalue().startswith("[####################] step 10 of 10")


@pytest.mark.usefixtures("no_tqdm")
def test_a_replay_says_how_far_it_is(monkeypatch):
    """The first `next` is held until the bar has spoken: no timing decides."""
    monkeypatch.setattr("zephon_jax.bar._REPLAY_S", 0.0)
    monkeypatch.setattr("zephon_jax.bar._SCREEN_S", 0.001)
    with pipeline().steps() as it:
        it.skip(13)
        state = it.checkpoint()
    spoken = threading.Event()

    class Told(Screen):
        def write(self, text):
            if "5 of 5" in text:
                spoken.set()
            return super().write(text)

    out = Told()
    with pipeline().steps() as it:
        it.restore(state)
        bar = zj.progress(it, file=out)
        real = it._taken

        def late():
            found = real()  # the replay is done, and the batch is here
            assert spoken.wait(60)
            return found

        it._taken = late
        next(bar)
        bar.close()
    assert "replaying after the restore: 5 of 5 chunks" in out.getvalue()
    assert out.getvalue().endswith("\n")


def test_errors_go_on_and_the_line_is_finished():
    def broken():
        yield 1
        raise zj.DataError("broken")

    out = io.StringIO()
    bar = zj.progress(broken(), file=out)
    next(bar)
    with pytest.raises(zj.DataError, match="broken"):
        next(bar)
    assert out.getvalue().startswith("step 1,")
    assert list(bar) == []


def test_a_file_that_is_gone_ends_no_training():
    out = io.StringIO()
    bar = zj.progress([1, 2], file=out, every_s=0)
    next(bar)
    out.close()
    assert list(bar) == [2]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((3,), "got int"),
        (({"a": 1},), "got dict"),
        (([1], -1), "total=-1"),
        (([1], True), "total=True"),
    ],
    ids=str,
)
def test_mistakes_are_named(arguments, text):
    with pytest.raises(zj.ConfigurationError, match=text):
        zj.progress(*arguments)


@pytest.mark.parametrize("plain", [True, False], ids=["text", "tqdm"])
def test_a_terminal_that_is_gone_ends_no_training(plain, request):
    if plain:
        request.getfixturevalue("no_tqdm")

    class Gone(Screen):
        def write(self, text):
            raise OSError("gone")

    assert list(zj.progress([1, 2, 3], file=Gone(), every_s=0)) == [1, 2, 3]


def test_a_loop_that_is_left_finishes_its_line():
    out = io.StringIO()
    for n in zj.progress([1, 2, 3], file=out):
        if n == 2:
            break
    assert out.getvalue().startswith("step 2,")
    assert out.getvalue().endswith("\n")
