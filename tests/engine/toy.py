"""A toy pipeline on queues around the lane's books: split/drop → shuffle → pack → replay filter → batch → consumer.

Each queue can move at any time, so every interleaving of producers, consumer and crash can be tried. The operators are
a few lines each; only `LaneBooks`, `ReplayFilter` and `Origin` are the real ones.
"""

from __future__ import annotations

import random
from collections import deque
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from zephon_jax.engine.lane import LaneBooks, ReplayFilter
from zephon_jax.engine.receipts import Admission, Receipt
from zephon_jax.origin import Origin
from zephon_jax.types import WorkChunk


def draw(*key: Any) -> float:
    return random.Random(repr(key)).random()


@dataclass
class Row:
    origin: Origin
    token: tuple

    def key(self):
        return (self.origin.table.tobytes(), self.token)


@dataclass
class Mark:
    boundary: int

    def key(self):
        return ("mark", self.boundary)


@dataclass
class Closed:
    table: Any

    def key(self):
        return ("closed", self.table.tobytes())


@dataclass
class Out:
    """What the consumer takes: tokens of a batch or None, and the receipt."""

    tokens: tuple | None
    receipt: Receipt

    def key(self):
        r = self.receipt
        rows = r.rows.table.tobytes() if r.rows is not None else b""
        admitted = tuple((a.chunk, len(a.work)) for a in r.admitted)
        return ("out", self.tokens, rows, tuple(c.tobytes() for c in r.closed), admitted, r.boundary)


class SplitDrop:
    def __init__(self, seed):
        self.seed = seed

    def step(self, x):
        if not isinstance(x, Row):
            return [x]
        k = int(draw(self.seed, "n", x.token) * 3)
        origin, closed = x.origin.repeat(np.array([k]), 0)
        if not k:
            return [Closed(closed)]
        return [Row(origin.slice(i, i + 1), (*x.token, i)) for i in range(k)]

    def key(self):
        return ()


class Shuffle:
    def __init__(self, seed, size):
        self.seed, self.size, self.held, self.draws = seed, size, [], 0

    def step(self, x):
        if isinstance(x, Mark):
            out = [self._pop() for _ in range(len(self.held))]
            self.draws = 0
            return [*out, x]
        if not isinstance(x, Row):
            return [x]  # what was finished overtakes
        self.held.append(x)
        return [self._pop()] if len(self.held) > self.size else []

    def _pop(self):
        self.draws += 1
        return self.held.pop(int(draw(self.seed, "s", self.draws, len(self.held)) * len(self.held)))

    def key(self):
        return (tuple(r.key() for r in self.held), self.draws)


class Pack:
    def __init__(self, size):
        self.size, self.held = size, []

    def step(self, x):
        if isinstance(x, Mark):
            return [*([self._emit()] if self.held else []), x]
        if not isinstance(x, Row):
            return [x]
        self.held.append(x)
        return [self._emit()] if len(self.held) == self.size else []

    def _emit(self):
        held, self.held = self.held, []
        origin = Origin.concat([r.origin for r in held])
        return Row(origin.group(np.array([0, len(held)])), tuple(r.token for r in held))

    def key(self):
        return tuple(r.key() for r in self.held)


class Filter:
    def __init__(self, replay):
        self.replay = replay

    def step(self, x):
        if isinstance(x, Row) and self.replay.leading(x.origin):
            return [Closed(x.origin.table)]
        return [x]

    def key(self):
        return self.replay.skip


class Batch:
    """Never flushed by a mark: the mark waits behind the rows before it."""

    def __init__(self, rows):
        self.rows, self.held, self.marks = rows, [], []

    def step(self, x):
        if isinstance(x, Closed):
            return [Out(None, Receipt(closed=[x.table]))]
        if isinstance(x, Mark):
            if self.held:
                self.marks.append(x.boundary)
                return []
            return [Out(None, Receipt(boundary=x.boundary))]
        self.held.append(x)
        if len(self.held) < self.rows:
            return []
        held, self.held = self.held, []
        receipt = Receipt(rows=Origin.concat([r.origin for r in held]), boundary=max(self.marks, default=None))
        self.marks = []
        return [Out(tuple(r.token for r in held), receipt)]

    def key(self):
        return (tuple(r.key() for r in self.held), tuple(self.marks))


@dataclass(frozen=True)
class Config:
    seed: int
    every: int | None  # None: monotone, then shuffle must be 0 and pack 1
    sizes: tuple[int, ...]  # of the chunks that the source has
    shuffle: int
    pack: int
    batch: int


class World:
    """The books, the queues and the source. Actions may fire in any order; the delivered stream may not change."""

    def __init__(self, config: Config, snapshot=None, books=LaneBooks, replay=ReplayFilter):
        self.config, self.classes = config, (books, replay)
        self.next = snapshot.source["position"] if snapshot else 0
        self.books = books(0, config.every, {"position": 0}, snapshot)
        self.chunk = 0
        filter_ = replay(0, snapshot.delivered, snapshot.cursor) if snapshot else replay(0, 0, None)
        ops = [SplitDrop(config.seed), Filter(filter_), Batch(config.batch)]
        if config.every is not None:
            ops[1:1] = [Shuffle(config.seed, config.shuffle), Pack(config.pack)]
        self.ops = ops
        self.queues: list[list[Any]] = [[] for _ in range(len(ops) + 1)]
        if snapshot:
            self.chunk = snapshot.first
            for work in snapshot.chunks:
                self._feed(work)

    def _feed(self, work):
        for offset in range(len(work)):
            origin = Origin.of_chunk(self.chunk, np.array([offset]), 1)
            self.queues[0].append(Row(origin, (int(work.sample[offset]),)))
        self.chunk += 1
        if self.config.every is not None and self.chunk % self.config.every == 0:
            self.queues[0].append(Mark(self.chunk))

    def _draw(self):
        i, self.next = self.next, self.next + 1
        start = sum(self.config.sizes[:i])
        n = self.config.sizes[i]
        work = WorkChunk(np.zeros(n, np.int32), np.zeros(n, np.int32), np.arange(start, start + n))
        self.queues[-1].append(Out(None, Receipt(admitted=[Admission(self.chunk, work, {"position": self.next})])))
        self._feed(work)

    def actions(self):
        out: list[Any] = ["draw"] if self.next < len(self.config.sizes) else []
        out += [i for i in range(len(self.ops)) if self.queues[i]]
        return [*out, "take"] if self.queues[-1] else out

    def do(self, action):
        if action == "draw":
            self._draw()
        elif action == "take":
            out = self.queues[-1].pop(0)
            self.books.settle(out.receipt, rounds=int(out.tokens is not None))
            return out.tokens
        else:
            x = self.queues[action].pop(0)
            self.queues[action + 1] += self.ops[action].step(x)
        return None

    def crashed(self):
        """A new process that has the checkpoint of this cut."""
        return World(self.config, self.books.snapshot(), *self.classes)

    def snapshot_key(self):
        s = self.books.snapshot()
        chunks = tuple(tuple(c.sample.tolist()) for c in s.chunks)
        return (
            s.first,
            chunks,
            s.boundaries,
            s.source["position"],
            s.delivered,
            s.cursor,
            s.high_offset,
            s.rounds,
            s.rows,
            s.digest,
        )

    def key(self):
        queues = tuple(tuple(x.key() for x in q) for q in self.queues)
        return (
            self.snapshot_key(),
            self.books.state_key(),
            self.next,
            self.chunk,
            queues,
            tuple(op.key() for op in self.ops),
        )


def uninterrupted(config: Config):
    world, out = World(config), []
    while actions := world.actions():
        batch = world.do(actions[-1])
        if batch is not None:
            out.append(batch)
    return out


def random_config(rng: random.Random) -> Config:
    every = rng.choice([None, 1, 2, 3])
    sizes = tuple(rng.randint(0, 4) for _ in range(rng.randint(1, 8)))
    shuffle, pack = (0, 1) if every is None else (rng.randint(0, 4), rng.randint(1, 3))
    return Config(rng.randint(0, 10**6), every, sizes, shuffle, pack, rng.randint(1, 4))


def search(start: Any, base: list[Any], max_crashes: int, limit: int) -> int:
    """All interleavings of a world, with crashes anywhere; the number of states, or an error from a bad one.

    A world has `actions`, `do` (the batch that the consumer got, or None), `crashed`, `snapshot_key` and `key`; whatever
    order its actions fire in, the consumer must get `base`.
    """
    saved: dict[int, Any] = {}
    seen = {(start.key(), 0, 0)}
    todo = deque([(start, 0, 0)])
    while todo:
        world, position, crashes = todo.popleft()
        # C9: one cut, one state, whatever was prefetched.
        assert saved.setdefault(position, world.snapshot_key()) == world.snapshot_key()
        if not world.actions():
            assert position == len(base), (position, len(base))
        successors = []
        for action in world.actions():
            other = deepcopy(world)
            batch = other.do(action)
            if batch is not None:
                assert position < len(base), (position, batch)
                assert base[position] == batch, (position, batch)
            successors.append((other, position + (batch is not None), crashes))
        if crashes < max_crashes:
            successors.append((world.crashed(), position, crashes + 1))
        for other, at, c in successors:
            key = (other.key(), at, c)
            if key not in seen:
                seen.add(key)
                todo.append((other, at, c))
        assert len(seen) < limit, "the model is too large to be exhausted"
    return len(seen)


def states_by_position(config: Config):
    """Position → the state of that cut, of books that settle every receipt at once."""
    world, position = World(config), 0
    found = {0: world.snapshot_key()}
    while actions := world.actions():
        if world.do(actions[-1]) is not None:
            position += 1
            found[position] = world.snapshot_key()
    return found


def bulky(rng: random.Random):
    """Books that let receipts wait until so many contributors are together."""
    return partial(LaneBooks, bulk=rng.choice((0, 2, 5, 12, 10**9)))
