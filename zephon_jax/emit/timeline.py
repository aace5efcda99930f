"""Timelines of lanes, from the books of an iterator and from the snapshots of a checkpoint. Reads, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zephon_jax.checkpoint.schema import LaneSnapshot
from zephon_jax.display.timeline import ChunkMark, LaneTimeline, Timeline
from zephon_jax.engine.lane import LaneBooks

__all__ = ["timeline_of_books", "timeline_of_snapshots"]


def timeline_of_books(title: str, books: Mapping[int, LaneBooks], every: int | None) -> Timeline:
    """Of an iterator, by the thread that consumes it."""
    return Timeline(title, tuple(_of_books(books[lane], every) for lane in sorted(books)))


def timeline_of_snapshots(title: str, snapshots: Iterable[LaneSnapshot], every: int | None) -> Timeline:
    """Of a checkpoint."""
    lanes = sorted(snapshots, key=lambda snapshot: snapshot.lane)
    return Timeline(title, tuple(_of_snapshot(snapshot, every, _kept(snapshot), live=False) for snapshot in lanes))


def _kept(s: LaneSnapshot, closed: Mapping[int, int] | None = None) -> list[ChunkMark]:
    return [
        ChunkMark(chunk, len(work), "kept", None if closed is None else closed.get(chunk, 0))
        for chunk, work in enumerate(s.chunks, s.first)
    ]


def _of_snapshot(s: LaneSnapshot, every: int | None, chunks: Iterable[ChunkMark], *, live: bool) -> LaneTimeline:
    return LaneTimeline(
        lane=s.lane,
        every=every,
        chunks=tuple(chunks),
        cursor=None if s.cursor is None else tuple(int(part) for part in s.cursor),
        delivered=s.delivered,
        rows=s.rows,
        continues=f"the source continues from {dict(s.source)}",
        live=live,
    )


def _of_books(books: LaneBooks, every: int | None) -> LaneTimeline:
    """What a checkpoint taken now would keep, and the chunks behind it that the consumer has heard of."""
    snapshot = books.snapshot()
    account = books.account()
    marks = _kept(snapshot, {chunk: done for chunk, (_, done) in account.items()})
    for chunk in range(snapshot.next_chunk, max(account, default=-1) + 1):
        if chunk in account:
            marks.append(ChunkMark(chunk, account[chunk][0], "ahead", account[chunk][1]))
        else:
            marks.append(ChunkMark(chunk, 0, "dropped"))
    return _of_snapshot(snapshot, every, marks, live=True)
