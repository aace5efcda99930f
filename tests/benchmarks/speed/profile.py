"""Where the time of a workload goes, by room: `python -m tests.benchmarks.speed.profile WORKLOAD [--markdown] [--write PAGE]`.

Samples the main thread of an inline run after every millisecond of CPU time. A sample belongs to the innermost frame of
ours, so what NumPy and Arrow do counts for the line that called them.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import signal
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import zephon_jax as zj
from tests.benchmarks.speed import corpus, ours
from tests.benchmarks.speed.consume import loops_for
from tests.benchmarks.speed.pages import machine, write_between

HOME = str(pathlib.Path(zj.__file__).parent) + os.sep
EVERY_S, MOST_FUNCTIONS = 0.001, 8
WORKLOADS = ("pack", "text", "records", "map", "resume")


class Samples:
    """Room and function of the innermost frame of ours, each time that the clock of CPU time strikes."""

    def __init__(self) -> None:
        self.rooms: Counter[str] = Counter()
        self.functions: Counter[str] = Counter()
        self.outside = 0

    def take(self, _: int, frame: FrameType | None) -> None:
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(HOME):
                module = name.removeprefix(HOME).removesuffix(".py").replace(os.sep, ".")
                self.rooms[module] += 1
                self.functions[f"{module}: {frame.f_code.co_qualname}"] += 1  # type: ignore[attr-defined]
                return
            frame = frame.f_back
        self.outside += 1

    def __enter__(self) -> Samples:
        self._before = signal.signal(signal.SIGPROF, self.take)
        signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)


def runs(workload: str, root: str, n: int) -> tuple[str, Callable[[], float], Callable[[], None]]:
    """The unit, how many of them a run has, and the run."""
    told = corpus.meta(root)
    counts = {"pack": told["docs"], "text": told["text_docs"], "records": told["records"], "map": n}
    makers: dict[str, Callable[[], zj.Pipeline]] = {
        "pack": lambda: ours.pack(ours.tokens_of(root)),
        "text": lambda: ours.text(root),
        "records": lambda: ours.records(root),
        "map": lambda: ours.mapped(loops_for(50e-6), n),
    }
    if workload == "resume":
        made = ours.pack(ours.tokens_of(root), exhausted_policy="repeat").options(executor="inline")
        it = iter(made)
        for _ in range(100):
            next(it)
        state = it.checkpoint()

        def resume() -> None:
            for _ in range(n):
                ours.forget()
                again = iter(made)
                again.restore(state)
                next(again)

        return "resume", lambda: n, resume

    def drain() -> None:
        for _ in makers[workload]().options(executor="inline"):
            pass

    return "record" if workload in ("records", "map") else "document", lambda: counts[workload], drain


def profile(workload: str, root: str, n: int) -> list[str]:
    """Lines of a Markdown table, and of the functions that lead."""
    unit, count, run = runs(workload, root, n)
    run() if workload != "map" else None  # imports and the page cache
    samples, cpu = Samples(), time.process_time()
    with samples:
        run()
    seconds, every = time.process_time() - cpu, sum(samples.rooms.values())
    if not every:
        return [f"**{workload}**: too short to sample ({1e3 * seconds:.1f} ms)"]
    each = 1e6 * seconds / count()
    lines = [
        f"**{workload}**, inline: {each:,.2f} µs of CPU time a {unit}",
        "",
        "| room | share | µs |",
        "|---|---|---|",
    ]
    total = every + samples.outside
    for room, hits in samples.rooms.most_common():
        if hits >= 0.01 * total:
            lines.append(f"| {room} | {100 * hits / total:.0f} % | {each * hits / total:,.2f} |")
    leading: list[Any] = samples.functions.most_common(MOST_FUNCTIONS)
    lines += ["", "Most in: " + ", ".join(f"`{name}` {100 * hits / total:.0f} %" for name, hits in leading)]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", metavar="WORKLOAD", help=", ".join((*WORKLOADS, "all")))
    parser.add_argument("--root", default=corpus.root_folder())
    parser.add_argument("--times", type=int, default=0, help="records of map, or resumes")
    parser.add_argument("--write", metavar="PAGE", help="put the tables into this page")
    given = parser.parse_args()
    chosen = WORKLOADS if "all" in given.workloads else given.workloads
    if unknown := sorted(set(chosen) - set(WORKLOADS)):
        parser.error(f"no workload {unknown}; there are {', '.join(WORKLOADS)}")
    blocks = ["\n".join(profile(name, given.root, given.times or _times(name))) for name in chosen]
    print("\n\n".join(blocks))
    if given.write:
        write_between(given.write, "profile", f"{machine()}.\n\n" + "\n\n".join(blocks))


def _times(workload: str) -> int:
    return 50 if workload == "resume" else 20_000


if __name__ == "__main__":
    main()
