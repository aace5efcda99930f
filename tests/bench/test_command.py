"""`zephon-jax bench`, as a user calls it: files and modules, JSON, and errors that say what to do."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

import zephon_jax as zj
from zephon_jax.named import load_pipeline

ROOT = pathlib.Path(__file__).parents[2]

FILE = """
from __future__ import annotations
from dataclasses import dataclass
import zephon_jax as zj
from beside import LOOPS

print("the pipeline's own words")

@dataclass
class Settings:
    rows: int = 8

def slow(record):
    total = 0
    for i in range(LOOPS):
        total += i & 3
    return {"x": total}

def quick(record):
    return {"x": record["value"]}

def made():
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("numbers", range(200)))
    return zj.Pipeline(work).map(quick, name="quick").map(slow, name="slow").batch(Settings().rows)

pipeline = made()
needs_more = lambda folder: None
number = 7
seven = lambda: 7
def broken(): raise OSError("no such bucket")
if __name__ == "__main__":
    raise SystemExit("a file is not run as a script")
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "beside.py").write_text("LOOPS = 20_000\n")
    (tmp_path / "wrong.py").write_text("import nothing_of_that_name\n")
    return tmp_path


def bench(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "zephon_jax.cli", "bench", *arguments]
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
def test_a_file_is_measured_and_the_slow_operator_named(folder: pathlib.Path) -> None:
    done = bench(folder, "mine.py", "--seconds", "0.3", "--executor", "inline,processes", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "the pipeline's own words" in done.stderr
    inline, processes = found["runs"]
    assert (inline["executor"], processes["executor"]) == ("inline", "processes")
    assert inline["verdict"]["stage"] == processes["verdict"]["stage"] == "map(slow)"
    assert [o["name"] for o in inline["operators"]] == ["fetch", "map(quick)", "map(slow)"]
    assert found["gil"]["map(slow)"] > 0.5
    assert found["source"]["records_per_s"] > inline["rows_per_s"] > 0
    assert inline["memory_bytes"] > 1 << 20


@pytest.mark.slow
def test_the_report_for_people(folder: pathlib.Path) -> None:
    done = bench(folder, "mine:made", "--seconds", "0.2", "--executor", "inline")
    assert done.returncode == 0, done.stderr
    assert "Fastest here: inline. map(slow) takes" in done.stdout
    assert "holds the GIL: executor='processes'" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["none.py"], "no such file"),
        (["none.py", "--executor", "inline,nowhere"], "executor 'nowhere': there are"),  # before the file is looked for
        (["mine.py", "--limit", "0"], "--limit 0"),
        (["mine.py", "--seconds", "0"], "seconds=0.0"),
    ],
)
def test_mistakes_of_the_command_line(folder: pathlib.Path, arguments, text) -> None:
    done = bench(folder, *arguments)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def here(folder: pathlib.Path, monkeypatch) -> Iterator[pathlib.Path]:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if name in ("mine", "beside"):
            del sys.modules[name]


@pytest.mark.parametrize("name", ["mine.py", "mine.py:pipeline", "mine.py:made", "mine:pipeline", "mine:made"])
def test_what_can_be_named(here: pathlib.Path, name: str) -> None:
    assert isinstance(load_pipeline(name), zj.Pipeline)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mine.py:other", r"has no 'other'.*there are \['pipeline'\]"),
        ("mine.py:number", "is a int"),
        ("mine.py:seven", "returned a int"),
        ("mine.py:needs_more", "called without arguments and failed.*folder"),
        ("mine.py:broken", "failed: OSError: no such bucket"),
        ("wrong.py", "nothing_of_that_name"),
        ("nowhere.at.all:pipeline", "cannot be imported"),
        (":pipeline", "FILE.py:NAME"),
    ],
)
def test_what_cannot(here: pathlib.Path, name: str, text: str) -> None:
    with pytest.raises(zj.ConfigurationError, match=text):
        load_pipeline(name)
