"""Indexes built ahead of a run: `zephon-jax index PATH…`.

A first start reads every byte of a JSONL dataset, and a thousand hosts that start at once each do. Built ahead and kept
beside the data, an index is read instead.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence

from zephon_jax.sources.base import Dataset
from zephon_jax.sources.files import FORMATS
from zephon_jax.sources.index import ahead
from zephon_jax.sources.storage import is_remote

__all__ = ["add_arguments", "build"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `zephon-jax index`."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a file, a folder, a glob or a URL; files count as one dataset"
    )
    parser.add_argument("--format", choices=FORMATS, help="for files whose suffix does not tell")
    parser.add_argument(
        "--beside",
        action="store_true",
        help="keep it beside the data, where all hosts find it, not in this machine's cache",
    )


def build(arguments: argparse.Namespace) -> Iterator[str]:
    """Build the indexes that were asked for; lines that tell of each, as it is done."""
    files = [path for path in arguments.paths if _is_file(path)]
    for paths in ([files] if files else []) + [[path] for path in arguments.paths if path not in files]:
        yield from _built(paths, arguments.format, arguments.beside)


def _is_file(path: str) -> bool:
    return os.path.isfile(path) and not is_remote(path)


def _built(paths: Sequence[str], format: str | None, beside: bool) -> Iterator[str]:
    start = time.perf_counter()
    with ahead(beside=beside) as kept:
        dataset = Dataset.from_path("index", paths, format=format)
    seconds = time.perf_counter() - start
    name = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1:,} more"
    size = sum(one.bytes for one in kept)
    yield f"{name}: {len(dataset.shards):,} shards, {size:,} bytes, {len(dataset):,} samples, {seconds:.1f} s"
    for one in kept:
        yield f"  {one.built:,} of {one.files:,} files indexed now, kept in {one.path}"
