"""Flow, figures, rows and states: what is drawn read back and compared with where it came from; and how large it gets."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

import zephon_jax as zj
from tests.display.pictures import FOLDER, PICTURES, STATS, pipeline
from tests.display.reading import Page, said, svgs_of, tips
from zephon_jax.checkpoint.codec import encode
from zephon_jax.cli import main
from zephon_jax.display.flow import Flow, FlowDataset, FlowOperator, FlowStage, flow_html
from zephon_jax.display.strip import Stretch, Strip, strips_html
from zephon_jax.metrics.counters import OperatorCounts

LIMIT = 200_000


# -- the documentation's pictures ----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PICTURES)
def test_the_pictures_of_the_documentation_are_what_is_drawn_now(name):
    """Draw them again with `python -m tests.display.pictures`, look at them, and commit them."""
    kept = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert PICTURES[name]() == kept
    root = ET.fromstring(kept)
    assert root.get("width") and root.get("height")
    assert len(kept) < 20_000


# -- pipeline ------------------------------------------------------------------------------------------------------
def test_a_pipeline_as_a_flow():
    p = pipeline(executor="threads", prefetch=3, max_workers=4)
    words = said(svgs_of(p._repr_html_())[0])
    for expected in ("web", "70 %", "400 samples, 1 shard", "code", "30 %", "2 lanes, flush every 4 chunks", "fetch",
                     "tokenize(codes)", "pack(128)", "shuffle(6)", "buffer_size=6, seed=0", "lm_targets(plain)", "threads",
                     "up to 3 batches made ahead", "2 rows per lane and round, 4 per step"):  # fmt: skip
        assert expected in words, expected
    order = [words.index(op.describe()) for op in p.operators]
    assert order == sorted(order)
    assert str(p) == p.explain()


def test_where_operators_run():
    words = said(svgs_of(pipeline(executor="processes", executors={"filter": "threads"})._repr_html_())[0])
    assert words[words.index("tokenize(codes)") + 2] == "processes"
    assert words[words.index("filter(long_enough)") + 1] == "threads"


def test_weights_that_change_are_told_in_words():
    ds = [zj.Dataset.from_source(n, range(9)) for n in ("a", "b")]
    schedule = zj.MixtureSchedule([(0, {"a": 1, "b": 0}), (6, {"a": 0.5, "b": 0.5})])
    p = zj.Pipeline(zj.StaticMixtureWorkSource(ds, schedule)).batch(2)
    told = Page(p._repr_html_()).text
    assert "a 100.000% then 50.000% of 9 samples in 1 shards; b 0.000% then 50.000%" in told


def test_a_pipeline_without_operators_and_batch():
    p = zj.Pipeline(zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", range(3))))
    assert "records, one by one" in Page(p._repr_html_()).text


def test_a_thousand_datasets():
    long = "x" * 3000
    flow = Flow(
        tuple(FlowDataset(f"d{i}{long}", 10**6, 10**12, 1 / 1000) for i in range(1000)), long, "lanes",
        (FlowStage("s", tuple(FlowOperator(f"o{i}", long[:200], "threads") for i in range(500)), "b"),), "r", "s", (long,) * 3,
    )  # fmt: skip
    html = flow_html(flow)
    text = Page(html).text
    assert "and 993 more with 993,000,000,000,000 samples" in text
    assert "and 900 more datasets" in text
    assert "and 440 more operators" in text
    told = tips(svgs_of(html)[0])
    assert len(told) > 60 and max(map(len, told)) == 300
    assert len(html) < LIMIT


# -- figures -------------------------------------------------------------------------------------------------------
def test_figures_equal_stats():
    page = Page(STATS._repr_html_())
    table = {row[0]: row[1:] for row in page.rows}
    for name, c in STATS.operators.items():
        assert table[name][:4] == [f"{c.records_in:,}", f"{c.records_out:,}", f"{c.finished:,}", f"{c.busy_s:.3f}"]
    assert table["tokenize(codes)"][4] == "74%"  # 31.4 of 42.3 seconds
    assert ["1", "2,400", "1,200", "2", "0"] in page.rows
    assert "starved by tokenize(codes): 88 % of the workers' time" in page.text
    assert "37.0% of its time" in page.text


def test_figures_of_a_real_iterator_read_back():
    with pipeline().steps() as it:
        it.skip(9)
        stats = it.stats()
    rows = {row[0]: row for row in Page(stats._repr_html_()).rows}
    assert stats.operators["fetch"].records_in > 0
    for name, c in stats.operators.items():
        assert rows[name][1:4] == [f"{c.records_in:,}", f"{c.records_out:,}", f"{c.finished:,}"]
    for lane in stats.rows:
        assert rows[str(lane)][1:4] == [
            str(stats.rows[lane]),
            str(stats.rounds[lane]),
            str(stats.chunks_in_flight[lane]),
        ]
    assert rows["pack(128)"][6] == ", ".join(
        f"{what} {n:,}"
        for what, n in (
            ("left by flush", stats.operators["pack(128)"].left_by_flush),
            ("padding tokens", stats.operators["pack(128)"].padding_tokens),
            ("padding by flush", stats.operators["pack(128)"].padding_by_flush_tokens),
            *stats.operators["pack(128)"].figures.items(),
        )
        if n
    )


def test_figures_of_many_lanes_and_before_the_first_step():
    many = dict.fromkeys(range(10000), 2)
    stats = zj.Stats(0, many, many, many, many, {f"op{i}": OperatorCounts() for i in range(2000)}, 0, 0, 0, 0, 0)
    html = stats._repr_html_()
    assert "and 9,984 more lanes; 20,000 rows and 20,000 chunks in flight in all" in Page(html).text
    assert len(html) < LIMIT


class Printer:
    def __init__(self):
        self.said = ""

    def text(self, text):
        self.said += text


def test_text_forms_in_a_terminal():
    printer = Printer()
    STATS._repr_pretty_(printer, False)
    assert "tokenize(codes)" in printer.said
    assert "31.400  ███████████████      74%" in printer.said
    printer = Printer()
    pipeline()._repr_pretty_(printer, False)
    assert printer.said == pipeline().explain()


# -- rows ----------------------------------------------------------------------------------------------------------
def test_rows_of_a_batch_read_back():
    with pipeline().steps() as it:
        it.skip(5)
        batch, seen = next(it), it.provenance()
    picture = zj.explain_batch(batch, None, provenance=seen)
    page = Page(picture._repr_html_())
    table = [row for row in page.rows if row and row[0].isdigit()]
    expected = []
    for r, pieces in seen.items():
        ids = np.asarray(batch["segment_ids"][r])
        for i, (dataset, _, sample, a, b) in enumerate(pieces, 1):
            at = np.flatnonzero(ids == i)
            if len(at):  # the last token of a row is a target only
                expected.append([str(r), f"{at[0]}:{at[-1] + 1}", str(i), f"{dataset} sample {sample}, tokens {a}:{b}"])
    assert [row[:4] for row in table] == expected
    drawn = svgs_of(picture._repr_html_())[0]
    stretches = [tip for tip in tips(drawn) if tip.startswith("[")]
    assert len(stretches) == sum(len(row.segments) for row in picture.rows)
    assert str(picture).count("row ") == len(picture.rows) == 4


def test_where_the_loss_counts():
    batch = {"tokens": np.arange(8)[None], "loss_mask": np.array([[0, 1, 1, 0, 1, 0, 0, 1]])}
    picture = zj.explain_batch(batch)
    assert picture.trained == ((1, 3), (4, 5), (7, 8))
    bars = [e.get("d") for e in ET.fromstring(picture.svg()).iter() if (e.get("d") or "").count("v4H") == 3]
    assert bars == [
        "M163.25 39H373.75v4H163.25ZM479 39H584.25v4H479ZM794.75 39H900v4H794.75Z"
    ]  # of 842 pixels behind 58


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "length", "segments"), [(1, 32_768, 5000), (256, 32_768, 500), (1, 32_768, 1), (8, 64, 64)]
)
def test_long_rows_stay_small(rows, length, segments):
    ids = (np.arange(length) * segments // length + 1).astype(np.int32)
    batch = {
        "inputs": np.zeros((rows, length), np.int32), "segment_ids": np.tile(ids, (rows, 1)),
        "positions": np.tile(np.arange(length, dtype=np.int32) % max(1, length // segments), (rows, 1)),
        "loss_weights": np.tile(np.arange(length) % 2, (rows, 1)),
    }  # fmt: skip
    html = zj.explain_batch(batch, None if rows > 1 else 0)._repr_html_()
    Page(html)
    assert len(html) < LIMIT
    drawn = svgs_of(html)[0]
    # Nothing is left out of the strip: the boxes of the first row cover it from one end to the other.
    boxes = sorted((float(e.get("x")), float(e.get("width"))) for e in drawn.iter("rect") if e.get("y") == "4")
    assert boxes[0][0] == 58
    assert sum(width for _, width in boxes) > 0.8 * 842
    assert max(x + width for x, width in boxes) == pytest.approx(900, abs=1.1)


def test_neighbours_that_are_too_narrow_are_counted():
    stretches = tuple(Stretch(i, i + 1, i + 1, f"[{i}]", None) for i in range(5000))
    drawn = svgs_of(strips_html([Strip("row 0", 5000, stretches, None)]))[0]
    counted = [int(tip.split()[0].replace(",", "")) for tip in tips(drawn) if "documents" in tip]
    alone = sum(tip.startswith("[") for tip in tips(drawn))
    assert sum(counted) + alone == 5000


# -- states --------------------------------------------------------------------------------------------------------
@pytest.fixture
def states(tmp_path):
    with pipeline().steps() as it:
        for name in ("a", "b"):
            it.skip(7)
            (tmp_path / name).write_bytes(encode(it.checkpoint()))
    return tmp_path


def test_a_page_of_a_state(states, capsys):
    assert main(["inspect", str(states / "a"), "--html", str(states / "a.html")]) == 0
    assert capsys.readouterr().out == ""
    text = (states / "a.html").read_text(encoding="utf-8")
    page = Page(text)
    plain = zj.inspect(states / "a").state
    table = {row[0]: row for row in page.rows}
    head = next(row for row in page.rows if row[0] == "lane")
    from zephon_jax.checkpoint.codec import state_from_plain

    for lane, s in state_from_plain(plain).lanes.items():
        values = dict(zip(head, table[str(lane)], strict=True))
        assert values["rows"] == str(s.rows)
        assert values["chunks in flight"] == f"{s.first} to {s.next_chunk - 1}"
        assert values["last row"] == str(s.cursor)
        assert int(values["digest"], 16) == s.digest
        assert values["bytes, packed alone"] == f"{len(encode(plain['lanes'][lane])):,}"
        assert values["samples in flight"] == str(sum(len(work) for work in s.chunks))
    assert f"{len(encode(plain)):,} bytes" in page.text
    assert table["operator 3"][1].startswith("pack: max_length=128")
    assert str(zj.inspect(states / "a")).startswith("pipeline state, format version 1")


def test_two_states_beside_each_other(states):
    assert main(["inspect", str(states / "a"), "--diff", str(states / "b"), "--html", str(states / "d.html")]) == 1
    page = Page((states / "d.html").read_text(encoding="utf-8"))
    rows = {tuple(row[:2]): row[2:] for row in page.rows if len(row) == 4}
    assert rows["0", "rows"] == ["14", "≠ 28"]
    assert rows["1", "rounds"] == ["7", "≠ 14"]
    assert [
        "operator 3",
        *["pack: max_length=128, algorithm='first_fit', num_bins=3, on_overlong='split'"] * 2,
    ] in page.rows
    assert main(["inspect", str(states / "a"), "--diff", str(states / "a"), "--html", str(states / "e.html")]) == 0
    text = (states / "e.html").read_text(encoding="utf-8")
    assert "≠" not in text and "byte for byte" in text


def test_the_next_documents_on_the_page(states, capsys):
    asked = ["inspect", str(states / "a"), "--next", "2", "tests.display.pictures:pipeline"]
    assert main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main([*asked, "--html", str(states / "n.html")]) == 0
    text = (states / "n.html").read_text(encoding="utf-8")
    Page(text)
    assert len(lines) == 10
    assert all(line in text for line in lines)


def test_a_page_that_cannot_be_written_is_an_error(states, capsys):
    assert main(["inspect", str(states / "a"), "--html", str(states / "no" / "x.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_what_is_no_state_is_refused(tmp_path):
    with pytest.raises(zj.CheckpointMismatch):
        zj.inspect(tmp_path / "nothing")
    with pytest.raises(zj.CheckpointMismatch):
        zj.inspect({"a": 1})


@pytest.mark.slow
def test_a_state_of_ten_thousand_lanes():
    docs = zj.Dataset.from_source("d", range(20_000))
    p = zj.Pipeline(zj.StaticMixtureWorkSource(docs, chunk_size=1)).map(lambda r: r, name="same").batch(1)
    with p.options(canonical_replicas=10_000, executor="inline").steps() as it:
        first = zj.inspect(it.checkpoint())
        it.skip(1)
        saved = zj.inspect(it.checkpoint())
    html = saved._repr_html_()
    assert "and 9,950 more lanes" in Page(html).text
    assert len(html) < LIMIT
    both = first.page(other=saved)
    Page(both)
    assert len(both) < 2 * LIMIT


# -- notebooks -----------------------------------------------------------------------------------------------------
def test_ipython_finds_both_forms():
    formatters = pytest.importorskip("IPython.core.formatters")
    p = pipeline()
    with p.steps() as it:
        batch = next(it)
        things = [
            p,
            it.stats(),
            it.timeline(),
            zj.explain_batch(batch),
            zj.explain_batch(batch, None),
            zj.inspect(it.checkpoint()),
        ]
    for thing in things:
        data, _ = formatters.DisplayFormatter().format(thing)
        Page(data["text/html"])
        assert svgs_of(data["text/html"])
        assert data["text/plain"] and "<" not in data["text/plain"].split("\n")[0], type(thing)
