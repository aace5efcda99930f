"""Our pipelines for each workload: `python -m tests.benchmarks.speed.ours WORKLOAD --executor inline [--workers N]`."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import zephon_jax as zj
from tests.benchmarks.speed.consume import arguments, busy, consume, count, emit
from tests.benchmarks.speed.corpus import BINS, RECORD_BATCH, ROW, ROWS, SHUFFLE, meta, shards
from tests.benchmarks.speed.resuming import resumes
from zephon_jax.ops import DecodeRaw

WORKLOADS = ["pack", "text", "records", "map", "resume", "resume-text", "lanes", "global", "start", "import"]
LANE_DOCUMENTS = 5_000
EPOCH_CHUNKS = 32  # 16,384 documents: a flush sends rows off that are not full


def pack(paths: list[str], *, row: int = ROW, bins: int = BINS, rows: int = ROWS, **work: Any) -> zj.Pipeline:
    source = zj.StaticMixtureWorkSource(zj.Dataset.from_path("tokens", paths), **work)
    return zj.Pipeline(source).split(row).pack(row, num_bins=bins).batch(rows, drop_last=False)


def text(root: str, **work: Any) -> zj.Pipeline:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{root}/tokenizer.json")
    source = zj.StaticMixtureWorkSource(
        zj.Dataset.from_path("text", shards(root, "text_jsonl", "jsonl")), **{"chunk_size": 64, **work}
    )
    return zj.Pipeline(source).tokenize(tokenizer).split(ROW).pack(ROW, num_bins=BINS).batch(ROWS, drop_last=False)


def records(root: str) -> zj.Pipeline:
    source = zj.StaticMixtureWorkSource(zj.Dataset.from_path("records", shards(root, "rec_parquet", "parquet")))
    decoded = zj.Pipeline(source).apply(DecodeRaw("image", "uint8", (784,)))
    return decoded.shuffle(SHUFFLE).batch(RECORD_BATCH, drop_last=False)


def mapped(loops: int, n: int) -> zj.Pipeline:
    def work(_: Any) -> dict[str, int]:
        return {"x": busy(loops)}

    numbers = zj.Dataset.from_source("numbers", range(n))
    return zj.Pipeline(zj.StaticMixtureWorkSource(numbers)).map(work, name="busy").batch(128, drop_last=False)


def tokens_of(root: str) -> list[str]:
    return shards(root, "tok_parquet", "parquet")


def forget() -> None:
    """What the process keeps of files, so that a start reads them again."""
    from zephon_jax.sources import opened, recent

    recent.DECODED.clear()
    opened.forget()


def resume(
    make: Callable[[], zj.Pipeline], tokens_per_document: float, depths: list[int], phases: int
) -> dict[str, Any]:
    from zephon_jax.checkpoint.codec import encode

    def start(state: Any) -> Any:
        it = iter(make())
        if state is not None:
            it.restore(state)
        return it

    plan = make()._plan()
    documents = (plan.every or 1) * plan.work.chunk_size_hint
    epoch = max(phases, round(documents * tokens_per_document / (ROW * ROWS)))
    return resumes(start, lambda it: it.checkpoint(), lambda s: len(encode(s)), forget, depths, epoch, phases)


def lanes(root: str, n: int, documents: int) -> dict[str, Any]:
    """`n` lanes of so many documents each, from a corpus that is as large: the same files under other names.

    Repeating a small corpus would not do: what lanes are dealt at a time is a part of a pass.
    """
    paths, told = tokens_of(root), meta(root)
    batches = math.ceil(n * documents * told["tokens"] / told["docs"] / (ROW * ROWS))
    with tempfile.TemporaryDirectory(dir=root) as folder:
        for copy in range(1, math.ceil(n * documents / told["docs"])):
            for path in tokens_of(root):
                paths.append(f"{folder}/{copy:03}-{os.path.basename(path)}")
                os.link(path, paths[-1])
        made = pack(paths, exhausted_policy="repeat").options(executor="inline", canonical_replicas=n)
        return consume(lambda: iter(made), count, most=max(batches, n + 1))


def started(root: str, began: float) -> dict[str, Any]:
    next(iter(pack(tokens_of(root)).options(executor="inline")))
    return {"rate": 0.0, "units": 1, "first_batch_s": time.time() - began}


def options_of(given: Any) -> dict[str, Any]:
    return {"executor": given.executor} | ({"max_workers": given.workers} if given.workers else {})


def main() -> None:
    parser = arguments(__doc__ or "", WORKLOADS)
    parser.add_argument("--executor", default="inline")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--documents", type=int, default=LANE_DOCUMENTS, help="of each lane")
    parser.add_argument("--began", type=float, default=time.time(), help="when the process was started")
    given = parser.parse_args()
    root, chosen = given.root, options_of(given)
    depths = [int(x) for x in given.depths.split(",")]
    made: dict[str, Callable[[], zj.Pipeline]] = {
        "pack": lambda: pack(tokens_of(root)).options(flush_every_k_chunks=EPOCH_CHUNKS),
        "text": lambda: text(root),
        "records": lambda: records(root),
        "map": lambda: mapped(given.loops, given.records),
    }
    match given.workload:
        case "resume":
            again = lambda: pack(tokens_of(root), exhausted_policy="repeat").options(**chosen)  # noqa: E731
            told = meta(root)
            figures = resume(again, told["tokens"] / told["docs"], depths, given.phases)
        case "resume-text":
            again = lambda: text(root, exhausted_policy="repeat").options(**chosen)  # noqa: E731
            told = meta(root)
            figures = resume(again, told["text_bpe_tokens"] / told["text_docs"], depths, given.phases)
        case "lanes":
            figures = lanes(root, given.lanes, given.documents)
        case "global":
            from tests.benchmarks.speed.placing import steps

            figures = steps(root, given.documents)
        case "start":
            figures = started(root, given.began)
        case "import":
            from tests.benchmarks.speed.starting import import_alone

            figures = import_alone()
        case name:
            figures = consume(lambda: iter(made[name]().options(**chosen)), count)
    emit("ours", given.workload, given.name or given.executor, figures)


if __name__ == "__main__":
    main()
