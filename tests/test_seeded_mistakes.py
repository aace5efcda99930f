"""Mistakes planted in a copy of the engine, each of which `tests.quick_check` must notice.

What a test cannot miss by construction proves nothing; this list is the proof that the oracle and the lane model look
where it matters. A mistake is a replacement of text that must occur in the file, so that the list cannot go stale.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
IGNORED = shutil.ignore_patterns("__pycache__", "demo*", "docs")

MISTAKES = {
    # the lane's books
    "delivered rows are counted over epochs": (
        "engine/lane.py", "self.delivered = self.delivered + n if number == top_epoch else n", "self.delivered += n"),
    "prefetched chunks are saved": (
        "engine/lane.py",
        "chunks = tuple(epoch.works[:kept])",
        "chunks = tuple(epoch.works)"),
    "the source's state is the newest, not T's": (
        "engine/lane.py",
        "after = epoch.sources[kept - 1]",
        "after = epoch.sources[-1]"),
    "siblings are not accounted for": ("engine/lane.py", "1 - table[SIBLINGS])", "1)"),
    "epochs are evicted although open": (
        "engine/lane.py",
        "return bool(self.closed.all()) and not self.balance.any()",
        "return True"),
    "lost middle children are overlooked": (
        "engine/lane.py", "return bool(self.closed.all()) and not self.balance.any()", "return bool(self.closed.all())"),
    "T is the first contributor's chunk": (
        "engine/lane.py", "top = int(rows.table[CHUNK].max())\n        high", "top = int(cursors[0, -1])\n        high"),
    "a later row proves nothing": (
        "engine/lane.py",
        "        if number > top_epoch:\n            self._require_done(number",
        "        if False:\n            self._require_done(number"),
    "a sentinel proves nothing": (
        "engine/lane.py", "if (boundary := receipts[-1].boundary) is not None:", "if False:"),
    "a sentinel is checked with what came after it": (
        "engine/lane.py", "if receipt.boundary is not None or i == len(waiting):", "if i == len(waiting):"),
    "what waits is not in a checkpoint": (
        "engine/lane.py", "Raises as `settle`.\"\"\"\n        self.up_to_date()\n", "Raises as `settle`.\"\"\"\n"),
    "ordinals count rows that wait": (
        "engine/lane.py", "rows_digest(self._settled_rows, cursors)", "rows_digest(self.rows, cursors)"),
    "monotone order is not checked": (
        "engine/lane.py",
        "            self._require_increasing(cursors)\n",
        "            pass\n"),
    "no trailing boundary": (
        "engine/lane.py",
        "boundaries = (first, top + 1) if (top + 1) % self.every == 0 else (first,)",
        "boundaries = (first,)"),
    "the cursor's epoch is not pinned": (
        "engine/lane.py",
        "if n > top_epoch and len(self._epochs[n].works)",
        "if len(self._epochs[n].works)"),
    "dropped epochs pile up": (
        "engine/lane.py",
        "for number in [n for n in self._epochs if n < top_epoch] + done:",
        "for number in [n for n in self._epochs if n < top_epoch]:"),
    "skipped samples beyond the cut are counted": (
        "engine/lane.py",
        "self.skipped_total += sum(before < at < now for at in self._skipped)",
        "self.skipped_total = len(self._skipped)"),
    "a diverged replay goes unnoticed": ("engine/lane.py", "rows.cursor(n - 1) != self.cursor", "False"),
    "the replay drops one row too few": (
        "engine/lane.py",
        "n = min(self.skip, len(rows))",
        "n = min(max(self.skip - 1, 0), len(rows))"),
    # the chain
    "dropped prefix without tombstones": (
        "engine/chain.py",
        "            self._receipt.closed.append(batch.origin.slice(0, n).table)\n",
        ""),
    "the sentinel overtakes rows that wait in batch (O8)": (
        "engine/chain.py",
        "while self._marks and self._marks[0][0] <= self._rows_out:",
        "while self._marks:"),
    "the restored chunks get new numbers": ("engine/chain.py", "chunk = s.next_chunk\n", "chunk = s.first\n"),
    "sentinels are not injected again": (
        "engine/chain.py",
        "if every is not None and (chunk + 1) % every == 0:",
        "if every is not None and (chunk + 1) % every == 0 and not self._snapshot:"),
    "the epoch restarts at chunk 0 after a resume": (
        "engine/chain.py",
        "start = self._snapshot.first if self._snapshot else 0",
        "start = 0"),
    "tombstones are lost": (
        "engine/chain.py",
        "            self._receipt.closed.append(batch.closed)\n",
        "            pass\n"),
    "state survives a flush (O2)": (
        "engine/accumulate.py",
        "            self._renew(next_epoch)\n",
        "            self._in = self._out = Weight(0, 0)\n"),
    "nothing is flushed at the end": (
        "engine/chain.py",
        "out = lane_op.flush(None)",
        "out = None"),
    # the replay on lengths
    "what is known beyond the cut is saved": ("engine/lane.py", "return table[:, below]", "return table"),
    "a sample too many is taken as known": ("engine/chain.py", "else s.high_offset + 1", "else s.high_offset + 2"),
    "samples that left nothing are never closed": (
        "engine/replay.py",
        "closed = _missing(table, chunk, offsets)",
        "closed = table[:, :0]"),
    "rows still to be delivered stay without payload": (
        "engine/chain.py",
        "            if self._deferring:",
        "            if False:"),
    # lanes and order
    "the highest lane comes first": ("engine/merge.py", "(self._rounds[lane], lane)", "(self._rounds[lane], -lane)"),
    "the round-robin starts anew after a resume": (
        "engine/engine.py",
        "RoundRobin({lane: books.rounds for",
        "RoundRobin({lane: 0 for"),
    "results come in the order of completion (O3)": (
        "runners/ordered.py",
        "yield resolved(pending.popleft())",
        "yield resolved(pending.pop())"),
    # identity and operators
    "every child is the last": ("origin.py", "table[LAST] *= is_last", "table[LAST] *= 1"),
    "children do not count their siblings": ("origin.py", "table[SIBLINGS] + of - 1, 0)", "table[SIBLINGS], 0)"),
    "a filter forgets what it drops": (
        "microbatch.py",
        "closed=_join(self.closed, dropped))\n\n    def take",
        "closed=self.closed)\n\n    def take"),
    "a shuffle forgets draws of one micro-batch": (
        "ops/shuffle.py",
        "        out[plan.late] = new[plan.before]\n",
        ""),
    "a slot keeps the first newcomer": (
        "ops/shuffle.py",
        "final = order[~np.append(again[1:], False)]",
        "final = order[~again]"),
    "identity is not shuffled along": ("ops/shuffle.py", "leaving[plan.late] = count + fill + plan.before", "pass"),
    "the emptiest bin leaves": ("ops/pack/bins.py", "i = room.index(min(room))", "i = room.index(max(room))"),
    "positions run over segments": (
        "ops/pack/layout.py",
        "positions = np.concatenate([row.starts for row in rows])",
        "positions = np.concatenate([0 * row.starts for row in rows])"),
    "the last target of a document is trained": (
        "ops/targets.py",
        "counts &= segments[:, 1:] == segments[:, :-1]",
        "pass"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_the_mistake_is_noticed(name, tmp_path):
    file, right, wrong = MISTAKES[name]
    shutil.copytree(ROOT / "zephon_jax", tmp_path / "zephon_jax", ignore=IGNORED)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=IGNORED)
    path = tmp_path / "zephon_jax" / file
    text = path.read_text()
    assert text.count(right) >= 1, "the text to replace is gone: bring the mistake up to date"
    path.write_text(text.replace(right, wrong))
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-m", "tests.quick_check"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110
    )
    assert run.returncode != 0, "the mistake went unnoticed"
    assert any(e in run.stderr for e in ("AssertionError", "ContractViolation", "CheckpointMismatch", "Error")), (
        run.stderr[-500:]
    )
    assert "SyntaxError" not in run.stderr
    assert "IndentationError" not in run.stderr


@pytest.mark.slow
def test_without_a_mistake_nothing_is_noticed():
    run = subprocess.run(
        [sys.executable, "-m", "tests.quick_check"], cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    assert run.returncode == 0, run.stderr[-2000:]
