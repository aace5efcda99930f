"""Datasets: slices, names, fingerprints, and sources in memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ops import PROPERTY, same, same_rows
from zephon_jax import ConfigurationError, DataError, Dataset
from zephon_jax.columns import columns_from_rows, rows_of
from zephon_jax.sources.base import Shard


class Shards:
    """A source of several shards: sample i of shard s is {"v": 100 * s + i}."""

    def __init__(self, *sizes: int):
        self.shards = [Shard(f"s{i}", n, f"content{i}") for i, n in enumerate(sizes)]

    def read(self, shard, samples):
        assert all(0 <= i < self.shards[shard].num_samples for i in samples.tolist())
        return columns_from_rows([{"v": 100 * shard + int(i)} for i in samples]), {}


def sharded(*sizes: int) -> Dataset:
    return Dataset("d", Shards(*sizes))


def everything(ds: Dataset) -> list[int]:
    """By index, and by shard as a work source would."""
    by_index = [int(ds[i]["v"]) for i in range(len(ds))]
    by_shard = [
        int(row["v"])
        for s, shard in enumerate(ds.shards)
        for row in rows_of(ds.read(s, np.arange(shard.num_samples))[0], shard.num_samples)
    ]
    assert by_index == by_shard == [int(row["v"]) for row in ds]  # pyright: ignore[reportGeneralTypeIssues]
    return by_index


bounds = st.one_of(st.none(), st.integers(-14, 14))


@PROPERTY
@given(st.lists(st.integers(0, 4), max_size=4), st.lists(st.tuples(bounds, bounds), max_size=3))
def test_slices_of_slices_hold_what_slices_of_lists_hold(shard_sizes, cuts):
    ds = sharded(*shard_sizes)
    want = [100 * s + i for s, n in enumerate(shard_sizes) for i in range(n)]
    assert everything(ds) == want
    for a, b in cuts:
        ds, want = ds[a:b], want[a:b]
        assert len(ds) == len(want) == sum(s.num_samples for s in ds.shards)
        assert everything(ds) == want
        assert ds.name == "d"


@PROPERTY
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), bounds, bounds, bounds, bounds)
def test_fingerprints_of_slices_are_equal_exactly_if_they_are_the_same_samples(shard_sizes, a, b, c, d):
    ds = sharded(*shard_sizes)
    one, other = ds[a:b], ds[c:d]
    assert (one.fingerprint == other.fingerprint) == (everything(one) == everything(other))
    assert ds[:].fingerprint == ds.fingerprint


def test_names_of_sliced_shards_say_what_is_left():
    part = sharded(3, 4, 2)[1:8]
    assert [(s.name, s.num_samples) for s in part.shards] == [("s0[1:3]", 2), ("s1", 4), ("s2[0:1]", 1)]
    assert [s.name for s in part[1:3].shards] == ["s0[2:3]", "s1[0:1]"]


@pytest.mark.parametrize("index", [-5, -1, 0, 4, np.int64(2), np.int32(-2)])
def test_an_index_counts_as_in_a_list(index):
    ds = Dataset.from_source("d", range(5))
    assert ds[index]["value"] == range(5)[index]  # pyright: ignore[reportArgumentType, reportCallIssue]


@pytest.mark.parametrize("index", [5, -6, 1000])
def test_an_index_out_of_range(index):
    with pytest.raises(IndexError, match=f"dataset 'd' has 5 samples, index {index} is out of range"):
        Dataset.from_source("d", range(5))[index]


@pytest.mark.parametrize("index", ["value", None, 1.0, (0, 1)])
def test_an_index_of_another_type(index):
    with pytest.raises(TypeError):
        Dataset.from_source("d", range(5))[index]


@pytest.mark.parametrize("step", [2, -1])
def test_a_slice_has_no_step(step):
    with pytest.raises(ConfigurationError, match=f"dataset 'd' can be sliced with step 1 only, got step {step}"):
        Dataset.from_source("d", range(5))[::step]


def test_an_empty_slice_is_an_empty_dataset():
    ds = Dataset.from_source("d", range(5))
    for empty in (ds[3:3], ds[4:1], ds[9:], Dataset.from_source("e", [])):
        assert len(empty) == 0
        with pytest.raises(IndexError, match="has 0 samples"):
            empty[0]
    assert ds[3:3].shards == ()


def test_another_name_for_the_same_samples():
    ds = sharded(3, 4)[1:5]
    other = ds.rename("e")
    assert (other.name, ds.name) == ("e", "d")
    assert other.fingerprint == ds.fingerprint
    assert everything(other) == everything(ds)
    assert repr(other) == "Dataset('e', 4 samples in 2 shards)"


def test_a_dataset_needs_a_name():
    for make in (lambda: Dataset.from_source("", [1]), lambda: sharded(1).rename("")):
        with pytest.raises(ConfigurationError, match="a dataset needs a name"):
            make()


@pytest.mark.parametrize("samples", [[5], [0, 9], [2, 5, 1]])
def test_pointers_of_another_dataset_are_refused(samples):
    ds = Dataset.from_source("d", range(9))[2:7]
    with pytest.raises(DataError) as caught:
        ds.read(0, np.array(samples))
    assert (caught.value.path, caught.value.record) == ("d[2:7]", max(samples))
    assert f"shard 'd[2:7]' has 5 samples, but sample {max(samples)} was asked for" in str(caught.value)


def test_a_negative_pointer_is_named():
    with pytest.raises(DataError, match="sample -1 was asked for"):
        Dataset.from_source("d", range(9)).read(0, np.array([3, -1]))


# -- in memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "want"),
    [
        ([{"a": 1, "b": "x"}], [{"a": np.int64(1), "b": "x"}]),
        ([3, 0.5, "a", None], [{"value": v} for v in (np.int64(3), np.float64(0.5), "a", None)]),
        ([[1, 2], []], [{"value": np.array([1, 2])}, {"value": np.zeros(0, np.int64)}]),
        (
            np.arange(6).reshape(3, 2),
            [{"value": np.array([0, 1])}, {"value": np.array([2, 3])}, {"value": np.array([4, 5])}],
        ),
        ("ab", [{"value": "a"}, {"value": "b"}]),
    ],
    ids=repr,
)
def test_samples_of_any_sequence(samples, want):
    ds = Dataset.from_source("d", samples)
    assert [s.num_samples for s in ds.shards] == [len(want)]
    assert same_rows([ds[i] for i in range(len(ds))], want)


class Lazy:
    """As Grain's sources: a length and a getter, nothing else."""

    def __init__(self, n: int):
        self.n, self.asked = n, []

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.asked.append(i)
        if i == 13:
            raise OSError("disk on fire")
        return {"v": 2 * i}


def test_a_source_is_asked_with_python_integers_of_its_own_numbering():
    lazy = Lazy(10)
    ds = Dataset.from_source("d", lazy, fingerprint="f")
    assert lazy.asked == []  # with a fingerprint given, nothing is read while building
    assert everything(ds[2:5]) == [4, 6, 8]
    assert all(type(i) is int for i in lazy.asked)
    assert set(lazy.asked) == {2, 3, 4}


def test_a_sample_that_cannot_be_read_is_named():
    ds = Dataset.from_source("d", Lazy(20), fingerprint="f")
    with pytest.raises(DataError) as caught:
        ds.read(0, np.array([1, 13]))
    assert str(caught.value) == "dataset 'd': sample 13 could not be read: OSError: disk on fire"
    assert (caught.value.path, caught.value.shard, caught.value.record) == ("d", 0, 13)
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("source", [iter([1]), {1, 2}, None, 5, (i for i in range(3))], ids=lambda v: type(v).__name__)
def test_what_is_no_source_is_refused(source):
    with pytest.raises(ConfigurationError, match=r"Dataset.from_source\('d'\) needs __len__ and __getitem__\(int\)"):
        Dataset.from_source("d", source)


def test_a_mapping_is_no_sequence_of_samples():
    with pytest.raises(DataError, match="dataset 'd': sample 0 could not be read: KeyError: 0"):
        Dataset.from_source("d", {"a": 1})  # pyright: ignore[reportArgumentType]


BASE = [{"t": "abc", "n": i, "x": np.arange(3), "l": ["a"], "b": b"z", "d": {"k": 1}, "f": 0.5} for i in range(10)]


@pytest.mark.parametrize(
    "change",
    [
        {"t": "abz"},
        {"n": 99},
        {"x": np.arange(3) + 1},
        {"x": np.arange(4)},
        {"x": np.arange(3).astype(np.int32)},
        {"x": np.arange(3).reshape(1, 3)},
        {"l": ["b"]},
        {"b": b"y"},
        {"d": {"k": 2}},
        {"f": 0.25},
        {"more": 1},
    ],
    ids=repr,
)
def test_any_change_of_a_sample_that_is_looked_at_changes_the_fingerprint(change):
    before = Dataset.from_source("d", BASE).fingerprint
    assert before == Dataset.from_source("e", [dict(row) for row in BASE]).fingerprint
    for i in (0, 5, 9):
        changed = [{**row, **change} if i == j else row for j, row in enumerate(BASE)]
        assert Dataset.from_source("d", changed).fingerprint != before


def test_fingerprints_look_at_length_and_order():
    base = Dataset.from_source("d", BASE).fingerprint
    assert Dataset.from_source("d", BASE[:9]).fingerprint != base
    assert Dataset.from_source("d", BASE[::-1]).fingerprint != base
    assert Dataset.from_source("d", [{k: row[k] for k in reversed(row)} for row in BASE]).fingerprint == base
    assert Dataset.from_source("d", [{"a": 1}]).fingerprint != Dataset.from_source("d", [{"b": 1}]).fingerprint


def test_a_given_fingerprint_stands_for_the_content():
    one, same_content, other = (
        Dataset.from_source("d", range(n), fingerprint=f) for n, f in ((5, "x"), (5, "x"), (5, "y"))
    )
    assert one.fingerprint == same_content.fingerprint != other.fingerprint
    assert one.shards[0].fingerprint == "x"
    assert len(one.fingerprint) == 32
    assert int(one.fingerprint, 16) >= 0


def test_only_sixteen_samples_are_looked_at():
    lazy = Lazy(10)
    Dataset.from_source("d", lazy)
    assert lazy.asked == list(range(10))

    class Numbers(list):
        asked: list[int]

        def __getitem__(self, i):
            self.asked.append(i)
            return super().__getitem__(i)

    many = Numbers(range(1000))
    many.asked = []
    Dataset.from_source("d", many)
    assert len(many.asked) == 16
    assert (many.asked[0], many.asked[-1]) == (0, 999)


class Plain:
    """Its repr holds an address."""


def test_a_fingerprint_is_the_same_in_another_process():
    fingerprints = {Dataset.from_source("d", [{"x": [Plain()], "y": {"k": Plain()}}]).fingerprint for _ in range(3)}
    assert len(fingerprints) == 1


def test_names_of_fields_are_text():
    with pytest.raises((ConfigurationError, DataError)):
        Dataset.from_source("d", [{1: 2}])


def test_the_first_samples_tell_the_fields():
    assert Dataset.from_source("d", [{"a": 1}, {"b": 2}]).field_names() == {"a", "b"}
    assert Dataset.from_source("d", [{"a": 1}] * 8 + [{"b": 2}]).field_names() == {"a"}
    assert Dataset.from_source("d", []).field_names() == frozenset()
    assert Dataset.from_source("d", Lazy(20), fingerprint="f")[13:].field_names() is None


def test_samples_do_not_share_memory_with_the_source():
    source = [np.arange(3), np.arange(3), np.arange(2)]
    columns, _ = Dataset.from_source("d", source).read(0, np.array([0, 2]))
    for row, original in zip(rows_of(columns, 2), (source[0], source[2]), strict=True):
        assert same(row["value"], original)
        assert not np.shares_memory(row["value"], original)
