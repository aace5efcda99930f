"""A measurement's process, as a user's pipeline may treat it: it hangs, dies, is killed or interrupted. Real processes."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Generator

import pytest

from zephon_jax.bench.apart import measured_apart
from zephon_jax.errors import WorkerError

ROOT = pathlib.Path(__file__).parents[2]

FILE = """
import os, pathlib, signal, time
import zephon_jax as zj

work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("n", range(4000)), shuffle_shards=False)

def pipeline(fn):
    return zj.Pipeline(work).map(fn).batch(8)

def alone():
    return pathlib.Path("/proc/self/cmdline").read_bytes().split(b"\\0")[-3]  # WHAT, in the measuring process

def busy(record):
    pathlib.Path("pids", str(os.getpid())).touch()
    if os.environ.get("BUSY_FOREVER"):
        while True:
            pass
    return {"x": record["value"]}

def hang(record):
    time.sleep(1000)

def hang_after_some(record):
    if alone() == b"inline" and record["value"] > 200:
        time.sleep(1000)
    return {"x": record["value"]}

def die(record):
    os._exit(7)

def die_later(record):
    if alone() == b"inline":
        os._exit(7)
    return {"x": record["value"]}

def killed(record):
    if alone() == b"inline":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"x": record["value"]}

def leave(record):
    raise SystemExit(0)

class Dying:
    def __len__(self): return 10
    def __getitem__(self, index): os._exit(7)

busy, hang, hang_after_some = pipeline(busy).options(max_workers=2), pipeline(hang), pipeline(hang_after_some)
die, die_later, killed, leave = pipeline(die), pipeline(die_later), pipeline(killed), pipeline(leave)

dying_source = zj.Pipeline(
    zj.StaticMixtureWorkSource(zj.Dataset.from_source("s", Dying(), fingerprint="s"))
).batch(4)
leaving = lambda: exit(3)
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "pids").mkdir()
    return tmp_path


@contextlib.contextmanager
def start(folder: pathlib.Path, *arguments: str, **environment: str) -> Generator[subprocess.Popen[str]]:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    command = subprocess.Popen(
        [sys.executable, "-m", "zephon_jax.cli", "bench", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with command:
        try:
            yield command
        finally:
            command.kill()  # if a test fails


def alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition, what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def direct(pid: int) -> set[int]:
    """Its children."""
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


def below(pid: int) -> set[int]:
    """All processes below this one."""
    children = direct(pid)
    return children.union(*map(below, children))


def working(folder: pathlib.Path, wanted: int) -> set[int]:
    """Ids of processes that ran the operator and are there now, at least `wanted` of them."""
    now = set[int]()

    def there() -> bool:
        nonlocal now
        now = {pid for path in (folder / "pids").iterdir() if alive(pid := int(path.name))}
        return len(now) >= wanted

    until(there, "no process runs the operator")
    return now


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("executor", ["processes", "inline"])
def test_nothing_outlives_a_command_that_is_killed(folder: pathlib.Path, name: str, executor: str) -> None:
    with start(folder, "mine.py:busy", "--executor", executor, "--seconds", "600") as command:
        if executor == "processes":
            until(lambda: len(below(command.pid) & working(folder, 1)) >= 2, "no workers")  # not the probe alone
        else:
            working(folder, 1)
        all_of_them = below(command.pid)
        assert len(all_of_them) >= (3 if executor == "processes" else 1)
        command.send_signal(getattr(signal, name))
        assert command.wait(60) == -getattr(signal, name)
        until(lambda: not any(map(alive, all_of_them)), "processes are left")


@pytest.mark.slow
def test_an_operator_that_never_returns_is_no_reason_to_stay(folder: pathlib.Path) -> None:
    with start(folder, "mine.py:busy", "--executor", "inline", BUSY_FOREVER="1") as command:
        child = working(folder, 1)
        command.kill()
        until(lambda: not any(map(alive, child)), "the measuring process is left")


@pytest.mark.slow
def test_ctrl_c_is_one_line(folder: pathlib.Path) -> None:
    with start(folder, "mine.py:busy", "--executor", "processes", "--seconds", "600") as command:
        until(lambda: len(below(command.pid) & working(folder, 1)) >= 2, "no workers")
        all_of_them = below(command.pid)
        for pid in direct(command.pid):  # else its traceback might come before it is killed
            lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
            masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigBlk:", "SigIgn:"))]
            assert any(mask & 1 << (signal.SIGINT - 1) for mask in masks)
        os.killpg(command.pid, signal.SIGINT)  # as a terminal does: to all of them
        out, errors = command.communicate(timeout=60)
        assert (command.returncode, out, errors) == (130, "", "zephon-jax bench: interrupted\n")
        until(lambda: not any(map(alive, all_of_them)), "processes are left")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "limit", "text"),
    [
        ("hang", 10, "map(hang), run alone on a few records, did not return within 10.1 s (--seconds 0.1 and --limit 10)"),
        ("hang_after_some", 10, "inline: batches came, but then none to the end of 10.1 s"),
        ("die", 60, "map(die), run alone on a few records: the operator ended the process, with exit code 7"),
        ("die_later", 60, "inline, before the first batch: an operator (or the source) ended the process, with exit code 7"),
        ("killed", 60, "inline, before the first batch: the process was killed by SIGKILL"),
        ("leave", 60, "inline: an operator ended the process: SystemExit(0), raised in leave ("),
        ("dying_source", 60, "the source alone (fetch; no operator runs): the source ended the process, with exit code 7"),
        ("leaving", 60, "'mine.py:leaving' was called without arguments and failed: SystemExit: 3"),
    ],
)  # fmt: skip
def test_what_it_was_doing_is_said(folder: pathlib.Path, name: str, limit: int, text: str) -> None:
    with start(folder, f"mine.py:{name}", "--executor", "inline", "--seconds", "0.1", "--limit", str(limit)) as command:
        out, errors = command.communicate(timeout=120)
    assert (command.returncode, out) == (2, "")
    assert errors.startswith(f"zephon-jax bench: {text}"), errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("last", "text"),
    [
        ("load", "inline: 'mine.py' was not imported within 0.4 s"),
        ("source", r"the source alone \(fetch; no operator runs\): it did not return within 0.4 s"),
        ("probe map(f)", r"map\(f\), run alone on a few records, did not return within 0.4 s"),
        ("first", "inline: no batch within 0.4 s .*an operator or the source does not return"),
        ("rest", "inline: batches came, but then none to the end of 0.4 s"),
    ],
)
def test_the_limit_names_the_last_note(monkeypatch, last: str, text: str) -> None:
    """A stand-in that notes what it begins and sleeps: no interpreter's start-up decides what was seen."""

    def sleeper(target, what, seconds, link):
        link.send_bytes(json.dumps({"doing": last}).encode())
        started.append(subprocess.Popen(["sleep", "1000"], stdin=link.fileno()))
        return started[-1]

    started: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr("zephon_jax.bench.apart._started", sleeper)
    with pytest.raises(WorkerError, match=text):
        measured_apart("mine.py", "inline", 0.1, 0.3)
    assert started[0].returncode == -signal.SIGKILL
