"""Zarr token stores: what was written, in any layout, by index; stores of other writers, and damage."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import shutil
import threading

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

import zephon_jax as zj
from tests.ops import PROPERTY, same_rows
from zephon_jax import ConfigurationError, DataError, Dataset
from zephon_jax.columns import rows_of
from zephon_jax.sources import zarr as module
from zephon_jax.sources.zarr import ZarrSource, write_token_store

LAYOUTS = {
    "zarr3": {"chunk_values": 16},
    "sharded": {"chunk_values": 16, "shard_values": 64},
    "zarr2": {"chunk_values": 16, "zarr": 2},
    "one chunk": {},
}


def documents(n: int, seed: int = 0) -> list[dict]:
    rng = np.random.Generator(np.random.Philox(seed))
    return [
        {
            "tokens": rng.integers(0, 50, int(rng.integers(0, 30))).astype(np.int32),
            "score": np.float32(i / 7),
            "box": rng.integers(0, 9, 4).astype(np.int16),
            "id": np.int64(i),
        }
        for i in range(n)
    ]


def write(path, docs, **options) -> str:
    assert write_token_store(path, docs, dense=["box"], **options) == len(docs)
    return str(path)


def rows_in(source: ZarrSource, shard: int, samples) -> list[dict]:
    columns, bad = source.read(shard, np.array(samples, np.int64))
    assert bad == {}
    return rows_of(columns, len(samples))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_documents_by_index(tmp_path, layout):
    docs = documents(60)
    paths = [
        write(tmp_path / "a.zarr", docs, **LAYOUTS[layout]),
        write(tmp_path / "b.zarr", docs[:1], **LAYOUTS[layout]),
    ]
    source = ZarrSource(paths, None)
    assert [(s.name, s.num_samples) for s in source.shards] == [(paths[0], 60), (paths[1], 1)]
    for samples in (range(60), range(60)[::-1], [7], [5, 6, 7, 2, 2], []):
        assert same_rows(rows_in(source, 0, list(samples)), [docs[i] for i in samples])
    assert same_rows(rows_in(source, 1, [0]), docs[:1])
    assert set(rows_in(ZarrSource(paths, ["tokens"]), 0, [3])[0]) == {"tokens"}
    assert pickle.loads(pickle.dumps(source)).shards == source.shards


@PROPERTY
@given(
    st.lists(st.lists(st.integers(0, 255), max_size=9), min_size=1, max_size=12),
    st.integers(1, 8),
    st.sampled_from([1, 2, 3]),
    st.data(),
)
def test_any_lists_in_any_chunks(tmp_path_factory, lists, chunk, files, data):
    """Against the lists; also what is written in several pieces."""
    path = tmp_path_factory.mktemp("z") / "a.zarr"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zephon_jax.sources.zarrstore._BUFFERED", data.draw(st.integers(1, 20)))
        shard = None if files == 1 else chunk * files
        assert write_token_store(
            path, lists, dtypes={"tokens": "uint8"}, chunk_values=chunk, shard_values=shard
        ) == len(lists)
    samples = data.draw(st.lists(st.integers(0, len(lists) - 1), min_size=1, max_size=10))
    got = rows_in(ZarrSource([str(path)], None), 0, samples)
    assert same_rows(got, [{"tokens": np.array(lists[i], np.uint8)} for i in samples])


def test_fingerprints_are_of_the_content_not_of_the_layout(tmp_path):
    docs = documents(50)
    whole = {
        ZarrSource([write(tmp_path / name, docs, **options)], None).shards[0].fingerprint
        for name, options in LAYOUTS.items()
    }
    assert len(whole) == 1
    for i, change in enumerate(
        ({"tokens": np.zeros(3, np.int32)}, {"score": np.float32(9)}, {"box": docs[25]["box"] + 1})
    ):
        other = [*docs[:25], docs[25] | change, *docs[26:]]
        assert ZarrSource([write(tmp_path / f"{i}", other)], None).shards[0].fingerprint not in whole
    wider = [doc | {"id": np.float64(doc["id"])} for doc in docs]
    assert ZarrSource([write(tmp_path / "wider", wider)], None).shards[0].fingerprint not in whole
    assert ZarrSource([str(tmp_path / "zarr3")], ["id"]).shards[0].fingerprint not in whole
    cuts = [[[1, 2], [3]], [[1], [2, 3]]]
    for i, lists in enumerate(cuts):
        write_token_store(tmp_path / f"cut{i}", lists)
    assert len({ZarrSource([str(tmp_path / f"cut{i}")], None).shards[0].fingerprint for i in range(2)}) == 2


def test_the_block_hint_is_the_documents_of_a_chunk(tmp_path):
    write_token_store(tmp_path / "a.zarr", [[1] * 10] * 50, chunk_values=200)
    assert Dataset.from_path("d", tmp_path / "a.zarr").block_hint == 20


def zarr_array(path, values, zarr: int = 3) -> None:
    array = ts.open(
        {"driver": "zarr3" if zarr == 3 else "zarr", "kvstore": {"driver": "file", "path": f"{path}/"}},
        create=True, dtype=ts.dtype(values.dtype), shape=values.shape,
    ).result()  # fmt: skip
    array.write(values).result()


@pytest.mark.parametrize("zarr", [2, 3])
@pytest.mark.parametrize("consolidated", [False, True])
def test_a_store_of_another_writer(tmp_path, zarr, consolidated):
    """Chunks of zeros may be left out there."""
    arrays = {
        "t": np.zeros(6, np.uint16),
        "t_splits": np.array([0, 2, 2, 6]),
        "v": np.arange(6.0).reshape(3, 2),
        "w_splits": np.arange(3),
    }
    for name, values in arrays.items():
        zarr_array(tmp_path / name, values, zarr)
    described = {}
    for name in arrays:
        described[name] = json.loads((tmp_path / name / ("zarr.json" if zarr == 3 else ".zarray")).read_text())
    if zarr == 3:
        group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
        if consolidated:
            group["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": described}
        (tmp_path / "zarr.json").write_text(json.dumps(group))
    else:
        (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
        if consolidated:
            nodes = {f"{name}/.zarray": node for name, node in described.items()}
            (tmp_path / ".zmetadata").write_text(
                json.dumps({"metadata": {".zgroup": {}, **nodes}, "zarr_consolidated_format": 1})
            )
    assert same_rows(
        rows_in(ZarrSource([str(tmp_path)], None), 0, [2, 0, 1]),
        [
            {"t": np.zeros(n, np.uint16), "v": np.arange(6.0).reshape(3, 2)[i], "w_splits": np.int64(i)}
            for i, n in ((2, 4), (0, 2), (1, 0))
        ],
    )


def test_what_is_no_token_store(tmp_path):
    path = pathlib.Path(write(tmp_path / "a.zarr", documents(5), chunk_values=8))
    group = (path / "zarr.json").read_text()

    def refused(error, text, source=path):
        with pytest.raises(error, match=text):
            ZarrSource([str(source)], None)

    refused(ConfigurationError, "single Zarr array", path / "tokens")
    refused(ConfigurationError, "is no Zarr group: .*still being written", tmp_path)
    (path / "zarr.json").write_text(json.dumps({"zarr_format": 3, "node_type": "group"}))
    for name in os.listdir(path):
        if name != "zarr.json":
            shutil.rmtree(path / name) if name != "id" else None
    shutil.rmtree(path / "id")
    refused(ConfigurationError, "a Zarr group without arrays")
    zarr_array(path / "t", np.arange(5))
    zarr_array(path / "t_splits", np.array([0, 2, 4]))
    refused(DataError, "'t_splits' ends at 4, but 't' has 5 values: the store is not whole")
    shutil.rmtree(path / "t_splits")
    for splits in ([1, 5], [0, 3, 2, 5]):
        zarr_array(path / "t_splits", np.array(splits))
        refused(DataError, "'t_splits' must ascend from 0")
        shutil.rmtree(path / "t_splits")
    zarr_array(path / "t_splits", np.array([0, 3, 5]))
    zarr_array(path / "v", np.arange(3))
    refused(DataError, "fields of different numbers of documents: {'t': 2, 'v': 3}")
    shutil.rmtree(path / "v")
    with pytest.raises(ConfigurationError, match=r"no field \['x'\]; the first sample has \['t'\]"):
        ZarrSource([str(path)], ["x"])
    (path / "zarr.json").write_text(group)
    refused(DataError, "the group lists an array that is not there: .*box.zarr.json is missing")
    (path / "zarr.json").write_text("[")
    refused(DataError, "zarr.json: not valid JSON")


def test_a_writer_that_was_stopped_leaves_no_store(tmp_path):
    def stopped():
        yield [1, 2, 3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_token_store(tmp_path / "a.zarr", stopped())
    with pytest.raises(ConfigurationError, match="still being written"):
        ZarrSource([str(tmp_path / "a.zarr")], None)
    write_token_store(tmp_path / "a.zarr", [[4]])  # begins anew
    assert same_rows(rows_in(ZarrSource([str(tmp_path / "a.zarr")], None), 0, [0]), [{"tokens": np.array([4])}])
    with pytest.raises(ConfigurationError, match="a.zarr is a Zarr group already"):
        write_token_store(tmp_path / "a.zarr", [[4]])


@pytest.mark.parametrize(
    ("docs", "options", "error", "text"),
    [
        ([], {}, ConfigurationError, "at least one"),
        ([{"a": 1}, {"b": 1}], {}, DataError, r"document 1 has the fields \['b'\], the first one \['a'\]"),
        ([{"a": "text"}], {}, DataError, "document 0 .*'a' holds 'text'; .*text as uint8"),
        ([{"a": None}], {}, DataError, "'a' holds 'None'"),
        ([{"a": [1, None]}], {}, DataError, r"'a' holds '\[1, None\]'"),
        ([{"a_splits": 1}], {}, ConfigurationError, "cannot be called 'a_splits'"),
        ([{"a/b": 1}], {}, ConfigurationError, "cannot be called 'a/b'"),
        ([{"a": [[1]]}], {}, ConfigurationError, "'a' has 2 dimensions; name it in dense="),
        (
            [{"a": [1]}, {"a": [300]}],
            {"dtypes": {"a": "uint8"}},
            DataError,
            "document 1 .* holds values from 300 to 300",
        ),
        ([{"a": [-1]}], {"dtypes": {"a": "uint8"}}, DataError, "holds values from -1 to -1"),
        ([{"a": [1]}, {"a": [0.5]}], {}, DataError, r"document 1 for .*/a has type float64, \(any,\) int64 is needed"),
        ([{"a": [1]}, {"a": 1}], {}, DataError, r"document 1 .* has shape \(\)"),
        ([{"a": [1]}, {"a": [1, 2]}], {"dense": ["a"]}, DataError, r"has shape \(2,\), \(1,\) int64 is needed"),
        ([{"a": 1}], {"dense": ["b"]}, ConfigurationError, r"names \['b'\], the first document has \['a'\]"),
        ([{"a": 1}], {"zarr": 4}, ConfigurationError, "zarr is 2 or 3"),
        ([{"a": 1}], {"zarr": 2, "shard_values": 1 << 17}, ConfigurationError, "for version 3 only"),
        ([{"a": 1}], {"shard_values": 100}, ConfigurationError, "a multiple of chunk_values"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else None,
)
def test_documents_that_cannot_be_written(tmp_path, docs, options, error, text):
    with pytest.raises(error, match=text):
        write_token_store(tmp_path / "a.zarr", docs, **options)
    assert not (tmp_path / "a.zarr" / "zarr.json").exists()


def test_writing_copies_what_it_is_given(tmp_path):
    def reused():
        array = np.zeros(3, np.int32)
        for i in range(5):
            array[:] = i
            yield array

    write_token_store(tmp_path / "a.zarr", reused())
    assert [row["tokens"].tolist() for row in rows_in(ZarrSource([str(tmp_path / "a.zarr")], None), 0, range(5))] == [
        [i] * 3 for i in range(5)
    ]


def forget() -> None:
    """What this process keeps of chunks."""
    module.forget()
    module.DECODED.clear()


def chunk_file(path: pathlib.Path, number: int) -> pathlib.Path:
    return path / "tokens" / "c" / str(number)


def test_a_damaged_chunk_is_an_error_of_the_documents_in_it(tmp_path):
    docs = [[i] * 4 for i in range(40)]
    path = tmp_path / "a.zarr"
    write_token_store(path, docs, chunk_values=16)  # four documents a chunk
    content = bytearray(chunk_file(path, 3).read_bytes())
    content[-6] ^= 1
    chunk_file(path, 3).write_bytes(content)
    forget()
    source = ZarrSource([str(path)], None)
    columns, bad = source.read(0, np.arange(40)[::-1])
    assert sorted((39 - i, error.record, error.path, error.shard) for i, error in bad.items()) == [
        (s, s, str(path), 0) for s in (12, 13, 14, 15)
    ]
    assert "sample 12: field 'tokens': " in str(bad[39 - 12])
    rows = rows_of(columns, 40)
    assert [rows[i]["tokens"].tolist() for i in range(40) if i not in bad] == [
        docs[39 - i] for i in range(40) if i not in bad
    ]


def test_a_chunk_that_is_gone_is_an_error_of_storage_not_zeros(tmp_path):
    path = tmp_path / "a.zarr"
    write_token_store(path, [[0] * 4 for i in range(40)], chunk_values=16)
    source = ZarrSource([str(path)], None)
    chunk_file(path, 3).unlink()
    forget()
    with pytest.raises(DataError, match="a.zarr/tokens: cannot be read: NOT_FOUND"):
        source.read(0, np.arange(40))


def test_threads_read_one_store_at_once(tmp_path):
    docs = documents(200)
    source = ZarrSource([write(tmp_path / "a.zarr", docs, chunk_values=64)], None)
    forget()
    wrong: list[object] = []

    def read(seed: int) -> None:
        try:
            for k in range(10):
                samples = np.random.Generator(np.random.Philox(key=[seed, k])).integers(0, 200, 30).tolist()
                if not same_rows(rows_in(source, 0, samples), [docs[i] for i in samples]):
                    wrong.append(samples)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_splits_in_several_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SPLITS_BLOCK", 7)
    docs = documents(50)
    source = ZarrSource([write(tmp_path / "a.zarr", docs)], None)
    assert same_rows(rows_in(source, 0, [6, 7, 48, 49, 0, 13, 14]), [docs[i] for i in (6, 7, 48, 49, 0, 13, 14)])


def test_a_pipeline_over_tokens(tmp_path):
    write_token_store(tmp_path / "a.zarr", [[i] * 3 for i in range(20)], dtypes={"tokens": "uint16"})
    work = zj.StaticMixtureWorkSource(Dataset.from_path("d", tmp_path / "a.zarr"), shuffle_shards=False)
    rows = list(zj.Pipeline(work).pack(6).batch(2).options(canonical_replicas=1))
    assert rows[0]["tokens"].tolist() == [[0, 0, 0, 1, 1, 1], [2, 2, 2, 3, 3, 3]]
    assert rows[0]["tokens"].dtype == np.int32


@pytest.mark.slow
def test_object_storage(tmp_path, monkeypatch):
    """Written to, and read from, a server on loopback."""
    server_module = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
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
        client.create_bucket(Bucket="zarr-test")
        docs = documents(40)
        url = write("s3://zarr-test/stores/a.zarr", docs, chunk_values=32)
        source = ZarrSource([url], None)
        assert same_rows(rows_in(source, 0, [39, 3, 4, 5]), [docs[i] for i in (39, 3, 4, 5)])
        assert (
            source.shards[0].fingerprint == ZarrSource([write(tmp_path / "a.zarr", docs)], None).shards[0].fingerprint
        )
        with pytest.raises(ConfigurationError, match="s3://zarr-test/none is no Zarr group"):
            ZarrSource(["s3://zarr-test/none"], None)
        client.close()
    finally:
        server.stop()
