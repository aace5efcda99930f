"""Mistakes planted in a copy of the displays, each of which the tests beside this one must notice.

Without the comparison with the pictures that are kept, which would notice any change, right or wrong. A mistake is a
replacement of text that must occur in the file, so that the list cannot go stale.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
IGNORED = shutil.ignore_patterns("__pycache__")

MISTAKES = {
    "names are not escaped": (
        "display/svg.py", 'return html.escape(_UNPRINTABLE.sub("\\ufffd", str(text)), quote=True)', "return str(text)"),
    "quotes are not escaped": ("display/svg.py", ", quote=True)", ", quote=False)"),
    "control characters stay": ("display/svg.py", '_UNPRINTABLE.sub("\\ufffd", str(text))', "str(text)"),
    "cells are not escaped": ("display/page.py", "{escaped(bounded(self.text))}", "{bounded(self.text)}"),
    "tips are not escaped": ("display/svg.py", "<title>{escaped(bounded(tip))}</title>", "<title>{bounded(tip)}</title>"),
    "tips are of any length": ("display/svg.py", "escaped(bounded(tip))", "escaped(tip)"),
    "chunks read ahead count as in flight": ("emit/timeline.py", 'account[chunk][0], "ahead"', 'account[chunk][0], "kept"'),
    "T is the next chunk": ("display/timeline.py", "return kept[-1].number if kept", "return kept[-1].number + 1 if kept"),
    "what is done counts all that is closed": (
        "engine/lane.py", " & (epoch.balance[a:b] == 0)).sum", " | (epoch.balance[a:b] == 1)).sum"),
    "records out stand for records in": ("metrics/stats.py", "name, c.records_in, c", "name, c.records_out, c"),
    "shares are of the heaviest": (
        "display/figures.py", "operator.busy_s / figures.busy_s", "operator.busy_s / max(o.busy_s for o in figures.operators)"),
    "narrow documents are left out": ("display/strip.py", "            blocks[-1].append(stretch)\n", "            pass\n"),
    "the loss is inverted": ("picture.py", "if loss[a])", "if not loss[a])"),
    "documents are off by one": ("picture.py", "sources[number - 1]", "sources[number - 2]"),
    "equal values are marked": ("display/saved.py", "changed=x != y", "changed=True"),
    "what comes before the first batch is waiting": ("bar.py", "            self._started = now\n", "            self._started, self.wait_s = began, now - began\n"),
    "time left ignores where the run began": ("bar.py", "self._total - self._first - self.steps", "self._total - self._first"),
    "an error ends the loop in silence": ("bar.py", "            self.close()\n            raise\n", "            self.close()\n            raise StopIteration from None\n"),
}  # fmt: skip


def noticed(folder: pathlib.Path, *mistake: str) -> subprocess.CompletedProcess[str]:
    for name in ("zephon_jax", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=IGNORED)
    shutil.copy(ROOT / "pyproject.toml", folder)
    if mistake:
        file, right, wrong = mistake
        path = folder / "zephon_jax" / file
        text = path.read_text(encoding="utf-8")
        assert right in text, "the text to replace is gone: bring the mistake up to date"
        path.write_text(text.replace(right, wrong), encoding="utf-8")
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow and not long",
        "-k", "not pictures_of_the_documentation", "tests/display", "tests/test_picture.py",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_the_mistake_is_noticed(name, tmp_path):
    run = noticed(tmp_path, *MISTAKES[name])
    assert run.returncode == 1, f"the mistake went unnoticed\n{run.stdout[-2000:]}"
    assert "SyntaxError" not in run.stdout and "NameError" not in run.stdout and "IndentationError" not in run.stdout


@pytest.mark.slow
def test_without_a_mistake_nothing_is_noticed(tmp_path):
    run = noticed(tmp_path)
    assert run.returncode == 0, run.stdout[-2000:]
