"""What a checkpoint costs, measured: `python -m tests.checkpoint.sizes` prints the tables of docs/format.md."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import zephon_jax as zj
from zephon_jax.checkpoint.codec import decode, encode, state_from_plain
from zephon_jax.checkpoint.pointers import pack_chunks, pack_known
from zephon_jax.origin import Origin
from zephon_jax.types import WorkChunk

CHUNK, LANES, LANE = 512, 8, 4


class Size(NamedTuple):
    """Bytes, on disk, for so many pointers or records, against at most so many for each."""

    what: str
    count: int
    size: int
    budget: float | None

    def __str__(self) -> str:
        most = "" if self.budget is None else f"{self.budget:g}"
        return f"| {self.what} | {self.count:,} | {self.size:,} | {self.size / self.count:.3f} | {most} |"


class Shard(NamedTuple):
    """All that a work source asks of a shard."""

    num_samples: int


class Shards(NamedTuple):
    """All that a work source asks of a dataset."""

    name: str
    shards: tuple[Shard, ...]


def sharded(name: str, shards: int, size: int) -> Any:
    return Shards(name, (Shard(size),) * shards)


def drawn(datasets: Any, mixture: dict[str, float] | None, chunks: int, **options: Any) -> list[WorkChunk]:
    work = zj.StaticMixtureWorkSource(datasets, mixture, chunk_size=CHUNK, **options).clone_for_lane(LANE, LANES)
    found = [work.next_chunk() for _ in range(chunks)]
    return [chunk for chunk in found if chunk is not None]


def of_pointers() -> list[Size]:
    """Pointers in flight of one lane, of a million samples in 100 shards: what the packed columns take after compression."""
    one, other = sharded("million", 100, 10_000), sharded("other", 40, 5_000)
    cases: list[tuple[str, float, Any, dict[str, float] | None, dict[str, Any]]] = [
        ("sequential", 0.1, one, None, {"shuffle_shards": False}),
        ("shards in random order", 0.1, one, None, {}),
        ("blocks of 256", 4, one, None, {"shuffle_block_size": 256}),
        ("blocks of 32", 4, one, None, {"shuffle_block_size": 32}),
        ("blocks of 8", 4, one, None, {"shuffle_block_size": 8}),
        ("blocks of 8, mixture 0.7 to 0.3", 4, [one, other], {"million": 0.7, "other": 0.3}, {"shuffle_block_size": 8}),
        ("global shuffle", 4, one, None, {"shuffle_block_size": "global"}),
        (
            "global shuffle, mixture 0.7 to 0.3", 4, [one, other], {"million": 0.7, "other": 0.3},
            {"shuffle_block_size": "global"},
        ),
    ]  # fmt: skip
    out: list[Size] = []
    for what, budget, datasets, mixture, options in cases:
        chunks = drawn(datasets, mixture, 8, **options)
        out.append(Size(what, sum(map(len, chunks)), len(encode({"chunks": pack_chunks(chunks)})), budget))
    return out


def of_records() -> list[Size]:
    """What is kept of the records of eight chunks: of all samples, of half of them, and of four pieces each."""
    rng, out = np.random.default_rng(0), list[Size]()
    for what, kept, pieces in (("one of each sample", 1, 1), ("of half the samples", 0.5, 1), ("1 to 4 pieces", 1, 4)):
        parts = [Origin.of_chunk(c, np.arange(CHUNK), 1).keep(rng.random(CHUNK) < kept)[0] for c in range(8)]
        origin, _ = Origin.concat(parts).repeat(rng.integers(1, pieces + 1, sum(map(len, parts))), 0)
        lengths = np.minimum(rng.lognormal(6, 1, len(origin)), 4096).astype(np.int64)
        identity, whole = (len(encode({"k": pack_known(o.table)})) for o in (origin, origin.spanned(lengths)))
        out.append(Size(f"{what}: identity", len(origin), identity, None))
        out.append(Size(f"{what}: lengths, in addition", len(origin), whole - identity, 2))
    return out


def tokens(text: str) -> list[int]:
    return list(range(1, len(text) + 1))


def of_states() -> list[Size]:
    """Whole states of 8 lanes, plan and all, where most of an epoch is in flight; per pointer."""
    rng = np.random.default_rng(1)
    texts = [{"text": "x" * int(n)} for n in np.minimum(rng.lognormal(3, 1, 60_000), 400)]
    data = zj.Dataset.from_source("texts", texts, fingerprint="texts")
    plain = zj.Pipeline(zj.StaticMixtureWorkSource(data, chunk_size=CHUNK)).batch(64)
    work = zj.StaticMixtureWorkSource(data, chunk_size=CHUNK, shuffle_block_size=64)
    packed = zj.Pipeline(work).tokenize(tokens, name="tokens").pack(512).shuffle(64).batch(8)
    out: list[Size] = []
    for what, pipeline, steps in (("no accumulator", plain, 36), ("packed and shuffled", packed, 8 * 24)):
        with iter(pipeline.options(executor="inline", canonical_replicas=LANES)) as it:
            for _ in range(steps):
                next(it)
            data = encode(it.checkpoint())
        lanes = state_from_plain(decode(data)).lanes.values()
        out.append(Size(what, sum(len(c) for s in lanes for c in s.chunks), len(data), None))
    return out


def main() -> None:
    """Print the tables."""
    for unit, sizes in (("pointer", of_pointers()), ("record", of_records()), ("pointer", of_states())):
        print(f"| | {unit}s | bytes | bytes per {unit} | at most |\n|---|---:|---:|---:|---:|")
        print(*sizes, sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
