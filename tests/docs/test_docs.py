"""Every code block of the documentation runs, and every public name is in it.

The blocks marked `python` in README.md and in each page of docs/ are put together, file by file, and run as one program
in an interpreter and an empty folder of their own, on eight forced CPU devices, to the end. Blocks that are not meant to
run are marked `text`; if one of them is Python all the same, a comment `<!-- not run: … -->` before it says why. Lines of
`bash` are not run: their commands and arguments are checked. The examples in docstrings run as doctests.
"""

import ast
import doctest
import importlib
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

import zephon_jax
from tests.docs.markdown import PAGES, ROOT, blocks
from zephon_jax import cli

LANGUAGES = {"python", "bash", "text"}
END = "the page has run to its end"


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
    code = (
        "import sys; exec(compile(sys.stdin.read(), sys.argv[1], 'exec'), {'__name__': '__main__'}); print(sys.argv[2])"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(page), END],
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
    assert done.stdout.splitlines()[-1] == END, f"{page.name} ends early"


def skipped(text: str) -> list[str]:
    """What looks like code and would be left out without a word."""
    found = [f"line {n}: block marked {language!r}" for n, language, _ in blocks(text) if not known(language)]
    opened = sum(bool(re.match(r"[ >\-*]*(`{3,}|~{3,})", line)) for line in text.splitlines())
    if opened != 2 * len(blocks(text)):
        found.append(f"{opened} fences, but {len(blocks(text))} blocks: one is indented, quoted, nested or open")
    for n, language, body in blocks(text):
        above = text.splitlines()[: n - 2]
        if language == "text" and is_python(body) and not (above and re.match(r"<!-- not run: .+ -->$", above[-1])):
            found.append(f"line {n}: Python that is not run, and nothing says why")
    return found


def known(language: str) -> bool:
    return language in LANGUAGES or language in {"{toctree}", "{eval-rst}"}


def is_python(code: str) -> bool:
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return False
    acts = (ast.Assign, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.Return, ast.Call)
    return any(isinstance(node, acts) for node in ast.walk(tree))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_block_is_left_out(page: pathlib.Path) -> None:
    assert skipped(page.read_text(encoding="utf-8")) == []


def test_all_that_is_marked_python_runs() -> None:
    """Counted apart from the machinery above: fences by their first line, statements by a parse of what is run."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    fences = sum(text.count("\n```python\n") for text in texts)
    assert fences == sum(language == "python" for text in texts for _, language, _ in blocks(text)) > 60
    apart = [len(ast.parse(body).body) for text in texts for _, language, body in blocks(text) if language == "python"]
    assert sum(apart) == sum(len(ast.parse(program(text)).body) for text in texts)


def test_what_would_be_left_out_is_found() -> None:
    assert skipped("```python\nx = 1\n```\n\n```text\n3 rows\n```\n<!-- not run: x -->\n```text\nf(1)\n```\n") == []
    assert skipped("```py\nx = 1\n```\n") == ["line 2: block marked 'py'"]
    assert skipped("```\nx = 1\n```\n") == ["line 2: block marked ''"]
    assert skipped("- item\n\n  ```python\n  x = 1\n  ```\n")[0].startswith("2 fences, but 0 blocks")
    assert skipped("~~~python\nx = 1\n~~~\n")[0].startswith("2 fences, but 0 blocks")
    assert skipped("```python\nx = 1\n")[0].startswith("1 fences, but 0 blocks")
    assert skipped("a\n\n```text\nf(1)\n```\n") == ["line 4: Python that is not run, and nothing says why"]


COMMANDS = [
    line
    for page in PAGES
    for _, language, body in blocks(page.read_text(encoding="utf-8"))
    if language == "bash"
    for line in body.splitlines()
]


@pytest.mark.parametrize("line", COMMANDS)
def test_the_arguments_of_commands_are_taken(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`zephon-jax …` as the command itself reads it; what is `python -m` is looked up by `test_links.py`."""
    words = shlex.split(line, comments=True)
    at = next((n for n, word in enumerate(words) if pathlib.Path(word).name == "zephon-jax"), None)
    if at is None:
        assert words[0] in {"python", "python3"}
        return
    for name in ("run_demo", "run_inspect", "run_index", "run_bench"):
        monkeypatch.setattr(cli, name, lambda arguments: 0)
    assert cli.main(words[at + 1 :]) == 0


def documented() -> set[str]:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    names = {
        name.rpartition(".")[2] for name in re.findall(r"^\.\. auto(?:class|function):: (\S+)", text, re.MULTILINE)
    }
    names |= {name.rpartition(".")[2] for name in re.findall(r"^\.\. data:: (\S+)", text, re.MULTILINE)}
    for module in re.findall(r"^\.\. automodule:: (\S+)", text, re.MULTILINE):
        names |= {name for name, value in vars(importlib.import_module(module)).items() if value.__class__ is type}
    return names


def test_the_api_page_has_every_public_name() -> None:
    """Of the package, of `testing` and `ops`; `Fetch` and `Reader` are what the engine puts before a user's operators."""
    found = documented()
    assert set(zephon_jax.__all__) - {"testing"} - found == set()
    assert set(zephon_jax.testing.__all__) - found == set()
    operators = {"Accumulator", "Operator", "OpTraits", "RecordOperator", "RowOperator"}
    assert set(zephon_jax.ops.__all__) - operators - found == {"Fetch", "Reader"}


def test_the_page_about_rooms_is_the_table_that_is_enforced() -> None:
    from tests.test_layers import LAYERS

    text = (ROOT / "docs" / "rooms.md").read_text(encoding="utf-8")
    (drawn,) = [body for _, language, body in blocks(text) if language == "text"]
    assert [frozenset(re.split(r"\s{3,}", line)[0].split()) for line in drawn.splitlines()] == list(LAYERS)
    folders = {path.parent.name for path in (ROOT / "zephon_jax").glob("*/__init__.py")}
    headed = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert {word for title in headed for word in title.split(" and ")} - {"The nouns", "The surface"} == folders


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
