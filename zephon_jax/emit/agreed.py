"""Steps that all processes deliver or none: the agreed end (rule M5), errors of others, and a check of shared rows.

Runs in the thread that produces, between the engine and the queue: a step is handed on once every lane is known to reach
it. Nothing here runs a collective. What is exchanged goes through a small key-value store; an endless source exchanges
nothing but that a process has failed, and now and then a checksum of the rows that several processes produce.

Keys, below a prefix that names the launch, the plan, the iterator and what counts as a step:
`f<process>` facts of one process, `all` facts of all as process 0 has joined them, `failed` the error that stopped one,
`c<step>-<lane>` checksum of a lane's rows in a step, `s<step>` the structure of the step, and `built` how process 0 was
built, which the others compare with before their first step.
"""

from __future__ import annotations

import json
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from numpy.typing import NDArray

from zephon_jax.coordinate.end import Fact, Policy, Verdict, Watch, pack_facts, unpack_facts, verdict
from zephon_jax.emit.topology import Topology
from zephon_jax.engine.engine import Delivery, Engine, LaneBatch
from zephon_jax.errors import AggregationFailed, AggregationTimeout, ConfigurationError, ContractViolation
from zephon_jax.plan.identity import plan_differences

if TYPE_CHECKING:
    from zephon_jax.coordinate.store import Store

__all__ = ["Agreement", "agreed", "ended_alone"]

_POLL_S: Final = 0.005
_POLL_MOST_S: Final = 0.25
_CHECKS: Final = frozenset({1, 2, 4, 8, 16, 32, 64, 128})
_CHECK_EVERY: Final = 256
_TEXT_BYTES: Final = 4000


@dataclass(frozen=True, slots=True)
class Agreement:
    """With whom, over what, and for how long a step may wait.

    `ahead`: steps that may be produced before the one that is waited for. `prefix`: of all keys. `lanes`: of the pipeline.
    `built`: plain values that must be alike on all processes: the plan, the datasets, what a step is.
    """

    store: Store
    prefix: str
    topology: Topology
    lanes: int
    policy: Policy
    ahead: int
    timeout_s: float
    built: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def key(self, name: str) -> str:
        """The store's key of this name."""
        return f"{self.prefix}{name}"


def ended_alone(engine: Engine, rounds: Iterator[Delivery]) -> Iterator[Delivery]:
    """Padded rounds of a single process, up to the longest lane."""
    for delivery in rounds:
        if delivery.batch is not None and all(batch is None for batch in delivery.batch):
            return
        yield delivery


def agreed(engine: Engine, rounds: Iterator[Delivery], a: Agreement) -> Iterator[Delivery]:
    """The rounds that every process delivers.

    Raises:
        AggregationTimeout: Others did not say in time whether their lanes reach a step; the lanes are named.
        AggregationFailed: Another process failed, with its text.
        ContractViolation: Processes that produce the same rows, or the same step, made different ones.
    """
    try:
        yield from _Agreed(engine, rounds, a).steps()
    except (AggregationFailed, AggregationTimeout):
        raise
    except (GeneratorExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        if engine.stopped:  # nobody waits for more here: what was interrupted has not failed
            raise
        text = f"process {a.topology.process}: {type(error).__name__}: {error}"
        a.store.create(a.key("failed"), text.encode()[:_TEXT_BYTES])
        raise


class _Agreed:
    def __init__(self, engine: Engine, rounds: Iterator[Delivery], a: Agreement):
        self._engine, self._rounds, self._a = engine, rounds, a
        self._watch = Watch.of(a.lanes, a.topology.lanes, max(1, a.ahead // 2))
        self._pending: deque[Delivery] = deque()
        self._checked: deque[list[str]] = deque()
        self._exhausted = False
        self._delivered: int | None = None  # the step that is due

    def steps(self) -> Iterator[Delivery]:
        self._require_alike()
        produced = self._engine.produced()
        self._delivered = min(produced.values(), default=0)
        self._watch = self._watch.produced({lane: Fact(n) for lane, n in produced.items()})
        last_look = -1
        while True:
            yield from self._produce_ahead()
            assert self._delivered is not None
            step = self._delivered
            endless = self._engine.endless
            if endless or (said := verdict(self._watch.facts, step, self._a.policy)) is Verdict.DELIVER:
                if not endless and self._watch.due(Verdict.DELIVER, full=False):
                    self._write()
                if step >= last_look + max(1, self._a.ahead // 2):
                    last_look = step
                    self._raise_if_failed()
                yield from self._deliver()
            elif said is Verdict.STOP:
                if self._watch.due(said, full=True):
                    self._write()
                self._relay()
                return
            else:
                self._wait(step)
                if self._engine.stopped:  # nothing will decide this step any more, and nobody wants it
                    return

    def _deliver(self) -> Iterator[Delivery]:
        assert self._delivered is not None
        while self._pending:
            delivery = self._pending.popleft()
            if delivery.batch is None:
                yield delivery
                continue
            self._delivered += 1
            if self._delivered in _CHECKS or self._delivered % _CHECK_EVERY == 0:
                self._compare(self._delivered, delivery.batch)
            yield delivery
            return

    def _produce_ahead(self) -> Iterator[Delivery]:
        """Produce until so many steps wait, or the lanes have ended; what settles without a step passes if none waits."""
        ahead = 1 if self._engine.endless else self._a.ahead
        # Receipts without a step are bounded too, or a filter that drops for long would gather them without end.
        while (
            not self._exhausted
            and sum(d.batch is not None for d in self._pending) < ahead
            and len(self._pending) < ahead + 64
        ):
            delivery = next(self._rounds, None)
            ended, produced = self._engine.ended, self._engine.produced()
            facts = {lane: Fact(ended.get(lane, n), lane in ended) for lane, n in produced.items()}
            self._watch = self._watch.produced(facts)
            if delivery is None:
                self._exhausted = True
            elif delivery.batch is None and not self._pending:
                yield delivery
            else:
                self._pending.append(delivery)
                if self._a.policy == "pad" and len(ended) == len(facts):
                    break  # nothing but padding from here on: one step is enough to wait with
            if self._watch.due(Verdict.DELIVER, full=False):
                self._write()

    def _require_alike(self) -> None:
        """Raise ConfigurationError unless this process was built as process 0 was; before anything is produced."""
        a = self._a
        mine = json.loads(json.dumps(a.built, default=str))
        if a.topology.process == 0:
            a.store.put(a.key("built"), json.dumps(mine).encode())
            return
        deadline, pause = time.monotonic() + a.timeout_s, _POLL_S
        while (found := a.store.get(a.key("built"))) is None:
            self._raise_if_failed()
            if self._engine.stopped:
                return
            if time.monotonic() > deadline:
                raise AggregationTimeout(
                    f"process {a.topology.process}: process 0 did not begin this iterator within {a.timeout_s:g} s. All processes "
                    "must make the same iterators of whole steps, in the same order"
                )
            time.sleep(pause)
            pause = min(2 * pause, _POLL_MOST_S)
        if differences := plan_differences(json.loads(found), mine):
            told = (
                "; ".join(differences[:5])
                .replace("the checkpoint has", "process 0 has")
                .replace("this pipeline", "here")
            )
            raise ConfigurationError(
                f"process {a.topology.process} was built otherwise than process 0: {told}. All processes must build the same "
                "pipeline and make the same iterators, in the same order"
            )

    # -- the store -------------------------------------------------------------------------------------------------
    def _write(self) -> None:
        self._a.store.put(self._a.key(f"f{self._a.topology.process}"), pack_facts(self._watch.facts))
        self._watch = self._watch.wrote()

    def _relay(self) -> None:
        """Process 0 joins what all have written, so that the others read one key."""
        a = self._a
        if a.topology.process != 0:
            return
        before = self._watch.facts
        for process in range(a.topology.processes):
            self._learn(a.store.get(a.key(f"f{process}")))
        shared = a.store.get(a.key("all"))
        if shared is None or self._watch.facts != before or unpack_facts(shared, a.lanes) != self._watch.facts:
            a.store.put(a.key("all"), pack_facts(self._watch.facts))

    def _learn(self, data: bytes | None) -> None:
        facts = None if data is None else unpack_facts(data, self._a.lanes)
        if facts is not None:
            self._watch = self._watch.learned(facts)

    def _wait(self, step: int) -> None:
        """Until facts decide about this step."""
        deadline, pause = time.monotonic() + self._a.timeout_s, _POLL_S
        while (said := verdict(self._watch.facts, step, self._a.policy)) is Verdict.WAIT:
            if self._watch.due(said, full=True):
                self._write()
            self._raise_if_failed()
            if self._a.topology.process == 0:
                self._relay()
            else:
                self._learn(self._a.store.get(self._a.key("all")))
            if self._engine.stopped:
                return
            if time.monotonic() > deadline:
                raise AggregationTimeout(self._timeout_text(step))
            time.sleep(pause)
            pause = min(2 * pause, _POLL_MOST_S)

    def _timeout_text(self, step: int) -> str:
        a = self._a
        unknown = [lane for lane, fact in enumerate(self._watch.facts) if fact.steps <= step and not fact.ended]
        producers = a.topology.producers or {}
        ranks = sorted({process for lane in unknown for process in producers.get(lane, ())} - {a.topology.process})
        return (
            f"process {a.topology.process}: lanes {unknown}, produced by processes {ranks}, did not say within {a.timeout_s:g} s "
            f"whether they reach step {step}; those processes are slower than that, have closed this iterator, or are "
            "dead; or they made other iterators: all must make the same, in the same order"
        )

    def _raise_if_failed(self) -> None:
        failed = self._a.store.get(self._a.key("failed"))
        if failed is not None:
            raise AggregationFailed(f"another process failed: {failed.decode(errors='replace')}")

    # -- what is shared is alike -----------------------------------------------------------------------------------
    def _compare(self, step: int, batches: Sequence[LaneBatch]) -> None:
        """Once in a while: rows that several processes produce have the same content, and steps the same structure."""
        a = self._a
        if (structure := _structure(batches)) is not None:
            what = "the fields of a step, their types or shapes, which must not depend on which rows come"
            self._agree(f"s{step}", structure, what)
        for lane, batch in zip(a.topology.lanes, batches, strict=True):
            producers = (a.topology.producers or {}).get(lane, ())
            if len(producers) > 1:
                text = f"lane {lane}, which processes {list(producers)} produce; an operator or a source is not deterministic"
                self._agree(f"c{step}-{lane}", _content(batch), text)
        self._checked.append([f"s{step}", *(f"c{step}-{lane}" for lane in a.topology.lanes)])
        if len(self._checked) > 2:  # everybody has passed a check two checks ago, or finds nothing to compare with
            for name in self._checked.popleft():
                a.store.delete(a.key(name))

    def _agree(self, name: str, mine: bytes, what: str) -> None:
        """The first process writes, the others compare."""
        a = self._a
        here = f"{a.topology.process} ".encode() + mine
        if not a.store.create(a.key(name), here):
            there = a.store.get(a.key(name))
            if there is not None and there.split(b" ", 1)[1] != mine:
                other = there.split(b" ", 1)[0].decode()
                theirs, ours = (value.decode()[:300] for value in (there.split(b" ", 1)[1], mine))
                raise ContractViolation(
                    f"process {a.topology.process} and process {other} differ in {what} (step {name[1:].split('-')[0]}: "
                    f"{ours} here, {theirs} there)"
                )


def _structure(batches: Sequence[LaneBatch]) -> bytes | None:
    """Of the fields that become device arrays; None if no lane has a row."""
    seen = sorted(
        {
            (name, values.dtype.str, values.shape[1:])
            for batch in batches
            for name, values in (batch or {}).items()
            if values.dtype != object
        }
    )
    return repr(seen).encode() if seen else None


def _content(batch: Mapping[str, NDArray[Any]] | None) -> bytes:
    crc = 0
    for name, values in sorted((batch or {}).items()):
        crc = zlib.crc32(name.encode(), crc)
        data = values.tobytes() if values.dtype != object else repr(values.tolist()).encode()
        crc = zlib.crc32(data, crc)
    return b"%08x" % crc
