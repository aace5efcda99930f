"""Whether a state belongs to a pipeline (rule C6). Pure. The message names every difference; there is no warning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from zephon_jax.checkpoint.marks import changed_shards
from zephon_jax.checkpoint.schema import DatasetMark, LaneSnapshot, PipelineState
from zephon_jax.errors import CheckpointMismatch
from zephon_jax.origin import LINEAGE

__all__ = ["require_same_pipeline"]


def require_same_pipeline(
    state: PipelineState,
    *,
    lanes_total: int,
    differences: Sequence[str],
    datasets: Sequence[DatasetMark],
    lanes: Iterable[int],
    every: int | None,
    depth: int,
    known: bool = False,
    shard_names: Callable[[int], Sequence[str]] = lambda dataset: (),
) -> None:
    """Raise CheckpointMismatch unless the state can continue in this pipeline.

    `differences`: how the plans differ, in words. `lanes`: those that this process produces. `every`, `depth`: chunks in
    a flush epoch and expanding operators of this pipeline; `known`: it replays from what the state keeps of each sample.
    `shard_names`: of a dataset here, by its id, to name what changed.
    """
    found: list[str] = []
    if state.lanes_total != lanes_total:
        found.append(
            f"canonical_replicas: the checkpoint has {state.lanes_total} lanes, this pipeline {lanes_total}; "
            f"pass options(canonical_replicas={state.lanes_total})"
        )
    found += [d for d in differences if not d.startswith("canonical_replicas")]
    found += _datasets(state.datasets, datasets, shard_names)
    if not found:
        missing = sorted(set(lanes) - set(state.lanes))
        if missing:
            found.append(f"lanes {missing} are missing from the checkpoint, which has {sorted(state.lanes)}")
    if not found:
        found += [text for lane in lanes for text in _lane(state.lanes[lane], every, depth, known, len(datasets))]
    if found:
        raise CheckpointMismatch("the checkpoint belongs to another pipeline:\n  " + "\n  ".join(found))


def _datasets(
    saved: Sequence[DatasetMark], here: Sequence[DatasetMark], shard_names: Callable[[int], Sequence[str]]
) -> list[str]:
    if [d.name for d in saved] != [d.name for d in here]:
        return [f"datasets: the checkpoint has {[d.name for d in saved]}, this pipeline {[d.name for d in here]}"]
    out: list[str] = []
    for i, (a, b) in enumerate(zip(saved, here, strict=True)):
        if not a.same_content(b):
            which = changed_shards(a, b, shard_names(i))
            out.append(
                f"dataset {a.name!r}: its content changed (checkpoint: {a.num_samples} samples, fingerprint "
                f"{a.fingerprint}; now: {b.num_samples} samples, fingerprint {b.fingerprint})"
                + (f"; {which}" if which else "")
            )
    return out


def _lane(s: LaneSnapshot, every: int | None, depth: int, known: bool, datasets: int) -> list[str]:
    out: list[str] = []
    if any(len(c) and int(c.dataset.max()) >= datasets for c in s.chunks):
        out.append(f"lane {s.lane}: samples of a dataset beyond the {datasets} of this pipeline")
    if s.chunks and (s.known is not None) != known:
        out.append(f"lane {s.lane}: what became of the samples in flight is {'not ' if known else ''}in the state")
    if s.known is not None and s.known.shape[0] != LINEAGE + depth:
        parts = s.known.shape[0]
        out.append(f"lane {s.lane}: samples with {parts} parts of identity, this pipeline has {LINEAGE + depth}")
    if s.cursor is not None and len(s.cursor) != 2 + depth:
        out.append(f"lane {s.lane}: a cursor of {len(s.cursor)} parts, this pipeline has {2 + depth}")
    size = every or 1
    if s.chunks and every is None and len(s.chunks) != 1:
        out.append(f"lane {s.lane}: {len(s.chunks)} chunks in flight, this pipeline keeps one")
    if s.chunks and every is not None:
        end = s.first + len(s.chunks)
        boundaries = (s.first, end) if end % size == 0 else (s.first,)
        if s.first % size or len(s.chunks) > size or s.boundaries != boundaries:
            out.append(f"lane {s.lane}: sentinels at {list(s.boundaries)}, this pipeline flushes every {size} chunks")
    return out
