"""Every code block of the documentation runs.

The blocks marked `python` in README.md and in each page of docs/ are put together, file by file, and run as one program
in an interpreter and an empty folder of their own, on eight forced CPU devices. Blocks that are not meant to run are
marked `text`. The examples in docstrings run as doctests.
"""

import doctest
import importlib
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^(?P<ticks>`{3,})(?P<language>[^\n`]*)\n(?P<body>.*?)^(?P=ticks)[ ]*$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"python", "bash", "text"}


def blocks(text: str) -> list[tuple[int, str, str]]:
    """Line of the first line of code, language, and code of each fenced block."""
    return [
        (text.count("\n", 0, match.start("body")) + 1, match["language"].strip(), match["body"])
        for match in FENCE.finditer(text)
    ]


def program(text: str) -> str:
    """The python blocks at the lines where they stand, so that a traceback points into the page."""
    lines: list[str] = []
    for line, language, body in blocks(text):
        if language == "python":
            lines += [""] * (line - 1 - len(lines)) + body.splitlines()
    return "\n".join(lines) + "\n"


def run(page: pathlib.Path, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    code = "import sys; exec(compile(sys.stdin.read(), sys.argv[1], 'exec'), {'__name__': '__main__'})"
    return subprocess.run(
        [sys.executable, "-c", code, str(page)],
        input=program(page.read_text(encoding="utf-8")),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


RUNNABLE = [page for page in PAGES if program(page.read_text(encoding="utf-8")).strip()]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = run(page, tmp_path)
    assert done.returncode == 0, f"{page.name}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_are_marked(page: pathlib.Path) -> None:
    """A block in a language that nobody knows would be left out without a word."""
    for line, language, _ in blocks(page.read_text(encoding="utf-8")):
        assert language in LANGUAGES or language.startswith("{"), f"{page.name}:{line}: block marked {language!r}"


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).is_file(), f"{page.name}: {target} does not exist"


def test_the_tests_that_the_guarantees_name_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    for file, test in named:
        path = ROOT / file
        assert path.is_file(), f"{file} does not exist"
        assert re.search(rf"^def {test}\(", path.read_text(encoding="utf-8"), re.MULTILINE), f"{file} has no {test}"


DOCTESTED = [path for path in sorted((ROOT / "zephon_jax").rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", DOCTESTED, ids=lambda path: path.stem)
def test_the_examples_of_docstrings_run(path: pathlib.Path) -> None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_a_failing_block_fails_with_its_line(tmp_path: pathlib.Path) -> None:
    """The check itself: a mistake in a page is found, at the line where it stands."""
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\n```\n\ntext\n\n```python\nassert x == 2\n```\n", encoding="utf-8")
    done = run(page, tmp_path)
    assert done.returncode != 0
    assert f'{page}", line 10' in done.stderr
