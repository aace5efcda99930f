"""A round of very many hosts, by simulation: `python -m tests.benchmarks.many_hosts [LANES HOSTS]`.

The state is a real one, of a pipeline with so many lanes; each host's part is cut out of it, since a lane's state does not
depend on who holds it (rule C9). The generators of the protocol are the real ones, all in one thread over a dictionary, and
arrive in random order. Counted are single keys and bytes; timed is what one process computes, without any storage.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import zephon_jax as zj
from zephon_jax.checkpoint.codec import decode, encode, state_from_plain
from zephon_jax.checkpoint.merge import joined, shares_of
from zephon_jax.coordinate.drive import packed, unpacked
from zephon_jax.coordinate.protocol import Merged, Part, Ranks, Share, Stamp, follow, lead
from zephon_jax.lanes import lanes_of_rows

ROWS_PER_LANE = 128


def pipeline(lanes: int) -> zj.Pipeline:
    texts = [{"text": "word " * (5 + i * 7 % 90)} for i in range(5000)]
    work = zj.StaticMixtureWorkSource(
        zj.Dataset.from_source("texts", texts, fingerprint="texts"),
        chunk_size=16, shuffle_block_size=4, exhausted_policy="repeat",
    )  # fmt: skip
    p = zj.Pipeline(work).tokenize(tokens).pack(256, num_bins=4).shuffle(4)
    return p.batch(1).options(canonical_replicas=lanes, flush_every_k_chunks=2, executor="inline")


def tokens(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def owners_of_hosts(lanes: int, hosts: int) -> tuple[tuple[int, ...], ...]:
    """Equal spans of rows on each host, so that lanes straddle hosts."""
    rows = lanes * ROWS_PER_LANE
    spans = [(h * rows // hosts, (h + 1) * rows // hosts) for h in range(hosts)]
    return tuple(tuple(lanes_of_rows([span], ROWS_PER_LANE)) for span in spans)


class Simulated:
    """Every host's generator, and a dictionary for a store."""

    def __init__(self, parts: list[Part], ranks: Ranks, seed: int = 0):
        self.data: dict[str, Any] = {}
        self.counts: Counter[str] = Counter()
        self.of_leader: Counter[str] = Counter()
        self.ended: list[Any] = [None] * len(parts)
        self._rng = random.Random(seed)
        self._running = {
            p.rank: (lead if p.rank == 0 else follow)(p, ranks, 1.0) for p in parts
        }  # fmt: skip
        self._answers: dict[int, Any] = dict.fromkeys(self._running)
        self._waiting: dict[int, Any] = {}

    def run(self) -> None:
        while self._running:
            ready = [r for r in self._running if r not in self._waiting or self._changed(self._waiting[r])]
            assert ready, "nobody can go on"
            self._rng.shuffle(ready)
            for rank in ready[: max(1, len(ready) // 8)]:  # an eighth at a time: hosts do not come at once
                self._advance(rank)

    def _changed(self, wait: Any) -> bool:
        return any(self.data.get(k) != v for k, v in wait.seen)

    def _advance(self, rank: int) -> None:
        """Until it waits or ends."""
        if self._waiting.pop(rank, None) is not None:
            self._answers[rank] = False
        while True:
            try:
                effect = self._running[rank].send(self._answers[rank])
            except StopIteration as stop:
                self.ended[rank] = stop.value
                del self._running[rank]
                return
            if type(effect).__name__ == "Wait":
                self._count(rank, "wait", 1)
                if self._changed(effect):
                    self._answers[rank] = False
                    continue
                self._waiting[rank] = effect
                return
            self._answers[rank] = self._done(rank, effect)

    def _count(self, rank: int, what: str, n: int) -> None:
        self.counts[what] += n
        if rank == 0:
            self.of_leader[what] += n

    def _done(self, rank: int, e: Any) -> Any:
        kind = type(e).__name__
        self._count(rank, kind.removesuffix("Each").lower(), len(e.keys) if kind.endswith("Each") else 1)
        match kind:
            case "Get":
                return self.data.get(e.key)
            case "GetEach":
                return tuple(self.data.get(k) for k in e.keys)
            case "Put":
                self.data[e.key] = e.value
            case "Create":
                new = e.key not in self.data
                self.data.setdefault(e.key, e.value)
                return new
            case "Delete":
                self.data.pop(e.key, None)
            case "DeleteEach":
                for k in e.keys:
                    self.data.pop(k, None)
            case "List":
                return tuple(k for k in self.data if k.startswith(e.prefix))
            case _:
                raise AssertionError(e)
        return None


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    out = call()
    return out, time.perf_counter() - begin


def measure(lanes: int, hosts: int) -> dict[str, Any]:
    p = pipeline(lanes)
    it = iter(p)
    for _ in range(3 * lanes):
        next(it)
    plain, capture_s = timed(it.get_state)
    whole = encode(plain)
    shares = {lane: Share(lane, mark, state) for lane, mark, state in shares_of(plain)}
    owners = owners_of_hosts(lanes, hosts)
    stamp = Stamp("plan", "mapping", 3)
    parts = [Part(r, f"{r:012d}", stamp, owned, tuple(shares[x] for x in owned)) for r, owned in enumerate(owners)]
    rounds = Simulated(parts, Ranks(lanes, owners))
    _, simulated_s = timed(rounds.run)
    outcomes = [left.outcome for left in rounds.ended]
    merged = outcomes[0]
    assert isinstance(merged, Merged)
    assert all(outcome == merged for outcome in outcomes)
    assert len(rounds.data) == 2
    sent = [packed(part) for part in parts]
    value, pack_s = timed(lambda: packed(merged))
    _, collect_s = timed(lambda: [unpacked(data, "k") for data in sent[1:]])
    back, open_s = timed(lambda: unpacked(value, "k"))
    again, join_s = timed(lambda: joined(plain, [(lane, state) for lane, _, state in back.lanes]))
    assert encode(again) == whole
    _, decode_s = timed(lambda: state_from_plain(decode(whole)))
    here = iter(p)  # of all lanes; a host's own are a thousandth of them
    apply, prepare_s = timed(lambda: here.prepare_restore(again))
    _, apply_s = timed(apply)
    return {
        "lanes": lanes,
        "hosts": hosts,
        "lanes per host": f"{min(map(len, owners))} to {max(map(len, owners))}",
        "state, bytes": len(whole),
        "part of a host, bytes": max(map(len, sent)),
        "merged value, bytes": len(value),
        "keys": dict(rounds.counts),
        "keys, leader": dict(rounds.of_leader),
        "operations, all": sum(rounds.counts.values()),
        "operations, leader": sum(rounds.of_leader.values()),
        "operations, a follower": round(
            (sum(rounds.counts.values()) - sum(rounds.of_leader.values())) / max(1, hosts - 1), 1
        ),
        "leader opens all parts, s": collect_s,
        "leader packs the merge, s": pack_s,
        "each host opens the merge and joins it, s": open_s + join_s,
        "decode and check a state, s": decode_s,
        "prepare a restore (all lanes), s": prepare_s,
        "apply it (all lanes), s": apply_s,
        "capture (all lanes), s": capture_s,
        "simulated in, s": simulated_s,
    }


if __name__ == "__main__":
    given = [int(x) for x in sys.argv[1:]] or [10_000, 1_024]
    for name, figure in measure(*given).items():
        print(f"{name:44s} {figure:,.3f}" if isinstance(figure, float) else f"{name:44s} {figure}")
