"""Random pipelines: the same thing as a description for the oracle and as a `Pipeline`."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import zephon_jax as zj
from tests.operators import Repeat, Wrap
from tests.oracle import tokenize


def long_enough(record):
    return len(record["text"]) % 5 != 0


def add_field(record):
    return {**record, "m": int(record["n"]) * 3}


def halves(record):
    middle = len(record["text"]) // 2
    return [{**record, "text": part} for part in (record["text"][:middle], record["text"][middle:]) if part]


def even(record):
    return int(record["n"]) % 3 != 1


def summed(held):
    return {"n": sum(held), "k": len(held)}


def chunks(pipeline, size):
    def push(held, record):
        held.append(int(record["n"]))
        if len(held) < size:
            return []
        out = [summed(held)] * (sum(held) % 3)
        held.clear()
        return out

    return pipeline.stateful_transform(
        f"chunks{size}", init_state=list, push=push, flush=lambda held: [summed(held)] if held else []
    )


@dataclass
class Case:
    spec: list[tuple[Any, ...]]
    work: zj.WorkSource
    samples: dict[int, list[Any]]
    lanes: int
    flush: int | None

    def pipeline(self, **options: Any) -> zj.Pipeline:
        p = zj.Pipeline(self.work)
        for name, *parameters in self.spec:
            p = STEPS[name](p, *parameters)
        given = {"executor": "inline", "canonical_replicas": self.lanes, "flush_every_k_chunks": self.flush, **options}
        return p.options(**given)


STEPS = {
    "map": lambda p, fn: p.map(fn),
    "flat_map": lambda p, fn: p.flat_map(fn),
    "filter": lambda p, fn: p.filter(fn),
    "tokenize": lambda p: p.tokenize(tokenize),
    "split": lambda p, n: p.split(n),
    "shuffle": lambda p, size, seed: p.shuffle(size, seed=seed),
    "pack": lambda p, capacity, bins, overlong: p.pack(capacity, num_bins=bins, on_overlong=overlong),
    "pad": lambda p, length: p.pad(length, on_overlong="truncate"),
    "packing": lambda p, capacity, algorithm, bins, most: p.pack(
        capacity, algorithm=algorithm, num_bins=bins, max_segments=most
    ),
    "wrap": lambda p, capacity: p.apply(Wrap(capacity)),
    "chunks": chunks,
    "repeat": lambda p, times: p.apply(Repeat(times)),
    "batch": lambda p, rows, drop_last: p.batch(rows, drop_last=drop_last),
    "targets": lambda p: p.lm_targets(),
}


def random_case(seed: int, lanes: int | None = None) -> Case:
    rng = random.Random(seed)
    L = lanes or rng.choice([1, 2, 3, 8])
    n_datasets = rng.choice([1, 1, 2, 3])
    samples, datasets = {}, []
    for d in range(n_datasets):
        n = rng.randint(4 * L + 12, 9 * L + 40)
        samples[d] = [{"text": "abcdefghij"[: rng.randint(1, 10)] * rng.randint(0, 6), "n": i} for i in range(n)]
        datasets.append(zj.Dataset.from_source(f"d{d}", samples[d], fingerprint=f"{seed}-{d}"))
    work = zj.StaticMixtureWorkSource(
        datasets,
        seed=seed,
        chunk_size=rng.choice([1, 3, 5, 16]),
        shuffle_block_size=rng.choice([None, 1, 4, "global"]),
        shuffle_within_shard=rng.random() < 0.3,
        stop_after_passes=rng.choice([1, 1, 2]),
    )
    spec: list[tuple[Any, ...]] = []
    if rng.random() < 0.5:
        spec.append(("filter", long_enough))
    if random.Random(seed + 7).random() < 0.2:
        spec.append(("flat_map", halves))
    if rng.random() < 0.4:
        spec.append(("repeat", rng.choice([2, 3, 4])))
    if rng.random() < 0.3:
        spec.append(("shuffle", rng.randint(1, 12), rng.randint(0, 5)))
    if rng.random() < 0.3:
        spec.append(("map", add_field))
    if random.Random(seed + 5).random() < 0.15:
        spec += [
            ("chunks", rng.randint(1, 6)),
            *([("shuffle", 3, 1)] if rng.random() < 0.5 else []),
            ("batch", 2, True),
        ]
        return Case(spec, work, samples, L, rng.choice([1, 2, 3, 8]))
    packed = False
    if rng.random() < 0.85:
        spec.append(("tokenize",))
        if rng.random() < 0.5:
            spec.append(("split", rng.randint(3, 30)))
        if rng.random() < 0.3:
            spec.append(("filter", even))
        kind = rng.random()
        if random.Random(seed + 8).random() < 0.2:
            spec.append(("pad", random.Random(seed + 9).randint(1, 20)))
        elif kind < 0.6:
            overlong = rng.choice(["split", "truncate", "drop"])
            capacity, bins = rng.randint(8, 40), rng.choice([1, 2, 4, 60])
            other = random.Random(seed + 6)
            if other.random() < 0.5:
                algorithm = other.choice(["first_fit", "best_fit", "wrap", "best_fit_wrap"])
                spec.append(("packing", capacity, algorithm, bins, other.choice([None, None, 1, 3])))
            else:
                spec.append(("pack", capacity, bins, overlong))
            packed = True
        elif kind < 0.8:
            spec.append(("wrap", rng.randint(4, 30)))
    if rng.random() < 0.5:
        spec.append(("shuffle", rng.randint(1, 12), rng.randint(0, 5)))
    spec.append(("batch", rng.randint(1, 4) + (L > 2), rng.random() < 0.6))
    if packed and rng.random() < 0.5:
        spec.append(("targets",))
    keeps = any(name in ("shuffle", "pack", "packing", "wrap") for name, *_ in spec)
    return Case(spec, work, samples, L, rng.choice([1, 2, 3, 8]) if keeps else None)
