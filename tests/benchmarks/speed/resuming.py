"""What a save and a resume cost, the same for ours and peers: at several depths, the worst of many phases of the flush epoch.

A resume is timed from building the pipeline anew to its first batch, beside a cold start in turn with it; what both share
(imports) is done before.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

__all__ = ["resumes"]


def resumes(
    start: Callable[[Any], Any],
    save: Callable[[Any], Any],
    size: Callable[[Any], int],
    forget: Callable[[], None],
    depths: Sequence[int],
    epoch_batches: int,
    phases: int,
) -> dict[str, Any]:
    """`start(state or None)` gives an iterator, `save(iterator)` a state, `size(state)` its bytes.

    `forget` drops what the process has kept, before each start. `epoch_batches`: batches in a flush epoch; 1 if there is none.
    """
    it = start(None)
    at, found = 0, dict[str, Any]()
    worst = 0.0
    for depth in depths:
        extra, first, cold, sizes, saves = [], [], [], [], []
        for phase in range(phases):
            target = depth + phase * epoch_batches // phases
            for _ in range(target - at):
                next(it)
            at = target
            began = time.perf_counter()
            state = save(it)
            saves.append(1e3 * (time.perf_counter() - began))
            sizes.append(size(state))
            forget()
            took, batch, again = _first(start, state)
            second = next(again)
            _close(again)
            forget()
            fresh, _, other = _first(start, None)
            _close(other)
            first.append(took)
            cold.append(fresh)
            expected = next(it), next(it)
            at += 2
            _require_equal(expected, (batch, second), f"batch {target}")
        usual = statistics.median(cold)
        extra = [took - usual for took in first]
        worst = max(worst, *extra)
        found[str(depth)] = {
            "extra_ms": max(extra),
            "extra_median_ms": statistics.median(extra),
            "cold_ms": usual,
            "state_bytes": max(sizes),
            "checkpoint_ms": statistics.median(saves),
        }
    _close(it)
    return {"rate": 0.0, "units": len(depths) * phases, "depths": found, "extra_ms": worst}


def _first(start: Callable[[Any], Any], state: Any) -> tuple[float, Any, Iterator[Any]]:
    began = time.perf_counter()
    it = start(state)
    batch = next(it)
    return 1e3 * (time.perf_counter() - began), batch, it


def _close(it: Any) -> None:
    if callable(close := getattr(it, "close", None)):
        close()


def _require_equal(expected: Any, got: Any, where: str) -> None:
    for one, other in zip(expected, got, strict=True):
        for name in one:
            if not np.array_equal(one[name], other[name]):
                raise AssertionError(f"{where}: {name} after the resume differs from the run that went on")
