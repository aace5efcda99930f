"""check_resume: a pipeline, resumed after every batch, against the same pipeline uninterrupted."""

from __future__ import annotations

import copy
from typing import Any

from zephon_jax.checkpoint.codec import decode, encode
from zephon_jax.errors import ConfigurationError, ContractViolation
from zephon_jax.ops.base import checked_int
from zephon_jax.pipeline import Pipeline
from zephon_jax.testing.same import difference

__all__ = ["check_resume"]

_WAYS: tuple[dict[str, Any], ...] = (
    {"executor": "inline", "micro_batch_records": 1},
    {"executor": "threads", "micro_batch_records": 7, "max_workers": 2, "prefetch": 3},
    {"executor": "inline", "micro_batch_records": 64},
)


def check_resume(pipeline: Pipeline, *, batches: int) -> None:
    """Prove that a resume is exact at every cut of the first `batches` batches.

    The pipeline runs once as it is; then, at every cut, its checkpoint is restored into a fresh iterator, in turn with
    other executors and micro-batch sizes, which must deliver the same batches and, at the end, give the same checkpoint.

    Raises:
        ConfigurationError: Fewer batches came out.
        ContractViolation: Naming the cut, the batch and the field that differs.
    """
    checked_int("check_resume", "batches", batches, 1)
    whole: list[Any] = []
    states: list[bytes] = []
    with iter(pipeline) as it:
        states.append(encode(it.checkpoint()))
        for batch in it:
            whole.append(copy.deepcopy(batch))  # a later run may write into what this one returned
            states.append(encode(it.checkpoint()))
            if len(whole) == batches:
                break
    if len(whole) < batches:
        raise ConfigurationError(
            f"check_resume(batches={batches}): only {len(whole)} batches came out; ask for as many as there are, or give more data"
        )
    for cut, state in enumerate(states):
        way = _WAYS[cut % len(_WAYS)]
        _check_cut(pipeline.options(**way), cut, state, whole, states, f"resumed after batch {cut} with {way}")


def _check_cut(pipeline: Pipeline, cut: int, state: bytes, whole: list[Any], states: list[bytes], where: str) -> None:
    with iter(pipeline) as it:
        it.restore(decode(state))
        _require(encode(it.checkpoint()) == state, f"{where}: the checkpoint right after the restore is another")
        for t in range(cut, len(whole)):
            batch = next(it, None)
            _require(batch is not None, f"{where}: the stream ended before batch {t}")
            _require_same(batch, whole[t], f"{where}: batch {t}")
            _require(
                encode(it.checkpoint()) == states[t + 1],
                f"{where}: the checkpoint after batch {t} is another than in the uninterrupted run",
            )


def _require_same(batch: Any, expected: Any, where: str) -> None:
    text = difference(batch, expected)
    _require(text is None, f"{where}: {text}")


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise ContractViolation(f"the resume is not exact; {text}")
