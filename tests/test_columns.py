"""Columns: what a record holds never depends on its neighbours, whatever stores it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.ops import same, same_rows
from zephon_jax.columns import (
    MISSING,
    Binary,
    Dense,
    Laid,
    Objects,
    Ragged,
    as_rows,
    canonical,
    collate,
    column_length,
    columns_from_rows,
    concat,
    concat_columns,
    from_values,
    row_of,
    row_value,
    row_values,
    rows_of,
    slice_rows,
    take,
)

PROPERTY = settings(deadline=None, database=None, max_examples=80)
NUMERIC = "biufc"

dtypes = st.sampled_from(["bool", "int8", "int32", "int64", "uint16", "uint64", "float16", "float32", "float64"])
shapes = st.sampled_from([(), (0,), (1,), (3,), (5,), (2, 2), (0, 3)])
arrays = st.builds(hnp.arrays, dtypes, shapes).flatmap(lambda a: a)
numbers = st.one_of(st.integers(-5, 5), st.floats(), st.booleans())
few = {"max_size": 3}
anything = st.one_of(
    numbers,
    st.sampled_from([2**63 - 1, -(2**63), 2**63, 10**30, None, {"k": [1]}, {}]),
    st.text(**few),
    st.binary(**few),
    st.lists(st.integers(-3, 3), **few),
    st.lists(st.floats(), **few),
    st.lists(st.booleans(), **few),
    st.lists(numbers, **few),
    st.lists(st.text(**few), **few),
    st.lists(st.lists(st.integers(-3, 3), **few), **few),
    st.lists(st.one_of(st.none(), st.integers(), st.text(**few)), **few),
    st.builds(np.int32, st.integers(-3, 3)),
    st.builds(np.float32, st.integers(-3, 3)),
    arrays,
)
rows = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "any": anything,
            "tokens": st.lists(st.integers(0, 9), **few),
            "number": st.integers(0, 9),
            "pair": st.lists(st.integers(0, 9), min_size=2, max_size=2),
            "array": arrays,
        },
    ),
    max_size=7,
)


def alone(row: dict[str, Any]) -> dict[str, Any]:
    """The record's values when it has a micro-batch to itself."""
    return rows_of(columns_from_rows([row]), 1)[0]


def partition(data: st.DataObject, n: int) -> list[tuple[int, int]]:
    """Spans that cut n records anywhere; some are empty."""
    at = sorted(data.draw(st.lists(st.integers(0, n), max_size=4), label="cuts"))
    return list(zip([0, *at], [*at, n], strict=True))


@PROPERTY
@given(rows)
def test_a_row_has_the_values_that_it_has_alone(given_rows):
    columns = columns_from_rows(given_rows)
    want = [alone(row) for row in given_rows]
    assert same_rows(rows_of(columns, len(given_rows)), want)
    assert same_rows([row_of(columns, i) for i in range(len(given_rows))], want)
    for name, column in columns.items():
        assert column_length(column) == len(given_rows)
        assert all(same(row_value(column, i), v) for i, v in enumerate(row_values(column))), name


@PROPERTY
@given(rows, st.data())
def test_any_partition_put_together_again_holds_the_same_rows(given_rows, data):
    spans = partition(data, len(given_rows))
    parts = [columns_from_rows(given_rows[a:b]) for a, b in spans]
    joined = concat_columns(parts, [b - a for a, b in spans])
    assert same_rows(rows_of(joined, len(given_rows)), [alone(row) for row in given_rows])


@PROPERTY
@given(rows, st.data())
def test_taking_and_slicing_pick_rows(given_rows, data):
    n = len(given_rows)
    columns = columns_from_rows(given_rows)
    index = data.draw(st.lists(st.integers(0, n - 1), max_size=6) if n else st.just([]))
    taken = {name: take(column, np.array(index, np.int64)) for name, column in columns.items()}
    assert same_rows(rows_of(taken, len(index)), [alone(given_rows[i]) for i in index])
    for a, b in partition(data, n):
        sliced = {name: slice_rows(column, a, b) for name, column in columns.items()}
        assert same_rows(rows_of(sliced, b - a), [alone(row) for row in given_rows[a:b]])
        # A slice of a slice, and rows taken from a slice, count from where the slice begins.
        if b > a:
            last = {name: slice_rows(column, b - a - 1, b - a) for name, column in sliced.items()}
            assert same_rows(rows_of(last, 1), [alone(given_rows[b - 1])])
            picked = {name: take(column, np.array([b - a - 1])) for name, column in sliced.items()}
            assert same_rows(rows_of(picked, 1), [alone(given_rows[b - 1])])


@PROPERTY
@given(st.lists(anything, min_size=1, max_size=6), st.data())
def test_a_batch_is_a_function_of_its_rows_and_dense_exactly_if_they_are_alike(values, data):
    """However they were stored: as one column, as several, or as slices of others."""
    want = [alone({"x": v})["x"] for v in values]
    column = from_values([canonical(v) for v in values])
    spans = partition(data, len(values))
    stored = [
        [column],
        [from_values([canonical(v)]) for v in values],
        [from_values([canonical(v) for v in values[a:b]]) for a, b in spans if a < b],
        [slice_rows(column, a, b) for a, b in spans],
        [concat([from_values([canonical(v)]) for v in values])],
    ]
    numeric = all(isinstance(v, (np.ndarray, np.generic)) and v.dtype.kind in NUMERIC for v in want)
    alike = numeric and len({(v.dtype, v.shape) for v in want}) == 1
    for parts in stored:
        out = collate(parts)
        assert len(out) == len(values)
        if alike:
            assert out.dtype == want[0].dtype
            assert out.shape == (len(values), *want[0].shape)
            assert out.tobytes() == np.stack(want).tobytes()
        else:
            assert out.dtype == object
            assert out.shape == (len(values),)
            assert all(same(a, b) for a, b in zip(out, want, strict=True))
        for source in memory(parts):
            assert not any(np.shares_memory(source, other) for other in memory([out]))


def binary(items: list[bytes]) -> Binary:
    return Binary(np.frombuffer(b"".join(items), np.uint8), np.cumsum([0, *map(len, items)]))


@PROPERTY
@given(st.lists(st.binary(max_size=4), max_size=6), st.data())
def test_bytes_end_to_end_are_the_same_rows_as_objects(items, data):
    n, column = len(items), binary(items)
    assert column_length(column) == n
    assert row_values(column) == items == [row_value(column, i) for i in range(n)]
    index = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=6) if n else st.just([])), np.int64)
    assert row_values(take(column, index)) == [items[i] for i in index]
    parts = [slice_rows(column, a, b) for a, b in partition(data, n)]
    assert row_values(concat(parts)) == items
    assert row_values(concat([*parts, Objects([b"x"])])) == [*items, b"x"]
    for stored in (parts, [column, Objects([])], [Objects([]), *parts]):
        assert collate(stored).tolist() == items


def memory(values: Any) -> list[np.ndarray]:
    """All numeric arrays in there."""
    found: list[np.ndarray] = []
    for value in values:
        match value:
            case Dense(array) | Ragged(array, _):
                found.append(array)
            case Objects(items):
                found += memory(items)
            case np.ndarray() if value.dtype == object:
                found += memory(value)
            case np.ndarray():
                found.append(value)
    return found


def test_a_batch_never_shares_memory_with_what_it_was_made_of():
    for values in ([np.arange(3), np.arange(3)], [np.arange(3), np.arange(2)], [np.arange(3), "a"]):
        for parts in ([from_values(values)], [from_values([v]) for v in values], [Objects(values)]):
            out = collate(parts)
            before = pickle.dumps(out)
            for source in memory(parts):
                source += 100
            assert pickle.dumps(out) == before
            for source in memory(parts):
                source -= 100


def test_one_part_is_copied_as_well():
    values = np.arange(6).reshape(3, 2)
    out = collate([Dense(values)])
    assert not np.shares_memory(out, values)
    assert out.tolist() == [[0, 1], [2, 3], [4, 5]]


def ones(items):
    return np.array(items, np.int32).reshape(-1, 1)


def tens(items):
    return 10 * ones(items)


def test_rows_laid_out_late_are_joined_only_if_they_are_laid_out_alike():
    for parts, want in (
        ([Laid([1, 2], ones), Laid([3], ones)], [[1], [2], [3]]),
        ([Laid([1, 2], ones), Laid([3], tens)], [[1], [2], [30]]),
        ([Laid([1], tens), Laid([2], ones), Laid([3], tens)], [[10], [2], [30]]),
        ([Laid([1], tens), Dense(ones([2]))], [[10], [2]]),
        ([Dense(ones([2])), Laid([], ones), Laid([1], tens)], [[2], [10]]),
    ):
        for stored in (parts, [concat(parts)], [slice_rows(concat(parts), 0, 1), slice_rows(concat(parts), 1, 9)]):
            out = collate(stored)
            assert (out.dtype, out.tolist()) == (np.int32, want)
        assert [v.tolist() for v in row_values(concat(parts))] == want
        assert row_value(concat(parts), 0).tolist() == want[0]
        assert column_length(concat(parts)) == len(want)
        assert [v.tolist() for v in row_values(take(concat(parts), np.array([1, 0])))] == [want[1], want[0]]
    mixed = concat([Laid([1], ones), Objects([MISSING])])
    assert rows_of({"x": mixed}, 2)[1] == {}
    assert collate([Laid([1], ones), Objects(["a"])]).dtype == object


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (True, np.bool_(True)),
        (3, np.int64(3)),
        (2**63 - 1, np.int64(2**63 - 1)),
        (-(2**63), np.int64(-(2**63))),
        (2**63, 2**63),
        (-(2**63) - 1, -(2**63) - 1),
        (0.5, np.float64(0.5)),
        ("a", "a"),
        (b"a", b"a"),
        (None, None),
        (np.float32(0.5), np.float32(0.5)),
        (np.array(7, np.int16), np.int16(7)),
        (np.array([7], np.int16), np.array([7], np.int16)),
        ([], np.zeros(0, np.int64)),
        ((), np.zeros(0, np.int64)),
        ([1, 2], np.array([1, 2], np.int64)),
        ((1, 2), np.array([1, 2], np.int64)),
        ([1, 0.5], np.array([1, 0.5])),
        ([True, False], np.array([True, False])),
        ([True, 2], [True, 2]),
        ([True, 0.5], [True, 0.5]),
        ([2**53 + 1, 0.5], [2**53 + 1, 0.5]),
        ([2**53, 0.5], np.array([2.0**53, 0.5])),
        ([[1, 2], [True, 3]], [[1, 2], [True, 3]]),
        ([[0.5, 1.0], [2**60 + 1, 2.0]], [[0.5, 1.0], [2**60 + 1, 2.0]]),
        ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]], np.int64)),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([1, "a"], [1, "a"]),
        ([1, None], [1, None]),
        ([None, 1], [None, 1]),
        (["a", "b"], ["a", "b"]),
        (("a", "b"), ("a", "b")),
        ([b"a"], [b"a"]),
        ([{"k": 1}], [{"k": 1}]),
        ([10**30], [10**30]),
        ({"k": [1, 2]}, {"k": [1, 2]}),
    ],
    ids=repr,
)
def test_the_canonical_form_of_a_value(value, want):
    assert same(canonical(value), want)
    assert same(canonical(canonical(value)), want)


def test_integers_in_a_list_never_become_floats():
    for value in ([1, 2**63], [-1, 2**64 - 1], [2**53 + 1, 2**63 + 1]):
        seen = canonical(value)
        assert [int(v) for v in seen] == value
        assert not (isinstance(seen, np.ndarray) and seen.dtype.kind == "f")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], Dense),
        ([[1, 2], [3, 4]], Dense),
        ([[1], [3, 4]], Ragged),
        ([[], [3, 4]], Ragged),
        ([[1.5], [3]], Objects),
        ([1, 2.0], Objects),
        ([1, None], Objects),
        ([[[1]], [[1, 2]]], Objects),
        ([1, [1]], Objects),
        (["a", "b"], Objects),
        ([], Objects),
    ],
    ids=repr,
)
def test_how_values_are_stored(values, kind):
    assert isinstance(from_values([canonical(v) for v in values]), kind)


def test_a_field_that_a_record_lacks_is_missing_not_none():
    columns = columns_from_rows([{"a": 1}, {"b": None}, {}])
    assert rows_of(columns, 3) == [{"a": 1}, {"b": None}, {}]
    assert row_of(columns, 2) == {}
    assert rows_of({}, 2) == [{}, {}]
    joined = concat_columns([{"a": Dense(np.array([1]))}, {"b": Dense(np.array([2, 3]))}], [1, 2])
    assert rows_of(joined, 3) == [{"a": 1}, {"b": 2}, {"b": 3}]


def test_missing_values_are_none_in_a_batch():
    out = collate([Dense(np.array([1])), Objects([MISSING])])
    assert out.dtype == object
    assert out.tolist() == [1, None]


def test_missing_stays_itself_when_it_travels():
    assert pickle.loads(pickle.dumps(MISSING)) is MISSING
    assert copy.deepcopy(MISSING) is MISSING
    assert repr(MISSING) == "MISSING"


def test_bare_values_become_records():
    assert as_rows([3, "a", {"k": 1}]) == [{"value": 3}, {"value": "a"}, {"k": 1}]


def test_lists_put_together_are_copied_once_and_cut_right():
    a, b = Ragged(np.arange(9), np.array([2, 4, 4])), Ragged(np.arange(9), np.array([5, 9]))
    joined = concat([a, b])
    assert isinstance(joined, Ragged)
    assert [v.tolist() for v in row_values(joined)] == [[2, 3], [], [5, 6, 7, 8]]
    assert joined.lengths.tolist() == [2, 0, 4]


def test_byte_order_does_not_depend_on_neighbours():
    foreign = {"x": np.array([1, 2], ">i4")}
    native = {"x": np.array([3, 4], "i4")}
    together = rows_of(columns_from_rows([foreign, native]), 2)
    assert same(together[0]["x"], alone(foreign)["x"])
    apart = collate([columns_from_rows([row])["x"] for row in (foreign, native)])
    assert collate([columns_from_rows([foreign, native])["x"]]).dtype == apart.dtype


class Convertible:
    """Like a device array: no NumPy array, but can become one."""

    def __init__(self, value):
        self.value = value

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.value)


def test_whatever_can_become_an_array_does():
    assert same(alone({"x": Convertible([1, 2])})["x"], np.array([1, 2]))


def test_convertible_scalars_do_not_depend_on_neighbours():
    row = {"x": Convertible(5)}
    assert same(rows_of(columns_from_rows([row, {"x": None}]), 2)[0]["x"], alone(row)["x"])


def test_the_order_of_fields_does_not_depend_on_neighbours():
    """A map may join `record.items()` into a text."""
    row = {"b": 1, "a": 2}
    assert list(rows_of(columns_from_rows([{"a": 0}, row]), 2)[1]) == list(alone(row))
