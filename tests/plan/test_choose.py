"""executor="auto" by tables: measured figures in, places out; nothing is measured here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zephon_jax.plan.choose import Choice, Figures, choose

FETCH = Figures(wall_us=3, cpu_us=3, held=1.0, bytes_in=24, bytes_out=400, stays="reads blocks")
PYTHON = Figures(wall_us=50, cpu_us=50, held=1.0, bytes_in=400, bytes_out=400)
SLOW = Figures(wall_us=900, cpu_us=900, held=1.0, bytes_in=400, bytes_out=400)
TOKENIZER = Figures(wall_us=200, cpu_us=200, held=0.05, bytes_in=2000, bytes_out=1600)
CHEAP = Figures(wall_us=1, cpu_us=1, held=1.0, bytes_in=400, bytes_out=400)
STORAGE = Figures(wall_us=400, cpu_us=20, held=1.0, bytes_in=24, bytes_out=400)
LOCKED = Figures(wall_us=50, cpu_us=50, held=1.0, bytes_in=400, bytes_out=400, stays="map(f) cannot be sent")
LARGE = Figures(wall_us=50, cpu_us=50, held=1.0, bytes_in=150_000, bytes_out=150_000)
UNKNOWN = Figures(wall_us=50, cpu_us=50, held=None, bytes_in=400, bytes_out=400)
PROCESS = Figures(wall_us=1, cpu_us=1, held=1.0, bytes_in=8, bytes_out=8, fixed="processes")
THREAD = Figures(wall_us=50, cpu_us=50, held=1.0, bytes_in=400, bytes_out=400, fixed="threads")


def places(*figures, cpus=4, workers=4, samples=None, may_inline=True):
    choice = choose(figures, cpus=cpus, workers=workers, samples=samples, may_inline=may_inline)
    assert len(choice.reasons) == len(figures)
    return " ".join(choice.places)


@pytest.mark.parametrize(
    ("figures", "options", "expected"),
    [
        ((FETCH, CHEAP), {}, "inline inline"),
        ((FETCH, CHEAP), {"may_inline": False}, "threads threads"),
        ((FETCH, PYTHON), {}, "threads processes"),
        ((FETCH, PYTHON), {"cpus": 2, "workers": 2}, "threads processes"),
        ((FETCH, PYTHON), {"cpus": 1, "workers": 1}, "inline inline"),
        ((FETCH, SLOW), {"cpus": 1, "workers": 1}, "inline inline"),
        ((FETCH, TOKENIZER), {}, "threads threads"),
        ((FETCH, TOKENIZER), {"cpus": 2, "workers": 2}, "threads threads"),
        ((FETCH, TOKENIZER, PYTHON), {"cpus": 8, "workers": 8}, "threads threads processes"),
        ((FETCH, TOKENIZER, PYTHON), {}, "threads threads threads"),  # the tokenizer keeps four busy
        ((STORAGE, CHEAP), {}, "threads threads"),
        ((STORAGE, CHEAP), {"cpus": 1, "workers": 1}, "threads threads"),  # to read while the step runs
        ((FETCH, LOCKED), {}, "inline inline"),
        ((FETCH, LARGE), {}, "inline inline"),  # shipping 300 kB costs more than 50 µs
        ((FETCH, UNKNOWN), {}, "inline inline"),
        # neighbours that are cheap go along, or stay, whichever ships less often
        ((FETCH, PYTHON, CHEAP, PYTHON), {}, "threads processes processes processes"),
        # 10,000 samples of 50 µs are not worth starting processes for
        ((FETCH, PYTHON), {"samples": 10_000}, "inline inline"),
        ((FETCH, PYTHON), {"samples": 1_000_000}, "threads processes"),
        # what options(executors=) says holds
        ((FETCH, PROCESS), {}, "threads processes"),
        ((FETCH, THREAD), {}, "threads threads"),
        ((FETCH, THREAD, PYTHON), {}, "threads threads processes"),
        ((), {}, ""),
    ],
)
def test_places(figures, options, expected):
    assert places(*figures, **options) == expected


def test_reasons_say_what_was_measured():
    choice = choose((FETCH, PYTHON), cpus=2, workers=2, samples=None)
    assert choice.reasons == (
        "3.0 µs a record, 0 % of it without the lock; beside what runs in processes",
        "50.0 µs a record, 0 % of it without the lock; 400 bytes there and 400 back",
    )
    assert choose((STORAGE,), cpus=2, workers=2, samples=None).reasons == (
        "400.0 µs a record, 95 % of it waiting, or in threads of its own",
    )
    for place in ("threads", "processes"):  # what another process does looks like waiting
        fixed = replace(STORAGE, fixed=place)
        assert choose((fixed,), cpus=2, workers=2, samples=None).reasons == (
            "400.0 µs a record; options(executors=) places it",
        )
    locked = choose((LOCKED,), cpus=2, workers=2, samples=None)
    assert locked.reasons == ("50.0 µs a record, 0 % of it without the lock; map(f) cannot be sent",)
    alone = choose((PYTHON,), cpus=1, workers=1, samples=None)
    assert alone.reasons == ("50.0 µs a record, 0 % of it without the lock; one at a time is all that there is",)
    unknown = choose((UNKNOWN,), cpus=2, workers=2, samples=None)
    assert unknown.reasons == ("50.0 µs a record; a thread would cost more than it brings",)
    assert choose((THREAD,), cpus=2, workers=2, samples=None).reasons[0].endswith("; options(executors=) places it")


def test_without_processes_it_is_threads_and_it_says_why():
    choice = Choice(("threads", "processes"), ("a", "b"))
    assert choice.without_processes("no memory") == Choice(("threads", "threads"), ("a", "b; no memory"))
