"""A training loop killed with SIGKILL at random moments, also while it saves, and restarted with other settings: lanes
owned, executor, workers, prefetch, micro-batches, batch size.

After every death what the loop had committed must be a prefix of the uninterrupted run, row for row and lane for lane.
`CHAOS_KILLS=200 pytest tests/processes -m slow -s` is the full run; its figures stand in docs/recovery.md.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.processes.trainer import LANES, chained, committed, lane_rows, pipeline

KILLS = int(os.environ.get("CHAOS_KILLS", "10"))
ROOT = pathlib.Path(__file__).parents[2]


class Reference:
    """The uninterrupted run's chains, made as far as they are asked for."""

    def __init__(self):
        self.batches = lane_rows(iter(pipeline(executor="inline")))
        self.chains = {lane: [""] for lane in range(LANES)}

    def chain(self, lane: int, rows: int) -> str:
        while len(self.chains[lane]) <= rows:
            which, got = next(self.batches)
            for row in got:
                self.chains[which].append(chained(self.chains[which][-1], row))
        return self.chains[lane][rows]


def settings(rng: random.Random) -> dict:
    degree = rng.choice([1, 1, 2, 4])  # a process that owns all lanes, two of them, or one
    return {
        "dp_degree": degree,
        "dp_group_id": rng.randrange(degree),
        "batch_size": rng.choice([1, 1, 2, 3]),
        "executor": rng.choice(["inline", "threads"]),
        "max_workers": rng.randint(1, 3),
        "prefetch": rng.randint(1, 4),
        "micro_batch_records": rng.choice([1, 5, 128]),
        "commit_every": rng.choice([1, 3, 10]),
    }


@pytest.mark.slow
@pytest.mark.timeout(120 + 10 * KILLS)
def test_killed_at_random_moments_and_restarted_elsewhere(tmp_path):
    rng = random.Random(os.environ.get("CHAOS_SEED", "1"))
    reference, last, kills, torn, rows = Reference(), 0, 0, 0, 0
    while kills < KILLS:
        given = settings(rng)
        command = [sys.executable, "-m", "tests.processes.trainer", str(tmp_path), json.dumps(given)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            assert child.stdout.readline() == "running\n", child.stderr.read()[-2000:]
            time.sleep(rng.expovariate(4))  # any moment will do; the outcome does not depend on it
            child.send_signal(signal.SIGKILL)
            assert child.wait() == -signal.SIGKILL, child.stderr.read()[-2000:]
        kills += 1
        torn += len(list(tmp_path.glob("tmp-*")))
        for leftover in tmp_path.glob("tmp-*"):
            leftover.unlink()
        if (record := committed(tmp_path)) is not None:
            assert record["number"] >= last
            last, rows = record["number"], sum(record["rows"].values())
            for lane in range(LANES):
                assert record["chains"][lane] == reference.chain(lane, record["rows"][lane]), (kills, given, lane)
    assert last > 0
    print(f"{kills} kills, {torn} of them while saving; {last} commits; {rows} rows, all as uninterrupted")
