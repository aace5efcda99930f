"""What the tests of the documentation read: pages as Markdown, without what is code."""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
NOTEBOOKS = sorted((ROOT / "colab").glob("*.ipynb"))

FENCE = re.compile(r"^(?P<ticks>`{3,})(?P<language>[^\n`]*)\n(?P<body>.*?)^(?P=ticks)[ ]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*$", re.MULTILINE)


def blocks(text: str) -> list[tuple[int, str, str]]:
    """Line of the first line of code, language, and code of each fenced block."""
    return [
        (text.count("\n", 0, match.start("body")) + 1, match["language"].strip(), match["body"])
        for match in FENCE.finditer(text)
    ]


def prose(text: str) -> str:
    """The text without its blocks; lines keep their numbers."""
    return FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)


def source(path: pathlib.Path) -> str:
    """A page, or the Markdown cells of a notebook one behind the other."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def anchors(text: str, depth: int = 6) -> set[str]:
    """What `#…` may name: headings as GitHub and MyST write them, and targets that are set outright."""
    found: set[str] = set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))
    for level, title in HEADING.findall(prose(text)):
        if len(level) <= depth:
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
            slug = base = re.sub(r"\s", "-", re.sub(r"[^\w\- ]", "", plain))
            number = 0
            while slug in found:
                number += 1
                slug = f"{base}-{number}"
            found.add(slug)
    return found
