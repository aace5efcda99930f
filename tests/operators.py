"""Operators of one's own, as a user would write them; the oracle has a plain twin of each."""

from __future__ import annotations

import itertools

import numpy as np

import zephon_jax as zj


class Repeat(zj.RecordOperator):
    """n mod `times` copies of each record: 1 → N, and some vanish."""

    traits = zj.OpTraits(expands=True)

    def __init__(self, times: int):
        self.times, self.name = times, f"repeat({times})"

    def identity(self):
        return {"op": "repeat", "times": self.times}

    def process(self, batch: zj.MicroBatch) -> zj.MicroBatch:
        counts = np.array([int(row["n"]) % self.times for row in batch.rows()], np.int64)
        return batch.repeat(counts)


class Wrap(zj.Accumulator):
    """Concatenate tokens and cut them into rows: keeps order, but where it cuts depends on all that came before."""

    traits = zj.OpTraits(preserves_cursor_order=True, expands=True)

    def __init__(self, capacity: int):
        self.capacity, self.name = capacity, f"wrap({capacity})"

    def identity(self):
        return {"op": "wrap", "capacity": self.capacity}

    def init_state(self, ctx: zj.LaneContext):
        return {"held": None, "used": 0}

    def push(self, state, batch: zj.MicroBatch) -> zj.MicroBatch:
        from dataclasses import replace

        rows = [np.asarray(row["tokens"], np.int32) for row in batch.rows()]
        batch = batch.keep(np.array([len(t) > 0 for t in rows], bool)) if rows else batch
        rows = [t for t in rows if len(t)]
        pieces, counts, used = [], [], state["used"]
        for tokens in rows:  # cut where rows end
            cuts = [0, *range(self.capacity - used, len(tokens), self.capacity), len(tokens)]
            cuts = sorted(set(cuts))
            pieces += [tokens[a:b] for a, b in itertools.pairwise(cuts)]
            counts.append(len(cuts) - 1)
            used = (used + len(tokens)) % self.capacity
        state["used"] = used
        batch = batch.repeat(np.array(counts, np.int64), {"tokens": zj.Objects(pieces)})
        held = (
            batch
            if state["held"] is None
            else zj.MicroBatch.concat(
                [state["held"], replace(batch, closed=batch.closed[:, :0], skipped=batch.skipped[:, :0])]
            )
        )
        return replace(self._full_rows(state, held), closed=batch.closed, skipped=batch.skipped)

    def _full_rows(self, state, held: zj.MicroBatch) -> zj.MicroBatch:
        from dataclasses import replace

        pieces = [row["tokens"] for row in held.rows()]
        splits, filled, rows = [0], 0, []
        for i, piece in enumerate(pieces):
            filled += len(piece)
            if filled == self.capacity:
                rows.append(np.concatenate(pieces[splits[-1] : i + 1]))
                splits.append(i + 1)
                filled = 0
        done = splits[-1]
        state["held"] = held.slice(done, len(held))
        out = held.slice(0, done).group(
            np.array(splits, np.int64), {"tokens": zj.Dense(np.stack(rows)) if rows else zj.Objects([])}
        )
        return replace(out, closed=held.closed[:, :0])

    def flush(self, state):
        held = state["held"]
        if held is None or not len(held):
            return None
        tokens = np.concatenate([row["tokens"] for row in held.rows()])
        row = np.zeros((1, self.capacity), np.int32)
        row[0, : len(tokens)] = tokens
        return held.group(np.array([0, len(held)], np.int64), {"tokens": zj.Dense(row)})
