"""A JAX input pipeline with elastic determinism and bounded recovery.

Importing this package does not import jax: worker processes and notebooks decide for themselves when to. What needs
jax or Orbax is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zephon_jax.columns import Column, Dense, Objects, Ragged
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
from zephon_jax.picture import RowPicture, explain_batch
from zephon_jax.pipeline import Pipeline
from zephon_jax.sources import Dataset, Shard, Source
from zephon_jax.types import LaneContext, WorkChunk
from zephon_jax.work import MixtureSchedule, StaticMixtureWorkSource, WorkSource

if TYPE_CHECKING:
    from zephon_jax import testing
    from zephon_jax.checkpoint.orbax import PipelineCheckpointHandler, PipelineRestore, PipelineSave

__version__ = "0.1.0"

__all__ = [
    "Accumulator",
    "AggregationFailed",
    "AggregationTimeout",
    "CheckpointMismatch",
    "Column",
    "ConfigurationError",
    "ContractViolation",
    "DataError",
    "Dataset",
    "Dense",
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
    "Ragged",
    "RecordOperator",
    "RowOperator",
    "RowPicture",
    "Shard",
    "Source",
    "StaticMixtureWorkSource",
    "Stats",
    "WorkChunk",
    "WorkSource",
    "WorkerError",
    "ZephonError",
    "explain_batch",
    "testing",
]

_LAZY = {"PipelineCheckpointHandler", "PipelineRestore", "PipelineSave"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from zephon_jax.checkpoint import orbax

        return getattr(orbax, name)
    if name == "testing":
        import importlib

        return importlib.import_module("zephon_jax.testing")
    raise AttributeError(f"module 'zephon_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, "testing"})
