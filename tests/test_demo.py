"""The demo: its comparison on made-up logs, its processes on stand-ins, and the whole of it once, `--quick`."""

from __future__ import annotations

import math
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from zephon_jax import cli
from zephon_jax.demo import run as demo
from zephon_jax.demo import trainers
from zephon_jax.demo.corpus import documents_of, source_files
from zephon_jax.demo.report import Outcome
from zephon_jax.demo.settings import FULL, QUICK, Settings, mesh_shape
from zephon_jax.demo.steplog import EndRecord, RunLog, StartRecord, StepRecord, batch_digest, to_line
from zephon_jax.demo.trainers import Trainer, TrainerError

STEPS, DONE, KILLED = 12, 5, 7
SETTINGS = Settings(devices=8, resume_devices=4, steps=STEPS, save_every=5, kill_after=KILLED, loss_tolerance=1e-3)
LANES = {"0": "aa", "1": "bb"}

Change = Callable[[StepRecord], StepRecord]


def a_log(first: int, last: int, *, devices: int = 8, loss: float = 0.0) -> list[StepRecord]:
    return [StepRecord(s, f"digest of {s}", 7.0 - s / 10 + loss, devices, 100) for s in range(first, last + 1)]


def an_outcome(
    folder: pathlib.Path,
    *,
    resumed: list[StepRecord] | None = None,
    interrupted: list[StepRecord] | None = None,
    done: int = DONE,
    lanes: dict[str, str] = LANES,
) -> Outcome:
    """Three logs, written and read again; equal but for what is given."""

    def log(name: str, start: StartRecord, steps: list[StepRecord], *end: EndRecord) -> RunLog:
        path = folder / f"{name}.jsonl"
        path.write_text("".join(map(to_line, (start, *steps, *end))))
        return RunLog.read(path)

    return Outcome(
        reference=log("reference", StartRecord(0, 8), a_log(1, STEPS), EndRecord(STEPS, LANES)),
        interrupted=log("interrupted", StartRecord(0, 8), interrupted or a_log(1, KILLED)),
        resumed=log(
            "resumed",
            StartRecord(done, 4),
            a_log(DONE + 1, STEPS, devices=4, loss=1e-6) if resumed is None else resumed,
            EndRecord(STEPS, lanes),
        ),
        kill_returncode=-9,
        data_state_bytes=1234,
        checkpoint_bytes=98765,
        seconds=42.4,
    )


def changed(
    log: list[StepRecord], step: int, *, digest: str | None = None, loss: float | None = None
) -> list[StepRecord]:
    return [
        StepRecord(r.step, digest or r.digest, r.loss if loss is None else loss, r.devices, r.tokens)
        if r.step == step
        else r
        for r in log
    ]


def test_equal_runs_end_with_0_and_say_what_was_compared(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.conclude(an_outcome(tmp_path), SETTINGS, tmp_path / "loss.png") == 0
    printed = capsys.readouterr()
    table = [line.strip() for line in printed.out.split("\n\n")[0].splitlines() if line]
    assert [line.split("   ") for line in map(collapsed, table)] == [
        ["run", "devices", "mesh", "steps", "batches that differ", "largest difference in loss"],
        ["reference", "8", "4 data x 2 model", "1 to 12", "-", "-"],
        ["interrupted", "8", "4 data x 2 model", "1 to 7", "0 of 7", "0"],
        ["resumed", "4", "2 data x 2 model", "6 to 12", "0 of 7", "1e-06"],
    ]
    assert facts(printed.out) == {
        "killed": "SIGKILL (returncode -9) after step 7",
        "resumed from": "checkpoint of step 5; 2 steps done again",
        "devices": "8 -> 4",
        "steps compared": "14",
        "batches that differ": "0",
        "loss": "largest difference 1e-06, allowed 0.001; loss of the last step 5.800",
        "data state at the end": "equal in every lane",
        "data state on disk": "1,234 bytes of a checkpoint of 98,765",
        "time taken": "42 s",
    }
    assert printed.err == ""
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def collapsed(line: str) -> str:
    """The line with exactly three blanks between its columns."""
    return re.sub(" {3,}", "   ", line)


def facts(printed: str) -> dict[str, str]:
    """The block of facts, by its first column."""
    lines = printed[printed.index("  killed") :].split("\n\n")[0].splitlines()
    return {name: value.strip() for name, _, value in (line.strip().partition("   ") for line in lines)}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"resumed": changed(a_log(6, STEPS), 9, digest="other")},
            "resumed: another global batch than the reference at step 9",
        ),
        (
            {"interrupted": changed(a_log(1, KILLED), 2, digest="other")},
            "interrupted: another global batch than the reference at step 2",
        ),
        ({"resumed": a_log(6, 8) + a_log(10, STEPS)}, "resumed: no line to compare for step 9"),
        ({"interrupted": a_log(2, KILLED)}, "interrupted: no line to compare for step 1"),
        ({"resumed": changed(a_log(6, STEPS), 9, loss=6.2)}, "resumed: a loss differs by 0.1, allowed are 0.001"),
        ({"resumed": changed(a_log(6, STEPS), 9, loss=math.nan)}, "resumed: a loss differs by inf, allowed are 0.001"),
        ({"lanes": {"0": "aa", "1": "cc"}}, "the lanes' fingerprints at the end of the resumed run are not those"),
        ({"done": 0, "resumed": a_log(1, STEPS)}, "resumed after step 0, needed is a checkpoint between 1 and 7"),
        ({"done": 8, "resumed": a_log(9, STEPS)}, "resumed after step 8, needed is a checkpoint between 1 and 7"),
    ],
)
def test_any_difference_ends_with_1_and_is_named(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], problem: str
) -> None:
    outcome = an_outcome(tmp_path, **change)  # pyright: ignore[reportArgumentType]
    assert demo.conclude(outcome, SETTINGS, tmp_path / "loss.png") == 1
    error = capsys.readouterr().err
    assert error.startswith(f"FAILED {problem}")
    assert error.count("FAILED") == 1


def test_a_line_that_the_kill_cut_off_is_passed_over(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = "".join(map(to_line, a_log(1, 3)))
    path.write_text(lines[:-1])
    assert list(RunLog.read(path).steps) == [1, 2]
    path.write_text(lines + to_line(a_log(2, 2)[0]))
    with pytest.raises(ValueError, match="step 2 occurs twice"):
        RunLog.read(path)
    assert RunLog.read(tmp_path / "none.jsonl") == RunLog()


def test_the_digest_covers_names_dtypes_shapes_and_bytes() -> None:
    batch = {"a": np.arange(6, dtype=np.int32), "b": np.zeros(2, np.float32)}
    others = [
        {"a": batch["a"], "c": batch["b"]},
        {"a": batch["a"].view(np.uint32), "b": batch["b"]},
        {"a": batch["a"].reshape(2, 3), "b": batch["b"]},
        {"a": batch["a"], "b": np.array([0.0, -0.0], np.float32)},
    ]
    assert batch_digest(batch) == batch_digest(dict(reversed(batch.items())))
    assert len({batch_digest(batch), *map(batch_digest, others)}) == 5


def test_documents_begin_at_definitions_and_join_to_the_file() -> None:
    source = "import x\n\n@a\n@b\ndef f():\n    def g(): ...\n\nclass C:\n    pass\nasync def h(): ...\n"
    documents = list(documents_of("x.py", source))
    assert [document.path for document in documents] == ["x.py:1", "x.py:3", "x.py:8", "x.py:10"]
    assert "".join(document.text for document in documents) == source


def test_the_corpus_is_sorted_and_leaves_out_tests_and_installed_packages(tmp_path: pathlib.Path) -> None:
    names = [
        "b.py",
        "a.py",
        "json/decoder.py",
        "test/test_a.py",
        "site-packages/p/__init__.py",
        "config-3/x.py",
        "a.txt",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in source_files(tmp_path)]
    assert found == ["a.py", "b.py", "json/decoder.py"]


@pytest.mark.parametrize("settings", [FULL, QUICK])
def test_settings_survive_the_file_and_fit_their_meshes(tmp_path: pathlib.Path, settings: Settings) -> None:
    settings.write(tmp_path)
    assert Settings.read(tmp_path) == settings
    assert settings.devices != settings.resume_devices
    for devices in (settings.devices, settings.resume_devices):
        data, model = mesh_shape(devices)
        assert data * model == devices
        assert settings.global_batch_size % data == 0
        assert settings.heads % model == 0
    with pytest.raises(ValueError, match="kill_after"):
        Settings(save_every=10, kill_after=20)


def test_a_missing_package_is_one_line_before_any_work(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "NEEDED", ("tokenizers", "no_such_package"))
    assert cli.main(["demo", "--out", str(tmp_path / "out")]) == 2
    expected = 'zephon-jax demo needs no_such_package: pip install "zephon-jax[demo]"\n'
    assert capsys.readouterr().err == expected
    assert not (tmp_path / "out").exists()


@pytest.fixture
def stand_in(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Trainer]:
    """Start a trainer whose process runs a shell script instead; `$LOG` is the path of its log."""

    def start(script: str) -> Trainer:
        program = tmp_path / "python"
        program.write_text(f'#!/bin/sh\nLOG="{tmp_path}/trial.jsonl"\n{script}\n')
        program.chmod(0o755)
        monkeypatch.setattr(trainers.sys, "executable", str(program))
        return Trainer("trial", tmp_path, checkpoints="trial", devices=2)

    return start


def test_a_trainer_that_fails_is_reported_with_the_end_of_its_errors(stand_in: Callable[[str], Trainer]) -> None:
    trainer = stand_in("seq 100 >&2; exit 7")
    with pytest.raises(TrainerError, match=r"(?s)^trial: ended with returncode 7\n.*\| 99\n  \| 100$"):
        trainers.watch([trainer], until=lambda: False)
    trainer.end()


def test_a_silent_trainer_is_reported(stand_in: Callable[[str], Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainers, "STALL_S", 0.1)
    trainer = stand_in("exec sleep 60")
    with pytest.raises(TrainerError, match="trial: no step for"):
        trainers.watch([trainer], until=lambda: False)
    trainer.end()
    assert trainer.returncode == -15


def test_the_kill_is_sigkill_and_the_log_ends_where_it_fell(stand_in: Callable[[str], Trainer]) -> None:
    line = to_line(a_log(1, 1)[0]).strip()
    trainer = stand_in(f"trap '' TERM INT HUP\necho '{line}' >> $LOG\nexec sleep 60")
    trainers.watch([trainer], until=lambda: trainer.log.last_step == 1)
    assert trainer.returncode is None
    assert trainers.ending(trainer.kill()) == "SIGKILL (returncode -9)"
    assert list(trainer.log.steps) == [1]
    trainer.end()


def test_the_command_line_does_not_import_jax() -> None:
    code = "import sys, zephon_jax.cli; assert not {'jax', 'orbax', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.slow
def test_the_quick_demo_resumes_bit_for_bit_on_fewer_devices(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "zephon_jax.cli", "demo", "--quick", "--out", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = facts(ended.stdout)
    assert found["killed"].startswith("SIGKILL (returncode -9) after step 2")
    assert found["resumed from"].startswith("checkpoint of step 16; ")
    assert found["devices"] == "4 -> 2"
    assert found["batches that differ"] == "0"
    assert found["data state at the end"] == "equal in every lane"
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["loss.png"]
