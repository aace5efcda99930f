"""pack: first fit in five lines, against both implementations, the operator, and every way to cut the stream."""

from __future__ import annotations

import gc
import random
import warnings
import weakref
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zephon_jax as zj
from tests.ops import CONTEXT, PROPERTY, accumulated, batch_of, contributors, cut, identities, sample, sizes
from zephon_jax.columns import Dense, Objects, Ragged, collate, concat, row_value, row_values, slice_rows, take
from zephon_jax.deferred import DEFERRED, Deferred, Piece, deferred_of
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops import Pack
from zephon_jax.ops.base import RecordFailure
from zephon_jax.ops.pack.bins import FirstFit, WideFirstFit, first_fit
from zephon_jax.ops.pack.layout import PackedRow, laid_columns
from zephon_jax.origin import OFFSET, START, TOKENS


def rows_of_pieces(lengths: list[int], capacity: int, num_bins: int) -> list[list[int]]:
    """Piece numbers per row: into the first open bin with room, else the fullest leaves and a new one opens behind."""
    bins: list[list[int]] = []
    rows: list[list[int]] = []
    for piece, n in enumerate(lengths):
        room = [capacity - sum(lengths[p] for p in held) for held in bins]
        fit = next((held for held, free in zip(bins, room, strict=True) if free >= n), None)
        if fit is None and len(bins) == num_bins:
            rows.append(bins.pop(room.index(min(room))))
        bins.append([piece]) if fit is None else fit.append(piece)
    return rows + bins


def packed(pieces: list[list[int]], capacity: int, num_bins: int) -> dict[str, list[list[int]]]:
    """The three fields of all rows."""
    out: dict[str, list[list[int]]] = {"tokens": [], "segment_ids": [], "positions": []}
    for row in rows_of_pieces([len(p) for p in pieces], capacity, num_bins):
        padding = [0] * (capacity - sum(len(pieces[p]) for p in row))
        out["tokens"].append([t for p in row for t in pieces[p]] + padding)
        out["segment_ids"].append([k for k, p in enumerate(row, 1) for _ in pieces[p]] + padding)
        out["positions"].append([i for p in row for i in range(len(pieces[p]))] + padding)
    return out


def fitting(documents: list[list[int]], capacity: int, on_overlong: str):
    """Pieces with their identities, and the identities of what is dropped."""
    pieces, of, dropped = [], [], []
    for i, tokens in enumerate(documents):
        if not tokens or (on_overlong == "drop" and len(tokens) > capacity):
            dropped.append(sample(i, 0))
        elif on_overlong == "split":
            cuts = range(0, len(tokens), capacity)
            pieces += [tokens[at : at + capacity] for at in cuts]
            children = len(cuts)
            of += [
                sample(i, c, last=int(c == children - 1), siblings=children - 1 if c == children - 1 else 0)
                for c in range(children)
            ]
        else:
            pieces.append(tokens[:capacity])
            of.append(sample(i, 0))
    return pieces, of, dropped


def compared(op: Pack, documents: list[list[int]], parts, capacity: int, num_bins: int, on_overlong: str) -> None:
    got, of, closed = accumulated(op, cut([{"tokens": d} for d in documents], parts))
    pieces, identity, dropped = fitting(documents, capacity, on_overlong)
    want = packed(pieces, capacity, num_bins)
    for name, values in want.items():
        assert [row[name].tolist() for row in got] == values, name
        assert all(row[name].dtype == np.int32 for row in got)
    assert of == [[identity[p] for p in row] for row in rows_of_pieces([len(p) for p in pieces], capacity, num_bins)]
    assert closed == dropped
    assert all(row["segment_ids"].any() for row in got), "a row of padding only"


documents = st.lists(st.lists(st.integers(1, 99), max_size=14), max_size=30)
policies = st.sampled_from(["split", "truncate", "drop"])


@PROPERTY
@given(documents, sizes, st.integers(1, 10), st.sampled_from([1, 2, 3, 5, 49, 60]), policies)
def test_rows_are_those_of_the_reference_wherever_the_stream_is_cut(docs, parts, capacity, num_bins, on_overlong):
    op = Pack(capacity, num_bins=num_bins, on_overlong=on_overlong)
    compared(op, docs, parts, capacity, num_bins, on_overlong)


@pytest.mark.parametrize("on_overlong", ["split", "truncate", "drop"])
@pytest.mark.parametrize("num_bins", [1, 16, 48, 49, 100])
def test_long_streams_of_short_documents(num_bins, on_overlong):
    """Long enough for pieces to be renumbered many times, and for slots to be used up."""
    rng = random.Random(num_bins)
    docs = [[rng.randint(1, 99)] * rng.choice([0, 1, 1, 2, 3, 7, 17, 40]) for _ in range(400)]
    compared(Pack(20, num_bins=num_bins, on_overlong=on_overlong), docs, [64] * 6, 20, num_bins, on_overlong)


@pytest.mark.parametrize("parts", [[], [1] * 100, [33, 33]], ids=len)
def test_a_hundred_overlong_documents_in_a_row(parts):
    docs = [list(range(1, 24 + i % 3)) for i in range(100)]
    for on_overlong in ("split", "truncate", "drop"):
        compared(Pack(10, num_bins=4, on_overlong=on_overlong), docs, parts, 10, 4, on_overlong)
    rows, _, closed = accumulated(Pack(10, on_overlong="drop"), cut([{"tokens": d} for d in docs], parts))
    assert (len(rows), len(closed)) == (0, 100)


@pytest.mark.parametrize("capacity", [1, 4])
def test_documents_of_one_token(capacity):
    docs = [[i] for i in range(1, 10)]
    compared(Pack(capacity, num_bins=2), docs, [2, 3], capacity, 2, "split")
    rows, _, _ = accumulated(Pack(capacity, num_bins=2), cut([{"tokens": d} for d in docs], [2, 3]))
    assert sum(int((row["segment_ids"] > 0).sum()) for row in rows) == 9


@pytest.mark.parametrize("empty", [[], np.zeros(0, np.int32)], ids=["list", "array"])
def test_nothing_but_empty_documents(empty):
    """P6: dropped by policy, and closed."""
    rows, of, closed = accumulated(Pack(4), cut([{"tokens": empty}] * 5, [2]))
    assert (rows, of) == ([], [])
    assert closed == [sample(i, 0) for i in range(5)]


@PROPERTY
@given(documents, sizes, st.integers(1, 9), policies)
def test_a_row_knows_which_tokens_of_which_samples_it_holds(docs, parts, capacity, on_overlong):
    op = Pack(capacity, num_bins=2, on_overlong=on_overlong)
    state = op.init_state(CONTEXT)
    out = [op.push(state, batch) for batch in cut([{"tokens": d} for d in docs], parts)]
    rest = op.flush(state)
    for batch in out if rest is None else [*out, rest]:
        table = batch.origin.table
        splits = [0] if batch.origin.splits is None else batch.origin.splits.tolist()
        for row, (a, b) in zip(batch.rows(), pairwise(splits), strict=True):
            at = zip(table[OFFSET, a:b].tolist(), table[START, a:b].tolist(), table[TOKENS, a:b].tolist(), strict=True)
            held = [t for offset, start, n in at for t in docs[offset][start : start + n]]
            assert row["tokens"].tolist() == held + [0] * (capacity - len(held))


@PROPERTY
@given(documents, sizes, st.integers(1, 9), st.sampled_from([1, 3, 50]), policies, st.randoms(use_true_random=False))
def test_lengths_alone_decide_and_tokens_may_come_later(docs, parts, capacity, num_bins, on_overlong, rng):
    """In a replay, records stand for samples that were not read; some micro-batches have been read all the same."""
    op = Pack(capacity, num_bins=num_bins, on_overlong=on_overlong)
    state = op.init_state(CONTEXT)
    waiting: list[Deferred] = []

    def deferred(batch: MicroBatch) -> MicroBatch:
        handles: list = []
        for cursor, row in zip(batch.origin.cursors().T.tolist(), batch.rows(), strict=True):
            handles.append(Deferred(tuple(cursor), len(row["tokens"])))
        waiting.extend(handles)
        return batch.with_columns({DEFERRED: Objects(handles)})

    batches = [deferred(b) if rng.random() < 0.6 else b for b in cut([{"tokens": d} for d in docs], parts)]
    whole = MicroBatch.concat(batches) if rng.random() < 0.5 else None  # both kinds in one micro-batch
    out = [op.push(state, batch) for batch in (batches if whole is None else [whole])]
    rest = op.flush(state)
    out = out if rest is None else [*out, rest]
    due = [record for batch in out for record in deferred_of(batch.columns)]
    assert {id(record) for record in due} <= {id(record) for record in waiting}
    for record in waiting:
        record.row = {"tokens": np.array(docs[record.cursor[1]], np.int64)}
    assert [record for batch in out for record in deferred_of(batch.columns)] == []
    pieces_there, _, _ = fitting(docs, capacity, on_overlong)
    want = packed(pieces_there, capacity, num_bins)
    rows = [row for batch in out for row in batch.rows()]
    for name, values in want.items():
        assert [row[name].tolist() for row in rows] == values, name


def test_a_row_by_hand():
    rows, of, _ = accumulated(Pack(6, num_bins=1), cut([{"tokens": t} for t in ([11, 12], [21, 22, 23], [31, 32])], []))
    assert [row["tokens"].tolist() for row in rows] == [[11, 12, 21, 22, 23, 0], [31, 32, 0, 0, 0, 0]]
    assert [row["segment_ids"].tolist() for row in rows] == [[1, 1, 2, 2, 2, 0], [1, 1, 0, 0, 0, 0]]
    assert [row["positions"].tolist() for row in rows] == [[0, 1, 0, 1, 2, 0], [0, 1, 0, 0, 0, 0]]
    assert of == [[sample(0, 0), sample(1, 0)], [sample(2, 0)]]


def test_tokens_may_be_zero_and_padding_is_known_by_its_segment():
    rows, _, _ = accumulated(Pack(4), [batch_of([{"tokens": [0, 0]}])])
    assert rows[0]["tokens"].tolist() == [0, 0, 0, 0]
    assert rows[0]["segment_ids"].tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("num_bins", range(1, 101))
def test_both_implementations_decide_alike(num_bins):
    rng = random.Random(num_bins)
    capacity = rng.choice([7, 20, 100])
    narrow, wide = FirstFit(capacity, num_bins), WideFirstFit(capacity, num_bins)
    lengths = [min(capacity, int(rng.lognormvariate(1.5, 1))) or 1 for _ in range(6 * num_bins)]
    of, rows, at = [], [], 0  # of: what the bins call a piece → which piece it is
    while at < len(lengths):
        some = lengths[at : at + rng.randint(0, 2 * num_bins)]
        results = narrow.push(some, len(of)), wide.push(some, len(of))
        assert results[0] == results[1]
        of += range(at, at + len(some))
        rows += [[of[p] for p in row] for row in results[0]]
        at += len(some)
        if rng.random() < 0.3:
            old = narrow.renumber(0)
            assert old == wide.renumber(0)
            of = [of[p] for p in old]
    rest = narrow.flush()
    assert rest == wide.flush()
    rows += [[of[p] for p in row] for row in rest]
    assert rows == rows_of_pieces(lengths, capacity, num_bins)
    assert narrow.flush() == wide.flush() == []
    assert narrow.push([1], 0) == wide.push([1], 0) == []  # and both may be used again


def test_the_faster_implementation_is_chosen():
    assert isinstance(first_fit(10, 48), FirstFit)
    assert isinstance(first_fit(10, 49), WideFirstFit)


def test_what_is_kept_does_not_grow_with_the_stream():
    """Nor does a short document that waits in a bin keep the block alive that it was read with."""
    op = Pack(64, num_bins=3)
    state = op.init_state(CONTEXT)
    blocks: list[weakref.ref] = []
    for start in range(0, 4000, 20):
        values = np.full(20 * 5, start, np.int32)
        blocks.append(weakref.ref(values))
        tokens = Ragged(values, np.arange(21) * 5)
        op.push(state, batch_of([{}] * 20, start=start).with_columns({"tokens": tokens}))
        del values, tokens
    gc.collect()
    assert sum(block() is not None for block in blocks) < 10
    rest = op.flush(state)
    assert rest is not None
    assert 0 < len(rest) <= 3


def test_a_piece_of_a_piece_counts_from_where_the_record_begins():
    record = Deferred((0, 0), 9)
    piece = Piece(record, 2, 9).cut(1, 4)
    assert (piece.start, piece.stop, len(piece)) == (3, 6, 3)
    record.row = {"tokens": np.arange(100, 109)}
    assert piece.tokens().tolist() == [103, 104, 105]
    assert piece.tokens().dtype == np.int32


def test_nothing_is_changed_between_flushes_of_different_epochs():
    op = Pack(8, num_bins=2)
    docs = cut([{"tokens": [1, 2, 3]}] * 4, [])
    assert accumulated(op, docs)[1] == accumulated(op, docs)[1]


pieces = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=3)


@PROPERTY
@given(st.lists(pieces, min_size=1, max_size=5), st.integers(0, 5), st.integers(0, 5))
def test_rows_are_laid_out_piece_by_piece_however_they_are_moved(rows, i, j):
    """Rows become arrays when they are looked at; until then they are sliced, taken and joined as they are."""
    capacity = 9
    room = [capacity - sum(map(len, row)) for row in rows]
    packed_rows = [
        PackedRow(
            [np.array(p, np.int32) for p in row],
            np.array([*map(len, row), left]),
            np.cumsum([0, *map(len, row)]).astype(np.int32),
            left,
        )
        for row, left in zip(rows, room, strict=True)
    ]
    want = {
        "tokens": [[t for p in row for t in p] + [0] * left for row, left in zip(rows, room, strict=True)],
        "segment_ids": [
            [k for k, p in enumerate(row, 1) for _ in p] + [0] * left for row, left in zip(rows, room, strict=True)
        ],
        "positions": [
            [n for p in row for n in range(len(p))] + [0] * left for row, left in zip(rows, room, strict=True)
        ],
    }
    a, b = sorted((min(i, len(rows)), min(j, len(rows))))
    for name, column in laid_columns(packed_rows, capacity).items():
        assert collate([column]).dtype == np.int32
        assert collate([column]).tolist() == want[name]
        parts = [slice_rows(column, 0, a), slice_rows(column, a, b), slice_rows(column, b, len(rows))]
        assert collate(parts).tolist() == collate([concat(parts)]).tolist() == want[name]
        backwards = take(column, np.arange(len(rows))[::-1])
        assert [v.tolist() for v in row_values(backwards)] == want[name][::-1]
        assert row_value(column, 0).tolist() == want[name][0]
        mixed = [Dense(np.array(want[name][:1], np.int32)), slice_rows(column, 1, len(rows))]
        assert collate(mixed).tolist() == collate([concat(mixed)]).tolist() == want[name]
        assert not np.shares_memory(collate([column]), collate([column]))


def test_a_record_of_several_contributors_counts_as_one_document():
    """A shuffle before, or rows packed twice: each piece keeps all that it is made of."""
    batch = batch_of([{"n": 1}, {"n": 2}, {"n": 3}])
    tokens = Dense(np.array([[1, 2], [3, 4]], np.int32))
    grouped = batch.group(np.array([0, 2, 3]), {"tokens": tokens})
    _, of, _ = accumulated(Pack(3, num_bins=1), [grouped])
    assert of == [[sample(0, 0), sample(1, 0)], [sample(2, 0)]]
    _, of, _ = accumulated(Pack(1, num_bins=9), [grouped])
    first = [sample(0, 0, last=0), sample(1, 0, last=0)]
    second = [sample(0, 1, siblings=1), sample(1, 1, siblings=1)]
    assert of == [first, second, [sample(2, 0, last=0)], [sample(2, 1, siblings=1)]]


def test_what_was_closed_before_passes_at_once():
    op = Pack(9)
    state = op.init_state(CONTEXT)
    batch = batch_of([{"tokens": [1]}, {"tokens": [2]}, {"tokens": []}]).keep(np.array([False, True, True]))
    out = op.push(state, batch)
    assert len(out) == 0
    assert sorted(contributors(out.closed)) == [sample(0, 0), sample(2, 0)]
    rest = op.flush(state)
    assert rest is not None
    assert identities(rest) == [[sample(1, 0)]]
    assert contributors(rest.closed) == []


def test_other_fields_are_dropped_with_one_warning():
    op = Pack(9)
    state = op.init_state(CONTEXT)
    with pytest.warns(
        UserWarning,
        match=r"pack\(9\) drops the fields \['note', 'text'\], which are not packed; keep= names those to keep",
    ):
        op.push(state, batch_of([{"tokens": [1], "text": "a", "note": 1}]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op.push(state, batch_of([{"tokens": [1], "text": "a", "note": 1}], start=1))
    rest = op.flush(state)
    assert rest is not None
    assert sorted(rest.columns) == ["positions", "segment_ids", "tokens"]


def test_overlong_as_an_error_names_record_and_ways_out():
    op = Pack(3, on_overlong="error")
    with pytest.raises(RecordFailure) as caught:
        op.push(op.init_state(CONTEXT), batch_of([{"tokens": [1]}, {"tokens": [1, 2, 3]}, {"tokens": [1, 2, 3, 4]}]))
    assert caught.value.index == 2
    assert isinstance(caught.value.__cause__, DataError)
    assert str(caught.value.__cause__) == (
        "pack(3): a record has 4 tokens; split it, or pass on_overlong='split', 'truncate' or 'drop'"
    )
    docs = [[1, 2, 3], [1]]
    compared(Pack(3, num_bins=2, on_overlong="error"), docs, [], 3, 2, "truncate")


def test_wrong_tokens_are_refused_by_name():
    def error(row):
        with pytest.raises((DataError, RecordFailure)) as caught:
            Pack(4).push(Pack(4).init_state(CONTEXT), batch_of([row]))
        return str(caught.value.__cause__ if isinstance(caught.value, RecordFailure) else caught.value)

    assert error({"text": "a"}).startswith("pack(4) needs the field 'tokens', but the records have ['text']")
    assert error({"tokens": [0.5]}) == "pack(4) needs integers in 'tokens', got dtype float64"
    assert error({"tokens": "abc"}) == "pack(4) needs a list of integers in 'tokens', got str 'abc'"
    assert error({"tokens": None}).startswith("pack(4) needs the field 'tokens', but the record holds null")
    assert error({"tokens": [2**31]}) == "pack(4): 'tokens' holds 2147483648, which does not fit in int32"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_length": 0}, r"pack\(max_length=0\) must be at least 1"),
        ({"num_bins": 0}, r"pack\(num_bins=0\) must be at least 1"),
        ({"algorithm": "worst_fit"}, r"pack\(algorithm='worst_fit'\) must be one of"),
        ({"on_overlong": "cut"}, r"pack\(on_overlong='cut'\) must be one of \['split', 'truncate', 'drop', 'error'\]"),
    ],
)
def test_parameters_that_cannot_work_are_refused(options, text):
    with pytest.raises(ConfigurationError, match=text):
        Pack(**{"max_length": 8, **options})


@pytest.mark.parametrize("options", [{"max_length": 8.5}, {"max_length": "8"}, {"num_bins": 2.5}], ids=str)
def test_parameters_of_a_wrong_type_are_refused(options):
    with pytest.raises(ConfigurationError):
        Pack(**{"max_length": 8, **options})


def test_identity_has_every_parameter():
    want = {
        "op": "pack", "max_length": 8, "other_lengths": {"p": 2}, "algorithm": "best_fit", "num_bins": 3, "on_overlong": "drop",
        "max_segments": 5, "keep": ["m"], "separate_by": "source",
    }  # fmt: skip
    op = Pack(
        {"tokens": 8, "p": 2}, algorithm="best_fit", num_bins=3, on_overlong="drop", max_segments=5, keep=["m"],
        separate_by="source",
    )  # fmt: skip
    assert dict(op.identity()) == want
    assert Pack(8, separate_datasets=True).identity()["separate_datasets"] is True
    assert Pack(8, on_overlong="split").traits.expands
    assert not Pack(8, on_overlong="drop").traits.expands


def test_a_misspelt_field_is_refused_while_building():
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("docs", [{"ids": [1]}]))
    with pytest.raises(ConfigurationError, match=r"pack needs the field 'tokens'; the samples have \['ids'\]"):
        zj.Pipeline(work).pack(8)
