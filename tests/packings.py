"""Packings in a few lines each: all rows that the documents of one flush epoch make, as lists of documents' pieces."""

from __future__ import annotations

from typing import Any

Doc = list[Any]


def fit_rows(docs: list[Doc], capacity: int, num_bins: int, *, best: bool, most: int = 10**9) -> list[list[Doc]]:
    bins: list[list[Doc]] = []
    rows: list[list[Doc]] = []

    def room(held):
        return 0 if len(held) == most else capacity - sum(map(len, held))

    for doc in docs:
        fits = [b for b in bins if room(b) >= len(doc)]
        if not fits and len(bins) == num_bins:
            rows.append(bins.pop(min(range(num_bins), key=lambda i: room(bins[i]))))
        if not fits:
            bins.append([doc])
        else:
            (min(fits, key=room) if best else fits[0]).append(doc)
    return rows + bins


def wrap_rows(docs: list[Doc], capacity: int, most: int = 10**9) -> list[list[Doc]]:
    rows: list[list[Doc]] = [[]]
    for doc in docs:
        while doc:
            room = capacity - sum(map(len, rows[-1]))
            if not room or len(rows[-1]) == most:
                rows.append([])
                room = capacity
            rows[-1].append(doc[:room])
            doc = doc[room:]
    return [row for row in rows if row]


def best_fit_wrap_rows(docs: list[Doc], capacity: int, num_bins: int, most: int = 10**9) -> list[list[Doc]]:
    least, bins, rows = max(1, capacity // 64), [], []
    for doc in docs:
        while doc:
            room = [capacity - sum(map(len, b)) for b in bins]
            fits = [i for i, free in enumerate(room) if free >= len(doc)]
            if fits:
                at = min(fits, key=lambda i: room[i])
            elif len(bins) < num_bins:
                bins.append([])
                at, room = len(bins) - 1, [*room, capacity]
            else:
                at = room.index(min(room))
                if room[at] < least:
                    rows.append(bins.pop(at))
                    continue
            taken = min(room[at], len(doc))
            bins[at].append(doc[:taken])
            doc = doc[taken:]
            if taken == room[at] or len(bins[at]) == most:
                rows.append(bins.pop(at))
    return rows + bins
