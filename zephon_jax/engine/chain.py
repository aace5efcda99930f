"""One lane's pull chain: feed → stages → replay filter → batch. Nothing runs until something is taken from it.

The chain knows what is produced, never what was delivered: it hands out batches with receipts, and the lane's books,
on the consumer's side, settle them. Control travels in band, so "the sentinel came out" means that everything before
it was handed out or finished.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zephon_jax.checkpoint.schema import LaneSnapshot
from zephon_jax.columns import MISSING, Column, Objects, collate, row_of
from zephon_jax.deferred import DEFERRED, Deferred, deferred_of
from zephon_jax.engine.accumulate import LaneAccumulator
from zephon_jax.engine.lane import ReplayFilter
from zephon_jax.engine.receipts import Admission, Receipt
from zephon_jax.engine.replay import Loader, Replayed, deferred_batch, known_of
from zephon_jax.engine.tasks import Counted, StepFailed
from zephon_jax.errors import ContractViolation, DataError, WorkerError, ZephonError, text_of
from zephon_jax.metrics.counters import OperatorCounts, PipelineCounts
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.fetch import pointer_columns
from zephon_jax.origin import CHUNK, LAST, Cursor, Origin, no_contributors
from zephon_jax.plan.compile import Plan, Stage, Step
from zephon_jax.runners.outcome import TaskLost
from zephon_jax.types import Exhausted, Flush, Int32s, WorkChunk
from zephon_jax.work.base import WorkSource

__all__ = ["HostBatch", "LaneChain", "StageRunner"]

HostBatch: TypeAlias = dict[str, Any]
"""One lane's batch: field → array of shape (rows, ...); without a batch operator, one record: field → value."""

Item: TypeAlias = MicroBatch | Flush | Exhausted


class StageRunner(Protocol):
    """Takes micro-batches through the operators of a stage, in order, and passes control on."""

    @property
    def micro_batch_records(self) -> int:
        """How many records the next micro-batch should have."""
        ...

    def __call__(
        self, steps: tuple[Step, ...], items: Iterator[Item | Replayed], /
    ) -> Iterator[Counted | Replayed | Flush | Exhausted]: ...


_PROGRESS_BULK = 8192  # contributors and pointers that may gather before they are reported without a batch


class _Part(NamedTuple):
    """Rows that came out, from `start` on."""

    batch: MicroBatch
    start: int


class LaneChain:
    """One lane, from its work source to its batches. Used by one thread at a time."""

    def __init__(
        self,
        plan: Plan,
        lane: int,
        source: WorkSource,
        run_stage: StageRunner,
        counts: PipelineCounts,
        snapshot: LaneSnapshot | None,
    ):
        self._plan, self._lane, self._source, self._counts = plan, lane, source, counts
        self._run_stage = run_stage
        self._snapshot = snapshot if snapshot is not None and snapshot.chunks else None
        self._works: dict[int, WorkChunk] = {}  # to name records in errors; forgotten as chunks leave the chain
        self._receipt = Receipt()
        self._filter = (
            ReplayFilter(lane, snapshot.delivered, snapshot.cursor, snapshot.next_chunk - 1)
            if snapshot
            else ReplayFilter(lane, 0, None)
        )
        for op in plan.after_batch:
            counts.operators.setdefault(op.name, OperatorCounts())
        self._parts: deque[_Part] = deque()
        self._rows_in = self._rows_out = 0
        self._marks: deque[tuple[int, int]] = deque()  # (rows that came before the sentinel, its boundary)
        self._fed = 0
        self._fed_at: deque[int] = deque()  # samples fed before each sentinel that is under way
        self._barren_from = 0  # samples fed, or finished, when a row last came out
        self._finished = 0
        self._rows_since_mark = False
        self._patience = self._two_passes()
        self._deferring = self._snapshot is not None and self._snapshot.known is not None
        self._loader = Loader(
            lane,
            plan.depth,
            plan.options.first_records,
            self._works,
            lambda batches: self._run_first(plan.stages[0], run_stage, batches),
        )
        items: Iterator[Item] = self._stateless(plan.stages[0], run_stage, self._feed())
        for stage in plan.stages[1:]:
            items = self._stateless(stage, run_stage, items) if stage.stateless else self._accumulate(stage, items)
        self._items = items

    def _two_passes(self) -> int | None:
        """Samples of two whole passes of this lane: so many without a row mean that no row will ever come."""
        total = sum(len(d) for d in self._plan.work.datasets_by_id.values())
        return 2 * -(-total // self._plan.lanes) + self._plan.work.chunk_size_hint if total else None

    # -- feed: what to process, in order; the chunks in flight first -----------------------------------------------
    def _feed(self) -> Iterator[Item | Replayed]:
        chunk = 0
        if (s := self._snapshot) is not None:
            skipped = {c: [o for at, o in s.skipped if at == c] for c in {at for at, _ in s.skipped}}
            for chunk, work in enumerate(s.chunks, s.first):
                self._counts.chunks_replayed += 1
                yield from self._feed_chunk(chunk, work, skipped.get(chunk, []), self._known_offsets(s, chunk, work))
            chunk = s.next_chunk
        while (work := self._source.next_chunk()) is not None:
            self._receipt.admitted.append(Admission(chunk, work, self._source.state_dict()))
            self._counts.chunks_drawn += 1
            yield from self._feed_chunk(chunk, work, [], 0)
            chunk += 1
        yield Exhausted()

    @staticmethod
    def _known_offsets(s: LaneSnapshot, chunk: int, work: WorkChunk) -> int:
        """How many samples of this chunk need not be read to know what became of them."""
        if s.known is None:
            return 0
        return len(work) if chunk < s.next_chunk - 1 else s.high_offset + 1

    def _feed_chunk(self, chunk: int, work: WorkChunk, skipped: list[int], known: int) -> Iterator[Item | Replayed]:
        self._works[chunk] = work
        depth = self._plan.depth
        if known:
            self._fed += known
            yield Replayed(self._known_records(chunk, known))
        start = known
        while start < len(work):
            left = len(work) - start
            parts = -(
                -left // self._run_stage.micro_batch_records
            )  # of one size: a small last one costs as much as a large one
            offsets = np.arange(start, start + -(-left // parts))
            start += len(offsets)
            closed = no_contributors(depth)
            if skipped:  # decided before the checkpoint; never again (rule F4)
                again = np.isin(offsets, skipped)
                closed, offsets = Origin.of_chunk(chunk, offsets[again], depth).table, offsets[~again]
            self._counts.samples_fed += len(offsets)
            self._fed += len(offsets)
            origin = Origin.of_chunk(chunk, offsets, depth)
            yield MicroBatch(self._lane, pointer_columns(work, offsets), origin, closed, np.empty((2, 0), np.int32))
        every = self._plan.every
        if every is not None and (chunk + 1) % every == 0:
            self._fed_at.append(self._fed)
            yield Flush(chunk + 1)

    def _known_records(self, chunk: int, known: int) -> MicroBatch:
        assert self._snapshot is not None
        assert self._snapshot.known is not None
        lengths = self._plan.keeps_lengths
        return deferred_batch(self._lane, self._snapshot.known, chunk, np.arange(known), lengths=lengths)

    # -- stages ----------------------------------------------------------------------------------------------------
    def _stateless(self, stage: Stage, run_stage: StageRunner, items: Iterator[Item | Replayed]) -> Iterator[Item]:
        names = self._plan.names_by_index
        counters = [self._counts.operators[names[step.index]] for step in stage.steps]
        learn = stage is self._plan.stages[0] and self._plan.replays_on_lengths
        for result in run_stage(stage.steps, items):
            if isinstance(result, Replayed):
                yield result.batch
                continue
            if isinstance(result, (Flush, Exhausted)):
                yield result
                continue
            batch, counts = result
            if learn and (known := known_of(batch, self._plan.keeps_lengths)) is not None:
                self._receipt.known.append(known)
            for counter, (n_in, n_out, finished) in zip(counters, counts, strict=True):
                counter.records_in += n_in
                counter.records_out += n_out
                counter.finished += finished
            yield batch

    @staticmethod
    def _run_first(stage: Stage, run_stage: StageRunner, batches: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        for result in run_stage(stage.steps, batches):
            assert not isinstance(result, (Replayed, Flush, Exhausted))
            yield result[0]

    def _accumulate(self, stage: Stage, items: Iterator[Item]) -> Iterator[Item]:
        (step,) = stage.steps
        start = self._snapshot.first if self._snapshot else 0
        counts = self._counts.operators[self._plan.names_by_index[step.index]]
        lane_op = LaneAccumulator(step, self._lane, start, counts, self._datasets_of, self._plan.every or 0)
        for item in items:
            began = time.monotonic()
            match item:
                case MicroBatch():
                    out = lane_op.push(item)
                case Flush(boundary):
                    out = lane_op.flush(boundary)
                case Exhausted():
                    out = lane_op.flush(None)
            counts.busy_s += time.monotonic() - began
            if out is not None:
                yield out
            if not isinstance(item, MicroBatch):
                yield item

    def _datasets_of(self, chunks: Int32s, offsets: Int32s) -> Int32s:
        """The dataset of each of these samples, which are still in the chain."""
        found = np.empty(len(chunks), np.int32)
        for chunk in np.unique(chunks).tolist():
            mine = chunks == chunk
            found[mine] = self._works[chunk].dataset[offsets[mine]]
        return found

    # -- tail: replay filter and batch -----------------------------------------------------------------------------
    def deliveries(self) -> Iterator[tuple[HostBatch | None, Receipt]]:
        """Batches with their receipts, and now and then a receipt alone, so that nothing gathers without bound."""
        rows = self._plan.rows_per_lane or 1
        try:
            for item in self._items:
                match item:
                    case MicroBatch():
                        self._take_in(item)
                    case Flush(boundary):
                        self._marks.append((self._rows_in, boundary))
                        self._deferring = False  # what was replayed has left every accumulator
                        self._watch_epoch()
                    case Exhausted():
                        self._filter.at_end()
                        break
                while self._rows_in - self._rows_out >= rows:
                    yield self._emit(rows)
                if self._receipt.bulk > _PROGRESS_BULK:
                    self._pass_marks()
                    yield None, self._swap_receipt()
            left = self._rows_in - self._rows_out
            if left and self._plan.batch is not None and not self._plan.batch.drop_last:
                yield self._emit(left)
            yield None, self._swap_receipt()
        except StepFailed as failure:
            raise self._explained(failure) from failure.__cause__

    def _take_in(self, batch: MicroBatch) -> None:
        if batch.closed.shape[1]:
            self._receipt.closed.append(batch.closed)
        if batch.skipped.shape[1]:
            self._receipt.skipped.append(batch.skipped)
        n = self._filter.leading(batch.origin)
        if n:  # delivered before the checkpoint: finished, or its chunks could never be evicted
            self._counts.rows_replayed += n
            self._receipt.closed.append(batch.origin.slice(0, n).table)
        self._watch_records(batch)
        if len(batch) > n:
            if self._deferring:
                batch, n = self._with_payload(batch.slice(n, len(batch))), 0
            self._parts.append(_Part(batch, n))
            self._rows_in += len(batch) - n

    def _with_payload(self, batch: MicroBatch) -> MicroBatch:
        """Rows that are still to be delivered, with what a replay on lengths has not read."""
        self._counts.samples_loaded += self._loader.load(deferred_of(batch.columns))
        handles = batch.columns.get(DEFERRED)
        if not isinstance(handles, Objects):
            return batch
        rows = batch.rows()
        for i, handle in enumerate(handles.items):
            if isinstance(handle, Deferred):
                assert handle.row is not None
                rows[i] = dict(handle.row)
            else:
                rows[i].pop(DEFERRED, None)
        return batch.with_rows(rows)

    def _watch_records(self, batch: MicroBatch) -> None:
        """Without accumulators every sample comes out or is finished at once."""
        self._finished += int(batch.closed[LAST].sum())
        if len(batch):
            self._rows_since_mark = True
            if self._plan.every is None:
                self._barren_from = self._finished
                oldest = int(batch.origin.table[CHUNK].min())
                for chunk in [c for c in self._works if c < oldest]:
                    del self._works[chunk]
        elif self._plan.every is None:
            self._require_some(self._finished - self._barren_from)

    def _watch_epoch(self) -> None:
        """At a sentinel every sample before it has come out or is finished."""
        fed = self._fed_at.popleft()
        if self._rows_since_mark:
            self._barren_from, self._rows_since_mark = fed, False
        self._require_some(fed - self._barren_from)

    def _require_some(self, barren: int) -> None:
        if self._patience is not None and barren > self._patience:
            raise DataError(
                f"lane {self._lane}: {barren} samples in a row, more than two whole passes, gave no record: "
                f"{self._dropped_text()}. Check the filters and the data; a stream that never delivers would never end"
            )

    def _dropped_text(self) -> str:
        dropped = {name: c.finished for name, c in self._counts.operators.items() if c.finished}
        return ", ".join(f"{name} dropped {n}" for name, n in dropped.items()) or "no operator let one through"

    def _pass_marks(self) -> None:
        """Sentinels behind which no row is waiting."""
        while self._marks and self._marks[0][0] <= self._rows_out:
            boundary = self._marks.popleft()[1]
            self._receipt.boundary = boundary
            for chunk in [c for c in self._works if c < boundary]:
                del self._works[chunk]

    def _swap_receipt(self) -> Receipt:
        receipt, self._receipt = self._receipt, Receipt()
        return receipt

    def _emit(self, n: int) -> tuple[HostBatch, Receipt]:
        slices = self._cut(n)
        batch: HostBatch
        if self._plan.rows_per_lane is None:
            ((part, a, _),) = slices
            row = row_of(part.columns, a)
            batch = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in row.items()}
        else:
            batch = self._after_batch(_collate(slices), n)
        self._rows_out += n
        self._receipt.rows = Origin.concat([part.origin.slice(a, b) for part, a, b in slices])
        self._pass_marks()
        return batch, self._swap_receipt()

    def _cut(self, n: int) -> list[tuple[MicroBatch, int, int]]:
        slices: list[tuple[MicroBatch, int, int]] = []
        while n:
            batch, start = self._parts[0]
            stop = min(len(batch), start + n)
            if stop == len(batch):
                self._parts.popleft()
            else:
                self._parts[0] = _Part(batch, stop)
            slices.append((batch, start, stop))
            n -= stop - start
        return slices

    def _after_batch(self, batch: dict[str, NDArray[Any]], n: int) -> dict[str, NDArray[Any]]:
        for op in self._plan.after_batch:
            began = time.monotonic()
            try:
                batch = op.process_rows(batch)
            except ZephonError:
                raise
            except Exception as error:
                raise StepFailed(op.name, None) from error
            wrong = {k: getattr(v, "shape", None) for k, v in batch.items() if getattr(v, "shape", (0,))[:1] != (n,)}
            if wrong:
                raise ContractViolation(
                    f"{op.name}, lane {self._lane}: after batch an operator must keep the {n} rows, but returned {wrong}",
                    operator=op.name,
                )
            self._counts.operators[op.name].add(op.figures(batch))
            self._counts.operators[op.name].busy_s += time.monotonic() - began
        return batch

    # -- errors ----------------------------------------------------------------------------------------------------
    def _explained(self, failure: StepFailed) -> ZephonError:
        """The failure with the record's pointer."""
        cause, where, pointer = failure.__cause__, f"lane {self._lane}", None
        if failure.cursor is not None:
            pointer, where = self._pointer(failure.cursor), f"lane {self._lane}, record {failure.cursor}"
        at = f"{where} (dataset {pointer[0]!r}, shard {pointer[1]!r}, sample {pointer[2]})" if pointer else where
        if isinstance(cause, DataError):
            return DataError(
                f"{cause}; {at}", path=pointer[1] if pointer else None, record=pointer[2] if pointer else None
            )
        if isinstance(cause, ZephonError):
            return cause
        if isinstance(cause, TaskLost):
            return WorkerError(f"{failure.operator}: {cause}; {at}", operator=failure.operator, pointer=pointer)
        return WorkerError(
            f"{failure.operator} raised {type(cause).__name__}: {text_of(cause)}; {at}",
            operator=failure.operator,
            pointer=pointer,
        )

    def _pointer(self, cursor: Cursor) -> tuple[str, str, int] | None:
        work = self._works.get(cursor[0])
        if work is None:
            return None
        dataset = self._plan.work.datasets_by_id[int(work.dataset[cursor[1]])]
        return dataset.name, dataset.shards[int(work.shard[cursor[1]])].name, int(work.sample[cursor[1]])


def _some_value(columns: list[Column], spans: list[tuple[int, int]]) -> bool:
    """Whether some row has the field."""
    return not all(
        isinstance(c, Objects) and all(v is MISSING for v in c.items[a:b])
        for c, (a, b) in zip(columns, spans, strict=True)
    )


def _collate(slices: list[tuple[MicroBatch, int, int]]) -> dict[str, NDArray[Any]]:
    """The rows as arrays. A field that no row has is left out; one that some rows lack holds None there."""
    first = slices[0][0].columns
    names = sorted(first)  # however they are stored
    if any(part.columns.keys() != first.keys() for part, _, _ in slices):
        names = sorted({name for part, _, _ in slices for name in part.columns})
    out: dict[str, NDArray[Any]] = {}
    spans = [(a, b) for _, a, b in slices]
    for name in names:
        columns = [part.columns.get(name) or Objects([MISSING] * len(part)) for part, _, _ in slices]
        if not isinstance(columns[0], Objects) or _some_value(columns, spans):
            out[name] = collate(columns, spans)
    return out
