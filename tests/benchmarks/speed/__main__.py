"""The table: `python -m tests.benchmarks.speed [--rounds 3] [--only pack,...] [--small] [--markdown] [--write PAGE]`."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Sequence

from tests.benchmarks.speed import corpus
from tests.benchmarks.speed.consume import loops_for
from tests.benchmarks.speed.pages import machine, write_between
from tests.benchmarks.speed.rows import WORKLOADS, Row, plan
from tests.benchmarks.speed.runs import Results, rounds
from tests.benchmarks.speed.table import as_markdown, as_text, cells


def main(arguments: Sequence[str] | None = None) -> Results:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads, with commas between them")
    parser.add_argument("--root", default=corpus.root_folder(), help="where the corpus is (default: %(default)s)")
    parser.add_argument(
        "--small", action="store_true", help="little work, once: to see that it runs; figures say nothing"
    )
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--write", metavar="PAGE", help="put the table into this page")
    parser.add_argument("--out", help="keep all lines as JSON here (default: speed.json beside the corpus)")
    parser.add_argument(
        "--show", nargs="+", metavar="JSON", help="the table of lines kept before; later files replace rows"
    )
    given = parser.parse_args(arguments)
    if given.show:
        results = kept_lines(given.show)
        show([row for row in plan() if row.key in results], results, given)
        return results
    chosen = given.only.split(",")
    if unknown := sorted(set(chosen) - set(WORKLOADS)):
        parser.error(f"--only names {unknown}; there are {', '.join(WORKLOADS)}")
    with tempfile.TemporaryDirectory() as folder:
        root = folder if given.small else given.root
        if not os.path.exists(os.path.join(root, "meta.json")):
            corpus.make(root, **(corpus.SMALL if given.small else {}))
        loops = loops_for(50e-6) if "map" in chosen else 1
        rows = [row for row in plan(small=given.small, loops=loops) if row.workload in chosen]
        n, at_once = (1, os.cpu_count() or 1) if given.small else (given.rounds, 1)
        results = rounds(rows, root, n, lambda text: print(text, file=sys.stderr, flush=True), at_once)
        kept = given.out or os.path.join(root, "speed.json")
        pathlib.Path(kept).write_text(json.dumps({" | ".join(key): runs for key, runs in results.items()}, indent=1))
    show(rows, results, given)
    return results


def kept_lines(paths: Sequence[str]) -> Results:
    """What `--out` has kept. A workload that is in a later file is taken from it as a whole, as ratios are within a run."""
    found: Results = {}
    for path in paths:
        lines = {tuple(key.split(" | ")): runs for key, runs in json.loads(pathlib.Path(path).read_text()).items()}
        again = {key[0] for key in lines}
        found = {key: runs for key, runs in found.items() if key[0] not in again} | lines  # type: ignore[operator]
    return found


def show(rows: Sequence[Row], results: Results, given: argparse.Namespace) -> None:
    lines = list(cells(rows, results))
    print(as_markdown(lines) if given.markdown else as_text(lines))
    if given.write:
        n = max(len(runs) for runs in results.values())
        told = f"Medians of {n} alternating rounds, {machine()}. *Others*: the part of the machine that other processes took."
        if given.show and len(given.show) > 1:
            told += f" Put together of {len(given.show)} runs, each workload from one of them."
        write_between(given.write, "speed", f"{told}\n\n{as_markdown(lines)}")


if __name__ == "__main__":
    main()
