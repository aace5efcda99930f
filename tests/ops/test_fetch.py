"""fetch: pointers in, records out in the pointers' order; what cannot be read is raised, or skipped and marked."""

from __future__ import annotations

from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ops import PROPERTY, batch_of, contributors, processed, same_rows, sample
from zephon_jax.columns import columns_from_rows
from zephon_jax.errors import DataError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops import Fetch, fetch
from zephon_jax.ops.fetch import pointer_columns
from zephon_jax.origin import Origin, no_contributors
from zephon_jax.types import WorkChunk


class Shards:
    """A dataset in memory; remembers what it was asked for. Samples in `broken` have no content."""

    def __init__(self, name: str, *shards: list[dict], broken=()):
        self.name, self.shards, self.broken = name, shards, set(broken)
        self.asked: list[tuple[int, list[int]]] = []

    def read(self, shard, samples):
        self.asked.append((shard, samples.tolist()))
        at = samples.tolist()
        bad = {i: DataError(f"{self.name} {shard} {s}") for i, s in enumerate(at) if (shard, s) in self.broken}
        rows = [{} if i in bad else self.shards[shard][s] for i, s in enumerate(at)]
        return columns_from_rows(rows), bad


def numbered(name: str, sizes: list[int], **options) -> Shards:
    return Shards(name, *[[{"at": f"{name}{s}.{i}"} for i in range(n)] for s, n in enumerate(sizes)], **options)


def pointed(pointers) -> MicroBatch:
    """A micro-batch to be fetched; offsets count along the pointers."""
    work = WorkChunk.from_pointers(pointers)
    origin = Origin.of_chunk(0, np.arange(len(work)), 1)
    columns = pointer_columns(work, np.arange(len(work)))
    return MicroBatch(0, columns, origin, no_contributors(1), np.empty((2, 0), np.int32))


pointers = st.lists(
    st.one_of(
        st.tuples(st.just(0), st.integers(0, 1), st.integers(0, 3)),
        st.tuples(st.just(7), st.integers(0, 2), st.just(0)),
    ),
    max_size=20,
)
broken = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=4)


@pytest.mark.parametrize("long_run", [1, 2, 16])
@PROPERTY
@given(at=pointers, unreadable=broken, parts=st.lists(st.integers(0, 5), max_size=4))
def test_records_keep_the_pointers_order(long_run, at, unreadable, parts):
    """Datasets and shards interleaved, with repeats, read run by run or sorted; what is broken is left out."""
    with mock.patch.object(fetch, "_LONG_RUN", long_run):
        _check_order(at, unreadable, parts)


def _check_order(at, unreadable, parts):
    a, b = numbered("a", [4, 4], broken=unreadable), numbered("b", [1, 1, 1])
    op = Fetch({0: a, 7: b}, skip_unreadable=True)
    whole = pointed(at)
    cuts = [0, *np.cumsum(parts).clip(max=len(at)).tolist(), len(at)]
    batches = [whole.slice(x, y) for x, y in pairwise(cuts)]
    rows, of, closed = processed(op, batches)
    good = [i for i, (d, s, n) in enumerate(at) if d == 7 or (s, n) not in unreadable]
    assert same_rows(rows, [{"at": f"{'b' if at[i][0] else 'a'}{at[i][1]}.{at[i][2]}"} for i in good])
    assert of == [[sample(i, 0)] for i in good]
    lost = [i for i in range(len(at)) if i not in good]
    assert closed == [sample(i, 0) for i in lost]
    skipped = np.concatenate([op.process(batch).skipped for batch in batches], axis=1)
    assert sorted(map(tuple, skipped.T.tolist())) == [(0, i) for i in lost]


def test_long_runs_are_read_where_they_stand():
    a = numbered("a", [40, 40])
    at = [(0, 1, i) for i in range(20)] + [(0, 0, i) for i in range(30)] + [(0, 1, i) for i in range(20, 40)]
    rows = Fetch({0: a}, skip_unreadable=False).process(pointed(at)).rows()
    assert [row["at"] for row in rows] == [f"a{s}.{i}" for _, s, i in at]
    assert [(shard, len(samples)) for shard, samples in a.asked] == [(1, 20), (0, 30), (1, 20)]


def test_one_read_per_dataset_and_shard():
    a, b = numbered("a", [4, 4]), numbered("b", [1, 1, 1])
    at = [(7, 2, 0), (0, 1, 3), (0, 0, 2), (0, 1, 0), (7, 0, 0), (0, 0, 1)]
    rows = Fetch({0: a, 7: b}, skip_unreadable=False).process(pointed(at)).rows()
    assert [row["at"] for row in rows] == ["b2.0", "a1.3", "a0.2", "a1.0", "b0.0", "a0.1"]
    assert a.asked == [(0, [2, 1]), (1, [3, 0])]
    assert b.asked == [(0, [0]), (2, [0])]


def test_datasets_with_other_fields_and_types():
    x = Shards("x", [{"n": 1, "tokens": [1, 2]}, {"n": 2, "tokens": [3]}])
    y = Shards("y", [{"n": 0.5, "text": "a"}])
    op = Fetch({0: x, 1: y}, skip_unreadable=False)
    rows = op.process(pointed([(1, 0, 0), (0, 0, 1), (0, 0, 0)])).rows()
    want = [{"n": 0.5, "text": "a"}, {"n": 2, "tokens": [3]}, {"n": 1, "tokens": [1, 2]}]
    assert same_rows(rows, [batch_of([row]).rows()[0] for row in want])


def test_what_cannot_be_read_is_raised_first_things_first():
    a = numbered("a", [4, 4], broken=[(1, 0), (0, 3), (1, 2)])
    op = Fetch({0: a}, skip_unreadable=False)
    with pytest.raises(DataError, match="^a 1 2$"):
        op.process(pointed([(0, 0, 1), (0, 1, 2), (0, 0, 3), (0, 1, 0)]))


def test_nothing_is_left_of_a_micro_batch_of_broken_samples():
    a = numbered("a", [3], broken=[(0, i) for i in range(3)])
    out = Fetch({0: a}, skip_unreadable=True).process(pointed([(0, 0, 0), (0, 0, 2)]))
    assert out.rows() == []
    assert contributors(out.closed) == [sample(0, 0), sample(1, 0)]
    assert out.skipped.tolist() == [[0, 0], [0, 1]]


def test_what_was_skipped_before_stays_marked():
    a = numbered("a", [2], broken=[(0, 1)])
    before = pointed([(0, 0, 0), (0, 0, 1)])
    marked = MicroBatch(0, before.columns, before.origin, before.closed, np.array([[5], [6]], np.int32))
    out = Fetch({0: a}, skip_unreadable=True).process(marked)
    assert out.skipped.tolist() == [[5, 0], [6, 1]]


class Storage:
    name = "gone"

    def read(self, shard, samples):
        raise DataError("the disk is gone")


@pytest.mark.parametrize("skip", [True, False])
def test_errors_of_storage_are_never_skipped(skip):
    with pytest.raises(DataError, match="the disk is gone"):
        Fetch({0: Storage()}, skip_unreadable=skip).process(pointed([(0, 0, 0)]))  # pyright: ignore[reportArgumentType]


def test_nothing_in_nothing_out_and_no_field_of_the_pointers():
    op = Fetch({0: numbered("a", [1])}, skip_unreadable=False)
    empty = op.process(pointed([]))
    assert (len(empty), dict(empty.columns)) == (0, {})
    assert op.identity() is None
