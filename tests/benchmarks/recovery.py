"""What a checkpoint and a resume cost, by depth: `python -m tests.benchmarks.recovery [BATCH …]`.

Prints the table of docs/recovery.md: over 40 successive cuts at each depth the largest state, chunks replayed, samples
read and tokenizer calls until every lane has given its first batch again, and the median time to that, beside that of a
cold start measured in turn with it.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from dataclasses import dataclass

import zephon_jax as zj
from tests.oracle import tokenize
from zephon_jax.checkpoint.codec import encode

CUTS, LANES = 40, 2


class Counted:
    """A source and a tokenizer that count their calls."""

    def __init__(self) -> None:
        rng = random.Random(1)
        self.texts = [{"text": "abcdefgh"[: rng.randint(1, 8)] * rng.randint(5, 120)} for _ in range(3_000)]
        self.reads = self.tokenized = 0

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, str]:
        self.reads += 1
        return self.texts[index]

    def tokens(self, text: str) -> list[int]:
        self.tokenized += 1
        return tokenize(text)


def pipeline(source: Counted) -> zj.Pipeline:
    data = zj.Dataset.from_source("text", source, fingerprint="text")
    work = zj.StaticMixtureWorkSource(data, chunk_size=16, shuffle_block_size=8, exhausted_policy="repeat")
    p = zj.Pipeline(work).tokenize(source.tokens, name="tokens").split(256).pack(512, num_bins=8).shuffle(8).batch(2)
    return p.options(executor="inline", canonical_replicas=LANES, flush_every_k_chunks=8)


@dataclass
class Cost:
    state_bytes: int = 0
    chunks: int = 0
    reads: int = 0
    tokenized: int = 0
    first_batch_ms: float = 0.0
    checkpoint_ms: float = 0.0


def first_batches(state: dict | None) -> tuple[float, Counted, zj.PipelineIterator]:
    source = Counted()
    p = pipeline(source)
    source.reads = 0  # without those that build the pipeline
    start = time.perf_counter()
    it = iter(p)
    if state is not None:
        it.restore(state)
    for _ in range(LANES):
        next(it)
    return (time.perf_counter() - start) * 1e3, source, it


def measure(it: zj.PipelineIterator) -> tuple[Cost, float]:
    """The worst over successive cuts; times are medians, a cold start after each resume."""
    cost, resumes, colds, checkpoints = Cost(), [], [], []
    for _ in range(CUTS):
        start = time.perf_counter()
        state = it.checkpoint()
        checkpoints.append((time.perf_counter() - start) * 1e3)
        took, source, again = first_batches(state)
        resumes.append(took)
        colds.append(first_batches(None)[0])
        cost.state_bytes = max(cost.state_bytes, len(encode(state)))
        cost.chunks = max(cost.chunks, again.stats().chunks_replayed)
        cost.reads, cost.tokenized = max(cost.reads, source.reads), max(cost.tokenized, source.tokenized)
        next(it)
    cost.first_batch_ms, cost.checkpoint_ms = statistics.median(resumes), statistics.median(checkpoints)
    return cost, statistics.median(colds)


def main() -> None:
    depths = [int(a) for a in sys.argv[1:]] or [100, 1_000, 100_000]
    it, at = iter(pipeline(Counted())), 0
    columns = "largest state | chunks replayed | reads | tokenized | first batch | cold start | checkpoint()"
    print(f"over {CUTS} cuts, {LANES} lanes | {columns}")
    for depth in depths:
        for _ in range(depth - at):
            next(it)
        cost, cold = measure(it)
        at = depth + CUTS
        print(
            f"batch {depth:>9,} | {cost.state_bytes:,} B | {cost.chunks} | {cost.reads} | {cost.tokenized} | "
            f"{cost.first_batch_ms:.1f} ms | {cold:.1f} ms | {cost.checkpoint_ms:.2f} ms"
        )


if __name__ == "__main__":
    main()
