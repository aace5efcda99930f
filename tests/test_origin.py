"""Identity: the verbs against plain lists, and the law that nothing is lost or made up on the way."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops import batch_of, contributors, identities, sample
from zephon_jax.columns import Dense
from zephon_jax.microbatch import MicroBatch
from zephon_jax.origin import START, TOKENS, Origin, Weight, no_contributors, weight_of

DEPTH = 2
Identity = list[tuple[int, ...]]


@dataclass
class Books:
    """The verbs once more, with a list of contributors (last, siblings, chunk, offset, child, child) per record."""

    records: list[Identity] = field(default_factory=list)
    closed: Identity = field(default_factory=list)

    def keep(self, mask: list[bool]) -> None:
        self.closed += [c for record, stays in zip(self.records, mask, strict=True) if not stays for c in record]
        self.records = [record for record, stays in zip(self.records, mask, strict=True) if stays]

    def repeat(self, counts: list[int], level: int) -> None:
        out: list[Identity] = []
        for record, n in zip(self.records, counts, strict=True):
            if n == 0:
                self.closed += record
            for child in range(n):
                out.append([self._child(c, child, n, level) for c in record])
        self.records = out

    @staticmethod
    def _child(c: tuple[int, ...], child: int, of: int, level: int) -> tuple[int, ...]:
        last, siblings, *cursor = c
        cursor[2 + level] = child
        return (last, siblings + of - 1, *cursor) if child == of - 1 else (0, 0, *cursor)

    def group(self, splits: list[int]) -> None:
        pairs = itertools.pairwise(splits)
        self.records = [[c for record in self.records[a:b] for c in record] for a, b in pairs]

    def take(self, index: list[int]) -> None:
        self.records = [self.records[i] for i in index]


def law(everything: Identity, samples: set[tuple[int, int]]) -> None:
    """Each sample ends exactly once, and its contributors number one more than the siblings they account for."""
    last, net, cursors = Counter(), Counter(), Counter()
    for is_last, siblings, chunk, offset, *children in everything:
        last[chunk, offset] += is_last
        net[chunk, offset] += 1 - siblings
        cursors[chunk, offset, *children] += 1
    assert dict(last) == dict.fromkeys(samples, 1)
    assert dict(net) == dict.fromkeys(samples, 1)
    assert max(cursors.values(), default=1) == 1, cursors


def fresh(sizes: list[int]) -> tuple[MicroBatch, Books]:
    """Chunk 0, 1, … with so many samples each."""
    origin = Origin.concat([Origin.of_chunk(chunk, np.arange(n), DEPTH) for chunk, n in enumerate(sizes)])
    at = [(chunk, offset) for chunk, n in enumerate(sizes) for offset in range(n)]
    columns = {"x": Dense(np.array([10 * chunk + offset for chunk, offset in at], np.int64))}
    batch = MicroBatch(0, columns, origin, no_contributors(DEPTH), np.empty((2, 0), np.int32))
    return batch, Books([[(1, 0, chunk, offset, 0, 0)] for chunk, offset in at])


def splits_of(data: st.DataObject, n: int) -> list[int]:
    """Groups of at least one record each."""
    return [0, *sorted(data.draw(st.sets(st.integers(1, n - 1)))), n] if n > 1 else [0, n][: n + 1]


def do(verb: str, batch: MicroBatch, books: Books, level: int, data: st.DataObject) -> MicroBatch:
    n = len(batch)
    match verb:
        case "keep":
            mask = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
            books.keep(mask)
            return batch.keep(np.array(mask, np.bool_))
        case "repeat":
            counts = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
            books.repeat(counts, level)
            return MicroBatch(batch.lane, batch.columns, batch.origin, batch.closed, batch.skipped, level).repeat(
                np.array(counts, np.int64)
            )
        case "take":
            index = data.draw(st.permutations(range(n)))
            books.take(index)
            return batch.take(np.array(index, np.int64))
        case "group":
            splits = splits_of(data, n)
            books.group(splits)
            column: Any = batch.columns["x"]
            firsts = np.array([column.values[a] for a in splits[:-1]], np.int64)
            return batch.group(np.array(splits, np.int64), {"x": Dense(firsts)})
        case _:  # apart and together again, what is closed travels ahead
            at = data.draw(st.integers(0, n))
            return MicroBatch.concat([batch.without_records(), batch.slice(0, at), batch.slice(at, n)])


@settings(deadline=None, database=None, max_examples=120)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=2),
    st.lists(st.sampled_from(["keep", "repeat", "take", "group", "concat"]), max_size=7),
    st.data(),
)
def test_random_sequences_of_verbs_keep_the_books(chunk_sizes, verbs, data):
    batch, books = fresh(chunk_sizes)
    samples = {(chunk, offset) for chunk, n in enumerate(chunk_sizes) for offset in range(n)}
    weight, level = batch.weight(), 0
    assert weight == Weight(len(samples), len(samples))
    for verb in verbs:
        if verb == "repeat" and level == DEPTH:
            continue  # a pipeline has no more expanding operators than levels
        batch = do(verb, batch, books, level, data)
        level += verb == "repeat"
        assert identities(batch) == books.records, verb
        assert sorted(contributors(batch.closed)) == sorted(books.closed), verb
        assert batch.weight() == weight, verb
        assert batch.ragged_text() is None
        law([c for record in books.records for c in record] + books.closed, samples)
        firsts = [record[0] for record in books.records]
        assert [batch.origin.cursor(i) for i in range(len(batch))] == [first[2:] for first in firsts]
        assert [row["x"] for row in batch.rows()] == [10 * first[2] + first[3] for first in firsts]


@settings(deadline=None, database=None, max_examples=60)
@given(st.integers(0, 6), st.data())
def test_a_slice_anywhere_is_those_records(n, data):
    batch, books = fresh([n])
    for verb in data.draw(st.sampled_from([[], ["group"], ["repeat", "group"], ["group", "repeat"]])):
        batch = do(verb, batch, books, 0, data)
    a, b = sorted(data.draw(st.tuples(*[st.integers(0, len(batch))] * 2)))
    assert identities(batch.slice(a, b)) == books.records[a:b]
    index = data.draw(st.lists(st.integers(0, b - a - 1), max_size=4)) if b > a else []
    taken = batch.slice(a, b).origin.take(np.array(index, np.int64))
    assert identities(batch.slice(0, 0).without_records()) == []
    assert [taken.cursor(i) for i in range(len(taken))] == [books.records[a + i][0][2:] for i in index]


def origin(*records: Identity) -> Origin:
    """Grouped, if a record has not exactly one contributor."""
    table = np.array([c for record in records for c in record], np.int32).T.reshape(6, -1)
    table = np.insert(table, 2, [[0], [-1]], axis=0)  # the span of tokens
    splits = np.cumsum([0, *map(len, records)])
    return Origin(table, None if all(len(r) == 1 for r in records) else splits)


A, B, C = sample(0, 0, 0), sample(1, 0, 0), sample(2, 0, 0)


def test_keep_closes_all_contributors_of_what_goes():
    kept, closed = origin([A, B], [C]).keep(np.array([False, True]))
    assert contributors(kept.table) == [C]
    assert contributors(closed) == [A, B]


def test_keep_of_everything_changes_nothing():
    before = origin([A], [B])
    kept, closed = before.keep(np.array([True, True]))
    assert kept is before
    assert closed.shape == (8, 0)


def test_repeat_numbers_children_and_the_last_accounts_for_its_siblings():
    out, closed = origin([A], [B], [C]).repeat(np.array([3, 0, 1]), level=0)
    assert contributors(out.table) == [
        sample(0, 0, 0, last=0),
        sample(0, 1, 0, last=0),
        sample(0, 2, 0, siblings=2),
        sample(2, 0, 0),
    ]
    assert contributors(closed) == [B]
    again, _ = out.repeat(np.array([2, 1, 2, 1]), level=1)
    assert contributors(again.table) == [
        sample(0, 0, 0, last=0),
        sample(0, 0, 1, last=0, siblings=1),  # the last child of a middle child closes no sample
        sample(0, 1, 0, last=0),
        sample(0, 2, 0, last=0),
        sample(0, 2, 1, siblings=3),
        sample(2, 0, 0),
    ]


def test_repeat_of_a_group_repeats_each_contributor():
    out, closed = origin([A, B], [C]).repeat(np.array([2, 0]), level=1)
    assert contributors(out.table) == [
        sample(0, 0, 0, last=0),
        sample(1, 0, 0, last=0),
        sample(0, 0, 1, siblings=1),
        sample(1, 0, 1, siblings=1),
    ]
    assert out.splits is not None
    assert out.splits.tolist() == [0, 2, 4]
    assert contributors(closed) == [C]


def test_groups_of_groups_and_what_follows_them():
    grouped = origin([A], [B], [C]).group(np.array([0, 2, 3]))
    assert grouped.splits is not None
    assert grouped.splits.tolist() == [0, 2, 3]
    assert grouped.cursors().T.tolist() == [[0, 0, 0, 0], [0, 2, 0, 0]]
    assert grouped.firsts.tolist() == [0, 2]
    again = grouped.group(np.array([0, 2]))
    assert again.splits is not None
    assert again.splits.tolist() == [0, 3]
    mixed = Origin.concat([origin([A]), origin([B, C])])
    assert mixed.splits is not None
    assert mixed.splits.tolist() == [0, 1, 3]
    assert Origin.concat([origin([A]), origin([B])]).splits is None


def test_weights_of_tables():
    assert weight_of(no_contributors(2)) == Weight(0, 0)
    assert weight_of(origin([A], [B]).table) == Weight(2, 2)
    three, _ = origin([A]).repeat(np.array([3]), level=0)
    assert weight_of(three.table) == Weight(1, 1)
    assert weight_of(three.slice(0, 2).table) == Weight(0, 2)
    assert weight_of(three.slice(2, 3).table) == Weight(1, -1)


def spans(given_origin: Origin) -> list[tuple[int, int]]:
    return list(zip(given_origin.table[START].tolist(), given_origin.table[TOKENS].tolist(), strict=True))


def test_spans_of_tokens_travel_with_their_contributors():
    fresh_ones = origin([A], [B], [C])
    assert spans(Origin.of_chunk(0, np.arange(2), 1)) == [(0, -1)] * 2
    known = fresh_ones.spanned(np.array([7, 2, 0]))
    assert spans(known) == [(0, 7), (0, 2), (0, 0)]
    assert spans(fresh_ones) == [(0, -1)] * 3  # the one it was made of is as it was
    children, closed = known.repeat(np.array([3, 1, 0]), level=0)
    assert spans(children) == [(0, 7)] * 3 + [(0, 2)]
    assert closed[TOKENS].tolist() == [0]
    cut_up = children.spanned(np.array([3, 3, 1, 2]), np.array([0, 3, 6, 0]))
    assert spans(cut_up) == [(0, 3), (3, 3), (6, 1), (0, 2)]
    assert spans(cut_up.spanned(np.array([3, 2, 1, 1]), np.array([0, 1, 0, 1]))) == [(0, 3), (4, 2), (6, 1), (1, 1)]
    assert spans(cut_up.take(np.array([2, 0]))) == [(6, 1), (0, 3)]
    grouped = cut_up.group(np.array([0, 2, 4]))
    assert spans(Origin.concat([grouped, known])) == [(0, 3), (3, 3), (6, 1), (0, 2), (0, 7), (0, 2), (0, 0)]
    assert contributors(cut_up.table) == contributors(children.table)


def test_what_is_made_of_several_keeps_their_spans():
    grouped = batch_of([{"x": 1}, {"x": 2}]).group(np.array([0, 2]), {"x": Dense(np.array([1]))})
    assert grouped.spanned(np.array([5])) is grouped


@pytest.mark.parametrize("lost", [0, 1, 2], ids=["first", "middle", "last"])
def test_any_lost_child_changes_the_weight(lost):
    three, _ = origin([A]).repeat(np.array([3]), level=0)
    rest = three.take(np.delete(np.arange(3), lost))
    assert weight_of(rest.table) != Weight(1, 1)


def test_a_batch_says_what_depth_it_has_and_which_column_is_ragged():
    batch = batch_of([{"x": 1}, {"x": 2}], depth=3)
    assert batch.depth == 3
    assert batch.ragged_text() is None
    wrong = batch.with_columns({"x": Dense(np.zeros(3))})
    assert wrong.ragged_text() == "field 'x' has 3 rows for 2 records"
    with pytest.raises(ValueError, match="one row for each of 2 records, got 1"):
        batch.with_rows([{}])


def test_apart_and_together_nothing_is_closed_twice():
    batch = batch_of([{"x": 1}, {"x": 2}, {"x": 3}]).keep(np.array([True, False, True]))
    assert len(batch.slice(0, 1).closed.T) == 0
    again = MicroBatch.concat([batch.slice(0, 1), batch.without_records(), batch.slice(1, 2)])
    assert again.weight() == Weight(3, 3)
    assert [row["x"] for row in again.rows()] == [1, 3]
    assert contributors(again.closed) == [sample(1, 0)]
