"""split: pieces of bounded length, in order, with one child index each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zephon_jax as zj
from tests.ops import PROPERTY, batch_of, contributors, cut, processed, same, same_rows, sample, sizes
from zephon_jax.columns import Ragged
from zephon_jax.ops import Split
from zephon_jax.ops.base import RecordFailure
from zephon_jax.ops.fields import int32_ragged
from zephon_jax.origin import START, TOKENS
from zephon_jax.testing import check_operator

lists = st.lists(st.lists(st.integers(-3, 3), max_size=9), max_size=12)


def pieces_of(tokens, n):
    return [tokens[at : at + n] for at in range(0, max(len(tokens), 1), n)]


@PROPERTY
@given(lists, sizes, st.integers(1, 10), st.sampled_from([0, 1]))
def test_each_list_is_cut_wherever_the_stream_is(tokens, parts, n, level):
    given_rows = [{"a": i, "tokens": one, "b": "x" * i} for i, one in enumerate(tokens)]
    rows, of, closed = processed(Split(n), cut(given_rows, parts, depth=2, level=level))
    want, identity = [], []
    for i, one in enumerate(tokens):
        pieces = pieces_of(one, n)
        for child, piece in enumerate(pieces):
            last = child == len(pieces) - 1
            children = [0, 0]
            children[level] = child
            want.append({"a": np.int64(i), "tokens": np.array(piece, np.int32), "b": "x" * i})
            identity.append([sample(i, *children, last=int(last), siblings=child if last else 0)])
    assert same_rows(rows, want)
    assert of == identity
    assert closed == []


def test_pieces_are_views_of_the_same_values():
    values = np.array([0, 1, 2, 3, 4], np.int32)
    batch = batch_of([{}] * 3).with_columns({"tokens": Ragged(values, np.array([1, 4, 4, 5]))})
    out = Split(2).process(batch).columns["tokens"]
    assert isinstance(out, Ragged)
    assert [v.tolist() for v in out.views()] == [[1, 2], [3], [], [4]]
    assert out.values is values


@PROPERTY
@given(lists, st.integers(1, 5), st.integers(1, 5))
def test_a_piece_knows_its_span_of_the_sample(tokens, first, second):
    """Cut twice, so that a piece of a piece counts from where the sample begins."""
    rows = [{"tokens": list(range(100, 100 + len(one)))} for one in tokens]
    once = Split(first).process(batch_of(rows, depth=2, level=0))
    twice = Split(second).process(replace(once, level=1))
    for batch in (once, twice):
        table = batch.origin.table
        for row, start, n in zip(batch.rows(), table[START].tolist(), table[TOKENS].tolist(), strict=True):
            assert row["tokens"].tolist() == list(range(100 + start, 100 + start + n))
    other = Split(first, field="ids").process(batch_of([{"ids": [1] * 9}]))
    assert set(other.origin.table[TOKENS].tolist()) == {-1}


def test_another_field_and_lists_of_one_length():
    rows = Split(2, field="ids").process(batch_of([{"ids": [1, 2, 3]}, {"ids": [4, 5, 6]}])).rows()
    assert [row["ids"].tolist() for row in rows] == [[1, 2], [3], [4, 5], [6]]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", ">i4"])
def test_tokens_of_any_integer_type_become_int32(dtype):
    alike, unlike = np.array([1, 2], dtype), np.array([3], dtype)
    for given_rows in ([alike], [alike, alike], [alike, unlike], [alike, [1, 2]]):
        rows = Split(5).process(batch_of([{"tokens": v} for v in given_rows])).rows()
        assert all(same(row["tokens"], np.array(list(v), np.int32)) for row, v in zip(rows, given_rows, strict=True))


def refused(*values, op=None):
    """The error of these tokens, with the record if it is known."""
    with pytest.raises((RecordFailure, zj.DataError)) as caught:
        (op or Split(2)).process(batch_of([{"tokens": v} for v in values]))
    error = caught.value
    return (error.index, error.__cause__) if isinstance(error, RecordFailure) else (None, error)


@pytest.mark.parametrize(
    "value", ["abc", b"abc", 5, 0.5, [0.5], ["a"], [[1, 2]], [True], {"a": 1}, np.zeros((2, 2), int), [[1], [2, 3]]]
)
@pytest.mark.parametrize("neighbours", [[], [[1]], [[1, 2], [3]]], ids=repr)
def test_what_is_no_list_of_integers_is_refused(value, neighbours):
    index, error = refused(*neighbours, value)
    assert index in (None, len(neighbours))
    assert isinstance(error, (zj.DataError, ValueError))
    if isinstance(error, zj.DataError):
        assert str(error).startswith("split(2) needs ")
        assert "'tokens'" in str(error)


@pytest.mark.parametrize("value", [2**31, 2**62])
@pytest.mark.parametrize("others", [[], [[1, 2]], [[1]], ["mixed"]], ids=str)
def test_a_token_beyond_int32_is_refused(value, others):
    neighbours = [np.array([1], np.int16)] if others == ["mixed"] else others
    _, error = refused(*neighbours, [value])
    assert isinstance(error, zj.DataError)
    assert str(error) == f"split(2): 'tokens' holds {value}, which does not fit in int32"


@pytest.mark.parametrize("dtype", ["uint32", "uint64", "int64"])
def test_a_token_beyond_int32_is_refused_whatever_its_type(dtype):
    _, error = refused(np.array([1, 2**31], dtype))
    assert "'tokens' holds 2147483648, which does not fit in int32" in str(error)


@pytest.mark.parametrize("value", [2**31 - 1, -(2**31)])
def test_the_ends_of_int32_fit(value):
    assert Split(2).process(batch_of([{"tokens": [value]}])).rows()[0]["tokens"].tolist() == [value]


def test_a_token_below_int32_is_named():
    _, error = refused([-(2**31) - 1, 5])
    assert str(-(2**31) - 1) in str(error)


def test_an_empty_list_of_any_type_does_not_depend_on_neighbours():
    """`np.array([])` is what a map makes of an empty list of tokens."""
    nothing = np.array([])
    beside = Split(2).process(batch_of([{"tokens": nothing}, {"tokens": [1]}])).rows()
    assert same(beside[0]["tokens"], np.zeros(0, np.int32))
    alone = Split(2).process(batch_of([{"tokens": nothing}])).rows()
    assert same(alone[0]["tokens"], np.zeros(0, np.int32))


def test_null_and_missing_tokens_name_the_record():
    index, error = refused([1], None)
    assert index == 1
    assert "holds null in the field 'tokens'" in str(error)
    with pytest.raises(RecordFailure) as caught:
        Split(2).process(batch_of([{"tokens": [1]}, {"text": "a"}]))
    assert caught.value.index == 1
    assert "the record has no field 'tokens'" in str(caught.value.__cause__)


def test_an_unknown_field_lists_those_there_are():
    with pytest.raises(zj.DataError, match=r"split\(2\) needs the field 'ids', but the records have \['a', 'tokens'\]"):
        Split(2, field="ids").process(batch_of([{"tokens": [1], "a": 1}]))


@pytest.mark.parametrize("length", [0, -1])
def test_a_length_below_one_is_refused(length):
    with pytest.raises(zj.ConfigurationError, match=rf"split\(max_length={length}\) must be at least 1"):
        Split(length)


@pytest.mark.parametrize("length", [2.5, "2", None, True])
def test_a_length_that_is_no_integer_is_refused(length):
    with pytest.raises(zj.ConfigurationError):
        Split(length)


def test_nothing_in_nothing_out():
    out = Split(3).process(batch_of([]))
    assert len(out) == 0
    assert contributors(out.closed) == []
    assert int32_ragged(Ragged(np.zeros(0, np.int32), np.zeros(1, np.int64)), "split", "tokens").views() == []


# -- overlap and separators --------------------------------------------------------------------------------------------------
@PROPERTY
@given(lists, sizes, st.integers(1, 6), st.integers(0, 5))
def test_windows_overlap(tokens, parts, n, overlap):
    overlap = min(overlap, n - 1)
    rows, of, _ = processed(Split(n, overlap=overlap), cut([{"tokens": one} for one in tokens], parts))
    want = []
    for one in tokens:
        at = 0
        want.append(one[:n])
        while at + n < len(one):
            at += n - overlap
            want.append(one[at : at + n])
    assert [row["tokens"].tolist() for row in rows] == want
    assert len(of) == len(want)


def at_separators(one, separators, n, keep):
    """Greedy: as long a piece as ends behind a separator, else n values."""
    pieces, rest = [], list(one)
    while rest:
        ends = [i + 1 for i, token in enumerate(rest) if token in separators]
        if n is None:
            end = ends[0] if ends else len(rest)
        elif len(rest) <= n:
            end = len(rest)
        else:
            end = max((e for e in ends if e <= n), default=n)
        piece, rest = rest[:end], rest[end:]
        if not keep and piece[-1] in separators:
            piece = piece[:-1]
        if piece:
            pieces.append(piece)
    return pieces or [[]]


@PROPERTY
@given(lists, sizes, st.sampled_from([None, 1, 2, 4]), st.sampled_from([[0], [1, 2]]), st.booleans())
def test_cut_at_separators(tokens, parts, n, separators, keep):
    op = Split(n, separators=separators, keep_separator=keep)
    rows, _, _ = processed(op, cut([{"tokens": one, "i": i} for i, one in enumerate(tokens)], parts))
    want = [(i, piece) for i, one in enumerate(tokens) for piece in at_separators(one, separators, n, keep)]
    assert [(int(row["i"]), row["tokens"].tolist()) for row in rows] == want


@PROPERTY
@given(lists, st.sampled_from([None, 2, 4]), st.booleans())
def test_pieces_at_separators_know_their_span(tokens, n, keep):
    distinct = [[100 * i + at for at in range(len(one))] for i, one in enumerate(tokens)]
    op = Split(n, separators=[0, 2, 101, 103], keep_separator=keep)
    batch = op.process(batch_of([{"tokens": one} for one in distinct]))
    table = batch.origin.table
    for row, offset, start, length in zip(
        batch.rows(), table[5].tolist(), *table[[START, TOKENS]].tolist(), strict=True
    ):
        assert row["tokens"].tolist() == distinct[offset][start : start + length]


@pytest.mark.parametrize(
    ("options", "pieces"),
    [
        ({"max_length": 4}, ["a\n\nb", "b\nc", ""]),
        ({"max_length": 4, "overlap": 1}, ["a\n\nb", "bb\nc", ""]),
        ({"separators": ["\n"]}, ["a\n", "\n", "bb\n", "c", ""]),
        ({"separators": ["\n", "\n\n"]}, ["a\n\n", "bb\n", "c", ""]),
        ({"separators": ["\n"], "keep_separator": False}, ["a", "bb", "c", ""]),
        ({"separators": ["\n\n"], "keep_separator": False, "max_length": 5}, ["a", "bb\nc", ""]),
        ({"separators": ["\n"], "max_length": 3}, ["a\n\n", "bb\n", "c", ""]),
    ],
    ids=str,
)
def test_text_is_cut_in_characters(options, pieces):
    texts = ["a\n\nbb\nc", ""]
    rows, _, _ = processed(Split(field="text", **options), cut([{"text": t, "k": 1} for t in texts], [1]))
    assert [row["text"] for row in rows] == pieces


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "split needs max_length, separators, or both"),
        ({"max_length": 3, "overlap": 3}, "needs a larger max_length"),
        ({"max_length": 3, "overlap": 1, "separators": [1]}, "does not go with separators"),
        ({"separators": []}, "must be token ids, or texts"),
        ({"separators": [1, "a"]}, "must be token ids, or texts"),
        ({"separators": [""]}, "must be token ids, or texts"),
        ({"separators": [True]}, "must be token ids, or texts"),
        ({"max_length": 3, "keep_separator": False}, "needs separators"),
    ],
    ids=str,
)
def test_parameters_that_cannot_work_together(options, text):
    with pytest.raises(zj.ConfigurationError, match=text):
        Split(**options)


def test_separators_must_be_of_the_fields_kind():
    _, error = refused([1], op=Split(separators=["a"]))
    assert "separators are texts, but 'tokens' holds token ids" in str(error)
    with pytest.raises(RecordFailure) as caught:
        Split(field="text", separators=[1]).process(batch_of([{"text": "a"}]))
    assert "separators are token ids, but 'text' holds text" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    "op",
    [Split(4, overlap=2), Split(separators=[3]), Split(3, separators=[3], keep_separator=False)],
    ids=lambda o: o.name,
)
def test_each_kind_keeps_the_operator_contract(op):
    check_operator(op, [{"tokens": [i % 5 for i in range(n)], "n": n} for n in range(30)])
