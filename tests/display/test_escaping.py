"""Names from outside come out harmless, in every display; and what XML cannot carry comes out at all."""

from __future__ import annotations

import numpy as np
import pytest

import zephon_jax as zj
from tests.display.reading import Page, svgs_of
from zephon_jax.display.svg import escaped, fitted, wrapped
from zephon_jax.metrics.counters import OperatorCounts

EVIL = "<script>alert('1')</script>\"><img src=x onerror=y>&amp;\x00\x1b[2J\udc80\u202e]]>"


def pipeline(name):
    docs = [{"text": "abc" * (i % 5 + 1)} for i in range(60)]
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source(name, docs), chunk_size=4)
    p = zj.Pipeline(work).tokenize(lambda t: [ord(c) for c in t], name="codes" + name).pack(20, num_bins=2).shuffle(3)
    return p.batch(2).options(executor="inline", flush_every_k_chunks=2)


def displays(name):
    p = pipeline(name)
    with p.steps() as it:
        it.skip(3)
        batch = next(it)
        seen = it.provenance()
        yield "pipeline", p._repr_html_()
        yield (
            "stats",
            zj.Stats(
                1,
                {0: 1},
                {0: 1},
                {0: 1},
                {0: 0},
                {name: OperatorCounts(1, 1, figures={name: 3})},
                0,
                1,
                0,
                0,
                0,
                limit=name,
            )._repr_html_(),
        )
        yield "row", zj.explain_batch(batch, 0, provenance=seen, tokenizer=lambda ids: name)._repr_html_()
        yield "batch", zj.explain_batch(batch, None, provenance=seen, tokenizer=lambda ids: name)._repr_html_()
        yield "timeline", it.timeline()._repr_html_()
        state = zj.Inspection(name, it.checkpoint())
        other = zj.Inspection("other", pipeline("d").steps().checkpoint())
        yield "state", state._repr_html_()
        yield "difference", state.page(other=other, documents=iter([name, name]))


HARMLESS = "data"


@pytest.mark.parametrize("name", [HARMLESS, EVIL.replace("\udc80", "")], ids=["plain", "evil"])
def test_every_display_parses_and_nothing_of_it_runs(name):
    """`Page` refuses any tag that no display makes: `script` and `img` among them."""
    for what, html in displays(name):
        page = Page(html)
        assert "<script" not in html and "<img" not in html, what
        html.encode("utf-8")
        for picture in svgs_of(html):
            assert picture.get("viewBox") and picture.get("role") == "img"
        if name != HARMLESS and what != "timeline":
            assert "<script>" in page.text or "<script>alert" in html.replace("&lt;", "<").replace("&#x27;", "'"), what


def test_every_display_has_the_same_tags_whatever_names_hold():
    plain, evil = (dict(displays(name)) for name in (HARMLESS, EVIL.replace("\udc80", "")))
    for what in ("stats", "row", "state"):
        kinds = [[tag for tag in Page(html[what]).tags if tag != "title"] for html in (plain, evil)]
        assert kinds[0] == kinds[1], what


def test_a_name_that_is_not_escaped_would_be_seen():
    with pytest.raises(AssertionError):
        Page(f"<div>{EVIL}</div>")
    with pytest.raises(AssertionError):
        Page("<div><span></div></span>")
    with pytest.raises(AssertionError):
        Page('<div onclick="x"></div>')


def test_what_xml_cannot_carry_is_replaced():
    assert escaped("a\x00b\x1b\udc80\u202e\n") == "a\ufffdb\ufffd\ufffd\ufffd\n"
    assert escaped("<a href=\"'&") == "&lt;a href=&quot;&#x27;&amp;"
    assert escaped(np.int64(3)) == "3"


def test_text_fits():
    assert fitted("short", 100) == "short"
    assert fitted("a long text that does not fit", 60).endswith("…")
    assert fitted("x", 1) == ""
    assert len(fitted("漢" * 50, 120)) < len(fitted("a" * 50, 120))
    assert wrapped("one two three four", 60, most=9) == ["one two", "three", "four"]
    assert " ".join(wrapped("one two three four", 1000)) == "one two three four"
    assert len(wrapped("word " * 500, 100)) == 3
