"""Faults at random for as long as one likes: `python -m tests.processes.soak --minutes 30`.

One process makes iterator after iterator over the same pipeline on random executors, and does to each something that
happens in life: takes it to its end, resumes from a random cut, closes it early, forgets it, kills a worker under it, lets an
operator raise or hang. What is delivered is compared with an uninterrupted run; memory, threads, file handles and
processes are to be as they were after the first rounds.
"""

from __future__ import annotations

import argparse
import gc
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from typing import Any

import zephon_jax as zj
from tests.processes.everything import MARK, everything, marked, taken
from zephon_jax.checkpoint.codec import decode

WARM_UP = 12
GROWTH_KIB, GROWTH_HANDLES = 60_000, 8


def resident_kib() -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def used() -> dict[str, int]:
    gc.collect()
    return {
        "kib": resident_kib(),
        "threads": threading.active_count(),
        "handles": len(os.listdir("/proc/self/fd")),
        "processes": sum("spawn_main" in command for command in marked(os.environ[MARK]).values()),
    }


class Soak:
    def __init__(self, folder: pathlib.Path, seed: int):
        self.folder, self.rng = folder, random.Random(seed)
        with everything(folder, executor="inline").steps() as it:
            self.reference = taken(it)
        self.done: Counter[str] = Counter()

    def options(self) -> dict:
        rng = self.rng
        executor = rng.choice(["inline", "threads", "processes", "processes"])
        options = {"executor": executor, "micro_batch_records": rng.choice([1, 7, 128]), "prefetch": rng.randint(1, 5)}
        if executor != "inline":
            options["max_workers"] = rng.randint(1, 3)
            options["prefetch_bytes"] = rng.choice([1, 10_000, 1 << 30])
        if executor == "threads" and rng.random() < 0.3:
            options["executors"] = {"tokenize": "processes"}
        return options

    def round(self) -> None:
        options, rng = self.options(), self.rng
        what = rng.choice(["to the end", "resume", "close", "forget", "kill", "raise", "hang"])
        impossible = {("kill", "inline"), ("kill", "threads"), ("hang", "inline")}
        if (what, options["executor"]) in impossible:
            what = "resume"
        self.done[f"{options['executor']}: {what}"] += 1
        at = rng.randrange(len(self.reference) - 1)
        if what in ("raise", "hang"):
            self.faulty(what, options)
            return
        it = everything(self.folder, **options).steps()
        if what == "resume":
            it.restore(decode(self.reference[at][1]))
            assert taken(it) == self.reference[at + 1 :], options
        elif what == "kill":
            assert taken(it, at + 1) == self.reference[: at + 1], options
            remote: Any = it._engine._stages._carrier.remote
            os.kill(remote.pids[0], signal.SIGKILL)
            assert taken(it) == self.reference[at + 1 :], options
        else:
            steps = len(self.reference) if what == "to the end" else at + 1
            assert taken(it, steps) == self.reference[:steps], options
        if what != "forget":
            it.close()

    def faulty(self, what: str, options: dict) -> None:
        bad = self.rng.randrange(20, 400)

        def fn(record):
            if int(record["value"]) == bad:
                if what == "raise":
                    raise LookupError("bad")
                time.sleep(1.2)
            return record

        if what == "hang":
            options = {**options, "operator_timeout_s": 0.4}
        options.pop("executors", None)
        work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", range(400)), shuffle_shards=False)
        p = zj.Pipeline(work).map(fn, name="fn").batch(1)
        got = []
        try:
            with iter(p.options(**options)) as it:
                for batch in it:
                    got += batch["value"].tolist()
        except zj.WorkerError as error:
            if (error.operator, error.pointer is None) != ("map(fn)", False):
                raise
        else:
            raise AssertionError(f"{what} went unnoticed with {options}")
        assert got == list(range(len(got))), options
        assert len(got) <= bad


def soak(seconds: float, seed: int, *, warm_up: int = WARM_UP, quiet: bool = False) -> Soak:
    """Raises AssertionError with what went wrong."""
    os.environ[MARK] = f"soak-{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder:
        run, rounds, before = Soak(pathlib.Path(folder), seed), 0, {}
        end = time.monotonic() + seconds
        while time.monotonic() < end or rounds < 2 * warm_up:
            run.round()
            rounds += 1
            if rounds == warm_up:
                before = _settled({})
            if not quiet and rounds % 50 == 0:
                print(f"{rounds} rounds, {used()}", flush=True)
        after = _settled(before)
    assert after["threads"] <= before["threads"], (before, after)
    assert after["processes"] == 0, (before, after)
    assert after["handles"] <= before["handles"] + GROWTH_HANDLES, (before, after)
    assert after["kib"] <= before["kib"] + GROWTH_KIB, (before, after)
    if not quiet:
        print(f"{rounds} rounds in {seconds:.0f} s with seed {seed}; before {before}, after {after}")
        print(", ".join(f"{name} {n}" for name, n in sorted(run.done.items())))
    return run


def _settled(before: dict[str, int]) -> dict[str, int]:
    """Abandoned threads of hung operators end by themselves, a second later."""
    deadline = time.monotonic() + 10
    while True:
        now = used()
        quiet = now["threads"] <= before.get("threads", 1) and not now["processes"]
        if quiet or time.monotonic() > deadline:
            return now
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    soak(60 * given.minutes, given.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
