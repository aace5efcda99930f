"""What this machine can do without a framework: `python -m tests.benchmarks.speed.limit WORKLOAD [--workers N]`.

pack     read every token column, first fit over 16 open bins in a bare loop, 8 rows at a time
concat   the same columns copied one behind the other into rows: nothing is decided
text     the tokenizer's fastest call over all texts, ids to arrays
records  rows of one array in memory in random order, 256 at a time
map      the busy function in bare processes that share nothing
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from tests.benchmarks.speed.consume import arguments, busy, consume, emit, pinned_threads
from tests.benchmarks.speed.corpus import BINS, RECORD_BATCH, ROW, ROWS, shards


def token_columns(root: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    import pyarrow.parquet as pq

    for path in shards(root, "tok_parquet", "parquet"):
        file = pq.ParquetFile(path, memory_map=True)
        for group in range(file.num_row_groups):
            column = file.read_row_group(group, use_threads=False).column(0).combine_chunks()
            yield column.offsets.to_numpy(), column.values.to_numpy()


def concat(root: str) -> Iterator[np.ndarray]:
    need = ROW * ROWS
    out, filled = np.empty(need, np.int32), 0
    for _, values in token_columns(root):
        at = 0
        while at < len(values):
            n = min(need - filled, len(values) - at)
            out[filled : filled + n] = values[at : at + n]
            filled, at = filled + n, at + n
            if filled == need:
                yield out.reshape(ROWS, ROW)
                out, filled = np.empty(need, np.int32), 0
    yield out[:filled]


def pack(root: str) -> Iterator[dict[str, np.ndarray]]:
    """The fullest bin leaves when nothing fits."""
    bins: list[Any] = [[0, []] for _ in range(BINS)]
    ready: list[list[np.ndarray]] = []
    counting = np.arange(ROW, dtype=np.int32)

    def rows(n: int) -> dict[str, np.ndarray]:
        tokens, segments, positions = (np.zeros((n, ROW), np.int32) for _ in range(3))
        for row, documents in enumerate(ready[:n]):
            at = 0
            for number, document in enumerate(documents, 1):
                end = at + len(document)
                tokens[row, at:end] = document
                segments[row, at:end] = number
                positions[row, at:end] = counting[: len(document)]
                at = end
        del ready[:n]
        return {"tokens": tokens, "segment_ids": segments, "positions": positions}

    for offsets, values in token_columns(root):
        ends = offsets.tolist()
        for start, stop in pairwise(ends):
            while start < stop:
                n = min(ROW, stop - start)
                document = values[start : start + n]
                start += n
                for one in bins:
                    if one[0] + n <= ROW:
                        break
                else:
                    one = max(bins, key=lambda b: b[0])
                    ready.append(one[1])
                    one[0], one[1] = 0, []
                    if len(ready) >= ROWS:
                        yield rows(ROWS)
                one[0] += n
                one[1].append(document)
    ready.extend(one[1] for one in bins if one[0])
    while ready:
        yield rows(min(ROWS, len(ready)))


def text(root: str) -> Iterator[list[np.ndarray]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{root}/tokenizer.json")
    lines = []
    for path in shards(root, "text_jsonl", "jsonl"):
        with open(path) as file:
            lines += [json.loads(line)["text"] for line in file]
    for at in range(0, len(lines), 256):
        encoded = tokenizer.encode_batch_fast(lines[at : at + 256], add_special_tokens=False)
        yield [np.array(one.ids, np.int32) for one in encoded]


def records(root: str) -> Iterator[dict[str, np.ndarray]]:
    rows = np.load(f"{root}/rec.npy")
    order = np.random.default_rng(7).permutation(len(rows))
    for at in range(0, len(rows), RECORD_BATCH):
        some = rows[order[at : at + RECORD_BATCH]]
        yield {"label": np.ascontiguousarray(some[:, 784:]).view(np.int32)[:, 0], "image": some[:, :784]}


def _many(loops: int, n: int) -> float:
    began = time.perf_counter()
    for _ in range(n):
        busy(loops)
    return time.perf_counter() - began


def bare_map(loops: int, n: int, workers: int) -> dict[str, Any]:
    """Each process does its part at once; the rate is of the slowest, since all parts are needed."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.starmap(_many, [(loops, 10)] * workers)
        began = time.perf_counter()
        pool.starmap(_many, [(loops, n // workers)] * workers, chunksize=1)
        seconds = time.perf_counter() - began
    done = n // workers * workers
    return {"rate": done / seconds, "units": done, "cpu_us_per_unit": 1e6 * seconds * workers / done}


def main() -> None:
    given = arguments(__doc__ or "", ["pack", "concat", "text", "records", "map"]).parse_args()
    pinned_threads(given.workers or 1)
    name = given.name or "bare loop"
    if given.workload == "map":
        emit(
            "limit",
            "map",
            given.name or f"{given.workers} processes",
            bare_map(given.loops, given.records, given.workers),
        )
        return
    counters: dict[str, Any] = {
        "pack": lambda b: (int(np.count_nonzero(b["segment_ids"])), b["segment_ids"].size),
        "concat": lambda b: (b.size, b.size),
        "text": lambda b: (sum(map(len, b)),) * 2,
        "records": lambda b: (len(b["label"]),) * 2,
    }
    makers: dict[str, Any] = {"pack": pack, "concat": concat, "text": text, "records": records}
    figures = consume(lambda: makers[given.workload](given.root), counters[given.workload])
    emit("limit", "pack" if given.workload == "concat" else given.workload, name, figures)


if __name__ == "__main__":
    main()
