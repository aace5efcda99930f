"""One lane's books: what is in flight, what was delivered, and what a checkpoint keeps. Pure.

Theory, with the rules of the engine's semantics:

- A *flush epoch* is the chunks between two sentinels. Operators drain before they pass a sentinel on, so rows of epoch
  e all come before rows of epoch e + 1 (P4), and an epoch starts from empty accumulators. In monotone pipelines nothing
  is kept between records; there an epoch is one chunk, and no sentinel is needed.
- Let T be the highest chunk that contributed to a delivered row. A checkpoint is a function of T and of what was
  delivered (C9): the chunks from the start of T's epoch to T, the work source's state right after T was drawn, the
  number of rows delivered from that epoch, and the last row's cursor. Later chunks are drawn again.
- An offset is closed once its last child was finished and so were all its siblings (P2): its balance starts at 1, each
  finished contributor subtracts 1 and adds the siblings that it accounts for.
- When a sentinel has come out, or a row of a later epoch was delivered, every offset before it must be closed. An open
  one proves that an operator lost a record, and a balance below zero that it delivered one twice.
- An epoch of which everything was dropped is forgotten as soon as it is closed, wherever it stands: memory is bounded
  also while a filter drops all there is (P5).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from zephon_jax.checkpoint.schema import LaneSnapshot
from zephon_jax.engine.fingerprint import MODULUS, rows_digest
from zephon_jax.engine.receipts import Receipt
from zephon_jax.errors import ContractViolation, DataError
from zephon_jax.origin import CHUNK, LAST, OFFSET, SIBLINGS, Cursor, Origin
from zephon_jax.types import Int32s, SourceState, WorkChunk

__all__ = ["LaneBooks", "ReplayFilter"]


@dataclass(slots=True, eq=False)
class _Epoch:
    """The chunks of one flush epoch, and what of them is still open."""

    start: int
    works: list[WorkChunk] = field(default_factory=list[WorkChunk])
    sources: list[SourceState | None] = field(default_factory=list[SourceState | None])
    bases: list[int] = field(default_factory=lambda: [0])  # chunk start + i holds flat offsets bases[i] to bases[i + 1]
    balance: Int32s = field(default_factory=lambda: np.empty(0, np.int32))
    closed: np.ndarray[tuple[int], np.dtype[np.bool_]] = field(default_factory=lambda: np.empty(0, np.bool_))

    known: list[Int32s] = field(default_factory=list[Int32s])

    def admit(self, work: WorkChunk, source: SourceState | None) -> None:
        n = len(work)
        self.works.append(work)
        self.sources.append(source)
        self.bases.append(self.bases[-1] + n)
        self.balance = np.concatenate([self.balance, np.ones(n, np.int32)])
        self.closed = np.concatenate([self.closed, np.zeros(n, np.bool_)])

    def finish(self, table: Int32s) -> str | None:
        """Finish these contributors of this epoch; the text of what is wrong with them, or None."""
        index = table[CHUNK] - self.start
        if (index >= len(self.works)).any():
            return f"chunk {int(table[CHUNK].max())} was never handed out"
        bases = np.asarray(self.bases)
        flat = bases[index] + table[OFFSET]
        if (flat >= bases[index + 1]).any():
            return f"offset {int(table[OFFSET].max())} lies beyond its chunk"
        last = np.sort(flat[table[LAST] != 0])
        again = self.closed[last]
        again[1:] |= last[1:] == last[:-1]
        if again.any():
            return f"{self._name(int(last[again][0]))} was finished twice"
        np.subtract.at(self.balance, flat, 1 - table[SIBLINGS])
        self.closed[last] = True
        return None

    def is_done(self) -> bool:
        return bool(self.closed.all()) and not self.balance.any()

    def open_text(self) -> str:
        """Which offsets are not finished, and how they are not."""
        late = np.flatnonzero(~self.closed | (self.balance != 0))
        some = ", ".join(
            f"{self._name(i)} ({'its last child is missing' if not self.closed[i] else _surplus(int(self.balance[i]))})"
            for i in late[:3].tolist()
        )
        return f"{len(late)} offsets are open: {some}{', …' if len(late) > 3 else ''}"

    def _name(self, flat: int) -> str:
        i = int(np.searchsorted(np.asarray(self.bases), flat, "right")) - 1
        return f"chunk {self.start + i} offset {flat - self.bases[i]}"


def _surplus(balance: int) -> str:
    return f"{balance} of its children are missing" if balance > 0 else f"{-balance} children too many"


class LaneBooks:
    """Applies receipts in order; gives the snapshot of the cut at any time.

    `epoch_chunks` is the number of chunks in a flush epoch, or None for a monotone pipeline; `keeps_known`: snapshots hold
    what the stateless operators made of the samples. Used by the consumer's thread only.

    Receipts wait until `bulk` contributors are together, since the calls that settle a batch of eight rows cost more than
    the rows. Several receipts settle as one of all their rows would; whatever reads the books settles first (`up_to_date`),
    so no one can tell, but that a wrong operator may be named some batches later.
    """

    def __init__(
        self,
        lane: int,
        epoch_chunks: int | None,
        source: SourceState,
        snapshot: LaneSnapshot | None = None,
        max_skipped: int | None = None,
        keeps_known: bool = False,
        bulk: int = 0,
    ):
        self.lane, self.monotone, self.every = lane, epoch_chunks is None, epoch_chunks or 1
        self._epochs: dict[int, _Epoch] = {}
        self._top = -1  # T
        self._source = source
        self._max_skipped, self._keeps_known = max_skipped, keeps_known
        self.delivered, self.cursor, self._high_offset = 0, None, -1
        self.rounds, self.rows, self.skipped_total = 0, 0, 0  # rounds and rows count what is waiting as well
        self._bulk, self._waiting, self._waiting_bulk = bulk, list[Receipt](), 0
        self._wrong: ContractViolation | DataError | None = None
        self._digest, self._settled_rows = 0, 0
        self._skipped: set[tuple[int, int]] = set()  # of chunks that a snapshot may still keep
        self.evicted_chunks = 0
        self.passed_over: list[tuple[int, int]] = []
        self._leaving: dict[int, _Epoch] = {}  # evicted by the last receipt: its rows can still be named
        if snapshot is not None:
            self._restore(snapshot)

    def _restore(self, s: LaneSnapshot) -> None:
        self._source, self.delivered, self.cursor = s.source, s.delivered, s.cursor
        self._high_offset, self.rounds, self.rows, self._settled_rows = s.high_offset, s.rounds, s.rows, s.rows
        self._digest, self.skipped_total, self._skipped = s.digest, s.skipped_total, set(s.skipped)
        self._top = s.next_chunk - 1
        self.passed_over = list(s.passed_over)
        for chunk, work in enumerate(s.chunks, s.first):
            self._admit(chunk, work, s.source if chunk == self._top else None)
        if s.known is not None and s.chunks:
            self._epochs[self._top // self.every].known.append(s.known)

    # -- receipts --------------------------------------------------------------------------------------------------
    def settle(self, receipt: Receipt, *, rounds: int = 0, more: bool = False) -> None:
        """Take what a delivery settles; `rounds` is 1 if it carried a batch; `more`: of the same delivery as the last.

        Raises:
            ContractViolation: An operator lost, repeated or reordered records, now or in receipts that have waited.
            DataError: More samples were skipped than is allowed.
        """
        if self._waiting_bulk >= self._bulk and not more:  # a delivery is never taken apart: its chunks can be named
            self.up_to_date()
        self._waiting.append(receipt)
        self._waiting_bulk += receipt.bulk
        self.rounds += rounds
        if receipt.rows is not None:
            self.rows += len(receipt.rows)
        if not self._bulk or receipt.skipped or self._skipped:  # what is skipped is counted at once
            self._settle_waiting(more)

    def up_to_date(self) -> None:
        """Settle what is waiting. Raises as `settle`, and again at every further call once something was wrong."""
        if self._wrong is not None:
            raise self._wrong
        if self._waiting:
            self._settle_waiting(False)

    def _settle_waiting(self, more: bool) -> None:
        waiting, self._waiting, self._waiting_bulk = self._waiting, [], 0
        if not more:
            self._leaving = {}
        try:
            start = 0
            for i, receipt in enumerate(waiting, 1):
                # A sentinel is checked without what came after it.
                if receipt.boundary is not None or i == len(waiting):
                    self._apply(waiting[start:i])
                    start = i
        except (ContractViolation, DataError) as error:
            self._wrong = error
            raise

    def _apply(self, receipts: list[Receipt]) -> None:
        """Settle these as one; only the last one may have a boundary."""
        for receipt in receipts:
            for chunk, work, source in receipt.admitted:
                self._admit(chunk, work, source)
            for known in receipt.known:
                self._epochs[int(known[CHUNK, 0]) // self.every].known.append(known)
            for table in receipt.skipped:
                self._skipped.update(zip(*table.tolist(), strict=True))
        touched: set[int] = set()
        if closed := [table for receipt in receipts for table in receipt.closed]:
            touched |= self._finish(closed[0] if len(closed) == 1 else np.concatenate(closed, axis=1))
        if rows := [r.rows for r in receipts if r.rows is not None and len(r.rows)]:
            touched |= self._deliver(Origin.concat(rows))
        if (boundary := receipts[-1].boundary) is not None:
            self._require_done(boundary // self.every, f"sentinel {boundary} came out")
        self._forget(touched)

    def _admit(self, chunk: int, work: WorkChunk, source: SourceState | None) -> None:
        number = chunk // self.every
        epoch = self._epochs.get(number)
        if epoch is None:
            # A monotone snapshot starts at T and an epoch's at its boundary; both are multiples of `every`.
            epoch = self._epochs[number] = _Epoch(number * self.every)
        epoch.admit(work, source)

    def _finish(self, table: Int32s) -> set[int]:
        numbers = table[CHUNK] // self.every
        found = set(np.unique(numbers).tolist())
        for number in found:
            part = table if len(found) == 1 else table[:, numbers == number]
            epoch = self._epochs.get(number)
            wrong = "a record of an evicted epoch came out" if epoch is None else epoch.finish(part)
            if wrong:
                raise ContractViolation(
                    f"lane {self.lane}: {wrong} (chunk {int(part[CHUNK, 0])}, offset {int(part[OFFSET, 0])} among "
                    f"{part.shape[1]} contributors); an operator duplicates records or invents their identity"
                )
        return found

    def _deliver(self, rows: Origin) -> set[int]:
        numbers = rows.table[CHUNK] // self.every
        top_epoch = self._top // self.every if self._top >= 0 else -1
        if numbers[0] < top_epoch or (numbers[1:] < numbers[:-1]).any():
            raise ContractViolation(
                f"lane {self.lane}: a record came out {'of chunk order' if self.monotone else 'behind a later sentinel'} "
                f"(chunks {sorted(set(rows.table[CHUNK].tolist()))}); an operator reorders records although its traits "
                "say preserves_cursor_order=True, or holds records over a flush"
            )
        cursors = rows.cursors()
        if self.monotone:
            self._require_increasing(cursors)
        touched = self._finish(rows.table)
        number = int(numbers[-1])
        n = int((numbers[rows.firsts] == number).sum())
        self.delivered = self.delivered + n if number == top_epoch else n
        top = int(rows.table[CHUNK].max())
        high = int(rows.table[OFFSET][rows.table[CHUNK] == top].max()) if top >= self._top else -1
        if top > self._top or high > self._high_offset:
            self._raise_top(max(top, self._top), max(high, self._high_offset) if top == self._top else high)
        self.cursor = tuple(cursors[:, -1].tolist())
        self._digest = (self._digest + rows_digest(self._settled_rows, cursors)) % MODULUS
        self._settled_rows += len(rows)
        if number > top_epoch:
            self._require_done(number, f"a row of chunk {top} was delivered")
        return touched

    @property
    def digest(self) -> int:
        """The fingerprint of all rows delivered (rule C8)."""
        self.up_to_date()
        return self._digest

    def _require_increasing(self, cursors: Int32s) -> None:
        before = (
            np.full((cursors.shape[0], 1), -1, np.int32) if self.cursor is None else np.array([self.cursor], np.int32).T
        )
        chain = np.concatenate([before, cursors], axis=1)
        step = np.sign(chain[:, 1:] - chain[:, :-1])
        weights = 3 ** np.arange(len(step))[::-1]  # the first nonzero part decides
        wrong = np.flatnonzero(weights @ step <= 0)
        if len(wrong):
            i = int(wrong[0])
            raise ContractViolation(
                f"lane {self.lane}: record {tuple(chain[:, i + 1].tolist())} came after {tuple(chain[:, i].tolist())}; "
                "an operator reorders records although its traits say preserves_cursor_order=True"
            )

    def _raise_top(self, top: int, high_offset: int) -> None:
        """T rises: samples skipped below it now count, which makes the count a function of the cut."""
        before, now = (self._top, self._high_offset), (top, high_offset)
        self._top, self._high_offset = now
        self.skipped_total += sum(before < at < now for at in self._skipped)
        if self._max_skipped is not None and self.skipped_total > self._max_skipped:
            raise DataError(
                f"lane {self.lane} skipped {self.skipped_total} unreadable samples, max_skipped allows {self._max_skipped}; "
                "mend the data or raise max_skipped"
            )

    # -- eviction --------------------------------------------------------------------------------------------------
    def _require_done(self, below: int, why: str) -> None:
        for number in [n for n in self._epochs if n < below]:
            epoch = self._epochs[number]
            if not epoch.is_done():
                raise ContractViolation(
                    f"lane {self.lane}: {why}, but of the chunks from {epoch.start} on {epoch.open_text()}; an operator "
                    "lost records, or holds them over a flush"
                )

    def _forget(self, touched: set[int]) -> None:
        top_epoch = self._top // self.every if self._top >= 0 else -1
        done = [
            n
            for n in touched
            if n > top_epoch and len(self._epochs[n].works) == self.every and self._epochs[n].is_done()
        ]
        for number in [n for n in self._epochs if n < top_epoch] + done:
            epoch = self._leaving[number] = self._epochs.pop(number)
            self.evicted_chunks += len(epoch.works)
        if self._skipped:
            start = top_epoch * self.every
            self._skipped = {at for at in self._skipped if at[0] >= start}

    def state_key(self) -> object:
        """Everything that the books' future depends on, hashable: for exhaustive searches."""
        self.up_to_date()
        epochs = tuple(
            (n, e.bases[-1], e.balance.tobytes(), e.closed.tobytes()) for n, e in sorted(self._epochs.items())
        )
        return (self._top, self._high_offset, tuple(sorted(self._skipped)), epochs)

    def pass_over(self, rows: int) -> None:
        """The last `rows` rows were delivered to nobody, on the consumer's word; they count as delivered."""
        start = self.rows - rows
        if self.passed_over and self.passed_over[-1][1] == start:
            start = self.passed_over.pop()[0]
        self.passed_over.append((start, self.rows))

    # -- the cut ---------------------------------------------------------------------------------------------------
    @property
    def chunks_in_flight(self) -> int:
        """Chunks that a checkpoint taken now keeps, and a restore replays. Reads only, so that any thread may ask."""
        waiting = [int(r.rows.table[CHUNK].max()) for r in tuple(self._waiting) if r.rows is not None and len(r.rows)]
        top = max([self._top, *waiting])
        return top - top // self.every * self.every + 1 if top >= 0 else 0

    def work_of(self, chunk: int) -> WorkChunk | None:
        """The pointers of a chunk of the last delivery, or in flight."""
        self.up_to_date()
        number = chunk // self.every
        epoch = self._epochs.get(number) or self._leaving.get(number)
        return epoch.works[chunk - epoch.start] if epoch and 0 <= chunk - epoch.start < len(epoch.works) else None

    def account(self) -> dict[int, tuple[int, int]]:
        """Chunk → its samples, and those that are done, of the chunks that are not forgotten."""
        self.up_to_date()
        return {
            epoch.start + i: (b - a, int((epoch.closed[a:b] & (epoch.balance[a:b] == 0)).sum()))
            for epoch in self._epochs.values()
            for i, (a, b) in enumerate(pairwise(epoch.bases))
        }

    def snapshot(self) -> LaneSnapshot:
        """The lane's part of a checkpoint at this cut. Raises as `settle`."""
        self.up_to_date()
        chunks: tuple[WorkChunk, ...] = ()
        first, source, boundaries = 0, self._source, ()
        top = self._top
        if top >= 0:
            epoch = self._epochs[top // self.every]
            first, kept = epoch.start, top - epoch.start + 1
            chunks = tuple(epoch.works[:kept])
            after = epoch.sources[kept - 1]
            assert after is not None  # only chunks below T of a restored epoch lack it, and T never falls
            source = after
            if not self.monotone:
                boundaries = (first, top + 1) if (top + 1) % self.every == 0 else (first,)
        skipped = sorted(at for at in self._skipped if first <= at[0] and at < (top, self._high_offset))
        return LaneSnapshot(
            self.lane, first, chunks, tuple(skipped), boundaries, source, self.delivered, self.cursor,
            self._high_offset, self.rounds, self.rows, self.digest, self.skipped_total, self._known(),
            tuple(self.passed_over),
        )  # fmt: skip

    def _known(self) -> Int32s | None:
        """What is known of the samples up to the highest delivered one: all of them, since a lane keeps its order."""
        if self._top < 0 or not self._keeps_known:
            return None
        table = np.concatenate(self._epochs[self._top // self.every].known, axis=1)
        below = (table[CHUNK] < self._top) | ((table[CHUNK] == self._top) & (table[OFFSET] <= self._high_offset))
        return table[:, below]


@dataclass(slots=True)
class ReplayFilter:
    """Drops the rows of a replay that the consumer already had, and proves that they are the right ones.

    By count, since an epoch starts from empty accumulators and so regenerates the same rows; checked by identity, since
    a replay that diverged must not silently drop everything (or the wrong rows).
    """

    lane: int
    skip: int
    cursor: Cursor | None
    top: int = 2**31  # T: no delivered row begins in a later chunk

    def leading(self, rows: Origin) -> int:
        """How many leading rows of these to drop."""
        n = min(self.skip, len(rows))
        if n:
            self.skip -= n
            if rows.cursor(n - 1)[0] > self.top:
                raise ContractViolation(
                    f"lane {self.lane}: the replay reached row {rows.cursor(n - 1)} with {self.skip + n} rows to go to the last "
                    f"delivered one {self.cursor}; an operator is not deterministic, or changed without another version="
                )
            if not self.skip and rows.cursor(n - 1) != self.cursor:
                raise ContractViolation(
                    f"lane {self.lane}: the replay diverged: row {rows.cursor(n - 1)} came where the checkpoint has "
                    f"{self.cursor}; an operator is not deterministic, or changed without another version="
                )
        return n

    def at_end(self) -> None:
        """The lane's stream ended: everything that was delivered must have been seen again."""
        if self.skip:
            raise ContractViolation(
                f"lane {self.lane}: the replay ended {self.skip} rows before the last delivered one {self.cursor}; an "
                "operator is not deterministic, or changed without another version="
            )
