"""A pipeline with every kind of operator, for comparing executors; and what is left of processes when they should be gone."""

from __future__ import annotations

import json
import os
import pathlib

import numpy as np

import zephon_jax as zj
from zephon_jax.checkpoint.codec import encode

MARK = "ZEPHON_TEST_MARK"


def documents(n, first=0):
    """Texts of many lengths, some empty, some long; words of 3, 30 and 3,000 characters beside each other."""
    return [{"text": " ".join(f"w{i}{'x' * (i % 5)}" for i in range(k % 23)), "n": k} for k in range(first, first + n)]


def datasets(folder: pathlib.Path):
    """One of a file, with lines that cannot be read, and one in memory."""
    path = folder / "docs.jsonl"
    lines = [json.dumps(one) for one in documents(180)]
    lines[37] = lines[90] = '{"text": broken'
    path.write_text("\n".join(lines) + "\n")
    return [
        zj.Dataset.from_path("file", path),
        zj.Dataset.from_source("memory", documents(60, 1000), fingerprint="m"),
    ]


def everything(folder: pathlib.Path, **options) -> zj.Pipeline:
    # Functions of this module would travel by their names; these travel by value, as those of a script or notebook do.
    vocabulary = {chr(c): c - 31 for c in range(32, 127)}

    def noise(record, rng):
        return {**record, "noise": rng.integers(1000)}

    def twice(record):
        yield record
        if int(record["n"]) % 4 == 0:
            yield {**record, "text": record["text"][::-1]}

    def upper(columns):
        return {**columns, "size": np.array([len(text) for text in columns["text"]])}

    def push(state, record):
        state.append(record)
        if len(state) < 3:
            return []
        out = [{"tokens": np.concatenate([one["tokens"] for one in state])}]
        state.clear()
        return out

    def flush(state):
        return [{"tokens": one["tokens"]} for one in state]

    work = zj.StaticMixtureWorkSource(
        datasets(folder), {"file": 0.7, "memory": 0.3}, chunk_size=8, seed=3, shuffle_block_size=4, stop_after_passes=2
    )
    pipeline = (
        zj.Pipeline(work)
        .filter(lambda record: int(record["n"]) % 7 != 3, name="keep")
        .map(lambda record: {**record, "text": record["text"] + "!"}, name="mark")
        .random_map(noise, name="noise")
        .flat_map(twice, name="twice")
        .map_columns(upper, name="upper")
        .tokenize(lambda text: [vocabulary[c] for c in text], name="letters")
        .split(40)
        .ensure_mixture(max_buffer_size=20)
        .stateful_transform("threes", init_state=list, push=push, flush=flush)
        .map(lambda record: {"tokens": record["tokens"] * np.int32(2)}, name="double")
        .pack(48, num_bins=3)
        .shuffle(5)
        .batch(global_batch_size=4)
        .lm_targets()
        .map_batch(lambda batch: {**batch, "sum": batch["inputs"].sum(axis=1)}, name="sum")
    )
    given = {"canonical_replicas": 2, "on_data_error": "skip", "flush_every_k_chunks": 4, **options}
    return pipeline.options(**given)


def taken(it, steps=None):
    """Batches as plain values, and the state after each."""
    out = []
    for batch in it:
        out.append(({k: (v.dtype.str, v.tolist()) for k, v in sorted(batch.items())}, encode(it.checkpoint())))
        if len(out) == steps:
            break
    return out


def marked(mark: str) -> dict[int, str]:
    """Processes that carry this mark in their environment: pid → command line."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                dead = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
                if not dead and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
    return found
