"""A plain interpreter of pipelines: generators, dicts and lists, one record at a time.

It shares no code with the engine but the work source (tested on its own), the keyed random draws (a golden value pins
them) and the names of batch fields. What the engine delivers must equal what this delivers, bit for bit, on any
topology and after any resume.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import zephon_jax as zj
from tests.packings import best_fit_wrap_rows, fit_rows, wrap_rows
from zephon_jax.ops.randomness import Draws
from zephon_jax.types import LaneContext


@dataclass(frozen=True)
class Flush:
    boundary: int


def tokenize(text: str) -> list[int]:
    return [ord(c) % 97 + 1 for c in text]


def interpret(
    spec: list[tuple[Any, ...]], work: zj.WorkSource, samples: dict[int, list[Any]], lanes: int, every: int | None
):
    """The batches in the order of `iter(pipeline)`: (lane, dict of arrays). `spec`: (name, parameters…) per operator."""
    streams = {lane: _lane(spec, work.clone_for_lane(lane, lanes), samples, lane, every) for lane in range(lanes)}
    rounds = dict.fromkeys(streams, 0)
    while rounds:
        lane = min(rounds, key=lambda x: (rounds[x], x))
        batch = next(streams[lane], None)
        if batch is None:
            del rounds[lane]
        else:
            rounds[lane] += 1
            yield lane, batch


def _lane(spec, work, samples, lane: int, every: int | None) -> Iterator[Any]:
    stream: Iterator[Any] = _read(work, samples, every)
    for index, (name, *parameters) in enumerate(spec):
        stream = OPERATORS[name](stream, lane, index, *parameters)
    return stream


def _read(work, samples, every):
    shards = {i: np.cumsum([0, *(s.num_samples for s in d.shards)]) for i, d in work.datasets_by_id.items()}
    chunk = 0
    while (drawn := work.next_chunk()) is not None:
        for d, s, i in zip(drawn.dataset.tolist(), drawn.shard.tolist(), drawn.sample.tolist(), strict=True):
            yield dict(samples[d][int(shards[d][s]) + i])
        chunk += 1
        if every is not None and chunk % every == 0:
            yield Flush(chunk)


def _map(stream, lane, index, fn):
    for x in stream:
        yield x if isinstance(x, Flush) else fn(x)


def _flat_map(stream, lane, index, fn):
    for x in stream:
        if isinstance(x, Flush):
            yield x
        else:
            yield from fn(x)


def _filter(stream, lane, index, fn):
    for x in stream:
        if isinstance(x, Flush) or fn(x):
            yield x


def _tokenize(stream, lane, index):
    for x in stream:
        if isinstance(x, Flush):
            yield x
        else:
            text = x.pop("text")
            yield {**x, "tokens": tokenize(text)}


def _split(stream, lane, index, n):
    for x in stream:
        if isinstance(x, Flush):
            yield x
            continue
        tokens = list(x["tokens"])
        for at in range(0, max(len(tokens), 1), n):
            yield {**x, "tokens": tokens[at : at + n]}


def _shuffle(stream, lane, index, size, seed):
    draws, slots = Draws(seed, LaneContext(lane, 0, index)), []
    for x in stream:
        if isinstance(x, Flush):
            yield from (slots[i] for i in draws.permutation(len(slots)).tolist())
            draws, slots = Draws(seed, LaneContext(lane, x.boundary, index)), []
            yield x
        elif len(slots) < size:
            slots.append(x)
        else:
            j = int(draws.below(size, 1)[0])
            out, slots[j] = slots[j], x
            yield out
    yield from (slots[i] for i in draws.permutation(len(slots)).tolist())


def _pack(stream, lane, index, capacity, num_bins, on_overlong):
    bins: list[list[Any]] = []  # [room, pieces]
    for x in stream:
        if isinstance(x, Flush):
            yield from (_row(pieces, capacity) for _, pieces in bins)
            bins = []
            yield x
            continue
        for piece in _fitting(list(x["tokens"]), capacity, on_overlong):
            fit = next((b for b in bins if b[0] >= len(piece)), None)
            if fit is None:
                if len(bins) == num_bins:
                    fullest = min(range(num_bins), key=lambda i: bins[i][0])
                    yield _row(bins.pop(fullest)[1], capacity)
                bins.append(fit := [capacity, []])
            fit[0] -= len(piece)
            fit[1].append(piece)
    yield from (_row(pieces, capacity) for _, pieces in bins)


def _fitting(tokens, capacity, on_overlong):
    if not tokens or (len(tokens) > capacity and on_overlong == "drop"):
        return []
    if on_overlong == "truncate":
        return [tokens[:capacity]]
    return [tokens[at : at + capacity] for at in range(0, len(tokens), capacity)]


def _pad(stream, lane, index, length):
    for x in stream:
        if isinstance(x, Flush):
            yield x
        else:
            yield {**x, **_row([list(x["tokens"])[:length]], length)}


def _packing(stream, lane, index, capacity, algorithm, num_bins, most):
    """The other packings: what a flush epoch holds is packed as a whole."""

    def rows():
        limit = most or 10**9
        whole = [doc[at : at + capacity] for doc in docs for at in range(0, len(doc), capacity)]
        match algorithm:
            case "wrap":
                return wrap_rows(docs, capacity, limit)
            case "best_fit_wrap":
                return best_fit_wrap_rows(docs, capacity, num_bins, limit)
            case _:
                return fit_rows(whole, capacity, num_bins, best=algorithm == "best_fit", most=limit)

    docs: list[list[int]] = []
    for x in stream:
        if isinstance(x, Flush):
            yield from (_row(row, capacity) for row in rows())
            docs = []
            yield x
        else:
            docs.append(list(x["tokens"]))
    yield from (_row(row, capacity) for row in rows())


def _row(pieces, capacity):
    row = {name: np.zeros(capacity, np.int32) for name in ("tokens", "segment_ids", "positions")}
    at = 0
    for number, piece in enumerate(pieces, 1):
        span = slice(at, at + len(piece))
        row["tokens"][span], row["segment_ids"][span], row["positions"][span] = piece, number, np.arange(len(piece))
        at += len(piece)
    return row


def _wrap(stream, lane, index, capacity):
    """The twin of `operators.Wrap`: concatenate and cut; what is left leaves, padded, at a flush."""
    held: list[int] = []
    for x in stream:
        if isinstance(x, Flush):
            if held:
                yield {"tokens": held + [0] * (capacity - len(held))}
            held = []
            yield x
            continue
        held += list(x["tokens"])
        while len(held) >= capacity:
            yield {"tokens": held[:capacity]}
            held = held[capacity:]
    if held:
        yield {"tokens": held + [0] * (capacity - len(held))}


def _chunks(stream, lane, index, size):
    """The twin of a stateful_transform that sums n over `size` records, and gives each sum n mod 3 times."""
    held: list[int] = []
    for x in stream:
        if isinstance(x, Flush):
            if held:
                yield {"n": sum(held), "k": len(held)}
            held = []
            yield x
            continue
        held.append(int(x["n"]))
        if len(held) == size:
            yield from ({"n": sum(held), "k": len(held)} for _ in range(sum(held) % 3))
            held = []
    if held:
        yield {"n": sum(held), "k": len(held)}


def _double(stream, lane, index, times):
    """The twin of `operators.Repeat`: n mod `times` copies, so some records vanish."""
    for x in stream:
        if isinstance(x, Flush):
            yield x
        else:
            yield from (dict(x) for _ in range(int(x["n"]) % times))


def _batch(stream, lane, index, rows, drop_last):
    held: list[dict[str, Any]] = []
    for x in stream:
        if isinstance(x, Flush):
            continue
        held.append(x)
        if len(held) == rows:
            yield _stack(held)
            held = []
    if held and not drop_last:
        yield _stack(held)


def _stack(rows):
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _column([row.get(name) for row in rows]) for name in names}


def _column(values):
    if all(isinstance(v, (int, np.integer)) for v in values):
        return np.array([int(v) for v in values], np.int64)
    arrays = [np.asarray(v) if isinstance(v, (list, np.ndarray)) else v for v in values]
    if all(isinstance(a, np.ndarray) for a in arrays):
        arrays = [a.astype(np.int32) for a in arrays]
        if len({a.shape for a in arrays}) == 1:
            return np.stack(arrays)
    out = np.empty(len(arrays), object)
    for i, a in enumerate(arrays):
        out[i] = a
    return out


def _targets(stream, lane, index):
    for batch in stream:
        tokens, segments, positions = batch["tokens"], batch["segment_ids"], batch["positions"]
        n, s = tokens.shape[0], tokens.shape[1] - 1
        out = {name: np.zeros((n, s), np.int32) for name in ("inputs", "targets", "positions", "segment_ids")}
        out["loss_weights"] = np.zeros((n, s), np.float32)
        for r in range(n):
            for i in range(s):
                out["inputs"][r, i], out["positions"][r, i] = tokens[r, i], positions[r, i]
                out["segment_ids"][r, i] = segments[r, i]
                if segments[r, i] == segments[r, i + 1] != 0:
                    out["targets"][r, i], out["loss_weights"][r, i] = tokens[r, i + 1], 1
        yield out


OPERATORS = {
    "map": _map, "flat_map": _flat_map, "filter": _filter, "tokenize": _tokenize, "split": _split, "shuffle": _shuffle,
    "pack": _pack, "pad": _pad, "packing": _packing, "wrap": _wrap, "chunks": _chunks, "repeat": _double, "batch": _batch,
    "targets": _targets,
}  # fmt: skip
