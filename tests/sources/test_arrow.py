"""Arrow: what each type becomes, whatever its neighbours, and folders of `save_to_disk`."""

from __future__ import annotations

import datetime
import decimal
import json
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ops import PROPERTY, same, same_rows
from zephon_jax import ConfigurationError, DataError, Dataset
from zephon_jax.columns import Dense, Objects, Ragged, rows_of
from zephon_jax.sources import arrowcolumns
from zephon_jax.sources.arrow import ArrowSource
from zephon_jax.sources.arrowcolumns import Batches
from zephon_jax.sources.parquet import ParquetSource

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def array(*values, dtype=np.int64):
    return np.array(values, dtype)


I8, I32, U64, F16, F32, F64 = np.int8, np.int32, np.uint64, np.float16, np.float32, np.float64
NOW = datetime.datetime(2024, 2, 29, 12, 30, 0, 123456)

TYPES = {
    # name: Arrow type, values as Python, values as an operator sees them
    "int64": (pa.int64(), [3, None, -(2**63)], [np.int64(3), None, np.int64(-(2**63))]),
    "int8": (pa.int8(), [1, 2, -128], [I8(1), I8(2), I8(-128)]),
    "uint64": (pa.uint64(), [2**64 - 1, None], [U64(2**64 - 1), None]),
    "float16": (pa.float16(), [F16(1.5), None], [F16(1.5), None]),
    "float32": (pa.float32(), [0.1, float("nan"), None], [F32(0.1), F32("nan"), None]),
    "float64": (pa.float64(), [0.1, None, float("nan")], [F64(0.1), None, F64("nan")]),
    "bool": (pa.bool_(), [True, None, False, *[True] * 9], [np.bool_(1), None, np.bool_(0), *[np.bool_(1)] * 9]),
    "null": (pa.null(), [None, None], [None, None]),
    "string": (pa.string(), ["a", None, "", "日本", "b\0c"], ["a", None, "", "日本", "b\0c"]),
    "large string": (pa.large_string(), ["a", None, "é"], ["a", None, "é"]),
    "string view": (pa.string_view(), ["a", None, "long enough for a buffer of its own"], ...),
    "binary": (pa.binary(), [b"\xff", None, b""], [b"\xff", None, b""]),
    "large binary": (pa.large_binary(), [b"\xff", None], [b"\xff", None]),
    "fixed binary": (pa.binary(2), [b"ab", None], [b"ab", None]),
    "decimal": (pa.decimal128(5, 2), [decimal.Decimal("1.50"), None], ...),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["x", "y", None, "x"], ...),
    "dictionary of numbers": (pa.dictionary(pa.int8(), pa.int32()), [7, 8, 7], [I32(7), I32(8), I32(7)]),
    "list of int64": (
        pa.list_(pa.int64()),
        [[1, 2], None, [], [3, None], [None], [4]],
        [array(1, 2), None, array(), [3, None], [None], array(4)],
    ),
    "list of int32": (pa.list_(pa.int32()), [[1], [], [2, 3]], [array(1, dtype=I32), array(dtype=I32), array(2, 3, dtype=I32)]),
    "large list": (pa.large_list(pa.uint16()), [[1, 65535], None], [array(1, 65535, dtype=np.uint16), None]),
    "list of float64": (pa.list_(pa.float64()), [[0.5, None], [], [0.5]], [[0.5, None], array(dtype=F64), array(0.5, dtype=F64)]),
    "list of bool": (
        pa.list_(pa.bool_()),
        [[True, False] * 5, None, [True, None], [False]],
        [np.array([True, False] * 5), None, [True, None], np.array([False])],
    ),
    "list of string": (pa.list_(pa.string()), [["a", "é"], None, [None, "b"], []], [["a", "é"], None, [None, "b"], array()]),
    "list of binary": (pa.list_(pa.binary()), [[b"a", b"\xff"]], [[b"a", b"\xff"]]),
    "list of lists": (
        pa.list_(pa.list_(pa.int32())),
        [[[1, 2], [3, 4]], [[1], [2, 3]], [[1], None], None, []],
        [array([1, 2], [3, 4]), [[1], [2, 3]], [[1], None], None, array()],
    ),
    "fixed list": (
        pa.list_(pa.int32(), 2),
        [[1, 2], None, [3, None], [5, 6]],
        [array(1, 2, dtype=I32), None, [3, None], array(5, 6, dtype=I32)],
    ),
    "fixed list of fixed lists": (
        pa.list_(pa.list_(pa.float32(), 2), 2),
        [[[1, 2], [3, 4]], [[5, 6], None], None],
        [array([1, 2], [3, 4], dtype=F32), [[5.0, 6.0], None], None],
    ),
    "fixed list of bool": (pa.list_(pa.bool_(), 3), [[True, False, True]] * 4, [np.array([True, False, True])] * 4),
    "fixed list of string": (pa.list_(pa.string(), 2), [["a", "b"], None, ["c", None]], ...),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.list_(pa.int64()))]),
        [{"a": 1, "b": [1, 2]}, None, {"a": None, "b": None}, {"a": 2, "b": [None]}],
        ...,
    ),
    "list of structs": (pa.list_(pa.struct([("a", pa.string())])), [[{"a": "x"}, None], None], ...),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", None)], None, []], [{"a": 1, "b": None}, None, {}]),
    "list of maps": (pa.list_(pa.map_(pa.string(), pa.int64())), [[[("a", 1)], []], None], [[{"a": 1}, {}], None]),
    "date": (pa.date32(), [datetime.date(1969, 12, 31), None], [np.datetime64(-1, "D"), None]),
    "time": (pa.time64("us"), [datetime.time(1, 0), None], [np.timedelta64(3_600_000_000, "us"), None]),
    "timestamp": (pa.timestamp("us"), [NOW, None], [np.datetime64(NOW, "us"), None]),
    "timestamp with a zone": (pa.timestamp("ns", "Europe/Paris"), [5, None], [np.datetime64(5, "ns"), None]),
    "duration": (pa.duration("ns"), [7, None], [np.timedelta64(7, "ns"), None]),
    "list of timestamps": (pa.list_(pa.timestamp("ms")), [[1, None]], [[np.datetime64(1, "ms"), None]]),
}  # fmt: skip
CASES = {name: (type_, values, values if seen is ... else seen) for name, (type_, values, seen) in TYPES.items()}


def seen_in(batches: Batches, rows) -> list:
    columns, bad = batches.read(np.array(rows, np.int64))
    assert bad == {}
    return [row["v"] for row in rows_of(columns, len(rows))]


@pytest.mark.parametrize("name", CASES)
def test_what_a_type_becomes_alone_and_beside_others(name):
    """In one batch, row by row, backwards, twice, in a slice of a larger batch, and in several batches."""
    type_, values, want = CASES[name]
    whole = pa.array(values, type_)
    n = len(values)
    forms = {
        "whole": [whole],
        "sliced": [pa.concat_arrays([whole, whole, whole])[n : 2 * n]],
        "cut": [whole[i : i + 1] for i in range(n)],
        "empty batches": [whole[:0], whole, whole[:0]],
    }
    orders = {"all": range(n), "backwards": range(n)[::-1], "twice": [0, *range(n), 0], **{i: [i] for i in range(n)}}
    for form, arrays in forms.items():
        batches = Batches([pa.record_batch([part], ["v"]) for part in arrays])
        assert batches.num_rows == n
        for order, rows in orders.items():
            got = seen_in(batches, list(rows))
            assert all(same(g, want[i]) for g, i in zip(got, rows, strict=True)), (form, order, got)


@pytest.mark.parametrize("name", CASES)
def test_parquet_gives_the_same(name, tmp_path):
    type_, values, want = CASES[name]
    parquet.write_table(pa.table({"v": pa.array(values, type_)}), tmp_path / "a.parquet", row_group_size=2)
    ds = Dataset("d", ParquetSource([str(tmp_path / "a.parquet")], None))
    assert same_rows([ds[i] for i in range(len(ds))], [{"v": value} for value in want])


def test_parquet_of_other_types():
    """Types that Parquet does not keep as they are: Arrow only."""
    assert same(
        seen_in(Batches([pa.record_batch([pa.array([86_400_000], pa.date64())], ["v"])]), [0])[0],
        np.datetime64(86_400_000, "ms"),
    )
    assert same(
        seen_in(Batches([pa.record_batch([pa.array([5], pa.time32("s"))], ["v"])]), [0])[0], np.timedelta64(5, "s")
    )


def test_numbers_lists_and_fixed_lists_stay_columns():
    """No Python object per row where there is no null."""
    n = 5
    batch = pa.record_batch(
        {
            "number": pa.array(range(n), pa.int32()),
            "list": pa.array([list(range(i)) for i in range(n)], pa.list_(pa.int32())),
            "fixed": pa.array([[i, i] for i in range(n)], pa.list_(pa.float32(), 2)),
            "text": [str(i) for i in range(n)],
        }
    )
    columns, _ = Batches([batch, batch]).read(np.array([7, 2, 3]))
    assert {name: type(column) for name, column in columns.items()} == {
        "number": Dense,
        "list": Ragged,
        "fixed": Dense,
        "text": Objects,
    }


def test_what_lies_behind_a_null_is_not_seen():
    """Arrow allows values there, and nulls among them."""
    mask = pa.array([False, True, False])
    offsets = pa.array([0, 1, 3, 4], pa.int32())
    text = pa.py_buffer(np.array([0, 1, 3, 4], np.int32)), pa.py_buffer(b"a\xff\xffd")
    columns = {
        "list": pa.ListArray.from_arrays(offsets, pa.array([1, 2, 3, 4]), mask=mask),
        "holed": pa.ListArray.from_arrays(offsets, pa.array([1, None, 3, 4]), mask=mask),
        "bool": pa.ListArray.from_arrays(offsets, pa.array([True, True, True, False]), mask=mask),
        "fixed": pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 3]), 1, mask=mask),
        "lists": pa.ListArray.from_arrays(offsets, pa.array([[1], [2], [3], [4]]), mask=mask),
        "text": pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\x05"), *text]),
    }
    batches = Batches([pa.record_batch(columns)])
    for rows in ([0, 1, 2], [1, 2], [2, 1, 0]):
        seen, bad = batches.read(np.array(rows))
        assert bad == {}
        for i, row in enumerate(rows_of(seen, len(rows))):
            if rows[i] == 1:
                assert set(row.values()) == {None}
            else:
                assert same(row["list"], array([1, 0, 4][rows[i]]))
                assert same(row["holed"], array([1, 0, 4][rows[i]]))
                assert same(row["bool"], np.array([rows[i] == 0]))
                assert row["text"] == "a?d"[rows[i]]


@pytest.mark.parametrize("name", CASES)
def test_python_values_of_slices(name):
    """Nested columns come with offsets of their own."""
    type_, values, _ = CASES[name]
    whole = pa.array([*values, *values], type_)
    every = arrowcolumns._python(pa, whole)
    for a in range(len(whole)):
        assert same(arrowcolumns._python(pa, whole[a : a + 2]), every[a : a + 2])


def test_an_extension_type_is_its_storage():
    tensor = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), [2]), pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))
    )
    assert same(seen_in(Batches([pa.record_batch([tensor], ["v"])]), [1])[0], array(3, 4, dtype=I32))


def json_of(type_):
    """Python values of an Arrow type, as JSON would have them."""
    if pa.types.is_list(type_):
        typed = pa.types.is_floating(type_.value_type) or pa.types.is_boolean(type_.value_type)
        inner = st.lists(json_of(type_.value_type), max_size=3, min_size=int(typed))  # empty ones: see below
    elif pa.types.is_struct(type_):
        inner = st.fixed_dictionaries({field.name: json_of(field.type) for field in type_})
    elif pa.types.is_integer(type_):
        inner = st.integers(-(2**63), 2**63 - 1)
    elif pa.types.is_floating(type_):
        inner = st.floats(allow_nan=False, allow_infinity=False)
    elif pa.types.is_boolean(type_):
        inner = st.booleans()
    else:
        inner = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
    return st.one_of(inner, inner, st.none())


json_types = st.recursive(
    st.sampled_from([pa.int64(), pa.float64(), pa.bool_(), pa.string()]),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        st.dictionaries(st.sampled_from("ab"), inner, min_size=1).map(lambda d: pa.struct(list(d.items()))),
    ),
    max_leaves=3,
)


@PROPERTY
@given(st.data())
def test_documents_look_as_they_do_in_jsonl(tmp_path_factory, data):
    """Any document, in any order, in row groups of any size: what JSONL gives for it."""
    folder = tmp_path_factory.mktemp("same")
    type_ = data.draw(json_types)
    values = data.draw(st.lists(json_of(type_), min_size=1, max_size=6))
    table = pa.table({"v": pa.array(values, type_)})
    parquet.write_table(table, folder / "a.parquet", row_group_size=data.draw(st.integers(1, 4)))
    with pa.OSFile(str(folder / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=data.draw(st.integers(1, 4)))
    (folder / "a.jsonl").write_text("".join(json.dumps({"v": value}) + "\n" for value in values))
    rows = np.array(data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=6)))
    want, _ = Dataset.from_path("d", folder / "a.jsonl").read(0, rows)
    for source in (ParquetSource([str(folder / "a.parquet")], None), ArrowSource([str(folder / "a.arrow")], None)):
        got, bad = source.read(0, rows)
        assert bad == {}
        assert same_rows(rows_of(got, len(rows)), rows_of(want, len(rows)))


def test_an_empty_list_has_the_type_of_its_column():
    """The one difference to JSONL, where an empty list has no type of its own and is int64."""
    assert same(
        seen_in(Batches([pa.record_batch([pa.array([[]], pa.list_(pa.float64()))], ["v"])]), [0])[0], array(dtype=F64)
    )


def test_nothing_that_is_read_is_shared_with_the_file(tmp_path):
    """An operator that writes into its record changes no other."""
    path = stream(tmp_path / "a.arrow", [pa.table({"v": [1, 2], "l": [[1, 2], [3]], "h": [[1, None], [2]]})])
    for rows in ([0, 1], [0], [1, 0]):
        columns, _ = ArrowSource([path], None).read(0, np.array(rows))
        for row in rows_of(columns, len(rows)):
            row["l"][...] = 0
            if isinstance(row["h"], np.ndarray):
                row["h"][...] = 0
        columns["v"].values[...] = 0  # pyright: ignore[reportAttributeAccessIssue]
    ds = Dataset("d", ArrowSource([path], None))
    assert same_rows(
        [ds[0], ds[1]],
        [{"v": np.int64(1), "l": array(1, 2), "h": [1, None]}, {"v": np.int64(2), "l": array(3), "h": array(2)}],
    )


def test_text_that_is_no_utf8_is_an_error_of_its_row():
    broken = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(np.array([0, 1, 3, 4], np.int32)), pa.py_buffer(b"a\xff\xfeb")]
    )
    columns, bad = Batches([pa.record_batch([broken, pa.array([1, 2, 3])], ["t", "n"])]).read(np.array([2, 1, 0]))
    assert list(bad) == [1]
    assert "field 't': 'utf-8' codec can't decode byte 0xff" in str(bad[1])
    rows = rows_of(columns, 3)
    assert [(rows[i]["t"], int(rows[i]["n"])) for i in (0, 2)] == [("b", 3), ("a", 1)]


# -- files -----------------------------------------------------------------------------------------------------------------


def stream(path: pathlib.Path, tables) -> str:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    return str(path)


def saved(folder: pathlib.Path, sizes) -> str:
    """What `save_to_disk` writes: a stream a file, and their names."""
    folder.mkdir(parents=True)
    names, at = [], 0
    for i, n in enumerate(sizes):
        names.append(f"data-{i:05d}-of-{len(sizes):05d}.arrow")
        stream(
            folder / names[-1],
            [pa.table({"n": pa.array(range(at, at + n), pa.int64()), "t": [str(j) for j in range(at, at + n)]})],
        )
        at += n
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": name} for name in names], "_fingerprint": "f"})
    )
    return str(folder)


def test_each_file_of_a_folder_is_a_shard(tmp_path):
    path = saved(tmp_path / "ds", [3, 0, 2])
    ds = Dataset("d", ArrowSource([path], None))
    assert [(pathlib.Path(s.name).name, s.num_samples) for s in ds.shards] == [
        ("data-00000-of-00003.arrow", 3),
        ("data-00001-of-00003.arrow", 0),
        ("data-00002-of-00003.arrow", 2),
    ]
    assert [(int(ds[i]["n"]), ds[i]["t"]) for i in range(5)] == [(i, str(i)) for i in range(5)]
    assert ds.block_hint is None
    assert dict(Dataset("d", ArrowSource([path], ["t"]))[4]) == {"t": "4"}


def test_a_folder_as_datasets_writes_it(tmp_path):
    """Also after a shuffle and a selection, which are kept as an order of indices until they are saved."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    original = datasets.Dataset.from_dict({"n": list(range(100)), "tokens": [list(range(i % 7)) for i in range(100)]})
    chosen = original.shuffle(seed=3).select(range(40))
    chosen.save_to_disk(tmp_path / "ds", num_shards=3)
    ds = Dataset.from_path("d", tmp_path / "ds")
    assert len(ds.shards) == 3
    assert [int(ds[i]["n"]) for i in range(40)] == chosen["n"]
    assert [ds[i]["tokens"].tolist() for i in range(40)] == chosen["tokens"]
    original.select([]).save_to_disk(tmp_path / "none")
    assert len(Dataset.from_path("d", tmp_path / "none")) == 0
    datasets.DatasetDict({"train": original, "test": chosen}).save_to_disk(tmp_path / "both")
    with pytest.raises(
        ConfigurationError, match=r"splits \['train', 'test'\] of a DatasetDict; give the path of one .*both/train'"
    ):
        ArrowSource([str(tmp_path / "both")], None)


def test_folders_that_cannot_be_meant(tmp_path):
    path = pathlib.Path(saved(tmp_path / "ds", [1]))
    state = json.loads((path / "state.json").read_text())
    for change, error, text in (
        ({"_indices_files": [{"filename": "indices.arrow"}]}, ConfigurationError, "flatten_indices"),
        ({"_data_files": None}, DataError, "lists no _data_files"),
        ({"_data_files": [{"filename": "gone.arrow"}]}, DataError, "gone.arrow: cannot be read"),
    ):
        (path / "state.json").write_text(json.dumps(state | change))
        with pytest.raises(error, match=text):
            ArrowSource([str(path)], None)
    (path / "state.json").write_text("{")
    with pytest.raises(DataError, match="state.json: not valid JSON"):
        ArrowSource([str(path)], None)
    (path / "state.json").unlink()
    with pytest.raises(ConfigurationError, match="has no state.json"):
        ArrowSource([str(path)], None)
    with pytest.raises(ConfigurationError, match=r"no field \['x'\]; the first sample has \['n', 't'\]"):
        ArrowSource([saved(tmp_path / "other", [0, 2])], ["x"])


def test_a_file_in_either_form(tmp_path):
    table = pa.table({"v": [1, 2, 3]})
    for write, options in ((pa.ipc.new_stream, None), (pa.ipc.new_file, None)):
        path = tmp_path / f"{write.__name__}.arrow"
        with pa.OSFile(str(path), "wb") as sink, write(sink, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=2)
        assert [int(Dataset("d", ArrowSource([str(path)], None))[i]["v"]) for i in range(3)] == [1, 2, 3]


def test_a_compressed_file_cannot_be_mapped(tmp_path):
    table = pa.table({"v": list(range(10_000))})
    path = tmp_path / "a.feather"
    with pa.OSFile(str(path), "wb") as sink:
        with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
    with pytest.raises(ConfigurationError, match="a.feather is compressed"):
        ArrowSource([str(path)], None)


def test_a_file_that_is_cut_off(tmp_path):
    whole = pathlib.Path(stream(tmp_path / "a.arrow", [pa.table({"v": list(range(1000))})])).read_bytes()
    for keep in (0, 7, 100, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        (tmp_path / "b.arrow").write_bytes(whole[:keep])
        with pytest.raises(DataError, match="b.arrow: cannot be read as an Arrow file") as caught:
            ArrowSource([str(tmp_path / "b.arrow")], None)
        assert caught.value.path == str(tmp_path / "b.arrow")


def test_a_file_that_changed(tmp_path):
    path = stream(tmp_path / "a.arrow", [pa.table({"v": [1, 2]})])
    source = ArrowSource([path], None)
    before = source.shards[0].fingerprint
    pathlib.Path(path).unlink()
    with pytest.raises(DataError, match="cannot be read"):
        source.read(0, np.array([0]))
    stream(tmp_path / "a.arrow", [pa.table({"v": [1, 3]})])
    with pytest.raises(DataError, match="has changed since it was indexed"):
        source.read(0, np.array([0]))
    assert ArrowSource([path], None).shards[0].fingerprint != before


def test_any_byte_of_a_small_file_is_in_the_fingerprint(tmp_path):
    path = pathlib.Path(stream(tmp_path / "a.arrow", [pa.table({"v": [1, 2, 3]})]))
    content = path.read_bytes()
    before = ArrowSource([str(path)], None).shards[0].fingerprint
    at = content.index(np.array([1, 2, 3]).tobytes())
    path.write_bytes(content[:at] + np.array([1, 9, 3]).tobytes() + content[at + 24 :])
    changed = ArrowSource([str(path)], None)
    assert changed.shards[0].fingerprint != before
    assert ArrowSource([str(path)], ["v"]).shards[0].fingerprint != changed.shards[0].fingerprint
    assert Dataset("d", changed)[1] == {"v": 9}


def test_damaged_offsets_are_noticed(tmp_path):
    path = pathlib.Path(stream(tmp_path / "a.arrow", [pa.table({"v": [[1], [2, 3], [4, 5, 6]]})]))
    content = path.read_bytes()
    at = content.index(np.array([0, 1, 3, 6], np.int32).tobytes())
    for offsets in ([0, 1, 9, 6], [0, 1, 2**30, 6], [0, 4, 3, 6]):
        path.write_bytes(content[:at] + np.array(offsets, np.int32).tobytes() + content[at + 16 :])
        with pytest.raises(DataError, match="a.arrow: offsets of lists point outside of their values"):
            ArrowSource([str(path)], None).read(0, np.array([1, 0]))
