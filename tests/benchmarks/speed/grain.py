"""Grain on the same work, in the configuration that its documentation recommends: `python -m tests.benchmarks.speed.grain`.

Random access to ArrayRecord, first-fit packing that may shuffle its bins, and a thread or worker processes ahead.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.benchmarks.speed.consume import arguments, busy, consume, count, emit, pinned_threads
from tests.benchmarks.speed.corpus import BINS, RECORD_BATCH, ROW, ROWS, pieces, shards
from tests.benchmarks.speed.resuming import resumes

WORKLOADS = ["pack", "text", "records", "map", "resume", "start"]


def images(rows: list[bytes]) -> dict[str, np.ndarray]:
    """All records of a batch at once: the cheapest way that Grain offers."""
    flat = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), 788)
    return {"label": flat[:, 784:].copy().view(np.int32)[:, 0], "image": flat[:, :784]}


class Busy:
    """Of a record, for workers that are sent it."""

    def __init__(self, loops: int):
        self.loops = loops

    def __call__(self, _: Any) -> dict[str, int]:
        return {"x": busy(self.loops)}


class Tokens:
    """Lines of JSON to token ids, many at a time; a worker loads a tokenizer of its own."""

    def __init__(self, path: str):
        self._path, self._tokenizer = path, None

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_tokenizer": None}

    def __call__(self, lines: list[bytes]) -> list[np.ndarray]:
        if self._tokenizer is None:
            from tokenizers import Tokenizer

            self._tokenizer: Any = Tokenizer.from_file(self._path)
        encoded = self._tokenizer.encode_batch_fast([json.loads(x)["text"] for x in lines], add_special_tokens=False)
        return [np.array(one.ids, np.int32) for one in encoded]


def dataset(
    workload: str, root: str, *, workers: int = 0, loops: int = 0, records: int = 0, repeat: bool = False
) -> Any:
    import grain
    from grain import experimental

    read = grain.ReadOptions(num_threads=0, prefetch_buffer_size=500)
    if workload == "map":
        made = grain.MapDataset.source(range(records)).map(Busy(loops)).batch(128).to_iter_dataset(read)
        return _ahead(made, workers, 2)
    if workload == "records":
        source = grain.sources.ArrayRecordDataSource(shards(root, "rec_arecord", "arrayrecord"))
        made = grain.MapDataset.source(source).shuffle(seed=7).batch(RECORD_BATCH, batch_fn=images)
        return _ahead(made.to_iter_dataset(read), workers, 8)

    many = workload == "text"

    class Split(experimental.FlatMapTransform):
        max_fan_out = 1 << 20 if many else 64

        def __init__(self) -> None:
            self._tokens = Tokens(f"{root}/tokenizer.json")

        def flat_map(self, element: Any) -> list[dict[str, np.ndarray]]:
            documents = self._tokens(element) if many else [np.frombuffer(element, np.int32)]
            return [{"tokens": piece} for document in documents for piece in pieces(document)]

    if many:
        lines = []
        for path in shards(root, "text_jsonl", "jsonl"):
            with open(path, "rb") as file:
                lines += file.read().splitlines()
        made = grain.MapDataset.source(lines).batch(64, batch_fn=list)
    else:
        made = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(shards(root, "tok_arecord", "arrayrecord")))
    if repeat:
        made = made.repeat()
    made = experimental.FlatMapIterDataset(made.to_iter_dataset(read), Split())
    made = experimental.FirstFitPackIterDataset(made, length_struct={"tokens": ROW}, num_packing_bins=BINS, seed=3)
    return _ahead(made.batch(ROWS), workers, 8)


def _ahead(made: Any, workers: int, buffer: int) -> Any:
    import grain
    from grain import experimental

    if workers:
        return made.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=buffer))
    return experimental.ThreadPrefetchIterDataset(made, prefetch_buffer_size=4)


def resume(root: str, depths: list[int], phases: int) -> dict[str, Any]:
    def start(state: Any) -> Any:
        it = iter(dataset("pack", root, repeat=True))
        if state is not None:
            it.set_state(json.loads(json.dumps(state)))
        return it

    return resumes(
        start, lambda it: it.get_state(), lambda s: len(json.dumps(s).encode()), lambda: None, depths, phases, phases
    )


def first(root: str, began: float) -> dict[str, Any]:
    next(iter(dataset("pack", root)))
    return {"rate": 0.0, "units": 1, "first_batch_s": time.time() - began}


def main() -> None:
    parser = arguments(__doc__ or "", WORKLOADS)
    parser.add_argument("--began", type=float, default=time.time(), help="when the process was started")
    given = parser.parse_args()
    pinned_threads(given.workers or 1)
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # its workers read them, and die outside absl.app if they are not
    depths = [int(x) for x in given.depths.split(",")]
    work: Callable[[], dict[str, Any]] = {
        "resume": lambda: resume(given.root, depths, given.phases),
        "start": lambda: first(given.root, given.began),
    }.get(given.workload) or (
        lambda: consume(
            lambda: iter(
                dataset(given.workload, given.root, workers=given.workers, loops=given.loops, records=given.records)
            ),
            count,
        )
    )
    emit("grain", given.workload, given.name or "a thread ahead", work())


if __name__ == "__main__":
    main()
