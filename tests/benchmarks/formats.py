"""What each format gives through `Dataset.read`, beside its own library: `python -m tests.benchmarks.formats [--small]`.

Prints the tables of docs/formats.md. Samples are asked for in chunks of 512, in the order of a `StaticMixtureWorkSource`:
file after file, blocks of 256 in random order, and single samples in random order. The other column is the format's
library in the loop that a user who knows it would write, with the same columns and the same kind of result: for files in
sequence over what the library reads best, for random orders chunk by chunk, with what it has decoded kept. Both begin
without anything kept in the process, take turns, and read from the page cache.

The second table is the time from paths to the first sample, for many small shards, without and with a kept index.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import pathlib
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

import zephon_jax as zj
from zephon_jax.sources import opened, recent, zarr

CHUNK, SHARDS = 512, 4
Order = list[list[tuple[int, np.ndarray]]]
"""Chunks; each a list of shard and samples, as a fetch of the chunk asks for them."""


@dataclass
class Case:
    """A format with data, the same through its library: a pass in sequence, and samples of a shard."""

    name: str
    paths: list[str]
    bytes: int
    sequence: Callable[[], Iterator[Any]]
    library: Callable[[], Callable[[int, np.ndarray], Any]]
    fields: list[str] | None = None


def documents(n: int, mean: int) -> list[np.ndarray]:
    rng = np.random.Generator(np.random.Philox(0))
    return [rng.integers(0, 50_000, int(k)).astype(np.int32) for k in rng.integers(mean // 3, 2 * mean - mean // 3, n)]


def shards_of(things: list[Any]) -> list[list[Any]]:
    cuts = np.linspace(0, len(things), SHARDS + 1).astype(int)
    return [things[a:b] for a, b in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)]


# -- the libraries ---------------------------------------------------------------------------------------------------------


def parquet_tokens(root: pathlib.Path, docs: list[np.ndarray], rows: int) -> Case:
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = [str(root / f"{i}.parquet") for i in range(SHARDS)]
    for path, part in zip(paths, shards_of(docs), strict=True):
        table = pa.table({"tokens": pa.array(part, pa.list_(pa.int32())), "id": list(range(len(part)))})
        pq.write_table(table, path, row_group_size=rows)

    def ragged(table: Any) -> tuple[np.ndarray, np.ndarray]:
        column = table.column(0).chunk(0)
        return column.values.to_numpy(), column.offsets.to_numpy()

    def sequence() -> Iterator[Any]:
        for path in paths:
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                yield ragged(file.read_row_group(group, columns=["tokens"], use_threads=False))

    def library() -> Callable[[int, np.ndarray], Any]:
        files = [pq.ParquetFile(path) for path in paths]

        @functools.cache
        def group(shard: int, number: int) -> tuple[np.ndarray, np.ndarray]:
            return ragged(files[shard].read_row_group(number, columns=["tokens"], use_threads=False))

        def read(shard: int, samples: np.ndarray) -> Any:
            parts = []
            for sample in samples.tolist():
                values, offsets = group(shard, sample // rows)
                parts.append(values[offsets[sample % rows] : offsets[sample % rows + 1]])
            return np.concatenate(parts), np.cumsum([0, *map(len, parts)])

        return read

    return Case(
        f"Parquet tokens, groups of {rows:,}", paths, sum(d.nbytes for d in docs), sequence, library, ["tokens"]
    )


def parquet_text(root: pathlib.Path, texts: list[str]) -> Case:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 512
    paths = [str(root / f"text-{i}.parquet") for i in range(SHARDS)]
    for path, part in zip(paths, shards_of(texts), strict=True):
        pq.write_table(pa.table({"text": part}), path, row_group_size=rows)

    def sequence() -> Iterator[Any]:
        for path in paths:
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, columns=["text"], use_threads=False).column(0).to_pylist()

    def library() -> Callable[[int, np.ndarray], Any]:
        files = [pq.ParquetFile(path) for path in paths]

        @functools.cache
        def group(shard: int, number: int) -> list[str]:
            return files[shard].read_row_group(number, columns=["text"], use_threads=False).column(0).to_pylist()

        return lambda shard, samples: [group(shard, s // rows)[s % rows] for s in samples.tolist()]

    return Case(f"Parquet text, groups of {rows}", paths, sum(map(len, texts)), sequence, library, ["text"])


def array_records(root: pathlib.Path, docs: list[np.ndarray], group: int) -> Case:
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    paths = [str(root / f"{group}-{i}.arrayrecord") for i in range(SHARDS)]
    parts = shards_of(docs)
    for path, part in zip(paths, parts, strict=True):
        writer = ArrayRecordWriter(path, f"group_size:{group}")
        for doc in part:
            writer.write(doc.tobytes())
        writer.close()

    def opened_files() -> list[Any]:
        options = "readahead_buffer_size:0,max_parallelism:0"
        return [ArrayRecordReader(path, options, file_reader_buffer_size=32768) for path in paths]

    def sequence() -> Iterator[Any]:
        for reader in opened_files():
            for start in range(0, reader.num_records(), CHUNK):
                yield reader.read(start, min(start + CHUNK, reader.num_records()))

    def library() -> Callable[[int, np.ndarray], Any]:
        readers = opened_files()
        return lambda shard, samples: readers[shard].read(samples.tolist())

    return Case(f"ArrayRecord, group_size:{group}", paths, sum(d.nbytes for d in docs), sequence, library)


def token_stores(root: pathlib.Path, docs: list[np.ndarray], *, sharded: bool) -> Case:
    import tensorstore as ts

    kind = "sharded" if sharded else "chunks"
    paths = [str(root / f"{kind}-{i}.zarr") for i in range(SHARDS)]
    for path, part in zip(paths, shards_of(docs), strict=True):
        zarr.write_token_store(path, part, shard_values=1 << 20 if sharded else None)

    def stores() -> list[tuple[Any, np.ndarray]]:
        context = ts.Context({"cache_pool": {"total_bytes_limit": 256 << 20}})

        def array(path: str) -> Any:
            spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path + "/"}, "recheck_cached_data": "open"}
            return ts.open(spec, context=context, read=True).result()

        return [(array(path + "/tokens"), array(path + "/tokens_splits").read().result()) for path in paths]

    def sequence() -> Iterator[Any]:
        for values, splits in stores():
            for start in range(0, len(splits) - 1, CHUNK):
                part = splits[start : start + CHUNK + 1]
                yield values[int(part[0]) : int(part[-1])].read().result(), part - part[0]

    def library() -> Callable[[int, np.ndarray], Any]:
        every = stores()

        def read(shard: int, samples: np.ndarray) -> Any:
            values, splits = every[shard]
            spans = [(int(splits[s]), int(splits[s + 1])) for s in samples.tolist()]
            parts = [future.result() for future in [values[a:b].read() for a, b in spans]]
            return np.concatenate(parts), np.cumsum([0, *map(len, parts)])

        return read

    return Case(f"Zarr 3, {kind}", paths, sum(d.nbytes for d in docs), sequence, library)


def arrow_folder(root: pathlib.Path, docs: list[np.ndarray]) -> Case:
    import pyarrow as pa

    folder = root / "saved"
    folder.mkdir()
    names = [f"data-{i:05d}-of-{SHARDS:05d}.arrow" for i in range(SHARDS)]
    for name, part in zip(names, shards_of(docs), strict=True):
        table = pa.table({"tokens": pa.array(part, pa.list_(pa.int32()))})
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=1000)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text("{}")

    def tables() -> list[Any]:
        return [pa.ipc.open_stream(pa.memory_map(str(folder / name))).read_all() for name in names]

    def sequence() -> Iterator[Any]:
        for table in tables():
            for column in table.column("tokens").chunks:
                for start in range(0, len(column), CHUNK):
                    part = column.slice(start, CHUNK)
                    offsets = part.offsets.to_numpy()
                    yield part.values.to_numpy()[offsets[0] : offsets[-1]].copy(), offsets - offsets[0]

    def library() -> Callable[[int, np.ndarray], Any]:
        chunks = [
            [(c.values.to_numpy(), c.offsets.to_numpy()) for c in table.column("tokens").chunks] for table in tables()
        ]

        def read(shard: int, samples: np.ndarray) -> Any:
            parts = []
            for sample in samples.tolist():
                values, offsets = chunks[shard][sample // 1000]
                parts.append(values[offsets[sample % 1000] : offsets[sample % 1000 + 1]])
            return np.concatenate(parts), np.cumsum([0, *map(len, parts)])

        return read

    return Case("Arrow folder", [str(folder)], sum(d.nbytes for d in docs), sequence, library)


def json_lines(root: pathlib.Path, texts: list[str]) -> Case:
    paths = [str(root / f"{i}.jsonl") for i in range(SHARDS)]
    for path, part in zip(paths, shards_of(texts), strict=True):
        with open(path, "w") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in part)

    def sequence() -> Iterator[Any]:
        for path in paths:
            with open(path, "rb") as file:
                for line in file:
                    yield json.loads(line)["text"]

    def library() -> Callable[[int, np.ndarray], Any]:
        starts = []
        for path in paths:
            with open(path, "rb") as file:
                starts.append(np.cumsum([0, *(len(line) for line in file)]).tolist())
        files = [open(path, "rb") for path in paths]  # noqa: SIM115

        def read(shard: int, samples: np.ndarray) -> Any:
            out = []
            for sample in samples.tolist():
                files[shard].seek(starts[shard][sample])
                out.append(json.loads(files[shard].readline())["text"])
            return out

        return read

    return Case("JSONL text", paths, sum(map(len, texts)), sequence, library, ["text"])


# -- measuring -------------------------------------------------------------------------------------------------------------

ORDERS = {
    "sequence": {"shuffle_shards": False},
    "blocks of 256": {"shuffle_block_size": 256},
    "global": {"shuffle_block_size": "global"},
}


def asked(work: zj.StaticMixtureWorkSource) -> Order:
    """Chunk by chunk, the samples of each shard."""
    order: Order = []
    while (chunk := work.next_chunk()) is not None:
        order.append([(shard, chunk.sample[chunk.shard == shard]) for shard in np.unique(chunk.shard).tolist()])
    return order


def forget() -> None:
    """What this process keeps of blocks, files and arrays."""
    recent.DECODED.clear()
    opened.forget()
    zarr.forget()
    gc.collect()


def timed(run: Callable[[], None]) -> float:
    forget()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(case: Case, repeats: int) -> Iterator[tuple[str, list[float], list[float]]]:
    """Order, seconds of each pass of ours, and of the library's."""
    data = zj.Dataset.from_path(
        "data", case.paths, fields=case.fields, format="arrow" if "Arrow" in case.name else None
    )
    for name, options in ORDERS.items():
        order = asked(zj.StaticMixtureWorkSource(data, chunk_size=CHUNK, **options))

        def ours(order: Order = order) -> None:
            last = None
            for chunk in order:
                for shard, samples in chunk:
                    last = data.read(shard, samples)  # kept until the next one is there, as in a pipeline  # noqa: F841

        def theirs(order: Order = order, name: str = name) -> None:
            if name == "sequence":
                for _ in case.sequence():
                    pass
            else:
                read, last = case.library(), None
                for chunk in order:
                    for shard, samples in chunk:
                        last = read(shard, samples)  # noqa: F841

        for run in (ours, theirs):  # the page cache, and code that is imported late
            run()
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(repeats):
            for run, into in zip((ours, theirs), times, strict=True):
                into.append(timed(run))
        yield name, *times


def table(cases: list[Case], samples: int, repeats: int) -> None:
    print("| format | order | samples/s | MB/s | library, MB/s | ratio (least to most) |\n|---|---|---|---|---|---|")
    for case in cases:
        for order, ours, theirs in measure(case, repeats):
            own, other = statistics.median(ours), statistics.median(theirs)
            ratios = sorted(b / a for a, b in zip(ours, theirs, strict=True))  # of passes next to each other in time
            print(
                f"| {case.name} | {order} | {samples / own:,.0f} | {case.bytes / own / 1e6:,.0f} | "
                f"{case.bytes / other / 1e6:,.0f} | {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |",
                flush=True,
            )


def start_up(root: pathlib.Path, counts: list[int]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    print("\n| shards | first time | index kept |\n|---|---|---|")
    pq.write_table(pa.table({"tokens": [[1, 2, 3]] * 4, "id": list(range(4))}), root / "one.parquet")
    content = (root / "one.parquet").read_bytes() + b""
    for count in counts:
        folder = root / f"{count}-shards"
        folder.mkdir()
        for i in range(count):
            (folder / f"{i:06}.parquet").write_bytes(content)
        times = []
        for _ in range(2):
            forget()
            start = time.perf_counter()
            zj.Dataset.from_path("data", str(folder))[0]
            times.append(time.perf_counter() - start)
        print(f"| {count:,} | {times[0]:.2f} s | {times[1]:.2f} s |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="little data, once: to see that it runs")
    parser.add_argument("--no-start-up", action="store_true", help="without the second table")
    parser.add_argument("--only", default="", help="formats whose name begins so")
    given = parser.parse_args()
    small = given.small
    samples, mean, repeats = (1_200, 60, 1) if small else (20_000, 600, 7)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        os.environ["ZEPHON_JAX_CACHE_DIR"] = str(root / "cache")
        docs = documents(samples, mean)
        texts = [" ".join(map(str, doc[: mean // 2].tolist())) for doc in docs]
        print(
            f"{samples:,} samples in {SHARDS} shards, {sum(d.nbytes for d in docs) / 1e6:.0f} MB of int32 tokens or "
            f"{sum(map(len, texts)) / 1e6:.0f} MB of text, medians of {repeats}, {os.cpu_count()} cores, Python "
            f"{platform.python_version()}, "
            + ", ".join(f"{p} {version(p)}" for p in ("pyarrow", "array_record", "tensorstore"))
        )
        makers: list[Callable[[], Case]] = [
            lambda: parquet_tokens(root, docs, 512),
            lambda: parquet_text(root, texts),
            lambda: array_records(root, docs, 1),
            lambda: array_records(root, docs, 64),
            lambda: token_stores(root, docs, sharded=False),
            lambda: token_stores(root, docs, sharded=True),
            lambda: arrow_folder(root, docs),
            lambda: json_lines(root, texts),
        ]
        table([case for make in makers if (case := make()).name.startswith(given.only)], samples, repeats)
        if not given.no_start_up:
            start_up(root, [50] if small else [1_000, 10_000, 100_000])


if __name__ == "__main__":
    sys.exit(main())
