"""Every link of README.md, the other pages and the notebooks leads somewhere, and what prose names exists.

Nothing is fetched: of a link that leaves the repository only the form is looked at. `problems` lists what is wrong with one
page; the last test plants one mistake of each kind.
"""

import ast
import functools
import pathlib
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.docs.markdown import CODE, DOCS, NOTEBOOKS, PAGES, ROOT, anchors, blocks, prose, source

READ = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *NOTEBOOKS]

LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")  # [text](target "title"), and pictures
DEFINED = re.compile(r"^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)  # [text]: target
HTML = re.compile(r"(?:href|src)=[\"']([^\"']+)[\"']")
AUTOMATIC = re.compile(r"<((?:https?|mailto):[^>\s]*)>")
FILE = re.compile(r"(?<![\w./:])((?:tests|zephon_jax|docs|colab)/[\w./-]*[\w/])")  # also as an argument of a command
TEST = re.compile(r"^(tests/[\w/]+\.py)::(\w+)$")
MODULE = re.compile(r"\bpython3? -m ((?:tests|zephon_jax)[\w.]*)")


def targets(text: str) -> Iterator[str]:
    """Where the links of a page lead, code left out."""
    linked = CODE.sub("", prose(text))
    for pattern in (LINK, DEFINED, HTML, AUTOMATIC):
        yield from pattern.findall(linked)


def wrong_outside(target: str) -> str | None:
    """What is wrong with the form of an address outside."""
    try:
        parts = urlsplit(target)
    except ValueError as error:
        return str(error)
    if parts.scheme == "mailto":
        return None if "@" in parts.path else "no address"
    if parts.scheme != "https":
        return "not https"
    if not re.fullmatch(r"(?:[\w-]+\.)+[a-z]{2,}(?::\d+)?", parts.netloc):
        return "no host"
    return None


def wrong_inside(page: pathlib.Path, target: str, root: pathlib.Path) -> str | None:
    """What is wrong with a link to a file of the repository, or to a heading."""
    name, _, anchor = target.partition("#")
    path = (page.parent / name).resolve() if name else page.resolve()
    if not path.is_relative_to(root):
        return "leaves the repository"
    if not path.exists():
        return "does not exist"
    if page.parent.name == "docs" and not path.is_relative_to(page.parent.resolve()):
        return "leaves docs/: the built pages have nothing there"
    if anchor:
        if path.suffix != ".md":
            return "an anchor in a file that has none"
        depth = 3 if path.parent.name == "docs" else 6  # myst_heading_anchors in docs/conf.py
        if anchor not in anchors(source(path), depth):
            return f"has no heading #{anchor}"
    return None


@functools.cache
def functions_of(path: pathlib.Path) -> frozenset[str]:
    return frozenset(
        node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)
    )


def is_module(name: str, root: pathlib.Path) -> bool:
    path = root.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def problems(page: pathlib.Path, root: pathlib.Path = ROOT) -> list[str]:
    text = source(page)
    found: list[str] = []
    for target in targets(text):
        wrong = wrong_outside(target) if re.match(r"[a-z]+:", target) else wrong_inside(page, target, root)
        if wrong:
            found.append(f"{target}: {wrong}")
    for code in CODE.findall(prose(text)):
        if test := TEST.match(code):
            path = root / test[1]
            if not path.is_file():
                found.append(f"{code}: no such file")
            elif test[2] not in functions_of(path):
                found.append(f"{code}: no such test")
        else:
            found += [f"{name}: does not exist" for name in FILE.findall(code) if not (root / name).exists()]
    shell = [body for _, language, body in blocks(text) if language == "bash"]
    for name in MODULE.findall("\n".join([*CODE.findall(prose(text)), *shell])):
        if not is_module(name.rstrip("."), root):
            found.append(f"python -m {name}: no such module")
    return found


@pytest.mark.parametrize("page", READ, ids=lambda page: page.name)
def test_links_and_names_lead_somewhere(page: pathlib.Path) -> None:
    assert problems(page) == []


def test_the_start_page_lists_every_page() -> None:
    """In the text with a line on each, and in the contents at the side; README.md links them too."""
    pages = {page.stem for page in DOCS} - {"index"}
    index = source(ROOT / "docs" / "index.md")
    described = re.findall(r"^- \[[^\]]+\]\((\w+)\.md\)", index, re.MULTILINE)
    listed = [name for _, language, body in blocks(index) if language == "{toctree}" for name in body.split("\n")]
    listed = [name for name in listed if name and not name.startswith(":")]
    assert sorted(described) == sorted(pages)
    assert listed == described


def test_the_guarantees_each_name_a_test() -> None:
    rows = re.findall(r"^\| (?!promise|-)(.+) \| (.+) \|$", source(ROOT / "docs" / "guarantees.md"), re.MULTILINE)
    assert len(rows) > 50
    for promise, shown in rows:
        assert re.search(r"`tests/[\w/]+\.py(::test_\w+)?`", shown), f"nothing shows: {promise}"


def test_one_mistake_of_each_kind_is_found(tmp_path: pathlib.Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("def test_it(): ...\n", encoding="utf-8")
    (tmp_path / "LICENSE").touch()
    (docs / "other.md").write_text("# Other `code`, and more\n\n## Twice\n\n## Twice\n\n#### Deep\n", encoding="utf-8")
    good = (
        "# Page\n\n[a](other.md) [b](other.md#other-code-and-more) [c](other.md#twice-1) [d](#page) ![e](other.md)\n"
        "<https://example.com/a> [f](https://example.com/?q=1 'title')\n`tests/test_a.py::test_it` `python -m tests.test_a`\n"
        "`[not](a_link.md)`\n\n```text\n[nor](this.md)\n```\n"
    )
    page = docs / "page.md"
    page.write_text(good, encoding="utf-8")
    assert problems(page, tmp_path) == []
    planted = {
        "[a](gone.md)": "gone.md: does not exist",
        "![a](pictures/gone.svg)": "pictures/gone.svg: does not exist",
        "[a](other.md#gone)": "other.md#gone: has no heading #gone",
        "[a](other.md#deep)": "other.md#deep: has no heading #deep",
        "[a](#gone)": "#gone: has no heading #gone",
        "[a](../LICENSE)": "../LICENSE: leaves docs/: the built pages have nothing there",
        "[a](../../etc)": "../../etc: leaves the repository",
        "[a][1]\n\n[1]: gone.md": "gone.md: does not exist",
        '<img src="gone.png">': "gone.png: does not exist",
        "[a](http://example.com)": "http://example.com: not https",
        "<https://localhost/x>": "https://localhost/x: no host",
        "`tests/test_b.py::test_it`": "tests/test_b.py::test_it: no such file",
        "`tests/test_a.py::test_that`": "tests/test_a.py::test_that: no such test",
        "`tests/test_b.py`": "tests/test_b.py: does not exist",
        "`pytest -m long tests/test_b.py`": "tests/test_b.py: does not exist",
        "```bash\npython -m tests.gone --x\n```": "python -m tests.gone: no such module",
    }
    for mistake, told in planted.items():
        page.write_text(f"{good}\n{mistake}\n", encoding="utf-8")
        assert problems(page, tmp_path) == [told]
