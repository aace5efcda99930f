"""flat_map, random_map and map_columns; and transform classes in Grain's manner."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zephon_jax as zj
from tests.ops import PROPERTY, batch_of, cut, processed, same_rows, sample, sizes
from zephon_jax.columns import Dense, Objects, Ragged
from zephon_jax.ops import FlatMap, MapColumns, RandomMap
from zephon_jax.ops.base import RecordFailure
from zephon_jax.testing import check_operator, check_resume

records = st.lists(st.fixed_dictionaries({"n": st.integers(0, 5)}), max_size=20)


def copies(record):
    for k in range(int(record["n"])):
        yield {"n": record["n"], "k": k, "list": list(range(k))}


# -- flat_map -----------------------------------------------------------------------------------------------------------------
@PROPERTY
@given(records, sizes)
def test_flat_map_gives_each_child_an_identity(rows, parts):
    got, of, closed = processed(FlatMap(copies), cut(rows, parts))
    want = [
        {"n": np.int64(r["n"]), "k": np.int64(k), "list": np.arange(k, dtype=np.int64)}
        for r in rows
        for k in range(r["n"])
    ]
    assert same_rows(got, want)
    last = [(i, k, r["n"]) for i, r in enumerate(rows) for k in range(r["n"])]
    assert of == [[sample(i, k, last=int(k == n - 1), siblings=n - 1 if k == n - 1 else 0)] for i, k, n in last]
    assert closed == [sample(i, 0) for i, r in enumerate(rows) if not r["n"]]


def test_flat_map_keeps_the_contract_also_with_many_children():
    check_operator(FlatMap(copies), [{"n": n % 4} for n in range(20)])
    check_operator(FlatMap(lambda r: [r] * 1000, name="many"), [{"n": n} for n in range(4)])


@pytest.mark.parametrize("made", [None, {"n": 1}, "abc", b"abc"], ids=repr)
def test_flat_map_wants_several_records(made):
    with pytest.raises(RecordFailure) as caught:
        FlatMap(lambda r: made, name="f").process(batch_of([{"n": 1}]))
    assert f"flat_map(f) returned {type(made).__name__}; return or yield several records" in str(caught.value.__cause__)


def test_a_failure_names_the_record():
    def f(record):
        yield record
        if record["n"] == 2:
            raise KeyError("x")

    for op in (FlatMap(f), RandomMap(lambda r, rng: f(r).__next__() if r["n"] < 2 else 1 / 0)):
        with pytest.raises(RecordFailure) as caught:
            op.process(batch_of([{"n": 0}, {"n": 1}, {"n": 2}]))
        assert caught.value.index == 2


# -- random_map ---------------------------------------------------------------------------------------------------------------
def jitter(record, rng: np.random.Generator):
    return {**record, "x": rng.random(), "i": rng.integers(10**9)}


def draws(op, rows, parts=(), **options):
    return [(float(r["x"]), int(r["i"])) for r in processed(op, cut(rows, parts, **options))[0]]


def test_random_map_draws_by_identity_not_by_time():
    rows = [{"n": i} for i in range(10)]
    once = draws(RandomMap(jitter), rows)
    assert len(set(once)) == 10
    assert draws(RandomMap(jitter), rows, [1, 2, 3]) == once
    assert draws(RandomMap(jitter, seed=1), rows) != once
    third = RandomMap(jitter).process(batch_of(rows[3:4], start=3)).rows()
    assert (float(third[0]["x"]), int(third[0]["i"])) == once[3]
    check_operator(RandomMap(jitter), rows)


def test_draws_are_pinned():
    """By hand: Philox keyed by blake2b of seed 0, operator 0, lane 0, chunk 0, offset 0, child 0."""
    import hashlib
    import struct

    digest = hashlib.blake2b(struct.pack("<6q", 0, 0, 0, 0, 0, 0), digest_size=16, person=b"record").digest()
    want = np.random.Generator(np.random.Philox(key=np.frombuffer(digest, np.uint64))).random()
    assert draws(RandomMap(jitter), [{"n": 0}])[0][0] == want
    assert want == 0.7692531404042532


def test_two_random_maps_of_one_function_draw_apart_and_resume_exactly():
    data = zj.Dataset.from_source("numbers", list(range(60)))
    work = zj.StaticMixtureWorkSource(data, seed=3, chunk_size=4, stop_after_passes=2)
    pipeline = zj.Pipeline(work).random_map(jitter).map(lambda r: {"a": r["x"], **r}, name="keep").random_map(jitter)
    pipeline = pipeline.batch(4).options(canonical_replicas=2, executor="inline")
    batches = list(pipeline)
    a, x = (np.concatenate([b[f] for b in batches]) for f in ("a", "x"))
    assert not np.isin(a, x).any()
    assert len(set(a.tolist())) == len(a), "other draws in the second pass"
    check_resume(pipeline, batches=12)


# -- map_columns --------------------------------------------------------------------------------------------------------------
def test_map_columns_sees_one_form_whatever_the_neighbours_are():
    seen = []

    def look(columns):
        seen.append({name: type(c).__name__ for name, c in columns.items()})
        return columns

    alike = [{"list": [1, 2], "n": 1, "text": "a", "image": np.zeros((2, 2))}] * 3
    unlike = [{**alike[0], "list": [1] * k} for k in range(3)]
    for rows in (alike, unlike):
        out = MapColumns(look).process(batch_of(rows)).rows()
        assert same_rows(out, batch_of(rows).rows())
    assert seen == [{"image": "ndarray", "list": "Ragged", "n": "ndarray", "text": "list"}] * 2


def test_map_columns_takes_arrays_columns_and_lists():
    def f(columns):
        n = columns["n"]
        lists = columns["list"]
        return {
            "double": n * 2,
            "lengths": Dense(lists.lengths),
            "list": Ragged(lists.values + 1, lists.splits),
            "text": [f"{k}" for k in n],
            "any": Objects([None] * len(n)),
            "scalars": [int(k) for k in n],
        }

    rows = [{"n": k, "list": list(range(k))} for k in range(4)]
    got, _, _ = processed(MapColumns(f), cut(rows, [1, 2]))
    assert [int(r["double"]) for r in got] == [0, 2, 4, 6]
    assert [r["list"].tolist() for r in got] == [[], [1], [1, 2], [1, 2, 3]]
    assert [int(r["lengths"]) for r in got] == [0, 1, 2, 3]
    assert [r["text"] for r in got] == ["0", "1", "2", "3"]
    assert [r["any"] for r in got] == [None] * 4
    assert all(type(r["scalars"]) is np.int64 for r in got)
    check_operator(MapColumns(f), rows)


def test_map_columns_that_looks_at_neighbours_is_found():
    def centred(columns):
        return {"x": columns["n"] - columns["n"].mean()}

    with pytest.raises(zj.ContractViolation, match="micro-batches of 1"):
        check_operator(MapColumns(centred), [{"n": k} for k in range(8)])


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (None, "returned NoneType; return a dict of columns"),
        ({"x": 3}, "returned int for 'x'; return an array, a column or a list"),
        ({"x": np.float64(3)}, "returned float64 for 'x'"),
    ],
    ids=str,
)
def test_map_columns_refuses_what_is_no_column(made, text):
    with pytest.raises(TypeError, match=text):
        MapColumns(lambda columns: made, name="f").process(batch_of([{"n": 1}]))


def test_map_columns_must_keep_the_number_of_rows():
    data = zj.Dataset.from_source("numbers", list(range(9)))
    pipeline = zj.Pipeline(zj.StaticMixtureWorkSource(data)).map_columns(lambda c: {"x": c["value"][:-1]}, name="cut")
    with pytest.raises(zj.ContractViolation, match=r"map_columns\(cut\), lane 0: field 'x' has 8 rows for 9 records"):
        list(pipeline.options(micro_batch_records=9))


# -- Grain's transform classes ------------------------------------------------------------------------------------------------
class Double:
    def map(self, element):
        return {"x": element["value"] * 2}


class Noise:
    def random_map(self, element, rng):
        return {"x": element["x"] + rng.integers(3)}


class Big:
    def filter(self, element):
        return element["x"] >= 4


class Twice:
    max_fan_out = 2

    def flat_map(self, element):
        return [element, {"x": -element["x"]}]


def test_transform_classes_are_taken_by_their_methods():
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("n", list(range(6))), shuffle_shards=False)
    by_apply = zj.Pipeline(work).apply(Double()).apply(Big()).apply(Twice())
    by_name = zj.Pipeline(work).map(Double()).filter(Big()).flat_map(Twice())
    for pipeline in (by_apply, by_name):
        assert [int(r["x"]) for r in pipeline] == [4, -4, 6, -6, 8, -8, 10, -10]
    assert [op.name for op in zj.Pipeline(work).apply(Noise()).operators] == ["random_map(Noise)"]
    with pytest.raises(zj.ConfigurationError, match="apply needs an Operator, or an object with one of the methods"):
        zj.Pipeline(work).apply(object())


def test_with_grain_itself():
    grain = pytest.importorskip("grain")

    class Add(grain.transforms.RandomMap):
        def random_map(self, element, rng):
            return {"x": element["value"] + rng.integers(5)}

    class Even(grain.transforms.Filter):
        def filter(self, element):
            return element["x"] % 2 == 0

    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("n", list(range(50))))
    rows = [int(r["x"]) for r in zj.Pipeline(work).apply(Add()).apply(Even())]
    assert rows
    assert all(x % 2 == 0 for x in rows)
