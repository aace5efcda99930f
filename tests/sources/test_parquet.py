"""Parquet: row groups of any size, damage, threads, memory, and object storage. Types: test_arrow.py."""

from __future__ import annotations

import os
import pathlib
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zephon_jax as zj
from tests.ops import PROPERTY, same_rows
from zephon_jax import ConfigurationError, DataError, Dataset
from zephon_jax.columns import rows_of
from zephon_jax.sources import parquet as module
from zephon_jax.sources.parquet import ParquetSource

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROOT = pathlib.Path(__file__).parents[2]


def write(path, table, groups=None, **options) -> str:
    """With row groups of these sizes."""
    with parquet.ParquetWriter(path, table.schema, **options) as writer:
        at = 0
        for n in [table.num_rows] if groups is None else groups:
            writer.write_table(table.slice(at, n), row_group_size=max(1, n))
            at += n
    return str(path)


def numbered(n: int):
    return pa.table(
        {
            "n": pa.array(range(n), pa.int64()),
            "t": [f"text {i}" for i in range(n)],
            "l": [[i] * (i % 4) for i in range(n)],
        }
    )


def row(i: int) -> dict:
    return {"n": np.int64(i), "t": f"text {i}", "l": np.full(i % 4, i, np.int64)}


@PROPERTY
@given(st.lists(st.integers(0, 5), max_size=6), st.data())
def test_row_groups_of_any_size(tmp_path_factory, groups, data):
    """Case 36: also of no rows, and no row group at all."""
    path = write(tmp_path_factory.mktemp("g") / "a.parquet", numbered(sum(groups)), groups)
    metadata = parquet.read_metadata(path)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == groups
    source = ParquetSource([path], None)
    assert source.shards[0].num_samples == sum(groups)
    assert source.block_hint == (int(np.median([g for g in groups if g])) if any(groups) else None)
    samples = data.draw(st.lists(st.integers(0, sum(groups) - 1), max_size=12)) if sum(groups) else []
    columns, bad = source.read(0, np.array(samples, np.int64))
    assert bad == {}
    assert same_rows(rows_of(columns, len(samples)), [row(i) for i in samples])


def test_empty_files_between_others(tmp_path):
    paths = [
        write(tmp_path / "a.parquet", numbered(0), []),
        write(tmp_path / "b.parquet", numbered(3)),
        write(tmp_path / "c.parquet", numbered(0), [0, 0]),
    ]
    ds = Dataset.from_path("d", paths, fields=["n"])
    assert [s.num_samples for s in ds.shards] == [0, 3, 0]
    assert [int(ds[i]["n"]) for i in range(3)] == [0, 1, 2]
    assert len(Dataset.from_path("d", [paths[0]], fields=["x"])) == 0  # nothing tells that there is no x


def test_only_these_fields(tmp_path):
    table = pa.table({"a": [1, 2], "b": [{"c": 1, "d": 2}] * 2, "b.c": ["x", "y"]})
    path = write(tmp_path / "a.parquet", table)
    assert dict(Dataset.from_path("d", path, fields=["b.c"])[1]) == {"b.c": "y"}
    assert dict(Dataset.from_path("d", path, fields=["b", "a"])[1]) == {"a": 2, "b": {"c": 1, "d": 2}}
    assert dict(Dataset.from_path("d", path, fields=[])[1]) == {}
    with pytest.raises(
        ConfigurationError, match=r"a.parquet: no field \['c'\]; the first sample has \['a', 'b', 'b.c'\]"
    ):
        Dataset.from_path("d", path, fields=["c"])
    fingerprints = {
        Dataset.from_path("d", path, fields=f).fingerprint for f in (None, ["a"], ["b"], ["a", "b"], ["b", "a"])
    }
    assert len(fingerprints) == 4


def test_a_file_that_lacks_a_field(tmp_path):
    one, other = (
        write(tmp_path / "a.parquet", pa.table({"a": [1], "b": [1]})),
        write(tmp_path / "b.parquet", pa.table({"a": [2]})),
    )
    ds = Dataset.from_path("d", [one, other], fields=["a", "b"])
    assert [ds[0], ds[1]] == [{"a": 1, "b": 1}, {"a": 2}]


def test_columns_of_one_name(tmp_path):
    path = write(tmp_path / "a.parquet", pa.table([[1], [2]], names=["a", "a"]))
    with pytest.raises(DataError, match=r"a.parquet: several columns are called \['a'\]"):
        ParquetSource([path], None)


@pytest.fixture
def decoded(monkeypatch):
    """The row groups that were decoded, in order."""
    calls, real = [], module._decoded
    monkeypatch.setattr(
        module, "_decoded", lambda file, group, fields: calls.append(group) or real(file, group, fields)
    )
    return calls


def test_a_row_group_is_decoded_once(tmp_path, decoded):
    source = ParquetSource([write(tmp_path / "a.parquet", numbered(40), [10] * 4)], None)
    source.read(0, np.array([35, 1, 39, 2, 11, 0]))
    assert sorted(decoded) == [0, 1, 3]
    source.read(0, np.array([5, 15, 25]))  # what is kept is not decoded again
    assert sorted(decoded) == [0, 1, 2, 3]
    pickle.loads(pickle.dumps(source)).read(0, np.arange(40))  # nor by a copy, in one process
    assert len(decoded) == 4


def test_a_row_group_beyond_the_budget_is_still_kept(tmp_path, decoded, monkeypatch):
    monkeypatch.setattr(module.DECODED, "limit", 1)
    source = ParquetSource([write(tmp_path / "a.parquet", numbered(20), [10, 10])], None)
    for sample in range(20):
        source.read(0, np.array([sample]))
    assert decoded == [0, 1]


def test_threads_read_one_file_at_once(tmp_path, monkeypatch):
    """With a budget so small that groups come and go."""
    monkeypatch.setattr(module.DECODED, "limit", 2_000)
    source = ParquetSource([write(tmp_path / "a.parquet", numbered(200), [7] * 28 + [4])], None)
    wrong: list[object] = []

    def read(seed: int) -> None:
        try:
            for k in range(15):
                samples = np.random.Generator(np.random.Philox(key=[seed, k])).integers(0, 200, 30)
                rows = rows_of(source.read(0, samples)[0], 30)
                if not same_rows(rows, [row(i) for i in samples.tolist()]):
                    wrong.append(samples)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_no_file_stays_open(tmp_path):
    paths = [write(tmp_path / f"{i}.parquet", numbered(3)) for i in range(20)]
    before = len(os.listdir("/proc/self/fd"))
    source = ParquetSource(paths, None)
    for shard in range(20):
        source.read(shard, np.arange(3))
    assert len(os.listdir("/proc/self/fd")) <= before


# -- damage ----------------------------------------------------------------------------------------------------------------


def test_a_file_that_is_cut_off_or_no_parquet(tmp_path):
    whole = pathlib.Path(write(tmp_path / "a.parquet", numbered(100))).read_bytes()
    bad = tmp_path / "b.parquet"
    footer_at = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    damaged = {
        "is empty": b"",
        "ends with b': 2}'": b'{"a": 1}\n{"a": 2}',
        "it is cut off": whole[:-1],
        "has 4 bytes": b"PAR1",
        "the footer would have": whole[:-8] + b"\xff\xff\xff\x7fPAR1",
        "the footer cannot be read": whole[:footer_at] + bytes([255] * 20) + whole[footer_at + 20 :],
        "encrypted": whole[:-4] + b"PARE",
    }
    for text, content in damaged.items():
        bad.write_bytes(content)
        with pytest.raises(DataError, match=text) as caught:
            ParquetSource([str(bad)], None)
        assert caught.value.path == str(bad)
        assert str(bad) in str(caught.value)


def test_a_footer_longer_than_what_is_read_at_first(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", numbered(30), [10] * 3)
    whole = ParquetSource([path], None)
    monkeypatch.setattr(module, "_TAIL_BYTES", 64)
    assert ParquetSource([path], None).shards == whole.shards
    module._METADATA.clear()
    assert same_rows(rows_of(whole.read(0, np.array([17, 3]))[0], 2), [row(17), row(3)])


def flipped(path: str, group: int, at: float) -> None:
    """Change one bit of the first column of a row group, at this part of it."""
    column = parquet.read_metadata(path).row_group(group).column(0)
    place = column.data_page_offset + int(column.total_compressed_size * at)
    content = bytearray(pathlib.Path(path).read_bytes())
    content[place] ^= 1
    pathlib.Path(path).write_bytes(bytes(content))


def test_a_damaged_page_is_an_error_of_the_samples_of_its_group(tmp_path):
    """A changed value, which only the checksum tells."""
    path = write(
        tmp_path / "a.parquet",
        numbered(30),
        [10] * 3,
        write_page_checksum=True,
        compression="none",
        use_dictionary=False,
    )
    flipped(path, 1, 0.9)
    source = ParquetSource([path], None)
    columns, bad = source.read(0, np.array([5, 12, 25, 10]))
    assert {i: (error.path, error.shard, error.record) for i, error in bad.items()} == {
        1: (path, 0, 12),
        3: (path, 0, 10),
    }
    text = str(bad[1])
    assert text.startswith(f"{path}, sample 12 (row group 1, row 2): cannot be decoded: ")
    assert "CRC checksum verification failed" in text
    assert "on_data_error='skip'" in text
    rows = rows_of(columns, 4)
    assert same_rows([rows[0], rows[2]], [row(5), row(25)])
    columns, bad = source.read(0, np.array([11, 19]))
    assert sorted(bad) == [0, 1]


def test_without_checksums_damage_shows_in_what_cannot_be_decoded(tmp_path):
    path = write(tmp_path / "a.parquet", numbered(2000), [1000, 1000], compression="snappy", use_dictionary=False)
    flipped(path, 0, 0.0)  # the page's header
    source = ParquetSource([path], None)
    assert sorted(source.read(0, np.array([3, 1500]))[1]) == [0]


def test_text_that_is_no_utf8_is_an_error_of_its_sample(tmp_path):
    broken = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(np.array([0, 1, 2, 3], np.int32)), pa.py_buffer(b"a\xffb")]
    )
    path = write(
        tmp_path / "a.parquet", pa.table({"t": pa.concat_arrays([broken, broken])}), [3, 3], use_dictionary=False
    )
    columns, bad = ParquetSource([path], None).read(0, np.array([5, 4, 3]))
    assert {i: (error.path, error.shard, error.record) for i, error in bad.items()} == {1: (path, 0, 4)}
    assert "sample 4 (row group 1, row 1): field 't': 'utf-8' codec can't decode" in str(bad[1])
    rows = rows_of(columns, 3)
    assert [rows[0]["t"], rows[2]["t"]] == ["b", "a"]


def test_a_file_that_changed_or_went_away_is_an_error_of_storage(tmp_path):
    path = write(tmp_path / "a.parquet", numbered(20), [10, 10])
    source = ParquetSource([path], None)
    source.read(0, np.array([0]))
    before = source.shards[0].fingerprint
    write(tmp_path / "a.parquet", numbered(30), [10, 20])
    with pytest.raises(DataError, match="has changed since it was indexed"):
        source.read(0, np.array([11]))
    assert ParquetSource([path], None).shards[0].fingerprint != before
    pathlib.Path(path).unlink()
    with pytest.raises(DataError, match=r"a.parquet: cannot be read: .*No such file"):
        source.read(0, np.array([12]))


def test_damaged_groups_are_skipped_alike_before_and_after_a_resume(tmp_path):
    """Case 37."""
    path = write(tmp_path / "a.parquet", numbered(60), [10] * 6, write_page_checksum=True)
    flipped(path, 2, 0.9)
    work = zj.StaticMixtureWorkSource(Dataset.from_path("d", path), shuffle_block_size=4, chunk_size=8, seed=1)
    pipeline = zj.Pipeline(work).batch(5)
    with pytest.raises(zj.ZephonError, match="row group 2"):
        list(pipeline)
    pipeline = pipeline.options(on_data_error="skip", executor="inline", canonical_replicas=1)
    whole = [batch["n"].tolist() for batch in pipeline]
    assert sorted(n for batch in whole for n in batch) == [n for n in range(60) if not 20 <= n < 30]
    for cut in (1, 4, 7):
        with iter(pipeline) as it:
            for _ in range(cut):
                next(it)
            state = it.checkpoint()
        with iter(pipeline) as it:
            it.restore(state)
            assert [batch["n"].tolist() for batch in it] == whole[cut:]


def test_the_fingerprint_is_that_of_size_and_footer(tmp_path):
    """A value that is not the least or greatest of its column, in a file of the same size, is missed: docs/formats.md says so."""
    base = write(tmp_path / "a.parquet", pa.table({"n": [1, 5, 9]}), compression="none", use_dictionary=False)
    fingerprint = ParquetSource([base], None).shards[0].fingerprint
    for values, told in (
        ([1, 5, 9], False),
        ([1, 5, 8], True),
        ([0, 5, 9], True),
        ([1, 5, 9, 9], True),
        ([1, 6, 9], False),
    ):
        other = write(tmp_path / "b.parquet", pa.table({"n": values}), compression="none", use_dictionary=False)
        assert (ParquetSource([other], None).shards[0].fingerprint != fingerprint) == told, values


# -- memory ----------------------------------------------------------------------------------------------------------------

MANY = """
import pathlib, sys
import numpy as np
from zephon_jax.sources import parquet
from zephon_jax import Dataset

def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

parquet.DECODED.limit = 8 << 20
ds = Dataset.from_path("d", sys.argv[1])
assert len(ds) == 500 * 255
seen = []
for traversal in range(2):
    total = 0
    for shard in range(500):
        columns, bad = ds.read(shard, np.arange(255))
        total += int(columns["n"].values.sum())
        if (shard + 1) % 125 == 0:
            seen.append(resident())
    assert total == 127500 * 127499 // 2
print(*seen)
"""


@pytest.mark.slow
def test_memory_is_flat_over_500_shards(tmp_path):
    """Case 31: some 60 MB are decoded in each traversal, 8 MiB may be kept; warm after 125 shards."""
    for i in range(500):
        n = range(255 * i, 255 * (i + 1))
        table = pa.table({"n": pa.array(n, pa.int64()), "t": [f"{j} " * 90 for j in n]})
        parquet.write_table(table, tmp_path / f"{i:03}.parquet", row_group_size=128)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "ZEPHON_JAX_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", MANY, str(tmp_path / "*.parquet")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = np.array(done.stdout.split(), int).reshape(2, 4)
    assert first[-1] - first[0] < 32 << 20  # the allocator takes some; what is kept beyond the budget would be 60
    assert max(second) - first[-1] < 4 << 20


# -- object storage --------------------------------------------------------------------------------------------------------


def test_only_the_columns_wanted_are_fetched(tmp_path, monkeypatch):
    """The ranges that are asked of the storage."""
    noise = np.random.Generator(np.random.Philox(0)).bytes(400_000)
    table = pa.table({"n": list(range(40)), "blob": [noise[i * 10_000 : (i + 1) * 10_000] for i in range(40)]})
    path = write(tmp_path / "a.parquet", table, [20, 20], use_dictionary=False)
    asked, real = [], module.read_ranges
    monkeypatch.setattr(module, "read_ranges", lambda file, ranges: asked.extend(ranges) or real(file, ranges))
    source = ParquetSource([path], ["n"])
    assert [int(v) for v in source.read(0, np.array([25]))[0]["n"].values] == [25]  # pyright: ignore[reportAttributeAccessIssue]
    column = parquet.read_metadata(path).row_group(1).column(0)
    size = pathlib.Path(path).stat().st_size
    tail = (size - module._TAIL_BYTES, size)
    assert [r for r in asked if r != tail] == [
        (column.data_page_offset, column.data_page_offset + column.total_compressed_size)
    ]


@pytest.mark.slow
def test_object_storage(tmp_path, monkeypatch):
    """A server on loopback: the same samples, and a second traversal from what is kept."""
    server_module = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    local = write(tmp_path / "a.parquet", numbered(100), [30, 30, 40])
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "ZEPHON_JAX_CACHE_DIR": str(tmp_path / "cache"),
        }.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
        client.create_bucket(Bucket="parquet-test")
        client.upload_file(local, "parquet-test", "a.parquet")
        source = ParquetSource(["s3://parquet-test/a.parquet"], None)
        samples = np.array([99, 3, 31, 4])
        columns, bad = source.read(0, samples)
        assert bad == {}
        assert same_rows(rows_of(columns, 4), [row(i) for i in samples.tolist()])
        assert source.shards[0].fingerprint == ParquetSource([local], None).shards[0].fingerprint
        client.put_object(Bucket="parquet-test", Key="a.parquet", Body=b"other")
        assert same_rows(rows_of(source.read(0, samples)[0], 4), [row(i) for i in samples.tolist()])
        module.DECODED.clear()
        with pytest.raises(DataError, match="has changed since it was indexed"):
            source.read(0, samples)
        client.close()
    finally:
        server.stop()
