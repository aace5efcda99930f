"""Exhaustive search of the agreed end: every interleaving of producing, writing, relaying, reading, delivering and stopping
for two and three processes; all may be killed at any point and resume, on another number of processes too.

    python -m tests.coordinate.search_end        # the whole, and the seeded mistakes: minutes

The store has one key per process and one that process 0 writes. Unless `lead` couples them, processes are free to run
apart, which is harder than life.
"""

from __future__ import annotations

import pathlib
import sys
import time
import types
from collections import deque
from typing import Any

import zephon_jax.coordinate.end as product

MISTAKES = {
    "a lane that ends later stops as well": ("f.ended and f.steps <= step", "f.ended and f.steps <= step + 1"),
    "one step too many": ("f.ended and f.steps <= step", "f.ended and f.steps < step"),
    "delivers what is not known": ("all(f.steps > step for f in facts)", "all(f.steps >= step for f in facts)"),
    "one lane is enough": ("if all(f.steps > step for f in facts):", "if any(f.steps > step for f in facts):"),
    "pad ends with the first": ("if all(f.ended for f in facts):", "if any(f.ended for f in facts):"),
    "pad delivers behind the end": (
        "if any(f.steps > step for f in facts):\n            return Verdict.DELIVER\n        if all(f.ended",
        "if any(f.steps >= step for f in facts):\n            return Verdict.DELIVER\n        if all(f.ended",
    ),
    "facts replace each other": ("Fact(max(x.steps, y.steps), x.ended or y.ended)", "y"),
    "facts forget ends": ("x.ended or y.ended", "x.ended and y.ended"),
    "nothing is written when stopping": ("said is Verdict.STOP or (said is Verdict.WAIT and full)", "said is Verdict.WAIT"),
    "an end is not written, nor a starved buffer": (
        "return others_may_wait or ended or", "return (said is Verdict.STOP) or"),
}  # fmt: skip


class Bad(AssertionError):
    """A law is broken; the text has the way there."""


def search(
    e: Any,
    supply: tuple[int, ...],
    runs: tuple[tuple[tuple[int, ...], ...], ...],
    policy: str,
    horizon: int,
    every: int,
    *,
    planted: Any = None,
    lead: int | None = None,
    limit: int = 600_000,
) -> int:
    """The number of states. `runs`: for each incarnation the lanes of each process; `horizon`: steps ahead; `lead`: how far a
    process can be ahead of the slowest (device collectives)."""
    lanes = len(supply)
    goal = min(supply) if policy == "drop" else max(supply)
    nothing = (e.Fact(),) * lanes
    widest = max(map(len, runs))
    empty = (nothing,) * (widest + 1)  # one slot per process, the last is the relayed one

    def fresh(run: int, cut: int) -> Any:
        """Per process: watch, delivered, produced per own lane, stopped."""
        return tuple(
            (e.Watch(nothing, own, nothing, every), cut, tuple(min(cut, supply[lane]) for lane in own), False)
            for own in runs[run]
        )

    start = ((*empty[:-1], planted) if planted else empty, fresh(0, 0), nothing, 0)
    seen: dict[Any, Any] = {start: None}
    todo = deque([start])

    def trail(state: Any) -> str:
        out = []
        while seen[state]:
            state, label = seen[state]
            out.append(label)
        return "\n      ".join(out[::-1])

    def push(before: Any, after: Any, label: str) -> None:
        if after not in seen:
            seen[after] = (before, label)
            todo.append(after)

    while todo:
        state = todo.popleft()
        store, processes, gathered, run = state
        moved = False
        stops = [p[1] for p in processes if p[3]]
        if stops and (len(set(stops)) > 1 or max(p[1] for p in processes) > min(stops)):
            raise Bad(f"{policy} {supply}: one stopped at {min(stops)}, another is beyond\n      {trail(state)}")
        if stops and stops[0] != goal:
            raise Bad(f"{policy} {supply}: stopped at {stops[0]}, the end is {goal}\n      {trail(state)}")
        for i, (watch, done, made, stopped) in enumerate(processes):

            def put(p: Any, label: str, *, at: int = i, store: Any = store, run: int = run) -> None:
                push(state, (store, (*processes[:at], p, *processes[at + 1 :]), gathered, run), label)  # noqa: B023

            said, full = e.verdict(watch.facts, done, policy), True
            if not stopped:
                apart = lead is not None and done >= min(p[1] for p in processes) + lead
                if said is e.Verdict.DELIVER and not apart:
                    lacking = [
                        lane
                        for lane, m in zip(watch.own, made, strict=True)
                        if m <= done and not (policy == "pad" and m == supply[lane])
                    ]
                    if not lacking:
                        moved = True
                        put((watch, done + 1, made, False), f"p{i} delivers {done}")
                if said is e.Verdict.STOP:
                    moved = True
                    put((watch, done, made, True), f"p{i} stops at {done}")
            for k, lane in enumerate(watch.own):
                fact = watch.facts[lane]
                known_end = fact.ended and fact.steps == made[k]
                if made[k] < done + horizon and not known_end and not stopped:
                    full, moved = False, True
                    if made[k] < supply[lane]:
                        more = (*made[:k], made[k] + 1, *made[k + 1 :])
                        told = watch.produced({lane: e.Fact(max(fact.steps, made[k] + 1), fact.ended)})
                        put((told, done, more, stopped), f"p{i} produces {lane}:{made[k]}")
                    else:
                        told = watch.produced({lane: e.Fact(made[k], True)})
                        put((told, done, made, stopped), f"p{i} finds the end of {lane} at {made[k]}")
            if watch.due(said, full):
                moved = True
                put(
                    (watch.wrote(), done, made, stopped),
                    f"p{i} writes",
                    store=(*store[:i], watch.facts, *store[i + 1 :]),
                )
            if i == 0:  # the relay: one key at a time, then one write
                for j in range(widest):
                    joined = e.join(gathered, store[j])
                    if joined != gathered:
                        moved = True
                        push(state, (store, processes, joined, run), f"relay reads {j}")
                if e.join(store[-1], gathered) != store[-1]:
                    moved = True
                    push(state, ((*store[:-1], gathered), processes, gathered, run), "relay writes all")
            if not stopped and e.join(watch.facts, store[-1]) != watch.facts:
                moved = True
                put((watch.learned(store[-1]), done, made, stopped), f"p{i} reads all")
        if not moved and not all(p[3] for p in processes):
            raise Bad(
                f"{policy} {supply} {horizon} {every}: stuck at {[p[1] for p in processes]}\n      {trail(state)}"
            )
        if run + 1 < len(runs):
            for cut in range(
                min(p[1] for p in processes) + 1
            ):  # any step that all have passed may be the last checkpoint
                push(state, (store, fresh(run + 1, cut), nothing, run + 1), f"all are killed, resume at {cut}")
        if len(seen) > limit:
            raise Bad(f"more than {limit} states")
    return len(seen)


TWO, THREE, ONE = ((0,), (1,)), ((0,), (1,), (2,)), ((0, 1),)


def jobs(*, big: bool) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    out: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for policy in ("drop", "pad"):
        for supply in ((1, 2), (0, 2), (2, 2), (0, 0)) if big else ((1, 2), (0, 1)):
            out += [((supply, (TWO,), policy, h, k), {}) for h, k in ((1, 1), (2, 1), (2, 2))]
            out.append(((supply, (TWO,), policy, 2, 2), {"lead": 1}))
        out += [((supply, (TWO, ONE), policy, 1, 1), {}) for supply in ((1, 2), (0, 1))]
        out.append((((0, 1), (ONE, ((1,), (0,))), policy, 1, 1), {}))
        out.append((((0, 1, 1), (((0, 1), (1, 2)),), policy, 1, 1), {}))  # lane 1 is produced by both
        if big:
            out.append((((0, 1), (TWO, ONE, TWO), policy, 1, 1), {}))
            out.append((((0, 1, 1), (THREE,), policy, 1, 1), {}))
            out.append((((0, 1, 1), (((0, 1), (2,)), ((0,), (1, 2))), policy, 1, 1), {}))
    if big:
        out.append((((1, 2), (TWO, ONE, TWO), "drop", 1, 1), {}))
    return out


def suite(e: Any, *, big: bool) -> tuple[int, int]:
    """Cases and states."""
    found = [search(e, *arguments, **options) for arguments, options in jobs(big=big)]
    return len(found), sum(found)


def mutated(right: str, wrong: str) -> Any:
    source = pathlib.Path(product.__file__).read_text()
    assert right in source, right
    module = types.ModuleType("end_with_a_mistake")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(source.replace(right, wrong), module.__name__, "exec"), module.__dict__)
    return module


def main() -> None:
    start = time.perf_counter()
    cases, states = suite(product, big=True)
    print(f"{cases} cases, {states:,} states, {time.perf_counter() - start:.0f} s")
    for name, (right, wrong) in MISTAKES.items():
        try:
            suite(mutated(right, wrong), big=False)
            print("NOT NOTICED", name)
        except Bad as bad:
            print("noticed", name, "|", str(bad).splitlines()[0])


if __name__ == "__main__":
    main()
