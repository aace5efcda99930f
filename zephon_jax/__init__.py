"""A JAX input pipeline with elastic determinism and bounded recovery.

Importing this package does not import jax: worker processes and notebooks decide for themselves when to.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from zephon_jax.columns import Binary, Column, Dense, Objects, Ragged
from zephon_jax.emit.iterator import PipelineIterator, Stats
from zephon_jax.errors import (
    AggregationFailed,
    AggregationTimeout,
    CheckpointMismatch,
    ConfigurationError,
    ContractViolation,
    DataError,
    WorkerError,
    ZephonError,
)
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops import Accumulator, Operator, OpTraits, RecordOperator, RowOperator
from zephon_jax.pipeline import Pipeline
from zephon_jax.sources import Dataset, Shard, Source
from zephon_jax.types import LaneContext, WorkChunk
from zephon_jax.work import MixtureSchedule, StaticMixtureWorkSource, WorkSource

if TYPE_CHECKING:
    from zephon_jax import testing
    from zephon_jax.bar import Progress, progress
    from zephon_jax.checkpoint.orbax import PipelineCheckpointHandler, PipelineRestore, PipelineSave
    from zephon_jax.display.timeline import Timeline
    from zephon_jax.inspection import Inspection, inspect
    from zephon_jax.picture import BatchPicture, RowPicture, explain_batch

__version__ = "0.1.0"

__all__ = [
    "Accumulator",
    "AggregationFailed",
    "AggregationTimeout",
    "BatchPicture",
    "Binary",
    "CheckpointMismatch",
    "Column",
    "ConfigurationError",
    "ContractViolation",
    "DataError",
    "Dataset",
    "Dense",
    "Inspection",
    "LaneContext",
    "MicroBatch",
    "MixtureSchedule",
    "Objects",
    "OpTraits",
    "Operator",
    "Pipeline",
    "PipelineCheckpointHandler",
    "PipelineIterator",
    "PipelineRestore",
    "PipelineSave",
    "Progress",
    "Ragged",
    "RecordOperator",
    "RowOperator",
    "RowPicture",
    "Shard",
    "Source",
    "StaticMixtureWorkSource",
    "Stats",
    "Timeline",
    "WorkChunk",
    "WorkSource",
    "WorkerError",
    "ZephonError",
    "explain_batch",
    "inspect",
    "progress",
    "testing",
]

_LAZY = {
    "BatchPicture": "picture",
    "Inspection": "inspection",
    "PipelineCheckpointHandler": "checkpoint.orbax",
    "PipelineRestore": "checkpoint.orbax",
    "PipelineSave": "checkpoint.orbax",
    "Progress": "bar",
    "RowPicture": "picture",
    "Timeline": "display.timeline",
    "explain_batch": "picture",
    "inspect": "inspection",
    "progress": "bar",
}
"""What is loaded when it is first used: what needs jax or Orbax, and what a training step does not need."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        found = getattr(importlib.import_module(f"zephon_jax.{_LAZY[name]}"), name)
        globals()[name] = found
        return found
    if name == "testing":
        return importlib.import_module("zephon_jax.testing")
    raise AttributeError(f"module 'zephon_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, "testing"})
