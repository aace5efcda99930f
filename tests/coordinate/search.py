"""Exhaustive search of the aggregation round: the laws, the cases, and what they add up to.

`python -m tests.coordinate.search` (two and three ranks, minutes), `… search long`, `… search mistakes`.
"""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys
import time
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.coordinate.explore import Automaton, Faults, Stores, Sync, Violation, explore
from tests.coordinate.mistakes import MISTAKES
from zephon_jax.coordinate import protocol

NOW = 9  # the incarnation that is searched; older ones are 0, 1, 2 ...
MAPPING = {1: ((0, 1),), 2: ((0,), (1,)), 3: ((0,), (1,), (1,))}  # with three, ranks 1 and 2 are peers
ALL_OF = {n: tuple((r, r) for r in range(n)) for n in (1, 2, 3)}  # (rank, number of the process)
ALL_FAULTS = Faults(crashes=3, timeouts=True)
Who = tuple[tuple[int, int], ...]


class Setting(NamedTuple):
    """One case. `lie`: what a follower, or the last one, says wrongly. `known`: whether the mapping is known beforehand."""

    who: Who
    mapping: tuple[tuple[int, ...], ...]
    steps: tuple[int, ...] = (1,)
    sync: bool = False
    lie: str = ""
    close: bool = False
    known: bool = True
    checked: bool = False


def session(p, rank: int, index: int, s: Setting):
    """One process: a round at each of the steps; returns ((step, "merged" or the kind of failure, round, outcome), …)."""
    out: tuple = ()
    ranks = p.Ranks(2, s.mapping if s.known else (None,) * len(s.mapping))
    for step in s.steps:
        nonce = f"n{NOW}.{index}.{step}"
        shares = tuple(p.Share(lane, f"c{step}", nonce.encode()) for lane in s.mapping[rank])
        stamp, owned, error = p.Stamp("d", "m", step), s.mapping[rank], ""
        last = rank == len(s.mapping) - 1
        if rank and s.lie == "plan":
            stamp = p.Stamp("?", "m", step)
        if rank and s.lie == "mapping":
            stamp = p.Stamp("d", "?", step)
        if rank and s.lie == "step":
            stamp = p.Stamp("d", "m", 0)
        if rank and s.lie == "lanes":
            shares = shares[1:]
        if rank and s.lie == "owned":
            owned, shares = (0,), (p.Share(0, f"c{step}", nonce.encode()),)
        if rank and s.lie == "error":
            error = "cannot capture"
        if not rank and s.lie == "leader":
            error = "cannot capture"
        if last and s.lie == "other":
            owned, shares = (0,), (p.Share(0, f"c{step}", nonce.encode()),)
        if last and s.lie == "silent":
            shares = ()
        if last and s.lie == "mark":
            shares = tuple(share._replace(mark="c?") for share in shares)
        me = p.Part(rank, nonce, stamp, owned, shares, error)
        if rank == 0:
            left = yield from p.lead(me, ranks, float(step), s.checked)
        else:
            left = yield from p.follow(me, ranks, float(step))
        kind = "merged" if isinstance(left.outcome, p.Merged) else left.outcome.kind
        out += ((step, kind, left.round, left.outcome),)
        if s.sync and step != s.steps[-1]:
            yield Sync(f"after {step}")
    if s.close and rank == 0 and out[-1][1] == "merged":
        yield from p.shut_down(out[-1][2], tuple(range(1, len(s.mapping))))
    return out


class Laws:
    """What must hold. `fair_steps`: must succeed for everyone unless something happens in that very step."""

    def __init__(self, setting: Setting, faults: Faults, fair_steps=(), doubles=False, leftovers=True):
        self.s, self.faults = setting, faults
        self.fair_steps, self.doubles, self.leftovers = fair_steps, doubles, leftovers
        self.max_keys = 0

    def __call__(self, kind, state, x, autos, stores, fail):
        if kind == "final":
            self.finished(state, x, autos, fail)
        else:
            self.quiet(state, x, autos, stores, fail)

    def finished(self, state, i, autos, fail):
        nodes, dead, clocks = state[1], state[3], state[2]
        mapping, who = self.s.mapping, self.s.who
        for step, kind, _, got in autos[i].final[nodes[i]]:
            if kind == "merged":
                mine = f"n{NOW}.{who[i][1]}.{step}"
                if mine not in [nonce for _, nonce in got.parts]:
                    fail(f"p{i} returns a merge without its own state: {got.parts}", state)
                if [r for r, _ in got.parts] != list(range(len(mapping))):
                    fail(f"p{i} returns a merge of ranks {got.parts}", state)
                nonces = {nonce for _, nonce in got.parts}
                if any(not n.startswith(f"n{NOW}.") or not n.endswith(f".{step}") for n in nonces):
                    fail(f"p{i} returns a merge of several rounds or runs: {got.parts}", state)
                if [lane for lane, *_ in got.lanes] != sorted({lane for owned in mapping for lane in owned}):
                    fail(f"p{i} returns lanes {got.lanes}", state)
                if any((rank, content.decode()) not in got.parts for _, rank, content in got.lanes):
                    fail(f"p{i} returns the state of a lane from outside the round: {got.lanes}", state)
                if self.s.lie:
                    fail(f"p{i} returns although a rank disagreed ({self.s.lie})", state)
            elif self.s.lie and not dead and not any(clocks) and not self.doubles:
                said = {a.final[nodes[j]][0][3] for j, a in enumerate(autos) if a.final[nodes[j]]}
                if len(said) > 1:
                    fail(f"not everyone is told the same: {said}", state)
        ended = {
            f"n{NOW}.{who[j][1]}.{step}": got
            for j, a in enumerate(autos)
            for step, _, _, got in a.final[nodes[j]] or ()
        }
        for got in list(ended.values()):  # who is listed in a merge that someone returns, returns it
            for _, nonce in getattr(got, "parts", ()):
                if ended.get(nonce, got) != got and getattr(ended[nonce], "kind", "") != "superseded":
                    fail(f"{nonce} is in the merge of round {got.round} but ended with {ended[nonce]}", state)
        seen: dict = {}
        for j, a in enumerate(autos):  # law A: one outcome per round among all who left it
            for _, kind, round_, got in a.final[nodes[j]] or ():
                if round_ is None or kind == "superseded":
                    continue
                value = got if kind == "merged" else "failed"  # a failed one may be swept, and fail again otherwise
                if seen.setdefault(round_, value) != value:
                    fail(f"round {round_} ended in two ways: {seen[round_]} and, at p{j}, {value}", state)

    def quiet(self, state, waiting, autos, stores, fail):
        store, nodes, clocks, dead, *_ = state
        data, who = stores.data[store], self.s.who
        ends = [a.final[nodes[i]] for i, a in enumerate(autos)]
        self.max_keys = max(self.max_keys, len(data))
        clean = not dead and not any(clocks)
        if clean and waiting and not self.doubles and not self.faults.lag:
            fail(f"participants {waiting} hang without any fault", state)
        for i in waiting:
            effect = autos[i].effect[nodes[i]]
            if type(effect).__name__ != "Wait":
                continue
            for k, _ in effect.seen:
                if not k.startswith("r/"):
                    continue
                round_ = k[2:].split("-")[0]
                result = data.get(f"r/{round_}-result")
                _, incarnation, index, _ = (round_ + "...").split(".")[:4]  # 000001.n9.0.1
                leader = next((j for j, w in enumerate(who) if incarnation == f"n{NOW}" and str(w[1]) == index), None)
                if result is not None and (type(result).__name__ == "Failed" or (clean and not self.doubles)):
                    fail(f"p{i} still waits in round {round_}, which is decided", state)
                at_once = not (
                    self.doubles and self.faults.retries
                )  # an old leader's announcement may be written twice
                gone = leader is not None and leader != i and not dead >> leader & 1 and ends[leader] is not None
                if at_once and gone:
                    fail(f"p{i} waits in round {round_} though its leader has given up", state)
        for i, end in enumerate(ends):
            for step, kind, *_ in end or ():
                undisturbed = step in self.fair_steps and not dead and all(c < step for c in clocks)
                if undisturbed and kind != "merged":
                    fail(f"p{i} fails at step {step} ({kind}) though nothing went wrong in that round", state)
        in_time = all(e and e[-1][1] == "merged" and c < e[-1][0] for c, e in zip(clocks, ends, strict=True))
        if self.leftovers and not waiting and not dead and not self.doubles and not self.faults.lag and in_time:
            want = set() if self.s.close else {"announce", f"r/{data['announce']}-result"}
            if (extra := set(data) - want) and not self.faults.retries:
                fail(f"left behind after a good round: {sorted(extra)}", state)
        if self.max_keys > 6 * len(self.s.mapping) + 6:
            fail(f"{self.max_keys} keys in the store", state)


class Searched(NamedTuple):
    states: int
    local_states: int
    audited: int
    max_keys: int
    contents: list[dict[str, Any]]


def search(p, s: Setting, faults: Faults, starts=({},), skip_checks: bool = True, **laws) -> Searched:
    autos = [Automaton(lambda r=r, x=x: session(p, r, x, s)) for r, x in s.who]
    stores, law = Stores(), Laws(s, faults, **laws)
    found = explore(autos, stores, [stores.id(dict(c)) for c in starts], faults, law, skip_checks=skip_checks)
    for effect in (e for a in autos for e in a.effect if type(e).__name__ == "Wait"):
        if effect.deadline not in [float(step) for step in s.steps]:
            raise Violation(f"a wait with its own deadline {effect.deadline}: the budget is not one for the round")
    contents = [stores.data[c] for c in found.stores]
    return Searched(
        found.states, sum(len(a.history) for a in autos), sum(a.audited for a in autos), law.max_keys, contents
    )


def canonical(content: dict[str, Any]) -> dict[str, Any]:
    """Incarnations renamed and rounds renumbered, so that equal leftovers are equal."""
    text = repr(sorted(content.items()))
    incarnations = {x: str(i) for i, x in enumerate(sorted(set(re.findall(r"n(\d+)\.", text)), key=int))}
    small: dict[int, int] = {}
    last = None
    for n in sorted({int(x) for x in re.findall(r"(\d{6})\.n", text)}):
        small[n] = 1 if last is None else small[last] + min(n - last, 3)  # only n - 1 is ever compared with
        last = n

    def renamed(x: Any) -> Any:
        if isinstance(x, bytes):
            return renamed(x.decode()).encode()
        if isinstance(x, str):
            x = re.sub(r"n(\d+)\.", lambda m: f"n{incarnations[m[1]]}.", x)
            return re.sub(r"(\d{6})(\.n)", lambda m: f"{small[int(m[1])]:06d}{m[2]}", x)
        if hasattr(x, "_fields"):
            return type(x)(*map(renamed, x))
        return tuple(map(renamed, x)) if isinstance(x, tuple) else x

    return {renamed(k): renamed(v) for k, v in content.items()}


def to_the_fixed_point(p, n: int, faults: Faults, say: Callable[[str], None], most: int = 12) -> int:
    """Kill everybody anywhere, restart all with the same run_id, again and again until no new leftovers appear."""
    setting = Setting(ALL_OF[n], MAPPING[n])
    known: dict[frozenset, dict] = {frozenset(): {}}
    frontier, total, widest, generation = [{}], 0, 0, 0
    while frontier and generation < most:
        generation += 1
        found = search(p, setting, faults, frontier, leftovers=False)
        total += found.states
        frontier = []
        for content in map(canonical, found.contents):
            name = frozenset(content.items())
            if name not in known:
                known[name] = content
                frontier.append(content)
                widest = max(widest, len(content))
        say(
            f"   generation {generation}: {found.states} states, {len(frontier)} new leftovers, {len(known)} in all, "
            f"at most {widest} keys"
        )
    good = search(p, setting, Faults(), list(known.values()), fair_steps=(1,))
    say(
        f"   from each of {len(known)} leftovers a run without faults succeeds: {good.states} states; closed: {not frontier}"
    )
    return total + good.states


def suite(p: Any = protocol, say: Callable[[str], None] = print, size: int = 1) -> int:
    """States searched. size -1: what takes seconds; 0: one and two ranks; 1: and three, with faults; 2: all."""
    begin, total = time.monotonic(), 0

    def note(name: str, s: Setting, faults: Faults, **laws) -> None:
        nonlocal total
        r = search(p, s, faults, **laws)
        total += r.states
        say(f"{name:56s} {r.states:8d} states {r.local_states:6d} local {r.audited:6d} audited, keys <= {r.max_keys}")

    def of(n: int, **more) -> Setting:
        return Setting(ALL_OF[n], MAPPING[n], **more)

    for n in (1, 2, 3):
        note(f"{n} ranks, no fault", of(n), Faults(), fair_steps=(1,))
        note(f"{n} ranks, no fault, mapping unknown beforehand", of(n, known=False), Faults(), fair_steps=(1,))
        note(f"{n} ranks, no fault, then shut down: nothing left", of(n, close=True), Faults())
    note("2 ranks, two rounds, shut down, faults", of(2, steps=(1, 2), close=True), Faults(1, True))
    for n in (1, 2):
        note(f"{n} ranks, crashes and timeouts anywhere", of(n), ALL_FAULTS)
    note("2 ranks, the leader checks, and may refuse", of(2, checked=True), Faults(1, True), skip_checks=False)
    note("2 ranks, two answers lost, crashes, timeouts", of(2), Faults(2, True, 2))
    for lie in ("plan", "mapping", "step", "lanes", "owned", "error", "leader"):
        note(f"2 ranks, wrong or broken: {lie}", of(2, lie=lie), Faults(0, True))
    note("2 ranks, mapping unknown, a lane nobody owns", of(2, lie="owned", known=False), Faults(0, True))
    note("3 ranks, peers differ in what they delivered", of(3, lie="mark"), Faults())
    note("3 ranks, a peer owns other lanes than by the mapping", of(3, lie="other"), Faults())
    note("3 ranks, a peer reports nothing", of(3, lie="silent"), Faults())
    note("2 ranks, two rounds, faults, no sync between", of(2, steps=(1, 2)), Faults(1, True))
    if size >= 0:
        note("2 ranks, three rounds, timeouts, no sync between", of(2, steps=(1, 2, 3)), Faults(0, True))
    note(
        "2 ranks, failed rounds, then a good one",
        of(2, steps=(1, 2, 3), sync=True), Faults(0, True), fair_steps=(2, 3),
    )  # fmt: skip
    two_followers = Setting(((0, 0), (1, 1), (1, 2)), MAPPING[2])
    note("2 ranks, a leader and two followers of rank 1", two_followers, Faults(1, True), doubles=True)
    if size < 0:
        say("2 ranks, kill all anywhere, restart with the same run_id, three times:")
        return total + to_the_fixed_point(p, 2, Faults(1, True), say, most=3)
    two_leaders = Setting(((0, 0), (0, 2), (1, 1)), MAPPING[2])
    note("2 ranks, two leaders and a follower, timeouts", two_leaders, Faults(1, True), doubles=True)
    note("2 ranks, two leaders and a follower, an idle wake", two_leaders, Faults(0, True, 1), doubles=True)
    note("2 ranks, listing lags, a crash, timeouts", of(2, steps=(1, 2)), Faults(1, True, 0, True))
    say("2 ranks, kill all anywhere, restart with the same run_id, to the fixed point:")
    total += to_the_fixed_point(p, 2, Faults(2, True), say)
    if size:
        note("3 ranks, crashes and timeouts anywhere", of(3), ALL_FAULTS)
        note("3 ranks, an answer lost, a crash, timeouts", of(3), Faults(1, True, 1))
        say("3 ranks, kill all anywhere, restart with the same run_id:")
        total += to_the_fixed_point(p, 3, Faults(0, True), say, most=size)
    if size > 1:
        note("3 ranks, failed round, then a good one", of(3, steps=(1, 2), sync=True), Faults(0, True), fair_steps=(2,))
        note("3 ranks, two rounds, timeouts, no sync between", of(3, steps=(1, 2)), Faults(0, True))
    say(f"{total:,} states in {time.monotonic() - begin:.0f} s")
    return total


def with_mistake(old: str, new: str) -> types.ModuleType:
    """The protocol with one piece of text replaced."""
    source = pathlib.Path(protocol.__file__).read_text(encoding="utf-8")
    assert source.count(old) == 1, f"stands {source.count(old)} times in the protocol: {old}"
    spec = importlib.util.spec_from_loader("broken_protocol", None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["broken_protocol"] = module
    exec(compile(source.replace(old, new), "broken_protocol", "exec"), module.__dict__)
    return module


def noticed(old: str, new: str, size: int = 0) -> str | None:
    """What the search says to this mistake; None if nothing."""
    try:
        suite(with_mistake(old, new), say=lambda _: None, size=size)
    except (Violation, MemoryError) as found:
        return str(found).splitlines()[0]
    return None


if __name__ == "__main__":
    if "mistakes" in sys.argv:
        for name, (old, new) in MISTAKES.items():
            print(f"{name:70s} {(noticed(old, new) or 'NOT NOTICED')[:120]}", flush=True)
    else:
        suite(size=2 if "long" in sys.argv else 0 if "small" in sys.argv else 1)
