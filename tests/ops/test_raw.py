"""decode_raw against numpy.frombuffer, whatever the bytes are stored as."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zephon_jax as zj
from tests.ops import batch_of
from zephon_jax.columns import Binary, Dense, Ragged, row_values
from zephon_jax.ops.base import RecordFailure
from zephon_jax.testing import check_operator


def stored(items: list[bytes], padding: bytes):
    """The same bytes as objects, end to end, and end to end behind others (then numbers lie anywhere in memory)."""
    rows = batch_of([{"x": item, "n": i} for i, item in enumerate(items)])
    yield rows
    ends = np.cumsum([len(padding), *map(len, items)])
    blob = np.frombuffer(padding + b"".join(items) + b"rest", np.uint8)
    yield rows.with_columns({**rows.columns, "x": Binary(blob, ends)})


@pytest.mark.parametrize("padding", [b"", b"abc"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "<f4", ">i4", "float64", "bool"])
def test_values_are_those_of_frombuffer(dtype, padding):
    size = np.dtype(dtype).itemsize
    items = [bytes(np.random.default_rng(i).integers(0, 2, 6 * size, np.uint8)) for i in range(5)]
    want = [np.frombuffer(item, dtype).astype(np.dtype(dtype).newbyteorder("=")) for item in items]
    for batch in stored(items, padding):
        flat = zj.ops.DecodeRaw("x", dtype).process(batch)
        shaped = zj.ops.DecodeRaw("x", dtype, (2, 3)).process(batch)
        assert isinstance(flat.columns["x"], Ragged)
        assert isinstance(shaped.columns["x"], Dense)
        for got, one in zip(row_values(flat.columns["x"]), want, strict=True):
            assert (got.dtype, got.tobytes()) == (one.dtype, one.tobytes())
        for got, one in zip(row_values(shaped.columns["x"]), want, strict=True):
            assert (got.dtype, got.shape, got.tobytes()) == (one.dtype, (2, 3), one.tobytes())
        assert row_values(flat.columns["n"]) == [0, 1, 2, 3, 4]


def test_lengths_may_differ_without_a_shape():
    for batch in stored([b"", b"\1\0", b"\2\0\3\0"], b"z"):
        assert [v.tolist() for v in row_values(zj.ops.DecodeRaw("x", "<i2").process(batch).columns["x"])] == [
            [],
            [1],
            [2, 3],
        ]


def test_what_does_not_fit_names_the_record():
    for batch in stored([b"abcd", b"abc"], b""):
        with pytest.raises(RecordFailure) as failure:
            zj.ops.DecodeRaw("x", "int32").process(batch)
        assert failure.value.index == 1
        assert str(failure.value.__cause__) == "decode_raw(x, int32): 'x' holds 3 bytes; int32 needs a multiple of 4"
        with pytest.raises(RecordFailure) as failure:
            zj.ops.DecodeRaw("x", "uint8", (2, 2)).process(batch)
        assert "3 bytes; uint8 needs 4, for shape (2, 2)" in str(failure.value.__cause__)
    with pytest.raises(RecordFailure) as failure:
        zj.ops.DecodeRaw("x", "uint8").process(batch_of([{"x": b"a"}, {"x": "text"}]))
    assert failure.value.index == 1
    assert "needs bytes in 'x', got str 'text'" in str(failure.value.__cause__)


def test_bad_arguments_are_refused_at_construction():
    for dtype in ("O", "U3", "no such type", "V4,i4"):
        with pytest.raises(zj.ConfigurationError, match="decode_raw"):
            zj.ops.DecodeRaw("x", dtype)
    with pytest.raises(zj.ConfigurationError, match="negative"):
        zj.ops.DecodeRaw("x", "uint8", (-1, 2))


def test_it_keeps_the_contract_of_an_operator():
    check_operator(zj.ops.DecodeRaw("x", "uint8"), [{"x": bytes([i] * (i % 3))} for i in range(20)])


def test_a_binary_column_of_a_file_reaches_the_batch(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 6), np.uint8)
    table = pa.table({"image": [row.tobytes() for row in images], "label": pa.array(range(40), pa.int32())})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    dataset = zj.Dataset.from_path("images", str(tmp_path / "a.parquet"))
    assert dataset[3] == {"image": images[3].tobytes(), "label": 3}
    pipeline = (
        zj.Pipeline(zj.StaticMixtureWorkSource(dataset, seed=1))
        .apply(zj.ops.DecodeRaw("image", "uint8", (2, 3)))
        .shuffle(16)
        .batch(8)
    )
    seen = 0
    for batch in pipeline:
        assert batch["image"].tobytes() == images[batch["label"]].tobytes()
        assert batch["image"].shape == (8, 2, 3)
        seen += 8
    assert seen == 40


@pytest.mark.parametrize("shape", ["x", 2.5, (2, 2.0), ("2",), True, (True,), {"a": 1}, object()])
def test_what_is_no_shape_is_refused_at_construction(shape):
    with pytest.raises(zj.ConfigurationError, match=r"decode_raw\(shape=.*must be a size or a sequence of sizes"):
        zj.ops.DecodeRaw("x", "uint8", shape)


@pytest.mark.parametrize("dtype", [None, "V4", "(2,)f4", "f4,f4", "datetime64[s]"])
def test_what_is_no_number_is_refused_at_construction(dtype):
    with pytest.raises(zj.ConfigurationError, match=r"decode_raw\(dtype=.*must be numbers or booleans"):
        zj.ops.DecodeRaw("x", dtype)


@pytest.mark.parametrize("shape", [4, np.int64(4), [4], np.array([4])])
def test_a_number_is_a_shape_of_one_axis(shape):
    op = zj.ops.DecodeRaw("x", "u1", shape)
    assert op.process(batch_of([{"x": b"abcd"}])).columns["x"].values.tolist() == [[97, 98, 99, 100]]
    assert op.identity() == zj.ops.DecodeRaw("x", "u1", (4,)).identity()


def test_names_of_ml_dtypes_need_no_import():
    """In a process of its own: here jax has brought them long ago."""
    code = (
        "import sys, zephon_jax as zj\n"
        "assert 'ml_dtypes' not in sys.modules\n"
        "work = zj.StaticMixtureWorkSource(zj.Dataset.from_source('d', [{'x': bytes([128, 63, 0, 64])}]))\n"
        "p = zj.Pipeline(work).apply(zj.ops.DecodeRaw('x', 'bfloat16', 2)).batch(1).options(executor='inline')\n"
        "x = next(p.steps())['x']\n"
        "print(x.dtype, x.astype('float32').tolist())\n"
        "try: zj.ops.DecodeRaw('x', 'no such type')\n"
        "except zj.ConfigurationError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    first, second = done.stdout.splitlines()
    assert first == "bfloat16 [[1.0, 2.0]]"
    assert second.startswith("decode_raw(dtype='no such type'): data type 'no such type' not understood")


def test_types_of_one_size_have_identities_of_their_own():
    """NumPy's short names know no more of these types than their size."""
    pytest.importorskip("ml_dtypes")
    names = ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"]
    found = [zj.ops.DecodeRaw("x", name).identity()["dtype"] for name in names]
    assert found == ["float8_e4m3fn", "float8_e5m2", "bfloat16", "<f2"]
