"""Ranks killed with SIGKILL at random moments of their rounds, and restarted with the same run_id: every state that any of them
was ever given is that of the uninterrupted run at that step, whoever survives leaves the round as the others do, and the next
rounds are good. Over a directory, over S3, and over the store of jax.distributed.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.processes.ranks import LANES, hash_of, pipeline
from zephon_jax.coordinate.directory import DirectoryStore
from zephon_jax.coordinate.round import open_store

ROOT = pathlib.Path(__file__).parents[2]
SIZE = 3  # two groups of lanes; ranks 1 and 2 are peers


class Reference:
    def __init__(self):
        self.it = iter(pipeline())
        self.hashes = [hash_of(self.it.checkpoint())]

    def __getitem__(self, rounds: int) -> str:
        while len(self.hashes) <= rounds:
            for _ in range(LANES):
                next(self.it)
            self.hashes.append(hash_of(self.it.checkpoint()))
        return self.hashes[rounds]


class Incarnation:
    """All ranks, from a saved state on."""

    def __init__(self, folder: pathlib.Path, options: dict, rounds: int, over_jax: bool):
        states = sorted(folder.glob("state-*"), key=lambda path: int(path.name.split("-")[1]))
        env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        more = {}
        if over_jax:
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                more = {"port": s.getsockname()[1]}
        self.ranks = []
        for rank in range(SIZE):
            config = {
                "rank": rank, "size": SIZE, "folder": str(folder), "options": options, "rounds": rounds,
                "resume": states[-1].name if states else None, **more,
            }  # fmt: skip
            command = [sys.executable, "-m", "tests.processes.ranks", json.dumps(config)]
            self.ranks.append(
                subprocess.Popen(
                    command, cwd=ROOT, env=env, text=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip
        for process in self.ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def go(self) -> None:
        for process in self.ranks:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()

    def kill(self, ranks) -> None:
        for rank in ranks:
            self.ranks[rank].send_signal(signal.SIGKILL)

    def said(self) -> list[list]:
        """What each rank reported until it ended."""
        out = []
        for process in self.ranks:
            try:
                text, _ = process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                text, _ = process.communicate()
                raise AssertionError(f"a rank hung after {text}") from None
            out.append([json.loads(line) for line in text.splitlines() if line.endswith("]")])
        return out


def run(
    folder: pathlib.Path, options: dict, kills: int, over_jax: bool = False, keys=None, longest: float = 0.3
) -> str:
    rng, reference, tally = random.Random(os.environ.get("CHAOS_SEED", "1")), Reference(), {}
    folder.mkdir()
    reached = 0
    for number in range(kills + 1):
        last = number == kills
        given = {**options, "aggregate_timeout_s": 60.0} if last else options  # nothing is late that nobody killed
        now = Incarnation(folder, given, 3 if last else 1000, over_jax)
        now.go()
        victims = [] if last else list(range(SIZE)) if number % 2 else [rng.randrange(SIZE)]
        if victims:
            time.sleep(rng.random() * longest)  # any moment will do; the outcome does not depend on it
        now.kill(victims)
        said = now.said()
        for rank, lines in enumerate(said):
            for rounds, told in lines:
                if rounds >= 0:
                    assert told == reference[rounds], (number, rank, rounds)
                    reached = max(reached, rounds)
        ends = {tuple(map(tuple, said[r][-1:])) for r in range(SIZE) if r not in victims}
        if last:
            assert [len(lines) for lines in said] == [3] * SIZE, said
            assert all(rounds >= 0 for lines in said for rounds, _ in lines), said
        elif len(victims) == 1 and not over_jax:  # who survives is told the same, and came as far
            survivors = [said[r] for r in range(SIZE) if r not in victims]
            assert all(lines[-1][0] == -1 for lines in survivors), said
            assert len({tuple(map(tuple, lines[:-1])) for lines in survivors}) == 1, said
            assert len(ends) <= 2
        name = "all killed" if len(victims) == SIZE else "one killed" if victims else "good"
        tally[name] = tally.get(name, 0) + 1
    if keys is not None:
        assert keys() == []
    return f"{tally}; {reached} rounds, all as uninterrupted"


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_killed_over_a_directory(tmp_path):
    where = tmp_path / "shared"
    print(run(
        tmp_path / "states", {"aggregate_dir": str(where), "run_id": "r", "aggregate_timeout_s": 3.0}, 4,
        keys=lambda: DirectoryStore(where).list(""),
    ))  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_over_a_directory_often(tmp_path):
    where = tmp_path / "shared"
    print(run(
        tmp_path / "states", {"aggregate_dir": str(where), "run_id": "r", "aggregate_timeout_s": 3.0}, 60,
        keys=lambda: DirectoryStore(where).list(""),
    ))  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_killed_over_s3(tmp_path, monkeypatch):
    moto_server = pytest.importorskip("moto.server", reason="moto is in the extra [test]")
    import http.client

    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    server = moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    connection = http.client.HTTPConnection(host, port, timeout=20)
    connection.request("PUT", "/rounds-killed")
    assert connection.getresponse().status == 200
    connection.close()
    url = "s3://rounds-killed/here"
    try:
        print(run(
            tmp_path / "states", {"aggregate_dir": url, "run_id": "r", "aggregate_timeout_s": 4.0}, 1,
            keys=lambda: open_store(url, None).list(""), longest=0.6,
        ))  # fmt: skip
    finally:
        server.stop()


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_killed_over_the_store_of_jax(tmp_path):
    print(run(tmp_path / "states", {"aggregate_timeout_s": 3.0}, 2, over_jax=True))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_over_the_store_of_jax_often(tmp_path):
    print(run(tmp_path / "states", {"aggregate_timeout_s": 3.0}, 24, over_jax=True))
