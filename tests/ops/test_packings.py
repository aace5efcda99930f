"""pack's other algorithms, limits, groups and fields, each against a few lines of Python."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zephon_jax as zj
from tests.ops import CONTEXT, PROPERTY, accumulated, batch_of, cut, identities, sizes
from tests.packings import best_fit_wrap_rows, fit_rows, wrap_rows
from zephon_jax.columns import Objects
from zephon_jax.deferred import DEFERRED, Deferred, Piece, deferred_of
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops import Pack
from zephon_jax.ops.base import RecordFailure
from zephon_jax.ops.pack.bins import BestFit, WideFirstFit
from zephon_jax.testing import check_operator
from zephon_jax.types import LaneContext

Doc = list[int]


def laid(rows: list[list[Doc]], capacity: int) -> list[tuple[list[int], list[int], list[int]]]:
    out = []
    for row in rows:
        padding = [0] * (capacity - sum(map(len, row)))
        out.append(
            (
                [t for doc in row for t in doc] + padding,
                [k for k, doc in enumerate(row, 1) for _ in doc] + padding,
                [i for doc in row for i in range(len(doc))] + padding,
            )
        )
    return out


def three(rows):
    return [tuple(row[name].tolist() for name in ("tokens", "segment_ids", "positions")) for row in rows]


def in_pieces(docs: list[Doc], capacity: int) -> list[Doc]:
    return [doc[at : at + capacity] for doc in docs for at in range(0, len(doc), capacity)]


documents = st.lists(st.lists(st.integers(1, 99), max_size=14), max_size=40)
segments = st.sampled_from([None, 1, 2, 3])


@PROPERTY
@given(documents, sizes, st.integers(1, 10), st.sampled_from([1, 2, 3, 5, 60]), segments)
def test_best_fit(docs, parts, capacity, num_bins, most):
    op = Pack(capacity, algorithm="best_fit", num_bins=num_bins, max_segments=most)
    rows, _, _ = accumulated(op, cut([{"tokens": d} for d in docs], parts))
    want = fit_rows(in_pieces(docs, capacity), capacity, num_bins, best=True, most=most or 10**9)
    assert three(rows) == laid(want, capacity)


@PROPERTY
@given(documents, sizes, st.integers(1, 10), st.sampled_from([1, 2, 5, 49, 60]), st.sampled_from([1, 2, 3]))
def test_first_fit_with_a_limit_of_segments(docs, parts, capacity, num_bins, most):
    op = Pack(capacity, num_bins=num_bins, max_segments=most)
    rows, _, _ = accumulated(op, cut([{"tokens": d} for d in docs], parts))
    want = fit_rows(in_pieces(docs, capacity), capacity, num_bins, best=False, most=most)
    assert three(rows) == laid(want, capacity)


@PROPERTY
@given(documents, sizes, st.integers(1, 10), segments)
def test_wrap(docs, parts, capacity, most):
    op = Pack(capacity, algorithm="wrap", max_segments=most)
    rows, _, _ = accumulated(op, cut([{"tokens": d} for d in docs], parts))
    assert three(rows) == laid(wrap_rows(docs, capacity, most or 10**9), capacity)


@PROPERTY
@given(documents, sizes, st.sampled_from([1, 3, 7, 130, 320]), st.sampled_from([1, 2, 3, 5]), segments)
def test_best_fit_that_cuts_to_fill(docs, parts, capacity, num_bins, most):
    docs = [doc * (1 + 8 * (capacity > 100)) for doc in docs]
    op = Pack(capacity, algorithm="best_fit_wrap", num_bins=num_bins, max_segments=most)
    rows, _, _ = accumulated(op, cut([{"tokens": d} for d in docs], parts))
    want = best_fit_wrap_rows(docs, capacity, num_bins, most or 10**9)
    assert three(rows) == laid(want, capacity)


ALL = [
    {"algorithm": "first_fit"},
    {"algorithm": "first_fit", "num_bins": 60, "max_segments": 3},
    {"algorithm": "best_fit", "num_bins": 3},
    {"algorithm": "best_fit", "on_overlong": "truncate"},
    {"algorithm": "wrap"},
    {"algorithm": "wrap", "max_segments": 2},
    {"algorithm": "wrap", "on_overlong": "drop"},
    {"algorithm": "best_fit_wrap", "num_bins": 3},
    {"algorithm": "best_fit_wrap", "num_bins": 2, "max_segments": 2, "on_overlong": "truncate"},
    {"algorithm": "first_fit", "keep": ["m"]},
    {"algorithm": "wrap", "keep": ["m"]},
    {"algorithm": "first_fit", "separate_by": "group", "num_bins": 2},
    {"algorithm": "wrap", "separate_by": "group"},
    {"max_length": {"tokens": 11, "p": 5}, "on_overlong": "truncate", "num_bins": 3},
    {"max_length": {"tokens": 11, "p": 5}, "on_overlong": "drop", "algorithm": "best_fit", "max_segments": 2},
]


def record(rng: random.Random, i: int):
    n = rng.choice([0, 1, 1, 2, 3, 5, 8, 13, 30])
    tokens = [rng.randint(1, 99) for _ in range(n)]
    patches = np.arange(rng.randint(0, 6)).astype(np.float32)
    return {"tokens": np.array(tokens, np.int64), "m": np.arange(n) % 2 == 0, "group": f"g{i % 3}", "p": patches}


@pytest.mark.parametrize("options", ALL, ids=str)
@pytest.mark.filterwarnings("ignore:pack.* drops the fields")
def test_each_keeps_the_operator_contract(options):
    rng = random.Random(5)
    check_operator(Pack(**{"max_length": 11, **options}), [record(rng, i) for i in range(120)])


@pytest.mark.parametrize(
    "options", [o for o in ALL if "drop" not in o.values() and "truncate" not in o.values()], ids=str
)
@pytest.mark.filterwarnings("ignore:pack.* drops the fields")
def test_no_token_is_lost_and_rows_know_their_samples(options):
    """Long enough for pieces to be renumbered many times."""
    rng = random.Random(7)
    records: list[dict[str, Any]] = [record(rng, i) for i in range(600)]
    op = Pack(**{"max_length": 11, **options})
    state = op.init_state(CONTEXT)
    out = [op.push(state, batch) for batch in cut(records, [rng.randint(1, 40) for _ in range(30)])]
    rest = op.flush(state)
    seen = {i: {} for i in range(600)}
    for batch in out if rest is None else [*out, rest]:
        table, splits = batch.origin.table, batch.origin.splits.tolist() if batch.origin.splits is not None else [0]
        for row, (a, b) in zip(batch.rows(), pairwise(splits), strict=True):
            at = 0
            for offset, start, n in zip(
                table[5, a:b].tolist(), table[2, a:b].tolist(), table[3, a:b].tolist(), strict=True
            ):
                seen[offset][start] = row["tokens"][at : at + n].tolist()
                assert (row["segment_ids"][at : at + n] == row["segment_ids"][at]).all()
                if "m" in row:
                    assert row["m"][at : at + n].tolist() == records[offset]["m"][start : start + n].tolist()
                at += n
            assert not row["segment_ids"][at:].any()
            assert not row["tokens"][at:].any()
    for i, pieces in seen.items():
        assert [t for start in sorted(pieces) for t in pieces[start]] == records[i]["tokens"].tolist()


def test_a_hundred_documents_of_one_token_with_at_most_eight_in_a_row():
    for algorithm in ("first_fit", "best_fit", "wrap", "best_fit_wrap"):
        op = Pack(64, algorithm=algorithm, max_segments=8)
        rows, _, _ = accumulated(op, cut([{"tokens": [i + 1]} for i in range(100)], [7] * 9))
        assert max(int(row["segment_ids"].max()) for row in rows) == 8
        assert sorted(t for row in rows for t in row["tokens"].tolist() if t) == list(range(1, 101))
        assert len(rows) == 13


@pytest.mark.parametrize("make", [WideFirstFit, BestFit])
@pytest.mark.parametrize("most", [2, 2**31])
def test_many_bins_decide_as_the_reference_does(make, most):
    rng = random.Random(3)
    lengths = [min(200, int(rng.lognormvariate(3, 1)) + 1) for _ in range(3000)]
    bins = make(200, 256, most)
    rows = bins.push(lengths[:1700], 0) + bins.push(lengths[1700:], 1700) + bins.flush()
    want = fit_rows([[i] * n for i, n in enumerate(lengths)], 200, 256, best=make is BestFit, most=most)
    assert rows == [[doc[0] for doc in row] for row in want]


def test_searching_a_fitting_bin_touches_few_bins_however_many_there_are():
    """Counted, not timed: comparisons of the search in the tournament tree grow with the logarithm."""

    class Counted(int):
        compared = 0

        def __lt__(self, other):
            Counted.compared += 1
            return int(self) < int(other)

    per_document = {}
    for num_bins in (64, 4096):
        rng = random.Random(1)
        bins = BestFit(2048, num_bins)
        bins.push([rng.randint(1, 2048) for _ in range(2 * num_bins)], 0)
        bins._keys = [Counted(key) for key in bins._keys]
        Counted.compared = 0
        bins.push([rng.randint(1, 2048) for _ in range(50)], 10**6)
        per_document[num_bins] = Counted.compared / 50
    assert per_document[4096] < 3 * per_document[64]


# -- groups -------------------------------------------------------------------------------------------------------------------
@PROPERTY
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=40), sizes, st.sampled_from([1, 3]))
def test_groups_share_no_row(pairs, parts, num_bins):
    docs = [[i + 1] * n for i, (_, n) in enumerate(pairs)]
    records = [{"tokens": doc, "group": group} for doc, (group, _) in zip(docs, pairs, strict=True)]
    rows, _, _ = accumulated(Pack(10, num_bins=num_bins, separate_by="group"), cut(records, parts))
    got = three(rows)
    group_of = {i + 1: group for i, (group, _) in enumerate(pairs)}
    for group in "abc":
        mine = [doc for doc, (g, _) in zip(docs, pairs, strict=True) if g == group]
        want = laid(fit_rows(mine, 10, num_bins, best=False), 10)
        assert [row for row in got if group_of[row[0][0]] == group] == want


def test_rows_of_groups_leave_in_the_order_of_what_made_them_leave():
    records = [{"tokens": [i + 1] * 3, "group": "ab"[i % 2]} for i in range(8)]
    rows, _, _ = accumulated(Pack(3, num_bins=1, separate_by="group"), cut(records, [8]))
    assert [row["tokens"][0] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_datasets_may_be_kept_apart():
    ctx = LaneContext(0, 0, 3, lambda chunks, offsets: (offsets % 2).astype(np.int32))
    records = [{"tokens": [i + 1] * 2} for i in range(6)]
    rows, _, _ = accumulated(Pack(4, separate_datasets=True), cut(records, [4]), ctx)
    assert [row["tokens"].tolist() for row in rows] == [[1, 1, 3, 3], [5, 5, 0, 0], [2, 2, 4, 4], [6, 6, 0, 0]]
    assert Pack(4, separate_datasets=True).traits.replays_on_lengths
    assert not Pack(4, separate_by="g").traits.replays_on_lengths


def test_datasets_are_kept_apart_in_a_pipeline_also_after_a_resume():
    datasets = [
        zj.Dataset.from_source(f"d{d}", [{"tokens": [1 + d] * (1 + i % 7)} for i in range(90)]) for d in range(2)
    ]
    work = zj.StaticMixtureWorkSource(datasets, seed=1, chunk_size=8)
    pipeline = zj.Pipeline(work).pack(16, num_bins=3, separate_datasets=True).batch(2, drop_last=False)
    pipeline = pipeline.options(canonical_replicas=2, executor="inline")
    for batch in pipeline:
        for tokens, segment in zip(batch["tokens"], batch["segment_ids"], strict=True):
            assert len(set(tokens[segment > 0].tolist())) == 1
    zj.testing.check_resume(pipeline, batches=6)


# -- other fields -------------------------------------------------------------------------------------------------------------
def test_kept_fields_are_packed_cut_and_padded_like_the_tokens():
    records = [
        {"tokens": [1, 2, 3], "w": [0.5, 1.0, 0.25], "box": np.arange(6).reshape(3, 2)},
        {"tokens": [4, 5, 6, 7, 8], "w": [1.0] * 5, "box": np.arange(10, 20).reshape(5, 2)},
    ]
    rows, _, _ = accumulated(Pack(4, num_bins=2, keep=["w", "box"]), cut(records, []))
    assert [row["tokens"].tolist() for row in rows] == [[1, 2, 3, 8], [4, 5, 6, 7]]
    assert [row["w"].tolist() for row in rows] == [[0.5, 1.0, 0.25, 1.0], [1.0] * 4]
    assert rows[0]["box"].tolist() == [[0, 1], [2, 3], [4, 5], [18, 19]]
    assert (rows[0]["w"].dtype, rows[0]["box"].dtype) == (np.float32, np.int32)


def joint_rows(records, capacities, num_bins, best):
    """First fit, or best fit by tokens, of records that need several lengths."""
    bins, rows = [], []

    def room(b):
        return [c - sum(len(r[f]) for r in b) for f, c in capacities.items()]

    for r in records:
        need = [len(r[f]) for f in capacities]
        fits = [b for b in bins if all(free >= n for free, n in zip(room(b), need, strict=True))]
        if not fits and len(bins) == num_bins:
            rows.append(bins.pop(min(range(num_bins), key=lambda i: room(bins[i])[0])))
        bins.append([r]) if not fits else (min(fits, key=lambda b: room(b)[0]) if best else fits[0]).append(r)
    return rows + bins


@PROPERTY
@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 4)), max_size=30),
    sizes,
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)
def test_several_lengths(pairs, parts, num_bins, best):
    records = [{"tokens": np.full(n, i + 1), "p": np.full((m, 2), i + 1, np.float32)} for i, (n, m) in enumerate(pairs)]
    op = Pack(
        {"tokens": 8, "p": 4}, num_bins=num_bins, on_overlong="error", algorithm="best_fit" if best else "first_fit"
    )
    got, _, _ = accumulated(op, cut(records, parts))
    want = joint_rows(records, {"tokens": 8, "p": 4}, num_bins, best)
    assert three(got) == laid([[r["tokens"].tolist() for r in row] for row in want], 8)
    for row, members in zip(got, want, strict=True):
        patches = np.concatenate([r["p"] for r in members])
        if not len(patches):
            continue
        assert row["p"].tolist() == [*patches.tolist(), *[[0.0, 0.0]] * (4 - len(patches))]
        segment = [k for k, r in enumerate(members, 1) for _ in r["p"]]
        assert row["p_segment_ids"].tolist() == segment + [0] * (4 - len(segment))
        positions = [i for r in members for i in range(len(r["p"]))]
        assert row["p_positions"].tolist() == positions + [0] * (4 - len(positions))


def test_kept_fields_come_from_records_that_are_read_after_the_decision():
    """In a replay on lengths."""
    op = Pack(4, num_bins=1, keep=["m"])
    state = op.init_state(CONTEXT)
    batch = batch_of([{}] * 3)
    handles = [Deferred(tuple(c), n) for c, n in zip(batch.origin.cursors().T.tolist(), (2, 5, 1), strict=True)]
    out = [op.push(state, batch.with_columns({DEFERRED: Objects(handles)})), op.flush(state)]
    for k, handle in enumerate(handles):
        handle.row = {"tokens": np.full(handle.length, k + 1), "m": np.arange(handle.length) + 10 * k}
    rows = [row for b in out if b is not None for row in b.rows()]
    assert not any(True for b in out if b is not None for _ in deferred_of(b.columns))
    assert [row["tokens"].tolist() for row in rows] == [[1, 1, 0, 0], [2, 2, 2, 2], [2, 3, 0, 0]]
    assert [row["m"].tolist() for row in rows] == [[0, 1, 0, 0], [10, 11, 12, 13], [14, 20, 0, 0]]


def failure(op, records) -> str:
    with pytest.raises((RecordFailure, DataError)) as caught:
        accumulated(op, [batch_of(records)])
    return str(caught.value.__cause__ if isinstance(caught.value, RecordFailure) else caught.value)


def test_fields_that_cannot_be_packed_are_refused_by_name():
    keep = Pack(4, keep=["m"])
    assert failure(keep, [{"tokens": [1, 2], "m": [1]}]) == (
        "pack(4)(keep='m') needs one value per token, got 1 for 2 tokens"
    )
    assert failure(keep, [{"tokens": [1]}]).startswith("pack(4) needs the field 'm', but the records have ['tokens']")
    assert failure(keep, [{"tokens": [1], "m": ["a"]}]).startswith("pack(4) needs a list of numbers in 'm', got list")
    assert failure(keep, [{"tokens": [1], "m": 3}]).startswith("pack(4) needs a list of numbers in 'm'")
    assert "do not fit in int32" in failure(keep, [{"tokens": [1], "m": [2**40]}])
    mixed = [{"tokens": [1], "m": [1]}, {"tokens": [2], "m": [0.5]}]
    assert failure(keep, mixed).startswith("pack: the field 'm' differs between records (dtypes int32, float32;")
    group = Pack(4, separate_by="g")
    assert failure(group, [{"tokens": [1], "g": [1, 2]}]).startswith(
        "pack(4): separate_by='g' needs text, bytes or integers"
    )
    several = Pack({"tokens": 4, "p": 2}, on_overlong="error")
    assert failure(several, [{"tokens": [1], "p": [1, 2, 3]}]) == (
        "pack(4): a record has 3 values in 'p'; split it, or pass on_overlong='truncate' or 'drop'"
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_length": {"p": 4}}, "a length for 'tokens' is needed"),
        (
            {"max_length": {"tokens": 4, "p": 0}, "on_overlong": "drop"},
            r"pack\(max_length\['p'\]=0\) must be at least 1",
        ),
        ({"max_length": {"tokens": 4, "p": 2}}, "a record cannot be split; pass on_overlong="),
        (
            {"max_length": {"tokens": 4, "p": 2}, "algorithm": "wrap", "on_overlong": "drop"},
            "several lengths do not allow",
        ),
        ({"keep": "m"}, r"must be a list of names: \['m'\]"),
        ({"keep": ["positions"]}, r"the fields \['positions'\] are made by pack, or named twice"),
        ({"max_segments": 0}, r"pack\(max_segments=0\) must be at least 1"),
        ({"separate_by": ""}, r"must be the name of a field"),
        ({"separate_by": "a", "separate_datasets": True}, "give separate_datasets or separate_by, not both"),
    ],
)
def test_parameters_that_cannot_work_are_refused(options, text):
    with pytest.raises(ConfigurationError, match=text):
        Pack(**{"max_length": 8, **options})


@PROPERTY
@given(documents, sizes, st.sampled_from(ALL[:9]), st.randoms(use_true_random=False))
def test_lengths_alone_decide(docs, parts, options, rng):
    """What the same packing makes of records that are not read yet, identity included."""
    op = Pack(**{"max_length": 11, **options})
    batches = cut([{"tokens": d} for d in docs], parts)

    def unread(batch: MicroBatch) -> MicroBatch:
        lengths = [len(row["tokens"]) for row in batch.rows()]
        cursors = batch.origin.cursors().T.tolist()
        handles = [Deferred(tuple(c), n) for c, n in zip(cursors, lengths, strict=True)]
        for handle in handles:
            handle.row = {"tokens": np.array(docs[handle.cursor[1]], np.int64)}
        return batch.with_columns({DEFERRED: Objects(handles)})

    read = accumulated(op, batches)
    mixed = accumulated(op, [unread(b) if rng.random() < 0.7 else b for b in batches])
    assert three(read[0]) == three(mixed[0])
    assert read[1:] == mixed[1:]


def test_pieces_are_known_by_what_they_are_of():
    """The identity of a document that is cut by history: children numbered in order, the last one counts the others."""
    op = Pack(4, algorithm="wrap")
    state = op.init_state(CONTEXT)
    out = op.push(state, batch_of([{"tokens": [1, 2, 3]}, {"tokens": [4, 5, 6, 7, 8, 9]}]))
    rest = op.flush(state)
    assert rest is not None
    assert identities(out) == [[(1, 0, 0, 0, 0), (0, 0, 0, 1, 0)], [(0, 0, 0, 1, 1)]]
    assert identities(rest) == [[(1, 2, 0, 1, 2)]]
    assert isinstance(Piece(Deferred((0, 0), 3), 0, 3).cut(1, 2), Piece)
