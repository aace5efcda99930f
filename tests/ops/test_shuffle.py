"""shuffle: draw a slot, hand out what is in it, put the newcomer there; one record at a time, whatever is pushed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ops import CONTEXT, PROPERTY, accumulated, batch_of, collected, contributors, cut, same_rows, sample, sizes
from zephon_jax.columns import Laid
from zephon_jax.errors import ConfigurationError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops import Shuffle
from zephon_jax.ops.pack.layout import PackedRow, laid_columns
from zephon_jax.ops.randomness import Draws
from zephon_jax.types import LaneContext

tokens = st.lists(st.integers(0, 9), max_size=3)
dense = st.lists(st.fixed_dictionaries({"n": st.integers(0, 99), "pair": st.just([1, 2])}), max_size=25)
ragged = st.lists(st.fixed_dictionaries({"tokens": tokens}), max_size=25)
objects = st.lists(st.fixed_dictionaries({"text": st.text(max_size=2)}), max_size=25)
mixed = st.lists(
    st.fixed_dictionaries(
        {"n": st.one_of(st.integers(0, 9), st.floats(0, 1))},
        optional={"tokens": tokens, "text": st.text(max_size=2), "none": st.none()},
    ),
    max_size=25,
)


def one_at_a_time(n: int, size: int, seed: int, context: LaneContext = CONTEXT) -> list[int]:
    """The order in which records 0 to n - 1 leave, and then what is left."""
    draws, slots, out = Draws(seed, context), [], []
    for i in range(n):
        if len(slots) < size:
            slots.append(i)
        else:
            j = int(draws.below(size, 1)[0])
            out.append(slots[j])
            slots[j] = i
    return out + [slots[i] for i in draws.permutation(len(slots)).tolist()]


@PROPERTY
@given(st.one_of(dense, ragged, objects, mixed), sizes, st.integers(1, 8), st.integers(0, 3))
def test_records_leave_in_the_order_of_the_rule(rows, parts, size, seed):
    got, of, closed = accumulated(Shuffle(size, seed=seed), cut(rows, parts))
    order = one_at_a_time(len(rows), size, seed)
    assert of == [[sample(i, 0)] for i in order]
    assert same_rows(got, collected(cut([rows[i] for i in order], []))[0])
    assert closed == []


@pytest.mark.parametrize("size", [1, 2, 30, 31, 1000])
def test_every_cut_of_thirty_records_gives_one_order(size):
    rows = [{"n": i} for i in range(30)]
    want = one_at_a_time(30, size, 5)
    assert sorted(want) == list(range(30))
    for step in (1, 2, 7, 29, 30):
        got, _, _ = accumulated(Shuffle(size, seed=5), cut(rows, [step] * 30))
        assert [row["n"] for row in got] == want


def test_a_buffer_of_one_delays_by_one_record():
    got, _, _ = accumulated(Shuffle(1), cut([{"n": i} for i in range(5)], [2, 2]))
    assert [row["n"] for row in got] == [0, 1, 2, 3, 4]


def test_nothing_leaves_before_the_buffer_is_full():
    op = Shuffle(4)
    state = op.init_state(CONTEXT)
    assert len(op.push(state, batch_of([{"n": i} for i in range(3)]))) == 0
    assert len(op.push(state, batch_of([{"n": i} for i in range(3)], start=3))) == 2
    rest = op.flush(state)
    assert rest is not None
    assert len(rest) == 4


def test_a_flush_of_nothing_is_nothing():
    op = Shuffle(4)
    assert op.flush(op.init_state(CONTEXT)) is None
    state = op.init_state(CONTEXT)
    assert len(op.push(state, batch_of([]))) == 0
    assert op.flush(state) is None


def test_a_field_that_appears_late_is_missing_before():
    rows = [{"n": i} for i in range(4)] + [{"n": i, "late": float(i)} for i in range(4, 8)] + [{"n": 8}]
    for parts in ([4], [1] * 9, [9], [3, 3]):
        got, _, _ = accumulated(Shuffle(3, seed=1), cut(rows, parts))
        order = one_at_a_time(9, 3, 1)
        assert [int(row["n"]) for row in got] == order
        assert [row.get("late") for row in got] == [float(i) if 4 <= i < 8 else None for i in order]


def test_what_leaves_is_no_view_of_what_came():
    """A buffered record outlives its micro-batch by far, and must not keep it."""
    block = np.arange(12).reshape(6, 2)
    rows = [{"pair": row, "some": row[: 1 + i % 2]} for i, row in enumerate(block)]
    op = Shuffle(2)
    state = op.init_state(CONTEXT)
    batches = cut(rows, [3])
    out = [op.push(state, batch) for batch in batches]
    for batch in batches:
        for name in ("pair", "some"):
            values = batch.columns[name].values  # pyright: ignore[reportAttributeAccessIssue]
            values += 100
    rest = op.flush(state)
    assert rest is not None
    held = [row["some"] for row in rest.rows()]
    assert all(int(v[0]) < 100 for v in held)
    assert all(int(row["pair"][0]) < 100 for row in [*out[0].rows(), *rest.rows()])


def test_what_was_closed_before_passes_at_once():
    op = Shuffle(4)
    state = op.init_state(CONTEXT)
    batch = batch_of([{"n": i} for i in range(3)]).keep(np.array([True, False, True]))
    assert contributors(op.push(state, batch).closed) == [sample(1, 0)]
    only = batch_of([{"n": 9}], start=3).keep(np.array([False]))
    assert contributors(op.push(state, only).closed) == [sample(3, 0)]
    rest = op.flush(state)
    assert rest is not None
    assert contributors(rest.closed) == []
    assert sorted(row["n"] for row in rest.rows()) == [0, 2]


def test_grouped_records_stay_together():
    grouped = [
        b.group(np.array([0, 2, 3]), {"x": b.slice(0, 2).columns["n"]})
        for b in cut([{"n": i} for i in range(9)], [3, 3, 3])[:3]
    ]
    got, of, _ = accumulated(Shuffle(3), grouped)
    pairs = [[sample(i, 0), sample(i + 1, 0)] for i in (0, 3, 6)] + [[sample(i, 0)] for i in (2, 5, 8)]
    assert sorted(of) == sorted(pairs)
    assert len(got) == 6


@PROPERTY
@given(st.integers(0, 25), sizes, st.integers(1, 8))
def test_packed_rows_are_shuffled_as_they_are(n, parts, size):
    """Rows that become arrays late leave in the same order, and hold the same."""
    op = Shuffle(size, seed=1)
    state = op.init_state(CONTEXT)
    out = []
    for batch in cut([{"n": i} for i in range(n)], parts):
        ids = [int(row["n"]) for row in batch.rows()]
        rows = [
            PackedRow(
                [np.full(2, i, np.int32), np.array([i], np.int32)],
                np.array([2, 1, 1]),
                np.array([0, 2, 3], np.int32),
                1,
            )
            for i in ids
        ]
        out.append(op.push(state, batch.with_columns(laid_columns(rows, 4))))
    rest = op.flush(state)
    if rest is not None:
        out.append(rest)
    assert all(isinstance(c, Laid) for batch in out if len(batch) for c in batch.columns.values())
    rows = [row for batch in out for row in batch.rows()]
    assert [row["tokens"].tolist() for row in rows] == [[i, i, i, 0] for i in one_at_a_time(n, size, 1)]
    assert all(row["segment_ids"].tolist() == [1, 1, 2, 0] for row in rows)
    assert all(row["positions"].tolist() == [0, 1, 0, 0] for row in rows)


def test_packed_rows_of_two_widths_become_values():
    batches = []
    for i, capacity in enumerate((4, 5, 4)):
        rows = [
            PackedRow([np.full(4, i, np.int32)], np.array([4, capacity - 4]), np.array([0, 4], np.int32), capacity - 4)
        ] * 2
        batches.append(batch_of([{}] * 2, start=2 * i).with_columns(laid_columns(rows, capacity)))
    got, _, _ = accumulated(Shuffle(3), batches)
    want = [[i // 2] * 4 + [0] * (2 <= i < 4) for i in one_at_a_time(6, 3, 0)]
    assert [row["tokens"].tolist() for row in got] == want


def test_packed_rows_among_others_become_values():
    rows = [PackedRow([np.full(4, i, np.int32)], np.array([4, 0]), np.array([0, 4], np.int32), 0) for i in range(3)]
    laid = batch_of([{}] * 3).with_columns({"tokens": laid_columns(rows, 4)["tokens"]})
    plain = batch_of([{"tokens": np.full(4, i, np.int32)} for i in range(3, 6)], start=3)
    order = one_at_a_time(6, 2, 0)
    for batches, named in (([laid, plain], order), ([plain, laid], [(i + 3) % 6 for i in order])):
        got, of, _ = accumulated(Shuffle(2), batches)
        assert [row["tokens"].tolist() for row in got] == [[i] * 4 for i in named]
        assert of == [[sample(i, 0)] for i in named]


def test_lanes_epochs_operators_and_seeds_have_orders_of_their_own():
    rows = cut([{"n": i} for i in range(40)], [])
    contexts = [LaneContext(0, 0, 0), LaneContext(1, 0, 0), LaneContext(0, 8, 0), LaneContext(0, 0, 1)]
    orders = [tuple(int(r["n"]) for r in accumulated(Shuffle(20), rows, c)[0]) for c in contexts]
    orders.append(tuple(int(r["n"]) for r in accumulated(Shuffle(20, seed=1), rows, contexts[0])[0]))
    assert len(set(orders)) == 5
    assert orders[0] == tuple(one_at_a_time(40, 20, 0, contexts[0]))


def test_draws_do_not_depend_on_how_many_are_asked_for_at_once():
    whole = Draws(7, CONTEXT).below(1000, 50)
    parts = Draws(7, CONTEXT)
    assert np.concatenate([parts.below(1000, n) for n in (1, 0, 3, 40, 6)]).tolist() == whole.tolist()
    assert 0 <= whole.min() <= whole.max() < 1000
    assert sorted(Draws(7, CONTEXT).permutation(9).tolist()) == list(range(9))
    assert Draws(7, CONTEXT).permutation(0).tolist() == []


def test_draws_are_even():
    """Each of 10 slots about 1000 times in 10,000; five standard deviations are 150."""
    counts = np.bincount(Draws(3, CONTEXT).below(10, 10_000), minlength=10)
    assert abs(counts - 1000).max() < 150


def test_identity_is_size_and_seed():
    assert dict(Shuffle(8, seed=3).identity()) == {"op": "shuffle", "buffer_size": 8, "seed": 3}
    assert Shuffle(8).traits.buffer_records == 8
    assert not Shuffle(8).traits.preserves_cursor_order


@pytest.mark.parametrize("size", [0, -1, 2**31])
def test_a_size_that_cannot_work_is_refused(size):
    with pytest.raises(ConfigurationError, match=rf"shuffle\(buffer_size={size}\)"):
        Shuffle(size)


@pytest.mark.parametrize(
    "options",
    [{"buffer_size": 2.5}, {"buffer_size": "8"}, {"seed": "a"}, {"seed": 0.5}, {"seed": 2**63}, {"seed": None}],
    ids=str,
)
def test_parameters_of_a_wrong_type_are_refused_at_once(options):
    with pytest.raises(ConfigurationError):
        Shuffle(**{"buffer_size": 8, **options})


def test_a_micro_batch_may_be_larger_than_the_buffer():
    batch = batch_of([{"n": i} for i in range(100)])
    op = Shuffle(3, seed=2)
    state = op.init_state(CONTEXT)
    out = op.push(state, batch)
    assert [int(row["n"]) for row in out.rows()] == one_at_a_time(100, 3, 2)[:97]
    assert isinstance(out, MicroBatch)


def test_a_buffer_larger_than_the_data_costs_no_more_than_the_data():
    """A buffer of two billion stands for "shuffle everything"; 1.7 PB is beyond any address space."""
    rows = [{"x": np.full(100_000, i, np.float64)} for i in range(3)]
    got, _, _ = accumulated(Shuffle(2**31 - 1), cut(rows, []))
    assert sorted(int(row["x"][0]) for row in got) == [0, 1, 2]
