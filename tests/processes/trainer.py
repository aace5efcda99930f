"""A training loop in a process of its own, to be killed at any moment: `python -m tests.processes.trainer FOLDER SETTINGS`.

It consumes batches, keeps per lane a chain of hashes over every row it was given, and commits chain and pipeline state
together, atomically, every few batches. What it committed therefore proves which rows it saw, in which order.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import random
import sys
import time
from collections.abc import Iterator

import numpy as np

import zephon_jax as zj
from tests.oracle import tokenize
from tests.pipelines import long_enough
from zephon_jax.checkpoint.codec import decode, encode

LANES = 4


def pipeline(batch_size: int = 1, **options) -> zj.Pipeline:
    rng = random.Random(5)
    web = [{"text": "abcdefgh"[: rng.randint(1, 8)] * rng.randint(0, 9)} for _ in range(400)]
    code = [{"text": "xyz" * rng.randint(1, 12)} for _ in range(150)]
    datasets = [zj.Dataset.from_source(n, s, fingerprint=n) for n, s in (("web", web), ("code", code))]
    work = zj.StaticMixtureWorkSource(
        datasets, {"web": 0.6, "code": 0.4}, chunk_size=8, shuffle_block_size=4, exhausted_policy="repeat"
    )
    p = zj.Pipeline(work).filter(long_enough).tokenize(tokenize).split(15).pack(20, num_bins=4).shuffle(6)
    return p.batch(batch_size).options(canonical_replicas=LANES, flush_every_k_chunks=3, **options)


def chained(before: str, row: np.ndarray) -> str:
    return hashlib.blake2b(before.encode() + row.tobytes(), digest_size=12).hexdigest()


def lane_rows(it: zj.PipelineIterator) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Lane and rows of each batch, for as long as it is asked."""
    rows = dict(it.stats().rows)
    for batch in it:
        now = dict(it.stats().rows)
        (lane,) = [lane for lane in now if now[lane] != rows[lane]]
        rows = now
        yield lane, list(batch["tokens"])


def commit(folder: pathlib.Path, number: int, state: bytes, chains: dict[int, str], rows: dict[int, int]) -> None:
    """All or nothing: a file of its own, then a rename. In two writes with a pause, so that kills fall in between."""
    record = {"number": number, "state": state.hex(), "chains": chains, "rows": rows}
    data = json.dumps(record).encode()
    temporary = folder / f"tmp-{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(data[: len(data) // 2])
        file.flush()
        time.sleep(0.001)
        file.write(data[len(data) // 2 :])
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / "committed.json")


def committed(folder: pathlib.Path) -> dict | None:
    path = folder / "committed.json"
    if not path.exists():
        return None
    record = json.loads(path.read_bytes())
    record["chains"] = {int(k): v for k, v in record["chains"].items()}
    record["rows"] = {int(k): v for k, v in record["rows"].items()}
    return record


def merged(whole: dict, part: dict) -> dict:
    """The state of all lanes, with those of this process as they are now: a process may own only some of them."""
    lanes = {lane["lane"]: lane for lane in (*whole["lanes"], *part["lanes"])}
    return {**whole, "lanes": [lanes[lane] for lane in sorted(lanes)]}


def main() -> None:
    folder, settings = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
    every = settings.pop("commit_every")
    record = committed(folder)
    chains, rows_of, number = dict.fromkeys(range(LANES), ""), dict.fromkeys(range(LANES), 0), 0
    if record is None:
        whole = iter(pipeline(executor="inline")).checkpoint()
    else:
        whole = decode(bytes.fromhex(record["state"]))
        chains, rows_of, number = record["chains"], record["rows"], record["number"]
    with iter(pipeline(**settings)) as it:
        if record is not None:
            it.restore(whole)
        print("running", flush=True)
        for n, (lane, rows) in enumerate(lane_rows(it), 1):
            for row in rows:
                chains[lane] = chained(chains[lane], row)
            if n % every == 0:
                number += 1
                rows_of |= it.stats().rows
                commit(folder, number, encode(merged(whole, it.get_state())), chains, rows_of)


if __name__ == "__main__":
    main()
