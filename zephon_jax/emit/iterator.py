"""What `iter(pipeline)`, `to_local` and `to_global` return: batches for the consumer, checkpoints of what it received.

`next` settles each batch's receipts in the lanes' books before it returns the batch. The books are therefore exactly
what the consumer has, wherever the producers are, and `checkpoint()` only reads them.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from zephon_jax.checkpoint.aggregate import Aggregation
from zephon_jax.checkpoint.agree import require_same_pipeline
from zephon_jax.checkpoint.codec import plain_values, state_from_plain, state_to_plain
from zephon_jax.checkpoint.marks import DatasetMark
from zephon_jax.checkpoint.schema import PipelineState
from zephon_jax.emit.guard import Consumer
from zephon_jax.emit.pump import Pump
from zephon_jax.emit.topology import Topology, alone
from zephon_jax.engine.engine import Delivery, Engine
from zephon_jax.engine.fingerprint import combine, to_hex
from zephon_jax.engine.provenance import Contribution, contributions
from zephon_jax.engine.receipts import Receipt
from zephon_jax.engine.sizes import held_bytes
from zephon_jax.errors import ConfigurationError, WorkerError, ZephonError
from zephon_jax.metrics.stats import Buffer, Stats, limiting
from zephon_jax.ops.base import checked_int
from zephon_jax.plan.compile import Plan
from zephon_jax.plan.identity import plan_differences

if TYPE_CHECKING:
    from zephon_jax.display.timeline import Timeline

__all__ = ["Batches", "PipelineIterator", "Stats"]

Batches = Callable[[Engine], Iterator[Delivery]]
"""How deliveries are made of the engine's: the engine's own, or rounds joined into arrays."""


def _shut_down(running: list[Pump[Delivery]], engine: Engine, consumer: Consumer) -> None:
    if not consumer.here:  # a forked child: these threads are not in it, and the processes are its parent's
        return
    engine.stop()  # first, or the pump would wait for a task that nobody needs
    for pump in running:
        pump.close()
    engine.close()


class PipelineIterator(Iterator[Any]):
    """Batches of a pipeline, in an order that is the same on every topology and after every resume.

    Use it from one thread. Leaving the `with` block, `close()` or garbage collection stops its threads. After an error
    every further `next` raises the same error.
    """

    def __init__(
        self,
        plan: Plan,
        datasets: Sequence[DatasetMark],
        lanes: Sequence[int],
        cpus: int,
        batches: Batches,
        *,
        by_round: bool,
        prefetch: int,
        topology: Topology | None = None,
        rounds_per_step: int = 1,
    ):
        self._plan, self._datasets, self._by_round = plan, tuple(datasets), by_round
        self._lanes, self._prefetch = list(lanes), prefetch
        self._topology = alone(lanes) if topology is None else topology
        self._rounds_per_step = rounds_per_step
        self._engine = Engine(plan, lanes, cpus)
        self._make = batches
        self._deliveries: Iterator[Delivery] | None = None
        self._pumps: list[Pump[Delivery]] = []
        self._restored = self._closed = self._finished = False
        self._error: ZephonError | None = None
        self._host: dict[str, Any] = {}
        self._to_replay = 0
        self._last: Sequence[tuple[int, Receipt]] = ()
        self._consumer, self._settled, self._steps_taken = Consumer(), 0, 0
        self._finalizer = weakref.finalize(self, _shut_down, self._pumps, self._engine, self._consumer)
        place = self._topology
        self.aggregation = Aggregation(
            plan.options,
            process=place.process,
            processes=place.processes,
            lanes=self._lanes,
            total=plan.lanes,
            producers=place.producers,
        )

    # -- iterating -------------------------------------------------------------------------------------------------
    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """The next batch; everything up to it counts as delivered."""
        return self._handed_out(self._take())

    def skip(self, steps: int) -> int:
        """Pass over the next `steps` steps, for example after a loss spike; the number passed over, fewer at the end.

        They count as delivered, on every topology and after any resume: `step`, checkpoints and fingerprints go on as if
        they had been returned. Which rows of each lane they were is kept in every later checkpoint.
        """
        steps = checked_int("skip", "steps", steps, 0)
        for n in range(steps):
            before = {lane: books.rows for lane, books in self._engine.books.items()}
            try:
                self._take()
            except StopIteration:
                return n
            self._last = ()
            for lane, books in self._engine.books.items():
                if books.rows > before[lane]:
                    books.pass_over(books.rows - before[lane])
        return steps

    def provenance(self) -> dict[int, list[Contribution]]:
        """Where the rows of the last batch come from: global row → its samples, in the order in which they stand in it.

        Each is `(dataset, shard, sample_idx, start, stop)`: tokens start to stop of that sample; stop is None where no
        operator has counted tokens. Rows of this process only, numbered as in the global batch (lane l has rows
        [l·R, (l + 1)·R); with `accumulate` slice after slice). Empty before the first batch.
        """
        out: dict[int, list[Contribution]] = {}
        datasets, size = self._plan.work.datasets_by_id, self._plan.rows_per_lane or 1
        seen: dict[int, int] = {}  # per lane the rounds of this step so far: with accumulate there are several
        for lane, receipt in self._last:
            if receipt.rows is not None:
                first = seen.get(lane, 0) * self._plan.lanes * size + lane * size
                seen[lane] = seen.get(lane, 0) + 1
                rows = contributions(receipt.rows, self._engine.books[lane].work_of, datasets)
                out.update(enumerate(rows, first))
        return out

    def _take(self) -> Any:
        with self._consumer:
            return self._taken()

    def _taken(self) -> Any:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise ConfigurationError("this iterator is closed; make a new one from the pipeline")
        if self._finished:
            raise StopIteration
        if self._deliveries is None:
            self._deliveries = self._start()
        try:
            for delivery in self._deliveries:
                self._engine.settle(delivery)
                self._settled += 1
                if delivery.batch is not None:
                    self._last = delivery.receipts
                    self._steps_taken += 1
                    return delivery.batch
            self._engine.up_to_date()
        except ZephonError as error:
            self._error = error
            self._finalizer()  # nothing more will come: an iterator that nobody closes keeps no threads
            raise
        except Exception as error:
            self._error = WorkerError(f"the pipeline failed: {type(error).__name__}: {error}")
            self._finalizer()
            raise self._error from error
        except BaseException as error:  # Ctrl-C, most likely
            # SystemExit of an operator would end the trainer in silence.
            if any(pump.error is error for pump in self._pumps):
                self._error = WorkerError(f"an operator raised {type(error).__name__}: {error}")
                self._finalizer()
                raise self._error from error
            if sum(pump.taken for pump in self._pumps) != self._settled or not self._pumps:
                self._error = WorkerError(  # a batch may be lost on the way, and to go on would leave it out in silence
                    f"next() was interrupted by {type(error).__name__} while it took a batch; make a new iterator and restore a "
                    "checkpoint"
                )
                self._finalizer()
            raise
        if self._closed:
            raise ConfigurationError("this iterator was closed while next() was waiting for a batch")
        self._finished = True
        self._finalizer()
        if self._by_round and not self.step:
            rows = {lane: books.rows for lane, books in self._engine.books.items()}
            warnings.warn(
                f"not one whole step of {self._plan.lanes} lanes x {self._plan.rows_per_lane} rows came out of the data "
                f"(rows delivered per lane: {rows}); a smaller batch, or more passes, may help",
                stacklevel=3,
            )
        raise StopIteration

    def _handed_out(self, batch: Any) -> Any:
        if self._by_round:
            batch, self._host = batch
        return batch

    def _start(self) -> Iterator[Delivery]:
        if self._plan.options.executor == "inline":
            return self._make(self._engine)
        make, engine = self._make, self._engine  # not self: the thread must not keep the iterator alive
        engine.open()
        pump = Pump(lambda: make(engine), self._prefetch, _is_batch, _held_bytes, self._plan.options.prefetch_bytes / 2)
        self._pumps.append(pump)
        return pump

    @property
    def step(self) -> int:
        """Steps delivered since the start of the stream, resumes included.

        With `accumulate=A` a step is A rounds of the lanes.
        """
        rounds = [books.rounds for books in self._engine.books.values()]
        return min(rounds, default=0) // self._rounds_per_step if self._by_round else sum(rounds)

    def host(self) -> dict[str, Any]:
        """Fields of the last batch that cannot be device arrays: str, bytes, ragged; object arrays of shape (rows,)."""
        return self._host

    def close(self) -> None:
        """Stop the threads and drop what was made ahead. Checkpoints can still be taken."""
        self._closed = True
        self._finalizer()
        self.aggregation.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:  # not an orderly end: others may still need what is left of the last round
            self._closed = True
            self._finalizer()

    # -- checkpoints -----------------------------------------------------------------------------------------------
    def checkpoint(self) -> dict[str, Any]:
        """The state of the cut: plain values that msgpack can carry, covering every lane of every process.

        With several processes it is a round that all of them take part in, after the same step; all get the same state.

        Raises:
            AggregationTimeout: Processes were missing when the time was up; they are named, with their lanes.
            AggregationFailed: A process failed, or processes disagree; all raise the same text.
            ConfigurationError: This process does not produce all lanes, and nothing says who produces the others.
        """
        if self.aggregation.together():
            return self.aggregation.checkpoint(self.get_state, self.step)
        self.aggregation.require_alone("checkpoint()")
        return self.get_state()

    def get_state(self) -> dict[str, Any]:
        """As `checkpoint`, for this process's lanes."""
        self._require_order("a checkpoint")
        snapshots = {lane: books.snapshot() for lane, books in self._engine.books.items()}
        return state_to_plain(PipelineState(self._plan.lanes, self._plan.identity, self._datasets, snapshots))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue after the last batch delivered before `state` was taken. Call it before the first `next`.

        Raises:
            CheckpointMismatch: The state is of another pipeline, or broken; nothing has changed then.
            ConfigurationError: The iterator was used or restored before.
        """
        self.prepare_restore(state)()

    def prepare_restore(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """All checks of `restore`; what is returned does it. Nothing has changed until then."""
        if self._restored or self._deliveries is not None or self._finished or self._closed:
            was = "restored" if self._restored else "closed" if self._closed else "used"
            raise ConfigurationError(
                f"restore() works once, before the first next(); this iterator was {was}. Make a new one"
            )
        self._require_order("restore()")
        parsed = state_from_plain(state)
        plan = self._plan
        require_same_pipeline(
            parsed,
            lanes_total=plan.lanes,
            differences=plan_differences(parsed.plan, plain_values(plan.identity)),
            datasets=self._datasets,
            lanes=self._lanes,
            every=plan.every,
            depth=plan.depth,
            known=plan.replays_on_lengths,
            shard_names=self._shard_names,
        )
        rounds = {snapshot.rounds for snapshot in parsed.lanes.values()}  # also of others' lanes: all refuse, or none
        if self._by_round and len(rounds) > 1:
            raise ConfigurationError(
                f"this state was taken by iter() in the middle of a round (rounds per lane from {min(rounds)} to {max(rounds)}); "
                "to_local and to_global need a state in which all lanes have delivered equally many"
            )
        return lambda: self._restore(parsed)

    def _restore(self, parsed: PipelineState) -> None:
        self._engine.restore(parsed.lanes)
        self._to_replay = sum(len(parsed.lanes[lane].chunks) for lane in self._lanes)
        self._restored = True
        if self._plan.options.executor != "inline":
            self._deliveries = self._start()  # the replay runs while the caller restores the model

    set_state = restore

    async def save(self, directory: Any) -> Awaitable[None]:
        """For Orbax v1, whose `save_checkpointables(step, {"data": it})` takes the iterator itself.

        The state is captured, and agreed on with the other processes, before this returns; the rest runs in the background.
        """
        import asyncio  # a tenth of the time that `import zephon_jax` takes

        from zephon_jax.checkpoint.item import begin_save, write_save

        captured = begin_save(self)

        async def written() -> None:
            await asyncio.to_thread(write_save, captured, await directory.await_creation())

        return written()

    async def load(self, directory: Any) -> Awaitable[None]:
        """For Orbax v1, whose `load_checkpointables(step, {"data": it})` takes a fresh iterator."""
        from zephon_jax.checkpoint.item import restore_item

        restore_item(directory, self)

        async def done() -> None:
            return None

        return done()

    def _shard_names(self, position: int) -> list[str]:
        datasets = self._plan.work.datasets_by_id
        return [shard.name for shard in datasets[sorted(datasets)[position]].shards]

    def _require_order(self, what: str) -> None:
        if not self._plan.options.deterministic:
            raise ConfigurationError(
                f"{what} needs options(deterministic=True): without it another run delivers records in another order"
            )

    def fingerprint(self) -> str:
        """Of everything delivered by all lanes so far: equal rows, equal strings, on every topology.

        With several processes all of them must call it, after the same step, as with `checkpoint`.
        """
        digests = {lane: books.digest for lane, books in self._engine.books.items()}
        return combine(self.aggregation.digests(digests, self.step) if self.aggregation.together() else digests)

    def lane_fingerprints(self) -> dict[int, str]:
        """Per lane of this process: of every row delivered and its ordinal, resumes included."""
        return {lane: to_hex(books.digest) for lane, books in self._engine.books.items()}

    def timeline(self) -> Timeline:
        """The chunks of this process's lanes at this moment: forgotten, in flight (what a resume would replay), read ahead."""
        from zephon_jax.emit.timeline import timeline_of_books

        return timeline_of_books(f"after step {self.step:,}", self._engine.books, self._plan.every)

    def last_step(self) -> int | None:
        """The step at which the stream ends, where that is known before data is read; None for one that never ends.

        Known where every sample that is drawn becomes a row: no filtering, splitting or packing, and none skipped as broken.
        Whole steps are counted: with `end="pad"` one more may follow.
        """
        draws, plan = getattr(self._plan.work, "num_draws", None), self._plan
        counted = all(step.op.traits.keeps_count for stage in plan.stages for step in stage.steps if step.index >= 0)
        if not self._by_round or not counted or draws is None or plan.rows_per_lane is None:
            return None
        return draws // (plan.lanes * plan.rows_per_lane * self._rounds_per_step)

    def replay_progress(self) -> tuple[int, int]:
        """Chunks that a restore has put through the operators again, and how many it will; any thread may ask."""
        return self._engine.counts.chunks_replayed, self._to_replay

    def stats(self) -> Stats:
        """Figures at this moment."""
        books, counts = self._engine.books, self._engine.counts
        found = Stats(
            step=self.step,
            rows={lane: b.rows for lane, b in books.items()},
            rounds={lane: b.rounds for lane, b in books.items()},
            chunks_in_flight={lane: b.chunks_in_flight for lane, b in books.items()},
            skipped={lane: b.skipped_total for lane, b in books.items()},
            operators={name: replace(c) for name, c in counts.operators.items()},
            batches_ready=sum(pump.waiting for pump in self._pumps),
            chunks_drawn=counts.chunks_drawn,
            chunks_replayed=counts.chunks_replayed,
            rows_replayed=counts.rows_replayed,
            samples_loaded=counts.samples_loaded,
            prefetch=self._prefetch if self._plan.options.executor != "inline" else 0,
            bytes_ready=sum(pump.waiting_bytes for pump in self._pumps),
            first_wait_s=self._consumer.first_wait_s,
            elapsed_s=self._consumer.elapsed_s,
            steps_taken=self._steps_taken,
            wait_s=self._consumer.wait_s,
            blocked_s=sum(pump.blocked_s for pump in self._pumps),
            workers_wait_s=counts.waited_s,
            workers_lost=self._engine.workers_lost,
            buffers={
                "batches ahead": Buffer(
                    sum(pump.waiting_bytes for pump in self._pumps),
                    sum(pump.most_waiting_bytes for pump in self._pumps),
                    self._plan.options.prefetch_bytes // 2,
                ),
                **self._engine.buffers(),
            },
        )
        stateless = (step for stage in self._plan.stages if stage.stateless for step in stage.steps)
        names = self._plan.names_by_index
        return replace(found, limit=limiting(found, frozenset(names[step.index] for step in stateless)))


def _held_bytes(delivery: Delivery) -> int:
    return held_bytes(delivery.batch) if delivery.batch is not None else 0


def _is_batch(delivery: Delivery) -> bool:
    return delivery.batch is not None
