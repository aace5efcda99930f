"""Every way in which a process can end while an iterator is at work: what is left is nothing, and it says so once."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
import uuid

import pytest

from tests.processes.everything import MARK, marked

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[2]

# A script as people write them: no `if __name__` guard, functions of its own, a lambda, a closure, jax imported first.
SCRIPT = """
import jax, os, sys, time
jax.devices()
import zephon_jax as zj

print("begins", flush=True)
class Doc:
    def __init__(self, n): self.n = n
offset = 5
def add(record):
    return {"doc": Doc(int(record["value"]) + offset)}
def closure(k):
    return lambda record: {"x": record["doc"].n * k, "jax": "jax" in sys.modules, "pid": os.getpid()}
work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", range(4000)), shuffle_shards=False)
p = zj.Pipeline(work).map(add).map(closure(2), name="closure")
p = p.options(executor=EXECUTOR, max_workers=2, micro_batch_records=16)
"""


class Run:
    """A script in a process group of its own, with a mark that its children inherit."""

    def __init__(self, body: str, tmp_path: pathlib.Path, executor="processes"):
        head = SCRIPT.replace("EXECUTOR", repr(executor))
        path = tmp_path / "script.py"
        path.write_text(head + textwrap.dedent(body))
        self.mark = uuid.uuid4().hex
        env = {**os.environ, MARK: self.mark, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(path)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True,
        )  # fmt: skip

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def until(self, word: str) -> None:
        while (line := self.line()) != word:
            assert line, self.process.communicate(timeout=60)[1]

    def ends(self, within_s: float = 30) -> tuple[str, str]:
        try:
            return self.process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise

    def nothing_left(self, within_s: float = 10) -> bool:
        deadline = time.monotonic() + within_s
        while (left := marked(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return not left


def test_a_script_without_a_guard(tmp_path):
    run = Run(
        """
        total = []
        with iter(p.batch(8)) as it:
            for batch in it:
                total += batch["x"].tolist()
                assert not batch["jax"].any() and os.getpid() not in batch["pid"].tolist()
        assert total == [2 * (n + 5) for n in range(4000)]
        print("done")
        """,
        tmp_path,
    )
    out, err = run.ends(60)
    assert (out.split(), err) == (["begins", "done"], "")  # it ran once
    assert run.nothing_left()


@pytest.mark.parametrize("how", ["falls off the end", pytest.param("sys.exit", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param("threads", marks=pytest.mark.long),
        "threads, hung",
        pytest.param("processes", marks=pytest.mark.long),
        "processes, hung",
    ],
)
def test_exit_in_the_middle_without_close(tmp_path, case, how):
    """Also while an operator sleeps for a minute in the middle of a micro-batch."""
    run = Run(
        f"""
        if {"hung" in case}:
            p = p.map(lambda r: time.sleep(60) if r["x"] > 60 else r, name="hangs")
        it = iter(p.batch(8))
        next(it)
        time.sleep(0.3)
        print("leaves", flush=True)
        {"sys.exit(3)" if how == "sys.exit" else "pass"}
        """,
        tmp_path,
        case.split(",")[0],
    )
    run.until("leaves")
    began = time.monotonic()
    _, err = run.ends(30)
    assert time.monotonic() - began < 15
    assert "Warning" not in err
    assert run.process.returncode == (3 if how == "sys.exit" else 0)
    assert "Traceback" not in err
    assert run.nothing_left()


def test_the_parent_is_killed(tmp_path):
    body = """
        it = iter(p.map(lambda r: time.sleep(60) if r["x"] > 60 else r, name="hangs").batch(8))
        next(it)
        time.sleep(0.3)
        print("runs", flush=True)
        time.sleep(60)
        """
    run = Run(body, tmp_path)
    run.until("runs")
    assert len(marked(run.mark)) >= 3  # the script and two workers
    run.process.kill()
    run.ends()
    assert run.nothing_left()


STAGES = {
    "build": """
        class Slow:
            def __len__(self): return 100
            def __getitem__(self, i):
                print("now", flush=True); time.sleep(60)
        ds = zj.Dataset.from_source("slow", Slow())
        """,
    "first batch": """
        it = iter(p.map(lambda r: time.sleep(60), name="slow").batch(8))
        print("now", flush=True)
        next(it)
        """,
    "steady": """
        with iter(p.batch(8)) as it:
            next(it)
            print("now", flush=True)
            for batch in it:
                time.sleep(0.1)
        """,
    "restore": """
        def pipeline(seconds):  # a map behind the shuffle, so that the replay runs everything again
            return p.shuffle(100).map(lambda r: time.sleep(seconds) or r, name="slow").batch(8)
        with pipeline(0).steps() as it:
            for _ in range(40):
                next(it)
            state = it.checkpoint()
        with pipeline(0.05).steps() as it:
            print("now", flush=True)
            it.restore(state)
            next(it)
        """,
}


_SHORT = {("build", "inline"), ("first batch", "processes"), ("steady", "threads"), ("restore", "processes")}


@pytest.mark.parametrize(
    ("stage", "executor"),
    [
        pytest.param(stage, executor, marks=[] if (stage, executor) in _SHORT else pytest.mark.long)
        for stage in STAGES
        for executor in ("inline", "threads", "processes")
        if (stage, executor) != ("restore", "inline")  # inline replays within the first next
    ],
)
def test_ctrl_c_is_one_keyboard_interrupt(tmp_path, stage, executor):
    """It goes to the whole process group, as a terminal sends it."""
    run = Run(STAGES[stage], tmp_path, executor)
    run.until("now")
    time.sleep(0.3)
    os.killpg(run.process.pid, signal.SIGINT)
    _, err = run.ends(30)
    assert err.count("KeyboardInterrupt") == 1, err
    assert err.count("Traceback") == 1, err
    assert run.process.returncode == -signal.SIGINT
    assert run.nothing_left()


@pytest.mark.parametrize(
    ("executor", "told"),
    [
        ("threads", "1 True 4000"),
        pytest.param("processes", "1 True 4000", marks=pytest.mark.long),
        ("inline", "was interrupted by KeyboardInterrupt while it took a batch; make a new iterator and restore"),
    ],
)
def test_next_can_be_called_again_after_ctrl_c_or_says_why_not(tmp_path, executor, told):
    """Waiting for a batch loses none; what is interrupted inline, in the middle of an operator, must not pretend to go on."""
    body = """
        def stop(record):
            if int(record["x"]) == 410 and not os.path.exists("flag"):
                open("flag", "x").close()
                time.sleep(1)  # until the consumer has what there is, and waits
                os.kill(MAIN, 2)
                time.sleep(1)
            return record
        MAIN = os.getpid()
        got, interrupts = [], 0
        with iter(p.map(stop, name="stop").batch(8)) as it:
            while True:
                try:
                    for batch in it:
                        got += batch["x"].tolist()
                    break
                except KeyboardInterrupt:
                    interrupts += 1
                except zj.WorkerError as error:
                    print(error)
                    break
        print(interrupts, got == [2 * (n + 5) for n in range(len(got))], len(got))
        """
    run = Run(f"os.chdir({str(tmp_path)!r})\n" + textwrap.dedent(body), tmp_path, executor)
    out, err = run.ends(60)
    assert told in out, (out, err)


def test_a_notebook(tmp_path):
    """Functions defined in cells, in a real kernel."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    source = SCRIPT.replace("EXECUTOR", "'processes'")
    cells = [
        source,
        "it = iter(p.batch(8))\nbatch = next(it)",
        "print(batch['x'].tolist(), batch['jax'].any())",
        "it.close()",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)
    try:
        nbclient.NotebookClient(book, timeout=60, kernel_name="python3").execute()
    finally:
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)
    (output,) = book.cells[2].outputs
    assert output["text"] == f"{[2 * (n + 5) for n in range(8)]} False\n"
