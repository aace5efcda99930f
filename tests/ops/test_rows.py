"""map and filter: each record on its own, wherever the stream is cut; errors name the operator and the record."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zephon_jax as zj
from tests.ops import PROPERTY, batch_of, collected, cut, processed, same_rows, sample, sizes
from zephon_jax.ops import Filter, Map
from zephon_jax.ops.base import RecordFailure

records = st.lists(
    st.fixed_dictionaries(
        {"n": st.integers(0, 9)},
        optional={"text": st.text(max_size=3), "tokens": st.lists(st.integers(0, 9), max_size=3), "none": st.none()},
    ),
    max_size=20,
)


def describe(record):
    """A result whose fields depend on the record."""
    n = int(record["n"])
    out = {"double": 2 * n, "seen": sorted(record)}
    if n % 3 == 0:
        out["tokens"] = list(range(n))
    if "text" in record:
        out["text"] = record["text"] + "!"
    return out


def plain(record):
    """What `describe` gives of a record in a list of Python values."""
    out = {"double": np.int64(2 * record["n"]), "seen": sorted(record)}
    if record["n"] % 3 == 0:
        out["tokens"] = np.arange(record["n"], dtype=np.int64)
    if "text" in record:
        out["text"] = record["text"] + "!"
    return out


def test_the_reference_is_what_a_user_sees():
    assert same_rows(Map(describe).process(batch_of([{"n": 3}])).rows(), [plain({"n": 3})])


@PROPERTY
@given(records, sizes)
def test_map_is_the_function_of_each_record(rows, parts):
    got, of, closed = processed(Map(describe), cut(rows, parts))
    assert same_rows(got, [plain(row) for row in rows])
    assert of == [[sample(i, 0)] for i in range(len(rows))]
    assert closed == []


@PROPERTY
@given(records, sizes)
def test_filter_keeps_records_and_finishes_the_others(rows, parts):
    op = Filter(lambda r: int(r["n"]) % 2 == 0 and "none" not in r, name="even")
    got, of, closed = processed(op, cut(rows, parts))
    stay = [i for i, row in enumerate(rows) if row["n"] % 2 == 0 and "none" not in row]
    assert of == [[sample(i, 0)] for i in stay]
    assert closed == [sample(i, 0) for i in range(len(rows)) if i not in stay]
    assert same_rows(got, collected(cut([rows[i] for i in stay], []))[0])


def test_a_result_that_is_no_dict_becomes_a_value():
    assert Map(lambda r: r["n"] + 1, name="next").process(batch_of([{"n": 1}, {"n": 2}])).rows() == [
        {"value": 2},
        {"value": 3},
    ]


def test_a_function_may_change_its_record_in_place():
    def grow(record):
        record["m"] = record.pop("n") + 1
        return record

    before = batch_of([{"n": 1}, {"n": 2}])
    assert Map(grow).process(before).rows() == [{"m": 2}, {"m": 3}]
    assert before.rows() == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("value", [True, 1, "yes", np.bool_(True), np.int64(3), [0]])
def test_whatever_is_true_keeps_a_record(value):
    op = Filter(lambda r: value, name="constant")
    assert len(op.process(batch_of([{"n": 1}]))) == 1


@pytest.mark.parametrize("value", [False, 0, "", None, np.bool_(False), []])
def test_whatever_is_false_finishes_a_record(value):
    op = Filter(lambda r: value, name="constant")
    assert len(op.process(batch_of([{"n": 1}]))) == 0


def fails(record):
    if record["n"] == 2:
        raise KeyError("no such thing")
    return record


@pytest.mark.parametrize("op", [Map(fails), Filter(fails)], ids=["map", "filter"])
def test_an_error_names_the_record(op):
    with pytest.raises(RecordFailure) as caught:
        op.process(batch_of([{"n": 1}, {"n": 2}, {"n": 2}]))
    assert caught.value.index == 1
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_map_that_forgets_its_return_is_told_so():
    def forgets(record):
        record["m"] = 1

    with pytest.raises(RecordFailure) as caught:
        Map(forgets, name="forgets").process(batch_of([{"n": 1}]))
    assert str(caught.value.__cause__) == "map(forgets) returned None; return the record (a dict of fields)"


def test_truth_that_numpy_refuses_is_an_error_of_the_record():
    with pytest.raises(RecordFailure) as caught:
        Filter(lambda r: np.array([True, False]), name="two").process(batch_of([{"n": 1}]))
    assert isinstance(caught.value.__cause__, ValueError)


def pipeline(*rows):
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("numbers", list(rows)), shuffle_shards=False)
    return zj.Pipeline(work).options(executor="inline")


@pytest.mark.parametrize("method", ["map", "filter"])
def test_the_user_sees_operator_record_and_cause(method):
    p = getattr(pipeline({"n": 1}, {"n": 2}), method)(fails)
    with iter(p) as it:
        with pytest.raises(zj.WorkerError) as caught:
            list(it)
    assert caught.value.operator == f"{method}(fails)"
    assert caught.value.pointer == ("numbers", "numbers", 1)
    assert str(caught.value).startswith(f"{method}(fails) raised KeyError: 'no such thing'; lane 0, record (0, 1)")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("kind", [Map, Filter])
@pytest.mark.parametrize("wrong", [None, 3, "len", object()])
def test_what_is_no_function_is_refused_at_once(kind, wrong):
    with pytest.raises(zj.ConfigurationError, match=f"{kind.__name__.lower()} needs a function of one record"):
        kind(wrong)


class Transform:
    """As Grain's transforms: an object with a method."""

    def map(self, record):
        return {"m": record["n"] + 1}

    def filter(self, record):
        return record["n"] > 1


def test_an_object_with_the_method_works_as_well_under_a_name():
    rows = [{"n": 1}, {"n": 2}]
    assert Map(Transform(), name="plus").process(batch_of(rows)).rows() == [{"m": 2}, {"m": 3}]
    assert Filter(Transform(), name="large").process(batch_of(rows)).rows() == [{"n": 2}]


def test_an_object_with_the_method_is_named_after_its_class():
    assert Map(Transform()).identity() == {"op": "map", "function": "Transform"}
    assert Filter(Transform()).identity() == {"op": "filter", "function": "Transform"}


class Callable:
    def __call__(self, record):
        return record


@pytest.mark.parametrize(
    ("op", "want"),
    [
        (Map(fails), {"op": "map", "function": "fails"}),
        (Map(fails, name="f"), {"op": "map", "function": "f"}),
        (Map(fails, version=2), {"op": "map", "function": "fails", "version": "2"}),
        (Map(Callable()), {"op": "map", "function": "Callable"}),
        (Filter(fails, name="f", version="b"), {"op": "filter", "function": "f", "version": "b"}),
        (Filter(functools.partial(fails), name="f"), {"op": "filter", "function": "f"}),
        (Map(str.upper), {"op": "map", "function": "str.upper"}),
    ],
    ids=range(7),
)
def test_a_function_is_known_by_its_name_and_version(op, want):
    assert dict(op.identity()) == want


def test_nothing_in_nothing_out():
    for op in (Map(describe), Filter(fails)):
        assert len(op.process(batch_of([]))) == 0
