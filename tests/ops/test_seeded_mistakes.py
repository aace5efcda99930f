"""Mistakes planted in a copy of the operators, each of which `tests.ops.quick_check` must notice."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
IGNORED = shutil.ignore_patterns("__pycache__", "demo*", "docs", "golden", "checkpoint", "processes")

MISTAKES = {
    # packings
    "first fit takes a bin that is one too small": ("ops/pack/bins.py", "if free >= n:", "if free >= n - 1:"),
    "a full number of segments takes one more": (
        "ops/pack/bins.py", "room[i] = free - n if len(pieces) < most else 0", "room[i] = free - n if len(pieces) <= most else 0"),
    "one segment in a row is not the limit": (
        "ops/pack/bins.py", "room.append(self.capacity - n if most > 1 else 0)", "room.append(self.capacity - n)"),
    "many bins forget the limit of segments": (
        "ops/pack/bins.py",
        "left = free - n if len(pieces) < self.max_segments else 0\n            heappush",
        "left = free - n\n            heappush"),
    "best fit takes the roomiest": (
        "ops/pack/bins.py", "at = bisect_left(keys, n << 64)\n            if at < len(keys):\n",
        "at = bisect_left(keys, n << 64)\n            if at < len(keys):\n                at = len(keys) - 1\n"),
    "best fit lets the emptiest leave": ("ops/pack/bins.py", "held.pop(keys.pop(0) & AGE)", "held.pop(keys.pop() & AGE)"),
    "wrap pads instead of cutting": ("ops/pack/cuts.py", "taken = min(n, self._room)", "taken = min(n, self._capacity)"),
    "wrap loses what is held at a flush": ("ops/pack/cuts.py", "out = [self._held] if self._held else []", "out = []"),
    "wrap counts one segment too many": (
        "ops/pack/cuts.py", "len(self._held) == self._most", "len(self._held) > self._most"),
    "best fit that cuts, cuts to a single token": (
        "ops/pack/cuts.py", "self._least = max(1, capacity // 64)", "self._least = 1"),
    "best fit that cuts keeps full rows": (
        "ops/pack/cuts.py", "if taken == room or len(held) == self._most:", "if len(held) == self._most:"),
    "several lengths: one that fits is enough": (
        "ops/pack/joint.py", "(room >= needed).all(axis=1)", "(room >= needed).any(axis=1)"),
    "several lengths: the room does not move along": (
        "ops/pack/joint.py", "self._room[at : open_bins - 1] = self._room[at + 1 : open_bins]", "pass"),
    "groups share bins": ("ops/pack/op.py", "bins = state.bins.get(key)", "key = None; bins = state.bins.get(key)"),
    "rows of groups leave group by group": (
        "ops/pack/op.py", "for key, a, b in runs_of(keys, len(lengths)):", "for key, a, b in sorted(runs_of(keys, len(lengths))):"),
    "pieces are renumbered as if there were one group": (
        "ops/pack/op.py", "index += bins.renumber(len(index))", "index += bins.renumber(0)"),
    "what was carried is another piece": (
        "ops/pack/op.py",
        "state.parts = [_detached(state.parts[i]) for i in index]",
        "state.parts = [_detached(state.parts[i]) for i in sorted(index)]"),
    "kept fields are not carried": (
        "ops/pack/op.py",
        "state.beside = {name: [_detached(held[i]) for i in index] for name, held in state.beside.items()}",
        "pass"),
    "a piece begins where the one before it began": (
        "ops/pack/op.py", "[0, *accumulate(pieces[:-1])]", "[0, *pieces[:-1]]"),
    "kept fields are cut from the start": (
        "ops/pack/fields.py", "out += [_span(part, end - n, end)", "out += [_span(part, 0, n)"),
    "segments of other fields count what is there": (
        "ops/pack/layout.py", "at += n\n        return out", "at += n + (n == 0)\n        return out"),
    # split
    "windows do not overlap": ("ops/split.py", "stride = size - overlap", "stride = size"),
    "a window lies within the one before": (
        "ops/split.py", "-(-(lengths - overlap) // stride)", "-(-lengths // stride)"),
    "the first separator that fits": (
        "ops/split.py",
        'at = int(np.searchsorted(ends, start + self._size, "right")) - 1',
        'at = int(np.searchsorted(ends, start, "right"))'),
    "empty pieces stay": ("ops/split.py", "if stop > start:\n", "if True:\n"),
    # reordering
    "a boundary belongs to the next bucket": (
        "ops/bucket.py", 'self._lengths(batch), "left")', 'self._lengths(batch), "right")'),
    "buckets forget who stayed": (
        "ops/bucket.py", "state.buckets = [[renamed[number] for number in bucket] for bucket in state.buckets]", "pass"),
    "the dataset that leads goes first": ("ops/ensure.py", "due = max(self._parts, key=lag)", "due = min(self._parts, key=lag)"),
    "tokens are not counted": ("ops/ensure.py", "state.given[due] += state.sizes[number]", "state.given[due] += 1"),
    "nothing is out of turn": ("ops/ensure.py", 'self._count(state, "out_of_turn", 1)', "pass"),
    "what is held comes last": (
        "ops/holding.py", "MicroBatch.concat([self.batch, bare])", "MicroBatch.concat([bare, self.batch])"),
    # the others
    "padding is a segment": ("ops/padding.py", "np.arange(self._length) < shown[:, None]", "np.arange(self._length) <= shown[:, None]"),
    "the mask is not shifted": ("ops/targets.py", 'batch["loss_mask"][:, 1:]', 'batch["loss_mask"][:, :-1]'),
    "padding is a target": ("ops/targets.py", "counts = segments[:, 1:] > 0", "counts = segments[:, 1:] >= 0"),
    "all records draw alike": ("ops/rows.py", "batch.operator, batch.lane, cursor)", "batch.operator, batch.lane, cursor[:1])"),
    "lists of one length are an image": ("ops/rows.py", "case Dense(values) if values.ndim == 2:", "case Dense(values) if values.ndim == 9:"),
    "the header counts too": ("ops/templates.py", "prompt=True) if i else", "prompt=False) if i else"),
    "a span ends one character early": ("ops/templates.py", "spans.append((start, at))", "spans.append((start, at - 1))"),
    "tokens that end in a span count": ("ops/chat.py", "offsets[:, 0] >= start", "offsets[:, 1] >= start"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_the_mistake_is_noticed(name, tmp_path):
    file, right, wrong = MISTAKES[name]
    shutil.copytree(ROOT / "zephon_jax", tmp_path / "zephon_jax", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=IGNORED)
    path = tmp_path / "zephon_jax" / file
    text = path.read_text()
    assert text.count(right) >= 1, "the text to replace is gone: bring the mistake up to date"
    path.write_text(text.replace(right, wrong))
    run = subprocess.run(
        [sys.executable, "-m", "tests.ops.quick_check"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode != 0, "the mistake went unnoticed"
    assert not any(e in run.stderr for e in ("SyntaxError", "IndentationError", "ModuleNotFoundError", "NameError")), (
        run.stderr[-500:]
    )


@pytest.mark.slow
def test_without_a_mistake_nothing_is_noticed():
    run = subprocess.run(
        [sys.executable, "-m", "tests.ops.quick_check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
