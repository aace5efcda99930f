"""explain_batch: what a row holds, by hand."""

from __future__ import annotations

from html.parser import HTMLParser

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import zephon_jax as zj


def pipeline(names="plain"):
    docs = [{"text": text} for text in ("ab<c", "de", "fghij")]
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("web", docs), shuffle_shards=False)
    p = zj.Pipeline(work).tokenize(lambda t: [ord(c) for c in t], name="letters").pack(9, num_bins=2).batch(2)
    return p if names is None else p.lm_targets(names)


def letters(ids):
    return "".join(map(chr, ids))


def test_a_packed_row():
    with iter(pipeline(None)) as batches:
        batch = next(batches)
        text = str(zj.explain_batch(batch, 0, tokenizer=letters, provenance=batches.provenance()))
    assert text == (
        "row 0: 6 of 9 places hold tokens, 2 documents\n"
        "  [    0:4    ] segment 1, positions 0 to 3, web sample 0, tokens 0:4: 'ab<c'\n"
        "  [    4:6    ] segment 2, positions 0 to 1, web sample 1, tokens 0:2: 'de'\n"
        "  [    6:9    ] padding, 3 tokens"
    )


@pytest.mark.parametrize("names", ["plain", "maxtext", "seqio"])
def test_targets_under_every_convention(names):
    with iter(pipeline(names)) as batches:
        batch = next(batches)
        picture = zj.explain_batch(batch, 1, tokenizer=letters, provenance=batches.provenance())
    first, padding = picture.segments
    assert (first.start, first.stop, first.positions, first.trained, first.text) == (0, 5, (0, 4), 4, "'fghij'")
    assert first.source == ("web", "web", 2, 0, 5)
    assert (padding.segment, padding.start, padding.stop, padding.trained) == (0, 5, 8, None)
    assert str(picture).startswith("row 1: 5 of 8 places hold tokens, 4 of them trained on, 1 document\n")


def test_device_arrays_and_long_texts():
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data"))
    with pipeline().to_global(sharding) as batches:
        picture = zj.explain_batch(next(batches), 0, most_characters=7)
    assert [s.text for s in picture.segments] == ["97 98 …", "100 1…", ""] or picture.segments[1].text == "100 101"


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_notebook_shows_a_table():
    with iter(pipeline(None)) as batches:
        page = zj.explain_batch(next(batches), 0, tokenizer=letters)._repr_html_()
    parser = Tags()
    parser.feed(page)
    assert parser.open == []
    assert parser.seen.count("tr") == 4
    assert "ab&lt;c" in page
    assert "<c" not in page.replace("<c>", "")


@pytest.mark.parametrize(
    ("batch", "options", "text"),
    [
        ({"x": np.zeros((1, 2))}, {}, r"explain_batch needs one of .*, the batch has \['x'\]"),
        ({"tokens": np.zeros((1, 2), int)}, {"row": 1}, r"explain_batch\(row=1\): the batch has rows 0 to 0"),
        ({"tokens": np.zeros(2, int)}, {}, "needs rows of tokens"),
        ({"tokens": np.zeros((1, 2), int)}, {"tokenizer": 3}, r"must have decode\(ids\)"),
    ],
    ids=str,
)
def test_what_cannot_be_shown(batch, options, text):
    with pytest.raises(zj.ConfigurationError, match=text):
        zj.explain_batch(batch, **options)


def test_rows_without_segments_are_one():
    picture = zj.explain_batch({"tokens": np.array([[5, 6]])})
    assert [(s.segment, s.start, s.stop, s.text) for s in picture.segments] == [(1, 0, 2, "5 6")]
