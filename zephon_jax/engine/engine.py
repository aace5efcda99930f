"""All lanes of a process: whose batch is due is advanced, and batches leave one at a time or a round at a time."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from zephon_jax.checkpoint.codec import require_plain
from zephon_jax.checkpoint.schema import LaneSnapshot
from zephon_jax.engine.chain import HostBatch, LaneChain
from zephon_jax.engine.lane import LaneBooks
from zephon_jax.engine.legs import Stages
from zephon_jax.engine.measure import measured_tokens
from zephon_jax.engine.merge import RoundRobin
from zephon_jax.engine.receipts import Receipt
from zephon_jax.metrics.counters import OperatorCounts, PipelineCounts
from zephon_jax.metrics.stats import Buffer
from zephon_jax.plan.compile import Plan
from zephon_jax.plan.explain import worker_count

__all__ = ["Delivery", "Engine", "LaneBatch"]


LaneBatch: TypeAlias = HostBatch | None
"""One lane's rows of a step; None if it has none left."""


_SETTLED_TOGETHER = 2048
"""Contributors of a lane whose books are kept in one go: 64 kB."""


class Delivery(NamedTuple):
    """What one step of the engine produced: `batch` is None for receipts that settle without a batch.

    `padded`: lanes that had ended and count a round all the same, so that all lanes stand at the same step.
    """

    batch: Any
    receipts: Sequence[tuple[int, Receipt]]
    padded: Sequence[int] = ()


class Engine:
    """Runs the chains of the owned lanes. The generators are advanced by one thread; the books belong to the consumer."""

    def __init__(self, plan: Plan, lanes: Sequence[int], cpus: int):
        self._plan, self._lanes, self._work = plan, list(lanes), plan.work
        self._sources = {lane: plan.work.clone_for_lane(lane, plan.lanes) for lane in self._lanes}
        for lane, source in self._sources.items():
            require_plain(source.state_dict(), f"lane {lane}: what {type(source).__qualname__}.state_dict() returned")
        self._snapshots: dict[int, LaneSnapshot] = {}
        self._books = {lane: self._new_books(lane, None) for lane in self._lanes}
        names = [*plan.operator_names, *(op.name for op in plan.after_batch)]
        self.counts = PipelineCounts({name: OperatorCounts() for name in names})
        self._stages = Stages(plan, worker_count(plan, cpus), len(self._lanes), self.counts)
        self.ended: dict[int, int] = {}  # lane → the rounds that it had; written by the thread that produces
        self._produced: dict[int, int] = {}
        self._start_rounds: dict[int, int] = {}

    def _new_books(self, lane: int, snapshot: LaneSnapshot | None) -> LaneBooks:
        source, plan = self._sources[lane].state_dict(), self._plan
        skipped, known = plan.options.max_skipped, plan.replays_on_lengths
        return LaneBooks(lane, plan.every, source, snapshot, skipped, known, _SETTLED_TOGETHER)

    # -- the consumer's side ---------------------------------------------------------------------------------------
    @property
    def books(self) -> Mapping[int, LaneBooks]:
        """Per owned lane what was delivered."""
        return self._books

    def restore(self, snapshots: Mapping[int, LaneSnapshot]) -> None:
        """Continue from these snapshots of the owned lanes; before anything was produced."""
        # Of all lanes in the state, also those of others: what lanes share may be known to one of them only.
        work = self._plan.work.for_states({lane: s.source for lane, s in snapshots.items()})
        sources = {lane: work.clone_for_lane(lane, self._plan.lanes) for lane in self._lanes}
        for lane, source in sources.items():  # a source that refuses its state must leave everything as it was
            source.load_state_dict(snapshots[lane].source)
        self._work, self._sources = work, sources
        self._snapshots = {lane: snapshots[lane] for lane in self._lanes}
        self._books = {lane: self._new_books(lane, snapshots[lane]) for lane in self._lanes}
        self._start_rounds = {lane: snapshots[lane].rounds for lane in self._lanes}

    def settle(self, delivery: Delivery) -> None:
        """The consumer has it: the books may know."""
        seen: set[int] = set()
        for lane, receipt in delivery.receipts:
            delivered = delivery.batch is not None and receipt.rows is not None
            self._books[lane].settle(receipt, rounds=int(delivered), more=lane in seen)
            seen.add(lane)
        for lane in delivery.padded:
            self._books[lane].settle(Receipt(), rounds=1, more=lane in seen)

    def up_to_date(self) -> None:
        """Check what the books have not looked at yet; at the end of the stream. Raises as `LaneBooks.settle`."""
        for books in self._books.values():
            books.up_to_date()

    # -- the producer's side ---------------------------------------------------------------------------------------
    def _measure(self) -> None:
        """Tell a source that asks for it what its samples are worth. One that was resumed knows, and does not ask."""
        samples = self._work.samples_to_measure()
        if samples is None:
            return
        self._work = self._work.with_measured(measured_tokens(self._plan, samples, self._stages))
        for lane, source in self._sources.items():
            told = self._work.clone_for_lane(lane, self._plan.lanes)
            told.load_state_dict(source.state_dict())
            self._sources[lane] = told

    def _chain(self, lane: int) -> Iterator[tuple[HostBatch | None, Receipt]]:
        chain = LaneChain(self._plan, lane, self._sources[lane], self._stages, self.counts, self._snapshots.get(lane))
        return chain.deliveries()

    def batches(self) -> Iterator[Delivery]:
        """One lane's batch at a time, strictly round-robin (rule O4); lanes that ended are skipped."""
        self._measure()
        chains = {lane: self._chain(lane) for lane in self._lanes}
        turns = RoundRobin({lane: books.rounds for lane, books in self._books.items()})
        while (lane := turns.turn()) is not None:
            for batch, receipt in chains[lane]:
                yield Delivery(batch, [(lane, receipt)])
                if batch is not None:
                    turns.delivered(lane)
                    break
            else:
                turns.ended(lane)

    def rounds(self) -> Iterator[Delivery]:
        """One batch of every owned lane at a time, in lane order, until the first lane ends (rule O5)."""
        self._measure()
        chains = {lane: self._chain(lane) for lane in self._lanes}
        while True:
            batches: list[LaneBatch] = []
            receipts: list[tuple[int, Receipt]] = []
            for lane, chain in chains.items():
                found = yield from self._next_of(lane, chain)
                if found is None:
                    self.ended[lane] = self._books_rounds(lane)
                    return
                batches.append(found[0])
                receipts.append((lane, found[1]))
            self._count_round(chains)
            yield Delivery(batches, receipts)

    def padded_rounds(self) -> Iterator[Delivery]:
        """As `rounds`, without end: a lane that has ended gives None. The last batch of a lane may have fewer rows.

        Whoever takes them knows when to stop: `ended` has the lanes that did, with the steps that they had.
        """
        self._measure()
        chains = {lane: self._chain(lane) for lane in self._lanes}
        while True:
            batches: list[LaneBatch] = []
            receipts: list[tuple[int, Receipt]] = []
            padded: list[int] = []
            for lane, chain in chains.items():
                found = None
                if lane not in self.ended:
                    found = yield from self._next_of(lane, chain)
                    if found is None:
                        self.ended[lane] = self._books_rounds(lane)
                batches.append(None if found is None else found[0])
                if found is None:
                    padded.append(lane)
                else:
                    receipts.append((lane, found[1]))
            self._count_round(chain for chain in chains if chain not in self.ended)
            yield Delivery(batches, receipts, padded)

    @staticmethod
    def _next_of(
        lane: int, chain: Iterator[tuple[HostBatch | None, Receipt]]
    ) -> Generator[Delivery, None, tuple[HostBatch, Receipt] | None]:
        """Returns a lane's next batch, None at its end."""
        for batch, receipt in chain:
            if batch is not None:
                return batch, receipt
            # No row is involved, so it settles at once, also if the round never completes.
            yield Delivery(None, [(lane, receipt)])
        return None

    def _books_rounds(self, lane: int) -> int:
        """The rounds that a lane has produced since the start of its stream."""
        return self._start_rounds.get(lane, 0) + self._produced.get(lane, 0)

    def _count_round(self, lanes: Iterable[int]) -> None:
        for lane in lanes:
            self._produced[lane] = self._produced.get(lane, 0) + 1

    def produced(self) -> dict[int, int]:
        """Per owned lane the rounds produced since the start of its stream, delivered or not; for the thread that produces."""
        return {lane: self._books_rounds(lane) for lane in self._lanes}

    @property
    def endless(self) -> bool:
        """Whether no lane ever ends."""
        return self._work.endless

    @property
    def workers_lost(self) -> int:
        """Workers that died and were replaced."""
        return self._stages.deaths

    def buffers(self) -> dict[str, Buffer]:
        """What holds data here, by name."""
        return self._stages.buffers()

    @property
    def stopped(self) -> bool:
        """Whether nobody waits for more."""
        return self._stages.stop.is_set()

    def open(self) -> None:
        """Start threads and processes; by the thread that consumes."""
        self._stages.open()

    def stop(self) -> None:
        """Tasks that have begun end at their next record, processes at once; nobody waits for them any more."""
        self._stages.end()

    def close(self) -> None:
        """Stop the workers and wait a moment for what has begun."""
        if left := self._stages.close():
            warnings.warn(
                f"{len(left)} threads still run an operator that does not return ({', '.join(left)}); they are left behind",
                RuntimeWarning,
                stacklevel=2,
            )
