"""One set of documents in every format: one output, bit for bit, also where a run goes on from another format."""

from __future__ import annotations

import hashlib
import json
import pathlib
import random
import subprocess
import sys

import numpy as np
import pytest

import zephon_jax as zj
from zephon_jax import DataError, Dataset
from zephon_jax.columns import rows_of
from zephon_jax.sources.base import Shard
from zephon_jax.sources.zarr import write_token_store

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
arrayrecord = pytest.importorskip("array_record.python.array_record_module")

ROOT = pathlib.Path(__file__).parents[2]
SHARDS = (4_000, 1, 5_999)
FORMATS = [
    "jsonl",
    "parquet",
    "parquet of odd groups",
    "arrayrecord",
    "arrayrecord in groups",
    "zarr",
    "zarr in shards",
    "arrow",
]
PATTERNS = {
    "jsonl": "jsonl/*.jsonl", "parquet": "parquet/*.parquet", "parquet of odd groups": "odd/*.parquet",
    "arrayrecord": "ar1/*.arrayrecord", "arrayrecord in groups": "ar50/*.arrayrecord",
    "zarr": "zarr/*.zarr", "zarr in shards": "zarr-shards/*.zarr", "arrow": "arrow",
}  # fmt: skip
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("score", pa.float64()), ("tags", pa.list_(pa.int64()))])


def documents(n: int) -> list[dict]:
    rng = random.Random(4)
    words = ["data", "token", "naïve", "日本", "", "x" * 30, "\n", "shard"]
    return [
        {
            "id": i,
            "text": " ".join(rng.choices(words, k=rng.randint(0, 12))),
            "score": rng.random(),
            "tags": [rng.randrange(-9, 9) for _ in range(rng.randint(0, 3))],
        }
        for i in range(n)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("formats")
    everything, at, files = documents(sum(SHARDS)), 0, []
    for name in ("jsonl", "parquet", "odd", "ar1", "ar50", "zarr", "zarr-shards", "arrow"):
        (root / name).mkdir()
    for shard, n in enumerate(SHARDS):
        docs, at = everything[at : at + n], at + n
        lines = [json.dumps(doc) for doc in docs]
        (root / f"jsonl/{shard}.jsonl").write_text("\n".join(lines))
        table = pa.Table.from_pylist(docs, SCHEMA)
        parquet.write_table(table, root / f"parquet/{shard}.parquet", row_group_size=1000)
        parquet.write_table(
            table, root / f"odd/{shard}.parquet", row_group_size=77, use_dictionary=False, compression="zstd"
        )
        for group in (1, 50):
            writer = arrayrecord.ArrayRecordWriter(str(root / f"ar{group}/{shard}.arrayrecord"), f"group_size:{group}")
            for line in lines:
                writer.write(line.encode())
            writer.close()
        as_numbers = [{**doc, "text": np.frombuffer(doc["text"].encode(), np.uint8)} for doc in docs]
        write_token_store(root / f"zarr/{shard}.zarr", as_numbers, chunk_values=4096)
        write_token_store(root / f"zarr-shards/{shard}.zarr", as_numbers, chunk_values=512, shard_values=4096)
        files.append({"filename": f"data-{shard}.arrow"})
        with pa.OSFile(str(root / f"arrow/data-{shard}.arrow"), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as out:
            out.write_table(table, max_chunksize=1000)
    (root / "arrow/state.json").write_text(json.dumps({"_data_files": files}))
    (root / "arrow/dataset_info.json").write_text("{}")
    return root


def dataset(folder, name: str, fields=None) -> Dataset:
    if name.startswith("arrayrecord"):
        fields = None
    ds = Dataset.from_path("docs", str(folder / PATTERNS[name]), fields=fields)
    assert [shard.num_samples for shard in ds.shards] == list(SHARDS)
    return ds


def decode(sample):
    """What each format needs to give text: nothing, or the meaning of bytes."""
    if "value" in sample:
        return json.loads(sample["value"])
    text = sample["text"]
    return {**sample, "text": text.tobytes().decode()} if isinstance(text, np.ndarray) else sample


def only_text(sample):
    return {"text": sample["text"]}


def tokens(text: str) -> list[int]:
    return [1 + byte for byte in text.encode()]


def packed(ds: Dataset, **work) -> zj.Pipeline:
    work = {"seed": 3, "chunk_size": 128, "shuffle_block_size": 64} | work
    return (
        zj.Pipeline(zj.StaticMixtureWorkSource(ds, **work))
        .map(decode).map(only_text).tokenize(tokens, add_eos=0).pack(256).shuffle(32).batch(8)
        .options(executor="inline", canonical_replicas=2)
    )  # fmt: skip


def digests(batches) -> list[str]:
    out = []
    for batch in batches:
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(batch):
            value = batch[name]
            content = value.tobytes() if value.dtype != object else repr(value.tolist()).encode()
            digest.update(f"{name} {value.dtype} {value.shape}".encode() + content)
        out.append(digest.hexdigest())
    return out


@pytest.fixture(scope="module")
def reference(folder) -> list[str]:
    return digests(packed(dataset(folder, "jsonl")))


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS[1:])
def test_packed_rows_are_the_same(folder, reference, name):
    assert len(reference) > 100
    assert digests(packed(dataset(folder, name))) == reference
    assert digests(packed(dataset(folder, name, ["text"]))) == reference


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parquet of odd groups", "arrayrecord in groups", "zarr", "arrow"])
def test_threads_give_the_same(folder, reference, name, monkeypatch):
    """Several workers at one file, with room for a few blocks only."""
    monkeypatch.setattr("zephon_jax.sources.recent.DECODED.limit", 100_000)
    options = {"executor": "threads", "max_workers": 4, "micro_batch_records": 37, "prefetch": 3}
    with iter(packed(dataset(folder, name), shuffle_block_size=64).options(**options)) as it:
        assert digests(it) == reference


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS[1:])
def test_every_field_is_the_same(folder, name):
    """Numbers, lists and text of records as they are, in batches; in the order of a global shuffle."""

    def batches(ds):
        work = zj.StaticMixtureWorkSource(ds[3_000:6_000], seed=1, shuffle_block_size="global")
        return list(zj.Pipeline(work).map(decode).batch(100))

    want, got = batches(dataset(folder, "jsonl")), batches(dataset(folder, name))
    assert len(want) == 30
    for a, b in zip(want, got, strict=True):
        assert a.keys() == b.keys()
        for field in a:
            assert a[field].dtype == b[field].dtype
            assert repr(a[field].tolist()) == repr(b[field].tolist())
    assert want[0]["id"].dtype == np.int64
    assert want[0]["score"].dtype == np.float64


class AsIf:
    """A source whose files are known by their place, so that those of two formats count as the same."""

    def __init__(self, ds: Dataset):
        self.read = ds.read
        self.shards = [Shard(str(i), shard.num_samples, f"{i}") for i, shard in enumerate(ds.shards)]


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS[1:])
def test_a_run_goes_on_in_another_format(folder, reference, name):
    with iter(packed(Dataset("docs", AsIf(dataset(folder, "jsonl"))))) as it:
        for _ in range(41):
            next(it)
        state = it.checkpoint()
    with iter(packed(Dataset("docs", AsIf(dataset(folder, name))))) as it:
        it.restore(state)
        assert digests(it) == reference[41:]


@pytest.mark.slow
def test_a_run_does_not_go_on_with_other_content(folder):
    with iter(packed(dataset(folder, "jsonl"))) as it:
        next(it)
        state = it.checkpoint()
    with iter(packed(dataset(folder, "parquet"))) as it, pytest.raises(zj.CheckpointMismatch, match="docs"):
        it.restore(state)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_block_hints(folder, name):
    hint = dataset(folder, name).block_hint
    if name.startswith("zarr"):
        assert hint is not None
        assert 5 < hint < 200
    else:
        assert hint == {
            "parquet": 1000,
            "parquet of odd groups": 77,
            "arrayrecord in groups": 50,
        }.get(name)


# -- other people's sources ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sources_of_grain(folder):
    """The samples, and one fingerprint in each process."""
    grain = pytest.importorskip("grain")
    path = str(folder / "ar1/2.arrayrecord")
    lines = [line.encode() for line in (folder / "jsonl/2.jsonl").read_text().split("\n")]
    ds = Dataset.from_source("docs", grain.sources.ArrayRecordDataSource(path))
    assert len(ds) == SHARDS[2]
    samples = np.array([5_000, 3, 4, 5, 17])
    assert [row["value"] for row in rows_of(ds.read(0, samples)[0], 5)] == [lines[i] for i in samples.tolist()]
    numbers = Dataset.from_source("numbers", grain.sources.RangeDataSource(2, 20, 3))
    assert [int(numbers[i]["value"]) for i in range(len(numbers))] == [2, 5, 8, 11, 14, 17]
    code = (
        "import sys, grain, zephon_jax as zj\n"
        "print(zj.Dataset.from_source('docs', grain.sources.ArrayRecordDataSource(sys.argv[1])).fingerprint,"
        " zj.Dataset.from_source('numbers', grain.sources.RangeDataSource(2, 20, 3)).fingerprint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == [ds.fingerprint, numbers.fingerprint]


@pytest.mark.slow
def test_a_pipeline_over_a_source_of_grain(folder):
    """The same output as over the file itself, which is one shard for both."""
    grain = pytest.importorskip("grain")
    path = folder / "ar1/2.arrayrecord"
    sources = (
        Dataset.from_source("docs", grain.sources.ArrayRecordDataSource(str(path))),
        Dataset.from_path("docs", path),
    )
    one, other = (digests(packed(ds[:500])) for ds in sources)
    assert len(one) > 5
    assert one == other


class Batched:
    """With torch's method for many samples at once."""

    def __init__(self, values):
        self.values, self.asked, self.extra = values, [], []

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.values[index]

    def __getitems__(self, indices):
        self.asked.append(list(indices))
        return [self[i] for i in indices] + self.extra


def test_many_samples_are_asked_for_at_once():
    source = Batched([{"v": i * i} for i in range(30)])
    ds = Dataset.from_source("d", source, fingerprint="f")
    assert [int(row["v"]) for row in rows_of(ds.read(0, np.array([5, 2, 5]))[0], 3)] == [25, 4, 25]
    assert source.asked == [[5, 2, 5]]
    assert all(type(i) is int for i in source.asked[0])
    source.extra = [{"v": 0}]
    with pytest.raises(DataError, match="dataset 'd': __getitems__ was asked for 2 samples and returned 3"):
        ds.read(0, np.array([1, 2]))


def test_a_sample_that_fails_in_a_batch_is_named():
    source = Batched({i: i for i in range(30) if i != 13})
    source.values = type("Holed", (dict,), {"__len__": lambda self: 30})(source.values)
    ds = Dataset.from_source("d", source, fingerprint="f")
    with pytest.raises(DataError, match="sample 13 could not be read: KeyError: 13") as caught:
        ds.read(0, np.array([12, 13]))
    assert caught.value.record == 13


@pytest.mark.slow
def test_the_benchmark_runs():
    command = [sys.executable, "-m", "tests.benchmarks.formats", "--small"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("|") > 150


@pytest.mark.slow
def test_object_storage_gives_the_same(folder, tmp_path, monkeypatch):
    """Every format from a server on loopback: samples and fingerprints of the local files."""
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
        client.create_bucket(Bucket="formats")
        places = {
            "parquet": "parquet/1.parquet",
            "arrayrecord": "ar1/1.arrayrecord",
            "zarr": "zarr/1.zarr",
            "arrow": "arrow",
        }
        for place in places.values():
            for path in [folder / place, *(folder / place).rglob("*")]:
                if path.is_file():
                    client.upload_file(str(path), "formats", str(path.relative_to(folder)))
        for name, place in places.items():
            local, remote = (
                Dataset.from_path("d", f"{root}/{place}", format=name) for root in (folder, "s3://formats")
            )
            assert remote.fingerprint == local.fingerprint
            last = len(local) - 1
            assert repr(remote[last]) == repr(local[last])
        client.close()
    finally:
        server.stop()
