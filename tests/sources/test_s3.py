"""Object storage: a real S3 server (moto) on loopback, with a proxy in front of it for what goes wrong.

Nothing here waits for anything outside this machine, and every failing request is bounded in time and number.
"""

from __future__ import annotations

import gzip
import json
import pathlib
import re
import subprocess
import sys
import threading
from importlib.metadata import version

import numpy as np
import pytest
import zstandard

import zephon_jax as zj
from tests.ops import same_rows
from tests.sources.objectstore import Answer, Store, error, proxied
from zephon_jax.columns import rows_of
from zephon_jax.sources import remote, storage
from zephon_jax.sources.cache import cache_folder, shard_cache
from zephon_jax.sources.files import _expand

moto_server = pytest.importorskip("moto.server", reason="moto is in the extra [test]")


@pytest.fixture(scope="module")
def upstream():
    server = moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


_made: set[str] = set()


@pytest.fixture
def s3(upstream, monkeypatch, request):
    """The server through a proxy of this test's own, with a bucket `data-…` of its own."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setattr(remote, "_RETRIES", {"max_retries": 2, "initial_delay": "10ms", "max_delay": "20ms"})
    with proxied(upstream) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        if "data" not in _made:
            store.make_bucket("data")
            _made.add("data")
        store.prefix = re.sub(r"\W+", "-", request.node.name)
        yield store
    remote._stores.clear()


def put(s3: Store, name: str, content: bytes | str) -> str:
    return s3.put(f"{s3.prefix}/{name}", content)


def lines(start: int, stop: int) -> str:
    return "".join(json.dumps({"v": i, "text": f"text {i} " * (1 + i % 7)}) + "\n" for i in range(start, stop))


def values(ds: zj.Dataset) -> list[int]:
    return [
        int(row["v"])
        for s, shard in enumerate(ds.shards)
        for row in rows_of(ds.read(s, np.arange(shard.num_samples))[0], shard.num_samples)
    ]


# -- reading -----------------------------------------------------------------------------------------------------------


def test_sizes_and_stamps(s3):
    sizes = [1, 2, 255, 256, 257, 100_000]
    urls = [put(s3, f"f{n}", b"x" * n) for n in sizes] + [put(s3, "empty", b"")]
    found = storage.stat_all(urls)
    assert [f.size for f in found] == [*sizes, 0]
    assert [f.path for f in found] == urls
    assert len({f.stamp for f in found}) == len(found)
    assert len(s3.requests) == 2 * len(urls)
    before = storage.stat(urls[2])
    assert before == storage.stat(urls[2])
    put(s3, "f255", b"y" * 255)
    assert storage.stat(urls[2]).stamp != before.stamp


@pytest.mark.parametrize("size", [1, 2, 16, 17, 255, 70_001])
@pytest.mark.parametrize("how", ["by a range over the end", "by probing to the end"])
def test_a_size_that_the_server_does_not_tell_is_found_by_probing(s3, monkeypatch, size, how):
    url = put(s3, "f", b"x" * size)
    s3.fault = lambda request: "no body"
    monkeypatch.setattr(remote, "_NEAR_BYTES", 20_000 if how == "by a range over the end" else 0)
    assert storage.stat(url).size == size


def test_ranges(s3, monkeypatch):
    content = np.random.default_rng(0).bytes(5_000)
    file = storage.stat(put(s3, "f", content))
    ranges = [(0, 10), (4_990, 5_000), (7, 7), (100, 3_000), (5, 6), (0, 5_000)]
    assert storage.read_ranges(file, ranges) == [content[a:b] for a, b in ranges]
    assert storage.read_ranges(file, []) == []
    monkeypatch.setattr(remote, "_PART_BYTES", 499)
    assert storage.read_ranges(file, ranges) == [content[a:b] for a, b in ranges]
    assert b"".join(storage.stream(file, 777)) == content
    assert list(storage.stream(storage.stat(put(s3, "none", b"")))) == []
    with pytest.raises(zj.DataError, match="has changed"):
        storage.read_ranges(file, [(4_000, 5_001)])


def test_a_dataset_reads_as_its_local_twin(s3, tmp_path):
    for name, content in (("a", lines(0, 50)), ("b", ""), ("c", "\n" + lines(50, 60) + "  \n" + lines(60, 61))):
        put(s3, f"{name}.jsonl", content)
        (tmp_path / f"{name}.jsonl").write_text(content)
    there, here = zj.Dataset.from_path("d", f"s3://data/{s3.prefix}/"), zj.Dataset.from_path("d", tmp_path)
    assert there.fingerprint == here.fingerprint
    assert values(there) == values(here) == list(range(61))
    assert [s.name for s in there.shards] == [f"s3://data/{s3.prefix}/{n}.jsonl" for n in "abc"]
    assert there[17]["text"] == here[17]["text"]
    rows = rows_of(there.read(0, np.array([40, 3, 4, 5, 0]))[0], 5)
    assert [int(row["v"]) for row in rows] == [40, 3, 4, 5, 0]


def test_a_pipeline_over_object_storage_resumes_on_local_copies(s3, tmp_path):
    """Paths may change on a resume as long as the content is the same (rule C6)."""
    for i in range(4):
        put(s3, f"{i}.jsonl", lines(10 * i, 10 * i + 10))
        (tmp_path / f"{i}.jsonl").write_text(lines(10 * i, 10 * i + 10))

    def of(path):
        work = zj.StaticMixtureWorkSource(zj.Dataset.from_path("d", path), chunk_size=4, seed=3)
        return zj.Pipeline(work).shuffle(8).map(lambda r: {"v": r["v"]}, name="v").batch(4)

    with iter(of(str(tmp_path))) as it:
        want = [batch["v"].tolist() for batch in it]
    with iter(of(f"s3://data/{s3.prefix}/*.jsonl")) as it:
        got = [next(it)["v"].tolist() for _ in range(4)]
        state = it.checkpoint()
    with iter(of(str(tmp_path))) as it:
        it.restore(state)
        got += [batch["v"].tolist() for batch in it]
    assert got == want


def test_consecutive_samples_are_one_request_and_others_go_together(s3):
    url = put(s3, "a.jsonl", lines(0, 200))
    ds = zj.Dataset.from_path("d", url)
    key = f"{s3.prefix}/a.jsonl"
    before = len(s3.reads(key))
    assert before == 3  # two for size and stamp, the content once
    ds.read(0, np.arange(10, 150))
    assert len(s3.reads(key)) == before + 1
    barrier = threading.Barrier(5, timeout=8)  # breaks unless the five are on their way at once
    s3.fault = lambda request: barrier.wait() and None
    ds.read(0, np.array([5, 100, 7, 50, 30]))
    assert len(s3.reads(key)) == before + 6


def test_a_compressed_file_is_fetched_once(s3):
    for suffix, pack in ((".gz", gzip.compress), (".zst", zstandard.compress)):
        url = put(s3, f"a.jsonl{suffix}", pack(lines(0, 99).encode()))
        ds = zj.Dataset.from_path("d", url)
        assert values(ds) == list(range(99))
        requests = len(s3.requests)
        assert values(ds) == list(range(99))
        assert len(s3.requests) == requests
        assert len([r for r in s3.reads(f"{s3.prefix}/a.jsonl{suffix}") if r.range not in ONE_BYTE]) == 1


ONE_BYTE = {"bytes=0-0", f"bytes={10**15}-{10**15}"}


def test_a_copy_for_libraries_is_fetched_once_and_checked(s3):
    content = np.random.default_rng(1).bytes(100_000)
    file = storage.stat(put(s3, "f.bin", content))
    path = pathlib.Path(storage.local_path(file))
    assert path.read_bytes() == content
    assert path.is_relative_to(cache_folder())
    with storage.local_copy(file) as again:
        assert again == str(path)
    requests = len(s3.requests)
    assert storage.local_path(file) == str(path)
    assert len(s3.requests) == requests


def test_a_corrupted_byte_in_the_cache_is_noticed_by_the_next_process(s3):
    content = np.random.default_rng(1).bytes(10_000)
    file = storage.stat(put(s3, "f.bin", content))
    path = pathlib.Path(storage.local_path(file))
    shard_cache().release()
    damaged = bytearray(content)
    damaged[1234] ^= 1
    path.write_bytes(damaged)
    program = (
        "import sys, warnings; warnings.simplefilter('always')\n"
        "from zephon_jax.sources import storage\n"
        f"file = storage.StoredFile(*{tuple(file)!r})\n"
        "sys.stdout.buffer.write(open(storage.local_path(file), 'rb').read())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60)
    assert done.stdout == content
    assert b"was damaged; it is fetched again" in done.stderr
    assert path.read_bytes() == content


# -- names -------------------------------------------------------------------------------------------------------------


def names(s3: Store, path: str, format: str | None = None) -> list[str]:
    root = f"s3://data/{s3.prefix}/"
    return [url.removeprefix(root) for url in _expand(root + path, format)]


def test_folders_and_globs(s3):
    for name in (
        "b.jsonl",
        "a.jsonl",
        ".hidden.jsonl",
        "._a.jsonl",
        "deep/c.jsonl",
        "deep/.x/e.jsonl",
        "c.ndjson",
        "p[1].jsonl",
    ):
        put(s3, name, '{"v": 1}\n')
    put(s3, "notes.txt", '{"v": 1}\n')
    assert names(s3, "") == ["a.jsonl", "b.jsonl", "c.ndjson", "p[1].jsonl"]
    assert names(s3, "*.jsonl") == ["a.jsonl", "b.jsonl", "p[1].jsonl"]
    assert names(s3, "[ab].jsonl") == ["a.jsonl", "b.jsonl"]
    assert names(s3, "**/*.jsonl") == ["a.jsonl", "b.jsonl", "deep/c.jsonl", "p[1].jsonl"]
    assert names(s3, "deep") == names(s3, "deep/") == names(s3, "d*/c.jsonl") == ["deep/c.jsonl"]
    assert names(s3, "p[1].jsonl") == ["p[1].jsonl"]
    assert names(s3, ".hidden.jsonl") == [".hidden.jsonl"]  # named outright
    assert names(s3, "notes.txt", format="jsonl") == ["notes.txt"]


def test_a_key_with_spaces_and_other_letters(s3):
    url = put(s3, "some ä+%20.jsonl", '{"v": 3}\n')
    if tuple(map(int, version("tensorstore").split("."))) < (0, 1, 86):
        with pytest.raises(zj.DataError, match="the storage library cannot ask for an object of this name"):
            zj.Dataset.from_path("d", url)
    else:
        assert zj.Dataset.from_path("d", url)[0]["v"] == 3


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("none", "no such object"),
        ("none/", "no such object"),
        ("none-*.jsonl", "matches no object"),
        ("notes", "holds no object that ends in"),
    ],
)
def test_names_that_cannot_be_meant(s3, path, text):
    put(s3, "notes/x.txt", "x")
    with pytest.raises(zj.ConfigurationError, match=text):
        names(s3, path)


def test_a_bucket_that_does_not_exist_reads_as_a_missing_key(s3):
    with pytest.raises(zj.DataError, match="there is no such bucket"):  # a listing can tell
        zj.Dataset.from_path("d", "s3://no-such-bucket/*.jsonl")
    with pytest.raises(
        zj.DataError, match="there is no object 'a.jsonl' in bucket 'no-such-bucket', or no such bucket"
    ):
        zj.Dataset.from_path("d", "s3://no-such-bucket/a.jsonl")
    with pytest.raises(zj.DataError, match="there is no object 'a' in bucket 'no-such-bucket', or no such bucket"):
        storage.stat("s3://no-such-bucket/a")
    with pytest.raises(zj.ConfigurationError, match="the bucket is missing"):
        zj.Dataset.from_path("d", "s3:///a.jsonl")


# -- cases from the field, remotely ------------------------------------------------------------------------------------


def test_case_34_a_column_of_nulls_objects_and_nothing(s3):
    parts = {"a": '{"x": null}\n{"x": null}\n', "b": '{"x": {"k": 1}}\n', "c": '{"y": 2}\n'}
    urls = {name: put(s3, f"{name}.jsonl", content) for name, content in parts.items()}
    for order in ("abc", "cba", "bac"):
        ds = zj.Dataset.from_path("d", [urls[name] for name in order])
        got = [ds[i] for i in range(4)]
        want = [json.loads(line) for name in order for line in parts[name].splitlines()]
        assert got == want


def test_case_35_a_huge_line_a_mark_and_hidden_files(s3):
    huge = "x" * 5_000_000
    put(s3, "a.jsonl", b'\xef\xbb\xbf{"v": "a"}\n' + f'{{"v": "{huge}"}}\n\n{{"v": "b"}}\n'.encode())
    put(s3, "._a.jsonl", b"\x00\x05\x16\x07")
    ds = zj.Dataset.from_path("d", f"s3://data/{s3.prefix}/")
    assert [ds[0]["v"], len(ds[1]["v"]), ds[2]["v"], len(ds)] == ["a", 5_000_000, "b", 3]


def test_case_37_a_broken_and_a_cut_off_line(s3):
    put(s3, "a.jsonl", '{"v": 0}\n\nbad\n{"v": 1}\n{"v": "cut o')
    ds = zj.Dataset.from_path("d", f"s3://data/{s3.prefix}/a.jsonl")
    with pytest.raises(zj.DataError, match=rf"s3://data/{s3.prefix}/a.jsonl, line 3: not valid JSON"):
        ds[1]
    work = zj.StaticMixtureWorkSource(ds, shuffle_shards=False)
    pipeline = zj.Pipeline(work).batch(1).options(on_data_error="skip", max_skipped=5)
    with iter(pipeline) as it:
        assert [int(batch["v"][0]) for batch in it] == [0, 1]


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
def test_a_compressed_object_that_is_cut_off(s3, suffix, pack):
    url = put(s3, f"a.jsonl{suffix}", pack(lines(0, 500).encode())[:-5])
    with pytest.raises(zj.DataError, match=rf"a.jsonl{suffix}: the compressed content is cut off after [\d,]+ bytes"):
        zj.Dataset.from_path("d", url)


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def failing(s3: Store, fault) -> zj.DataError:
    """The error of a read after the dataset was made, and the server began to fail."""
    ds = zj.Dataset.from_path("d", put(s3, "a.jsonl", lines(0, 50)))
    s3.fault = fault
    with pytest.raises(zj.DataError) as caught:
        ds.read(0, np.arange(20))
    assert caught.value.path == f"s3://data/{s3.prefix}/a.jsonl"
    assert caught.value.shard == 0
    text = str(caught.value)
    assert f"bucket 'data', key '{s3.prefix}/a.jsonl'" in text
    return caught.value


@pytest.mark.parametrize(
    ("answer", "text", "attempts"),
    [
        (error(400, "ExpiredToken"), "the credentials have expired", 1),
        (error(403, "AccessDenied"), "access is denied", 1),
        (error(403, "InvalidAccessKeyId"), "access is denied", 1),
        (error(400, "AuthorizationHeaderMalformed"), "the bucket is in another region; set AWS_REGION", 1),
        (error(503, "SlowDown"), "the server asks for fewer requests (throttling) or is not available", 3),
        (error(500, "InternalError"), "the request failed", 3),
        (Answer(200, b"x" * 1000, cut=10), "the connection was cut", 3),
    ],
    ids=lambda v: v.body[39:60].decode() if isinstance(v, Answer) else None,
)
def test_errors_name_what_failed_and_are_bounded(s3, answer, text, attempts):
    seen = []
    found = failing(s3, lambda request: seen.append(request) or answer)
    assert text in str(found)
    assert len(seen) == attempts


def test_a_server_that_says_nothing_is_given_up(s3, monkeypatch):
    monkeypatch.setenv("ZEPHON_JAX_REQUEST_TIMEOUT_S", "0.5")
    found = failing(s3, lambda request: "hang")
    assert "no answer within 0.5 s; set ZEPHON_JAX_REQUEST_TIMEOUT_S" in str(found)


def test_a_server_that_is_gone(s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(zj.DataError, match="the server cannot be reached; is the endpoint right"):
        storage.stat("s3://data/a")


@pytest.mark.parametrize("what", [error(503, "SlowDown"), "cut 100"], ids=["throttled", "cut"])
def test_a_fault_that_passes_is_not_noticed(s3, what):
    ds = zj.Dataset.from_path("d", put(s3, "a.jsonl", lines(0, 50)))
    faults = [what, what]
    s3.fault = lambda request: faults.pop() if faults else None
    assert values(ds) == list(range(50))
    assert faults == []


def test_credentials_that_expire_while_an_index_is_built(s3):
    for i in range(3):
        put(s3, f"{i}.jsonl", lines(0, 20))
    reads = []
    s3.fault = lambda request: (
        (
            error(400, "ExpiredToken")
            if request.range is None or (request.range not in ONE_BYTE and reads.append(1) is None and len(reads) > 1)
            else None
        )
        if request.path.endswith("jsonl")
        else None
    )
    with pytest.raises(zj.DataError, match="the credentials have expired"):
        zj.Dataset.from_path("d", f"s3://data/{s3.prefix}/")


def test_an_object_that_disappears_and_one_that_changes(s3):
    ds = zj.Dataset.from_path("d", [put(s3, "a.jsonl", lines(0, 9)), put(s3, "b.jsonl", lines(0, 9))])
    s3.delete(f"{s3.prefix}/a.jsonl")
    with pytest.raises(zj.DataError, match=r"a.jsonl: there is no object"):
        ds.read(0, np.array([1]))
    put(s3, "b.jsonl", lines(1, 10))  # as long as before
    with pytest.raises(zj.DataError, match=r"b.jsonl has changed since it was indexed"):
        ds.read(1, np.array([1]))
    assert values(zj.Dataset.from_path("d", f"s3://data/{s3.prefix}/b.jsonl")) == list(range(1, 10))


def test_an_object_that_changes_while_it_is_indexed(s3, monkeypatch):
    monkeypatch.setattr("zephon_jax.sources.jsonl._BLOCK_BYTES", 100)
    url = put(s3, "a.jsonl", lines(0, 50))
    file = storage.stat(url)
    blocks = storage.stream(file, 100)
    next(blocks)
    put(s3, "a.jsonl", lines(1, 51))
    with pytest.raises(zj.DataError, match="has changed"):
        list(blocks)


# -- indexes beside the data -------------------------------------------------------------------------------------------


def test_an_index_beside_the_data_spares_others_the_reading(s3, monkeypatch, tmp_path):
    for i in range(3):
        put(s3, f"{i}.jsonl", lines(10 * i, 10 * i + 10))
    root = f"s3://data/{s3.prefix}/"
    from zephon_jax.cli import main

    assert main(["index", "--beside", root]) == 0
    monkeypatch.setenv("ZEPHON_JAX_CACHE_DIR", str(tmp_path / "of another host"))
    s3.requests.clear()
    ds = zj.Dataset.from_path("d", root)
    assert not [r for r in s3.requests if r.path.endswith(".jsonl") and r.range not in ONE_BYTE]
    assert values(ds) == list(range(30))
    put(s3, "1.jsonl", lines(100, 110))
    s3.requests.clear()
    assert values(zj.Dataset.from_path("d", root)) == [*range(10), *range(100, 110), *range(20, 30)]
    whole = [r.path[-7:] for r in s3.requests if r.path.endswith(".jsonl") and r.range not in ONE_BYTE]
    assert sorted(whole) == ["0.jsonl", "1.jsonl", "1.jsonl", "2.jsonl"]  # only the changed one was indexed again


# -- what tensorstore is asked to open ---------------------------------------------------------------------------------


def test_specs(monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    retries = {"max_retries": 6, "initial_delay": "250ms", "max_delay": "8s"}
    limit = {"limit": 128}
    plain = {"driver": "s3", "bucket": "b", "context": {"s3_request_retries": retries, "s3_request_concurrency": limit}}
    assert remote.spec("s3", "b") == plain
    assert remote.spec("gs", "b") == {
        "driver": "gcs",
        "bucket": "b",
        "context": {"gcs_request_retries": retries, "gcs_request_concurrency": limit},
    }
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert remote.spec("s3", "b") == plain | {"aws_region": "eu-west-1"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
    assert remote.spec("s3", "b") == plain | {"aws_region": "eu-west-1", "endpoint": "http://localhost:9000"}
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://localhost:9001")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    assert remote.spec("s3", "b") == plain | {
        "aws_region": "us-east-1", "endpoint": "http://localhost:9001", "aws_credentials": {"type": "environment"}
    }  # fmt: skip


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_tensorstore_takes_the_specs(scheme):
    import tensorstore as ts

    assert ts.KvStore.Spec(remote.spec(scheme, "bucket")).to_json()["bucket"] == "bucket"


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan"])
def test_a_time_out_that_is_none(monkeypatch, text):
    monkeypatch.setenv("ZEPHON_JAX_REQUEST_TIMEOUT_S", text)
    with pytest.raises(zj.ConfigurationError, match="ZEPHON_JAX_REQUEST_TIMEOUT_S="):
        remote.request_timeout_s()


# -- the other formats ---------------------------------------------------------------------------------------------------


def test_parquet_over_object_storage_reads_as_its_local_twin(s3, tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"tokens": list(range(i % 7)), "text": f"text {i}", "n": i} for i in range(100)]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=16)
    url = put(s3, "a.parquet", (tmp_path / "a.parquet").read_bytes())
    there, here = zj.Dataset.from_path("d", url), zj.Dataset.from_path("d", tmp_path / "a.parquet")
    assert there.fingerprint == here.fingerprint
    index = np.array([99, 3, 50, 51, 3])
    assert same_rows(rows_of(there.read(0, index)[0], 5), rows_of(here.read(0, index)[0], 5))


def test_array_records_over_object_storage_are_read_from_a_copy(s3, tmp_path):
    module = pytest.importorskip("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(tmp_path / "a.arrayrecord"), "group_size:4")
    for i in range(50):
        writer.write(f"record {i}".encode())
    writer.close()
    url = put(s3, "a.arrayrecord", (tmp_path / "a.arrayrecord").read_bytes())
    there, here = zj.Dataset.from_path("d", url), zj.Dataset.from_path("d", tmp_path / "a.arrayrecord")
    assert there.fingerprint == here.fingerprint
    assert [there[i] for i in (0, 49, 7)] == [here[i] for i in (0, 49, 7)]
    requests = len(s3.requests)
    assert (
        len([r for r in s3.requests if r.path.endswith("a.arrayrecord") and r.range not in ONE_BYTE]) <= 2
    )  # footer, copy
    assert there[13] == here[13]
    assert len(s3.requests) == requests


@pytest.mark.parametrize("version", [2, 3])
def test_a_token_store_in_object_storage(s3, version):
    zarr = pytest.importorskip("zephon_jax.sources.zarr")
    documents = [np.arange(i % 9, dtype=np.int32) for i in range(60)]
    url = f"s3://data/{s3.prefix}/tokens.zarr"
    zarr.write_token_store(url, documents, zarr=version)
    for name in (url, url + "/", f"s3://data/{s3.prefix}/", f"s3://data/{s3.prefix}/*.zarr"):
        ds = zj.Dataset.from_path("d", name)
        assert len(ds) == 60
        assert [ds[i]["tokens"].tolist() for i in (0, 59, 8)] == [documents[i].tolist() for i in (0, 59, 8)]
