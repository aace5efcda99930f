"""The pipeline of the demo: mix two datasets, filter, tokenize, split, pack, shuffle, batch.

None of these steps has a sample index that could be written down for a resume: how many rows a document becomes, and
which of them share a row, depends on all documents before it.
"""

from __future__ import annotations

import pathlib
from typing import Any

import zephon_jax as zj
from zephon_jax.demo.corpus import DATASETS, END_OF_TEXT, TOKENIZER_FILE
from zephon_jax.demo.settings import Settings

__all__ = ["build_pipeline", "long_enough"]

MIXTURE = {"modules": 0.7, "packages": 0.3}


def long_enough(record: dict[str, Any]) -> bool:
    """Whether a document has more than a line or two."""
    return len(record["text"]) >= 120


def build_pipeline(settings: Settings, work: pathlib.Path) -> zj.Pipeline:
    """The pipeline over the corpus in `work`; the same on every mesh, so no device is mentioned."""
    from tokenizers import Tokenizer

    row = settings.sequence_length + 1  # inputs and targets are the row without its last and its first token
    source = zj.StaticMixtureWorkSource(
        [zj.Dataset.from_path(name, str(work / f"{name}-*.jsonl"), fields=["text"]) for name in DATASETS],
        mixture=MIXTURE,
        seed=0,
        chunk_size=settings.chunk_size,
        shuffle_shards=True,
        shuffle_block_size=4,
        exhausted_policy="repeat",
    )
    return (
        zj.Pipeline(source)
        .filter(long_enough)
        .tokenize(Tokenizer.from_file(str(work / TOKENIZER_FILE)), field="text", add_eos=END_OF_TEXT)
        .split(row)
        .pack(row, num_bins=8)
        .shuffle(settings.shuffle_rows)
        .batch(global_batch_size=settings.global_batch_size)
        .lm_targets()
        .options(canonical_replicas=settings.canonical_replicas, flush_every_k_chunks=settings.flush_every_k_chunks)
    )
