"""Turns the generators of a protocol into automata and searches every interleaving of them, with faults.

A participant's local state is where its generator, and those it delegates to, stand plus their local variables. It is run
once per (state, answer) and remembered, so the search itself only moves small integers. Protocol code must therefore keep
all it knows in local variables; whenever one local state was reached by two histories, each step from it is run from
both and compared.

`GetEach` and `DeleteEach` are unrolled into single effects, so that anything may happen between two of their keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from zephon_jax.coordinate.protocol import Delete, Get


class Sync(NamedTuple):
    """Of the model only: all live participants meet, as a training loop's collectives make them."""

    name: str


class Violation(AssertionError):
    """A law is broken; the text ends with the steps that led there."""


class Faults(NamedTuple):
    crashes: int = 0  # participants that die, each at any point
    timeouts: bool = False  # any waiter may find its budget spent, at any wait
    retries: int = 0  # effects applied whose answer is lost, and applied again later; or waits that end for nothing
    lag: bool = False  # a listing may miss keys


class Result(NamedTuple):
    states: int
    stores: set[int]  # ids of all store contents seen


def frozen(x: Any) -> Any:
    if isinstance(x, dict):
        return ("d", tuple(sorted((k, frozen(v)) for k, v in x.items())))
    if isinstance(x, (set, frozenset)):
        return ("s", frozenset(map(frozen, x)))
    if isinstance(x, (list, tuple)):
        return (type(x).__name__, tuple(map(frozen, x)))
    return x


def where(generator) -> tuple:
    out = []
    while generator is not None:
        variables = tuple(sorted((k, frozen(v)) for k, v in generator.gi_frame.f_locals.items()))
        out.append((generator.gi_code.co_name, generator.gi_frame.f_lasti, variables))
        generator = generator.gi_yieldfrom
    return tuple(out)


def singly(effect) -> list | None:
    match type(effect).__name__:
        case "GetEach":
            return [Get(k) for k in effect.keys]
        case "DeleteEach":
            return [Delete(k) for k in effect.keys]
        case _:
            return None


class Automaton:
    """One participant, discovered lazily."""

    def __init__(self, make: Callable[[], Any]):
        self.make = make
        self.index: dict[Any, int] = {}
        self.memo: dict[tuple[int, Any], int] = {}
        self.history: list[tuple] = []
        self.other: list[tuple | None] = []
        self.effect: list[Any] = []
        self.final: list[Any] = []
        self.audited = 0
        self.start = self._node(())

    def _run(self, history: tuple):
        generator, left = self.make(), deque(history)
        try:
            effect = next(generator)
            while True:
                single = singly(effect)
                if single is None:
                    if not left:
                        return where(generator), effect, None
                    effect = generator.send(left.popleft())
                else:
                    got = [left.popleft() for _ in single[: len(left)]]
                    if len(got) < len(single):
                        return (where(generator), frozen(got)), single[len(got)], None
                    effect = generator.send(tuple(got))
        except StopIteration as stop:
            return ("final", frozen(stop.value)), None, stop.value

    def _node(self, history: tuple) -> int:
        at, effect, final = self._run(history)
        if at not in self.index:
            self.index[at] = len(self.history)
            self.history.append(history)
            self.other.append(None)
            self.effect.append(effect)
            self.final.append(final)
        n = self.index[at]
        if self.history[n] != history:
            self.other[n] = history
        return n

    def step(self, node: int, answer: Any) -> int:
        k = (node, answer)
        if k not in self.memo:
            self.memo[k] = self._node((*self.history[node], answer))
            if (other := self.other[node]) is not None:
                self.audited += 1
                assert self._node((*other, answer)) == self.memo[k], "the local state is not complete"
        return self.memo[k]


class Stores:
    """Contents of the store by number, and what each effect does to them."""

    def __init__(self):
        self.ids: dict[frozenset, int] = {}
        self.data: list[dict[str, Any]] = []
        self.memo: dict[Any, tuple] = {}

    def id(self, content: dict[str, Any]) -> int:
        k = frozenset(content.items())
        if k not in self.ids:
            self.ids[k] = len(self.data)
            self.data.append(content)
        return self.ids[k]

    def apply(self, store: int, effect: Any, lag: bool) -> tuple[tuple[int, Any], ...]:
        """Possible (new store, answer); more than one only for a listing that lags."""
        kind = type(effect).__name__  # named tuples of equal fields are equal: Get(k) == Delete(k)
        k = (store, kind, effect)
        if k not in self.memo:
            self.memo[k] = self._applied(store, effect, kind, lag)
        return self.memo[k]

    def _applied(self, store: int, effect: Any, kind: str, lag: bool) -> tuple[tuple[int, Any], ...]:
        data = self.data[store]
        match kind:
            case "Get":
                return ((store, data.get(effect.key)),)
            case "Put":
                return ((self.id({**data, effect.key: effect.value}), None),)
            case "Create":
                if effect.key in data:
                    return ((store, False),)
                return ((self.id({**data, effect.key: effect.value}), True),)
            case "Delete":
                return ((self.id({a: b for a, b in data.items() if a != effect.key}), None),)
            case "List":
                true = tuple(sorted(a for a in data if a.startswith(effect.prefix)))
                out = ((store, true), (store, ())) if lag and true else ((store, true),)
                return (*out, (store, true[::2]), (store, true[1::2])) if lag and len(true) > 1 else out
            case "Check":
                return ((store, ""), (store, "the files are not whole"))
            case _:
                raise AssertionError(f"an effect the model does not know: {effect}")


def explore(
    autos: list[Automaton],
    stores: Stores,
    starts,
    faults: Faults,
    check,
    limit: int = 4_000_000,
    skip_checks: bool = True,
) -> Result:
    """Breadth first. A state is (store, nodes, clocks, crashed bits, crashes left, retries left).

    `check(kind, state, tools)` is called with "final" when a participant ends and "quiet" when nothing can move. That
    nobody goes round in circles is checked at the end.
    """
    n = len(autos)
    todo: deque = deque()
    seen: dict[tuple, int] = {}
    parent: dict[tuple, Any] = {}
    edges: list[tuple[int, int]] = []
    used: set[int] = set()

    def reach(state, before, label) -> bool:
        new = state not in seen
        if new:
            seen[state] = len(seen)
            parent[state] = None if before is None else (before, label)
            todo.append(state)
        if before is not None:
            edges.append((seen[before], seen[state]))
        return new

    def fail(message: str, state) -> None:
        out = []
        while parent[state] is not None:
            state, label = parent[state]
            out.append(label)
        raise Violation(message + "\n      " + "\n      ".join(out[::-1]))

    for store in starts:
        reach((store, tuple(a.start for a in autos), (0.0,) * n, 0, faults.crashes, faults.retries), None, "")
    while todo:
        state = todo.popleft()
        store, nodes, clocks, dead, crashes, retries = state
        used.add(store)
        moved, nexts, data = False, [], stores.data[store]
        waiting = [i for i in range(n) if not dead >> i & 1 and autos[i].final[nodes[i]] is None]
        for i in waiting:
            effect = autos[i].effect[nodes[i]]
            kind, answers = type(effect).__name__, ()
            if kind == "Wait":
                if effect.deadline <= clocks[i]:
                    answers = ((store, True, clocks[i]),)
                else:
                    if any(data.get(k) != v for k, v in effect.seen):
                        answers = ((store, False, clocks[i]),)
                    if retries:
                        nexts.append((i, "wakes for nothing", store, False, clocks[i], 0, retries - 1))
                    if faults.timeouts:
                        nexts.append((i, "finds its budget spent", store, True, effect.deadline, 0, retries))
            elif kind == "Sync":
                met = all(
                    dead >> j & 1 or autos[j].final[nodes[j]] is not None or autos[j].effect[nodes[j]] == effect
                    for j in range(n)
                )
                if met and i == waiting[0]:
                    new = list(nodes)
                    for j in waiting:
                        new[j] = autos[j].step(nodes[j], None)
                    moved = True
                    reach((store, tuple(new), clocks, dead, crashes, retries), state, "all meet")
            else:
                possible = stores.apply(store, effect, faults.lag)
                for after, answer in possible[:1] if kind == "Check" and skip_checks else possible:
                    answers += ((after, answer, clocks[i]),)
                    if retries and kind in ("Put", "Create", "Delete"):
                        nexts.append((i, f"{effect}: answer lost", after, ..., clocks[i], 0, retries - 1))
            for after, answer, clock in answers:
                moved = True
                nexts.append((i, f"{short(effect)} -> {short(answer)}", after, answer, clock, 0, retries))
            if crashes:
                nexts.append((i, "CRASH", store, ..., clocks[i], 1 << i, retries))
        for i, label, after, answer, clock, dies, left in nexts:
            new = nodes if answer is ... else (*nodes[:i], autos[i].step(nodes[i], answer), *nodes[i + 1 :])
            times = clocks if clock == clocks[i] else (*clocks[:i], clock, *clocks[i + 1 :])
            reached = (after, new, times, dead | dies, crashes - (dies > 0), left)
            first = reach(reached, state, f"p{i} {label}")
            if first and answer is not ... and autos[i].final[new[i]] is not None:
                check("final", reached, i, autos, stores, fail)
        if not moved:
            check("quiet", state, waiting, autos, stores, fail)
            stuck = [i for i in waiting if type(autos[i].effect[nodes[i]]).__name__ != "Wait"]
            if faults.timeouts and stuck and stuck == waiting:
                fail(f"participants {stuck} can never finish", state)
        if len(seen) > limit:
            raise MemoryError(f"more than {limit} states")
    require_no_circles(len(seen), edges)
    return Result(len(seen), used)


def require_no_circles(states: int, edges: list[tuple[int, int]]) -> None:
    out: list[list[int]] = [[] for _ in range(states)]
    incoming = [0] * states
    for a, b in edges:
        out[a].append(b)
        incoming[b] += 1
    work = [i for i in range(states) if not incoming[i]]
    done = 0
    while work:
        a = work.pop()
        done += 1
        for b in out[a]:
            incoming[b] -= 1
            if not incoming[b]:
                work.append(b)
    if done != states:
        raise Violation("participants can go round in circles")


def short(x: Any) -> str:
    text = str(x)
    return text if len(text) < 110 else text[:107] + "..."
