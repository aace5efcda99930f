"""Options of a pipeline, frozen; units stand in the names."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from zephon_jax.errors import ConfigurationError

__all__ = ["Options"]

_EXECUTORS = ("threads", "inline")


@dataclass(frozen=True, slots=True)
class Options:
    """How a pipeline runs.

    Attributes:
        canonical_replicas: Number of lanes L. None: the largest divisor of `global_batch_size` up to 8, or 1.
        flush_every_k_chunks: Chunks in a flush epoch. None: chosen from the largest buffer.
        executor: "threads" (a pool, and batches made ahead) or "inline" (everything inside `next`).
        max_workers: Threads of the pool. None: the number of CPUs, at most 8.
        prefetch: Batches made ahead of the consumer.
        micro_batch_records: Records per call of an operator. Never changes the output.
        deterministic: False hands on micro-batches as workers finish them: lower latency, another order in every run, and
            no checkpoints.
        on_data_error: "raise", or "skip" samples whose content is broken.
        max_skipped: More skipped samples than this in a lane are an error.
        dp_degree, dp_group_id: Without a sharding, `iter` owns the lanes of this data-parallel group of so many.
    """

    canonical_replicas: int | None = None
    flush_every_k_chunks: int | None = None
    executor: str = "threads"
    max_workers: int | None = None
    prefetch: int = 2
    micro_batch_records: int = 128
    deterministic: bool = True
    on_data_error: Literal["raise", "skip"] = "raise"
    max_skipped: int | None = None
    dp_degree: int | None = None
    dp_group_id: int | None = None

    def __post_init__(self) -> None:
        _at_least(self, 1, "canonical_replicas", "max_workers", "prefetch", "micro_batch_records", "dp_degree")
        _at_least(self, 0, "flush_every_k_chunks", "max_skipped", "dp_group_id")
        if self.executor not in _EXECUTORS:
            raise ConfigurationError(f"options(executor={self.executor!r}) must be one of {list(_EXECUTORS)}")
        if not isinstance(self.deterministic, bool):
            raise ConfigurationError(f"options(deterministic={self.deterministic!r}) must be True or False")
        if self.on_data_error not in ("raise", "skip"):
            raise ConfigurationError(f"options(on_data_error={self.on_data_error!r}) must be 'raise' or 'skip'")
        if self.max_skipped is not None and self.on_data_error != "skip":
            raise ConfigurationError("options(max_skipped=) has a meaning with on_data_error='skip' only")
        if (self.dp_degree is None) != (self.dp_group_id is None):
            raise ConfigurationError("options(dp_degree=, dp_group_id=) must be given together")

    @classmethod
    def names(cls) -> list[str]:
        """All options there are."""
        return [f.name for f in fields(cls)]


def _at_least(options: Options, least: int, *names: str) -> None:
    for name in names:
        value: Any = getattr(options, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigurationError(f"options({name}={value!r}) must be an integer")
        if value < least:
            raise ConfigurationError(f"options({name}={value}) must be at least {least}")
