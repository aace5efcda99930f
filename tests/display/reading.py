"""Reading pictures back: strict parsers of what the displays give, and the numbers that stand in them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img"}
ALLOWED = {
    "html", "head", "title", "meta", "style", "body", "h1", "div", "span", "p", "ul", "li", "pre", "table", "thead", "tbody",
    "tr", "th", "td", "svg", "rect", "text", "path",
}  # fmt: skip


class Page(HTMLParser):
    """Fails on a tag that is not closed in order, on one that no display makes, and on anything that runs or loads."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self._check(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self._check(tag, attrs)

    def _check(self, tag, attrs):
        assert tag in ALLOWED, tag
        self.tags.append(tag)
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names))
        for name, value in attrs:
            assert not name.startswith("on") and name not in ("href", "src", "id", "class"), name
            assert "url(" not in (value or "") or "title" in name

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        self.texts.append(data)
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def svgs_of(html: str) -> list[ET.Element]:
    """The pictures within a page, each parsed as XML."""
    found = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert found
    return [ET.fromstring(one) for one in found]


def tips(picture: ET.Element) -> list[str]:
    return [e.text or "" for e in picture.iter() if e.tag.rpartition("}")[2] == "title"]


def said(picture: ET.Element) -> list[str]:
    return [e.text or "" for e in picture.iter() if e.tag.rpartition("}")[2] == "text"]
