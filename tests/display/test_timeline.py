"""A lane's chunks as drawn against the checkpoint of the same cut, against the source's order, and against a replay."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

import zephon_jax as zj
from tests.display.pictures import pipeline, recovery
from tests.display.reading import Page, said, svgs_of, tips
from zephon_jax.display.timeline import ChunkMark, LaneTimeline, Timeline, timeline_svg

MONOTONE = {"flush_every_k_chunks": None}


def monotone():
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", range(200)), chunk_size=4)
    return zj.Pipeline(work).map(lambda r: r, name="same").batch(3).options(canonical_replicas=2, executor="inline")


@pytest.mark.parametrize("steps", [0, 1, 2, 7, 12, 13, 14, 25])
@pytest.mark.parametrize("make", [pipeline, monotone], ids=["epochs", "monotone"])
def test_it_shows_what_a_checkpoint_keeps(make, steps):
    """The plain state, which the timeline does not read, has the numbers."""
    with make().steps() as it:
        it.skip(steps)
        live, state, figures = it.timeline(), it.checkpoint(), it.stats()
    saved = zj.inspect(state).timeline()
    every = 4 if make is pipeline else None
    for a, b in zip(live.lanes, saved.lanes, strict=True):
        assert [(c.number, c.size) for c in a.kept] == [(c.number, c.size) for c in b.kept]
        assert (a.top, a.cursor, a.delivered, a.rows, a.every) == (b.top, b.cursor, b.delivered, b.rows, every)
        assert len(a.kept) == figures.chunks_in_flight[a.lane]
        assert a.rows == figures.rows[a.lane]
        assert all(chunk.state == "kept" and chunk.closed is None for chunk in b.chunks)
        numbers = [chunk.number for chunk in a.chunks]
        assert numbers == list(range(a.forgotten, a.forgotten + len(numbers)))
        if every and a.kept:
            assert a.forgotten % every == 0
        for chunk in a.chunks:
            assert chunk.state == ("kept" if a.top is not None and chunk.number <= a.top else "ahead")
            assert chunk.closed is not None and 0 <= chunk.closed <= chunk.size
        for chunk in a.chunks:
            assert chunk.size == (8 if every else 4)


def test_a_resume_shows_the_same_as_the_run_that_went_on():
    with pipeline().steps() as it:
        it.skip(13)
        state = it.checkpoint()
        it.skip(3)
        expected = it.timeline()
    with pipeline().steps() as it:
        it.restore(state)
        assert it.replay_progress() == (0, sum(len(lane.kept) for lane in zj.inspect(state).timeline().lanes))
        it.skip(3)
        assert it.timeline() == expected
        done, total = it.replay_progress()
    assert done == total > 0


def test_samples_that_are_done_are_counted():
    """Of a source in order without operators that hold records: every sample before the last row is done."""
    with monotone().steps() as it:
        it.skip(3)
        lane = it.timeline().lanes[0]
    # Nine rows of chunks of four: two chunks are done and forgotten, of the third one sample.
    assert (lane.forgotten, lane.top, lane.rows) == (2, 2, 9)
    assert lane.kept == (ChunkMark(2, 4, "kept", 1),)
    assert lane.cursor == (2, 0)


LANE = LaneTimeline(
    3, 4, (ChunkMark(8, 5, "kept", 5), ChunkMark(9, 5, "kept", 2), ChunkMark(10, 5, "ahead", 0), ChunkMark(11, 0, "dropped")),
    cursor=(9, 1, 0), delivered=6, rows=41, continues="x", live=True,
)  # fmt: skip


def test_the_reason_in_words():
    assert LANE.why() == (
        "T = 9 is in epoch 2, which began empty at the sentinel before chunk 8: a resume replays chunks 8 to 9 (10 samples) "
        "and drops the first 6 rows, up to (9, 1, 0)."
    )
    assert replace(LANE, every=None, chunks=LANE.chunks[1:2], delivered=1).why() == (
        "No operator holds records back, so older chunks are done: a resume replays chunk 9 (5 samples) and drops the first "
        "row, up to (9, 1, 0)."
    )
    assert "nothing" in replace(LANE, chunks=()).why()


def test_text_where_there_is_no_notebook():
    assert str(Timeline("now", (LANE,))).splitlines()[:3] == [
        "now",
        "1 lane, 41 rows delivered; a resume replays 2 chunks (10 samples), 2 per lane",
        "lane 3: · 0-7 | ▓▓ 8-9 ░ 10 · 11",
    ]
    assert str(Timeline("now", ())) == "now\nno lanes"


def test_the_picture_says_the_same():
    picture = ET.fromstring(timeline_svg(Timeline("now", (LANE,))))
    words = said(picture)
    for expected in ("lane 3", "41 rows delivered", "0 to 7", "8", "9", "10", "11", "12", "replayed: chunks 8 to 9",
                     "T = 9, last row (9, 1, 0)"):  # fmt: skip
        assert expected in words, expected
    told = tips(picture)
    assert "chunk 8: 5 samples, in flight: kept by a checkpoint, replayed after a resume; 5 are done" in told
    assert "chunk 9: 5 samples, in flight: kept by a checkpoint, replayed after a resume; 2 are done" in told
    assert "chunk 10: 5 samples, read ahead, nothing of it delivered: a resume draws it again; 0 are done" in told
    assert sum(tip.startswith("sentinel") for tip in told) == 2


@pytest.mark.parametrize("epoch", [1, 64, 1000, 20_000])
def test_long_epochs_share_boxes(epoch):
    """Every chunk is in one tip, and none in two."""
    chunks = tuple(ChunkMark(epoch + i, 3, "kept" if i < epoch - 1 else "ahead", 1) for i in range(epoch))
    lane = replace(LANE, every=epoch, chunks=chunks, cursor=(1, 2))
    html = Timeline("now", (lane,))._repr_html_()
    Page(html)
    assert len(html) < 60_000
    told = [tip for tip in tips(svgs_of(html)[0]) if tip.startswith("chunk") and "drawn next" not in tip]
    covered: list[int] = []
    for tip in told:
        bounds = [int(n) for n in tip.partition(":")[0].removeprefix("chunks ").removeprefix("chunk ").split(" to ")]
        covered += range(bounds[0], bounds[-1] + 1)
    assert covered == [chunk.number for chunk in chunks]


def test_many_lanes_are_summed_up():
    timeline = Timeline("now", tuple(replace(LANE, lane=i) for i in range(10_000)))
    html = timeline._repr_html_()
    page = Page(html)
    assert len(html) < 200_000
    assert (
        "10,000 lanes, 410,000 rows delivered; a resume replays 20,000 chunks (100,000 samples), 2 per lane"
        in page.text
    )
    assert "and 9,950 more lanes" in page.text
    assert len(timeline.svg()) < 50_000
    assert len(str(timeline)) < 10_000


def test_what_the_page_on_recovery_says_of_its_pictures():
    run, saved, resumed = recovery()
    first = run.lanes[0]
    assert (first.forgotten, first.top, first.delivered) == (8, 10, 4)
    assert [chunk.number for chunk in first.chunks if chunk.state == "ahead"] == [11]
    assert first.chunks[0].closed is not None and 0 < first.chunks[0].closed < first.chunks[0].size
    assert [[chunk.number for chunk in lane.chunks] for lane in saved.lanes] == [[8, 9, 10], [8, 9]]
    with pipeline().steps() as it:
        it.skip(14)
        assert it.timeline().lanes == resumed.lanes


@pytest.mark.parametrize("options", [{"executor": "threads", "prefetch": 5}, {"micro_batch_records": 3}], ids=str)
def test_what_is_kept_is_the_same_however_far_producers_are(options):
    with pipeline().steps() as plain, pipeline(**options).steps() as it:
        plain.skip(11)
        it.skip(11)
        assert [lane.kept for lane in it.timeline().lanes] == [
            tuple(replace(chunk, closed=c.closed) for chunk, c in zip(lane.kept, other.kept, strict=True))
            for lane, other in zip(plain.timeline().lanes, it.timeline().lanes, strict=True)
        ]
        assert [lane.why() for lane in it.timeline().lanes] == [lane.why() for lane in plain.timeline().lanes]
    assert it.timeline().lanes[0].top is not None  # also of an iterator that is closed


def test_without_steps_without_order_and_at_the_end():
    with iter(monotone()) as it:
        next(it)
        assert [lane.rows for lane in it.timeline().lanes] == [3, 0]
    with pipeline(deterministic=False).steps() as it:
        it.skip(9)
        Page(it.timeline()._repr_html_())
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", range(21)), chunk_size=4)
    with iter(
        zj.Pipeline(work).filter(lambda r: r["value"] < 3, name="few").shuffle(2).options(executor="inline")
    ) as it:
        assert len(list(it)) == 3
        (lane,) = it.timeline().lanes
    assert lane.rows == 3
    Page(Timeline("end", (lane,))._repr_html_())
    with iter(zj.Pipeline(work).filter(lambda r: False, name="none").shuffle(2).options(executor="inline")) as it:
        assert list(it) == []
        assert it.timeline().lanes[0].top is None
