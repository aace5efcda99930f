"""The command `zephon-jax`. Importing this module imports neither jax nor a subcommand's own needs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from zephon_jax.bench.command import add_arguments as add_bench_arguments
from zephon_jax.bench.command import run_from as run_bench
from zephon_jax.demo.run import add_arguments as add_demo_arguments
from zephon_jax.demo.run import run_from as run_demo
from zephon_jax.errors import ZephonError
from zephon_jax.inspection import add_arguments as add_inspect_arguments
from zephon_jax.inspection import run_from as run_inspect
from zephon_jax.sources.ahead import add_arguments as add_index_arguments
from zephon_jax.sources.ahead import build as build_indexes

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="zephon-jax", description="Input pipelines for JAX with exact resume.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="train, kill, resume on fewer devices, and compare every batch",
        description="Trains a small language model on the Python standard library's own sources on 8 forced host"
        " devices, kills the trainer, resumes on 4, and compares every global batch with an uninterrupted run.",
    )
    add_demo_arguments(demo)
    demo.set_defaults(command=run_demo)
    inspect = commands.add_parser(
        "inspect",
        help="what a saved state holds, how two differ, which documents come next",
        description="Prints lanes, chunks in flight, cursors, positions, digests and the plan of a saved pipeline state.",
    )
    add_inspect_arguments(inspect)
    inspect.set_defaults(command=run_inspect)
    index = commands.add_parser(
        "index",
        help="build the indexes of datasets ahead of a run",
        description="Reads datasets once and keeps what is known of each file, so that runs start without reading them.",
    )
    add_index_arguments(index)
    index.set_defaults(command=run_index)
    bench = commands.add_parser(
        "bench",
        help="how fast a pipeline of yours is on each executor, and what holds it back",
        description="Runs a pipeline on each executor in a process of its own: start-up, rates, time and waits by operator,"
        " memory, and the stage that holds it back with what to do about it.",
    )
    add_bench_arguments(bench)
    bench.set_defaults(command=run_bench)
    arguments = parser.parse_args(argv)
    try:
        return arguments.command(arguments)
    except (
        BrokenPipeError
    ):  # `| head` has seen enough; nothing more may be written, also not while the interpreter ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def run_index(arguments: argparse.Namespace) -> int:
    """Print what was built; 2 if something cannot be read or written."""
    try:
        for line in build_indexes(arguments):
            print(line, flush=True)
    except ZephonError as error:
        print(f"zephon-jax index: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
