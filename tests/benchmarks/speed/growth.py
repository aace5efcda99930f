"""How it grows: throughput, CPU and memory along one axis at a time: `python -m tests.benchmarks.speed.growth [--only ...]`.

The pack workload, each point in a process of its own, points of an axis in turn. Draws `growth_AXIS.svg` and keeps the numbers
in `growth.json`, both in docs/pictures.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.benchmarks.speed import corpus, ours
from tests.benchmarks.speed.consume import consume, count
from tests.benchmarks.speed.pages import machine
from tests.benchmarks.speed.runs import once

AXES: dict[str, tuple[str, list[int]]] = {
    "corpus": ("times the corpus", [1, 3, 10]),
    "lanes": ("lanes", [1, 4, 16, 64, 256]),
    "bins": ("bins", [16, 64, 256, 1024]),
    "workers": ("threads (0: inline)", [0, 1, 2, 4]),
    "row": ("tokens in a row", [512, 2048, 8192, 32_768]),
    "document": ("tokens in a document", [10, 100, 1_000, 10_000]),
}
SMALL = {"corpus": 2, "lanes": 2, "bins": 2, "workers": 2, "row": 2, "document": 2}
"""How many points of each axis a trial has."""
PLACES = 1 << 16  # of a batch, whatever its rows' length
TOKENS = 5_000_000
LEAST_DOCUMENTS = 1_000  # of a lane
PANELS = (
    ("rate", "M tokens/s", 1e-6),
    ("cpu_us_per_document", "CPU µs a document", 1.0),
    ("memory_mb", "memory, MB", 1.0),
)


def point(axis: str, value: int, folder: str, root: str) -> dict[str, Any]:
    """What one process measures. `folder` has the corpora that are made for it."""
    paths, options, work = ours.tokens_of(root), {"executor": "inline"}, {}
    told = corpus.meta(root)
    documents, row, bins, most = told["docs"], corpus.ROW, corpus.BINS, 0
    match axis:
        case "corpus":
            paths, documents = [path for i in range(value) for path in linked(folder, paths, i)], documents * value
        case "lanes":
            options["canonical_replicas"], work = value, {"exhausted_policy": "repeat"}
            documents = max(documents, value * min(LEAST_DOCUMENTS, documents))
            most = math.ceil(documents * told["mean"] / PLACES)
        case "bins":
            bins = value
        case "workers":
            options = {"executor": "threads", "max_workers": value} if value else options
        case "row":
            row = value
        case "document":
            paths = corpus.shards(f"{folder}/{value}", "tok_parquet", "parquet")
            documents = json.loads(pathlib.Path(folder, str(value), "documents").read_text())
        case _:
            raise ValueError(axis)
    made = ours.pack(paths, row=row, bins=bins, rows=PLACES // row, **work).options(**options)
    found = consume(lambda: iter(made), count, most)
    return found | {
        "cpu_us_per_document": found["cpu_us_per_unit"] * found["units"] / documents,
        "documents": documents,
    }


def linked(folder: str, paths: list[str], copy: int) -> list[str]:
    """The shards under other names: as many files as a larger corpus has."""
    out = []
    for path in paths:
        link = os.path.join(folder, f"{copy}-{os.path.basename(path)}")
        if not os.path.exists(link):
            try:
                os.link(path, link)
            except OSError:  # the corpus lies on another disk
                shutil.copyfile(path, link)
        out.append(link)
    return out


def make_documents(folder: str, length: int, tokens: int) -> None:
    """A corpus of documents of one length; row groups of like sizes in bytes."""
    where = pathlib.Path(folder, str(length))
    where.mkdir()
    n = max(corpus.SHARDS, tokens // length)
    ids = np.random.default_rng(corpus.SEED).integers(1, 32_000, n * length).astype(np.int32)
    corpus.write_tokens(
        str(where), ids, np.arange(n + 1) * length, arrays=False, group=max(16, min(65_536, 160_000 // length))
    )
    (where / "documents").write_text(str(n))


def measure(axes: Sequence[str], root: str, repeats: int, small: bool) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for axis in axes:
            values = AXES[axis][1][: SMALL[axis]] if small else AXES[axis][1]
            if axis == "document":
                for value in values:
                    make_documents(folder, value, 20_000 if small else TOKENS)
            runs: dict[int, list[dict[str, Any]]] = {value: [] for value in values}
            for _ in range(repeats):
                for value in values:
                    runs[value].append(
                        once(("tests.benchmarks.speed.growth", "--point", axis, str(value), folder, "--root", root))
                    )
            found[axis] = [
                {"value": value}
                | {
                    name: float(f"{statistics.median(run[name] for run in each):.4g}")
                    for name in (
                        "rate",
                        "cpu_us_per_document",
                        "cpu_us_per_unit",
                        "memory_mb",
                        "fill",
                        "documents",
                        "foreign",
                    )
                }
                for value, each in runs.items()
            ]
            print(axis)
            for one in found[axis]:
                print("  " + "  ".join(f"{name} {number:,.5g}" for name, number in one.items()), flush=True)
    return found


def draw(axis: str, points: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Three panels beside each other; the file is the same for the same numbers."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": axis,
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(style):
        figure, panels = plt.subplots(1, len(PANELS), figsize=(9, 2.4), layout="constrained")
        values = [one["value"] for one in points]
        for panel, (name, label, scale) in zip(panels, PANELS, strict=True):
            panel.plot(values, [one[name] * scale for one in points], "o-", color="#1f5fa8", markersize=4)
            panel.set_ylim(bottom=0)
            panel.set_xlabel(AXES[axis][0])
            panel.set_title(label, fontsize=9, loc="left")
            if axis != "workers":
                panel.set_xscale("log")
            panel.set_xticks(values, [f"{value:,}" for value in values])
            panel.minorticks_off()
        busy = statistics.median(one["foreign"] for one in points)
        figure.supylabel(f"others took {100 * busy:.0f} % of the machine", fontsize=7)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(AXES))
    parser.add_argument("--root", default=corpus.root_folder())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="two points an axis, once: to see that it runs")
    parser.add_argument("--draw", action="store_true", help="pictures of the numbers that are there, nothing measured")
    parser.add_argument("--to", default="docs/pictures", help="where pictures and numbers go (default: %(default)s)")
    parser.add_argument("--point", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.point:
        axis, value, folder = given.point
        print(json.dumps(point(axis, int(value), folder, given.root)))
        return
    axes = given.only.split(",")
    if unknown := sorted(set(axes) - set(AXES)):
        parser.error(f"--only names {unknown}; there are {', '.join(AXES)}")
    where = pathlib.Path(given.to)
    where.mkdir(parents=True, exist_ok=True)
    kept = where / "growth.json"
    numbers: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    if given.draw:
        found = {axis: numbers[axis] for axis in axes}
    else:
        found = measure(axes, given.root, 1 if given.small else given.repeats, given.small)
        numbers = {**numbers, "machine": machine()}
    numbers = {"machine": numbers["machine"], **{axis: found.get(axis, numbers.get(axis, [])) for axis in AXES}}
    kept.write_text(json.dumps(numbers, indent=1) + "\n")
    for axis in axes:
        draw(axis, found[axis], where / f"growth_{axis}.svg")


if __name__ == "__main__":
    main()
