"""What is kept of decoded blocks: the last ones used, within a limit, made once."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ops import PROPERTY, same_rows
from zephon_jax import ConfigurationError
from zephon_jax.columns import columns_from_rows, rows_of
from zephon_jax.errors import DataError
from zephon_jax.sources.grouped import read_grouped, starts_of
from zephon_jax.sources.optional import optional
from zephon_jax.sources.recent import Recent


@PROPERTY
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=30), st.integers(1, 20))
def test_what_was_not_used_for_longest_leaves_first(asked, limit):
    """Against a list in order of use."""
    recent: Recent[int] = Recent(limit)
    used: list[int] = []
    costs: dict[int, int] = {}
    for key, cost in asked:
        made = []
        assert recent.get(key, lambda k=key, c=cost, m=made: (m.append(k) or k, c)) == key
        assert bool(made) == (key not in used)
        if key in used:
            used.remove(key)
        else:
            costs[key] = cost
        used.append(key)
        while sum(costs[k] for k in used) > limit and len(used) > 1:
            used.pop(0)
        assert len(recent) == len(used)
        assert recent.cost == sum(costs[k] for k in used)


def test_threads_that_want_one_value_make_it_once():
    recent: Recent[object] = Recent(100)
    begun, go_on = threading.Event(), threading.Event()
    made, got = [], []

    def make():
        made.append(object())
        begun.set()
        assert go_on.wait(10)
        return made[-1], 1

    threads = [threading.Thread(target=lambda: got.append(recent.get("k", make))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert begun.wait(10)
    assert recent.get("other", lambda: ("value", 1)) == "value"  # nobody waits for a value that others make
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert len(made) == 1
    assert got == made * 8


def test_a_value_that_was_used_up_is_forgotten():
    recent: Recent[int] = Recent(100)
    recent.get("k", lambda: (5, 10))
    recent.spend("k", 2, 4)
    recent.spend("other", 9, 4)
    assert recent.get("k", lambda: (6, 10)) == 5
    recent.spend("k", 2, 4)
    assert (len(recent), recent.cost) == (0, 0)
    assert recent.get("k", lambda: (6, 10)) == 6
    recent.spend("k", 3, 4)
    assert recent.get("k", lambda: (7, 10)) == 6


def test_an_error_is_raised_and_forgotten():
    recent: Recent[int] = Recent(100)

    def fail():
        raise DataError("broken")

    for _ in range(2):
        with pytest.raises(DataError, match="broken"):
            recent.get("k", fail)
    assert recent.get("k", lambda: (5, 1)) == 5


@PROPERTY
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.data())
def test_groups_are_read_once_and_put_in_order(counts, data):
    starts = starts_of(np.array(counts, np.int64))
    total = int(starts[-1])
    samples = data.draw(st.lists(st.integers(0, total - 1), max_size=12)) if total else []
    calls = []

    def read(group, rows):
        assert all(0 <= row < counts[group] for row in rows.tolist())
        calls.append(group)
        broken = {
            i: DataError(f"{starts[group] + row}")
            for i, row in enumerate(rows.tolist())
            if (starts[group] + row) % 3 == 0
        }
        return columns_from_rows([{"v": int(starts[group] + row), f"g{group}": [1] * int(row)} for row in rows]), broken

    columns, bad = read_grouped(starts, np.array(samples, np.int64), read)
    assert len(calls) == len(set(calls))
    group_of = [g for g, n in enumerate(counts) for _ in range(n)]
    want = [{"v": s, f"g{group_of[s]}": [1] * (s - int(starts[group_of[s]]))} for s in samples]
    assert same_rows(rows_of(columns, len(samples)), rows_of(columns_from_rows(want), len(samples)))
    assert {i: str(error) for i, error in bad.items()} == {i: str(s) for i, s in enumerate(samples) if s % 3 == 0}


def test_a_library_that_is_not_there():
    with pytest.raises(
        ConfigurationError, match=r'reading X files needs no_such_library, .*pip install "zephon-jax\[formats\]"'
    ):
        optional("no_such_library.part", extra="formats", purpose="reading X files")
