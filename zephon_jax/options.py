"""Options of a pipeline, frozen; units stand in the names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, fields
from typing import Any, Literal

from zephon_jax.errors import ConfigurationError

__all__ = ["Options"]

_EXECUTORS = ("threads", "processes", "inline", "auto")


@dataclass(frozen=True, slots=True)
class Options:
    """How a pipeline runs.

    Attributes:
        canonical_replicas: Number of lanes L. None: the largest divisor of `global_batch_size` up to 8, or 1.
        flush_every_k_chunks: Chunks in a flush epoch. None: chosen from the largest buffer.
        executor: "threads" (a pool, and batches made ahead), "processes" (the operators that keep nothing in processes),
            "inline" (everything inside `next`), "auto" (threads, processes or neither, as the first micro-batches show), or a
            `concurrent.futures.Executor` that they are submitted to.
        executors: Operator, by its name in `explain()` or the part before the parenthesis → "threads", "processes" or
            "executor": where it runs if not where `executor` says.
        max_workers: Threads or processes of the pool, or tasks at a time elsewhere. None: the number of CPUs, at most 8.
        operator_timeout_s: A micro-batch that stays in one operator for longer is an error. None: no limit.
        prefetch: Batches made ahead of the consumer.
        prefetch_bytes: Bytes that may wait: half for batches made ahead, half for records between operators. One batch, and
            a record at a time, always may.
        micro_batch_records: Records per call of an operator. None: some hundred, as many as make about half a megabyte, and fewer
            where a process has many lanes. Never changes the output.
        deterministic: False hands on micro-batches as workers finish them: lower latency, another order in every run, and
            no checkpoints.
        on_data_error: "raise", or "skip" samples whose content is broken.
        max_skipped: More skipped samples than this in a lane are an error.
        dp_degree, dp_group_id: Without a sharding, `iter` owns the lanes of this data-parallel group of so many.
        world_size, global_rank: Without a sharding, how many ranks there are, and which one this is; with `dp_degree` and
            jax.distributed they may be left out.
        aggregate_dir: Where `checkpoint()` puts the states of several ranks together: a directory, or a gs:// or s3:// URL.
        aggregate_store: "jax://", the key-value store of jax.distributed, which is the default where it is initialised.
        aggregate_timeout_s: Seconds that one such round may take, in all.
        run_id: Tells runs apart that share a directory; the same on all ranks, and after a restart.
    """

    canonical_replicas: int | None = None
    flush_every_k_chunks: int | None = None
    executor: str | Executor = "threads"
    executors: Mapping[str, str] | None = None
    max_workers: int | None = None
    operator_timeout_s: float | None = None
    prefetch: int = 2
    prefetch_bytes: int = 4 << 30
    micro_batch_records: int | None = None
    deterministic: bool = True
    on_data_error: Literal["raise", "skip"] = "raise"
    max_skipped: int | None = None
    dp_degree: int | None = None
    dp_group_id: int | None = None
    world_size: int | None = None
    global_rank: int | None = None
    aggregate_dir: str | os.PathLike[str] | None = None
    aggregate_store: str | None = None
    aggregate_timeout_s: float = 180.0
    run_id: str | None = None

    @property
    def first_records(self) -> int:
        """Records of a micro-batch as long as nothing is known of them."""
        return self.micro_batch_records or 128

    def __post_init__(self) -> None:
        _at_least(self, 1, "canonical_replicas", "max_workers", "prefetch", "micro_batch_records", "dp_degree")
        _at_least(self, 1, "prefetch_bytes")
        _at_least(self, 0, "flush_every_k_chunks", "max_skipped", "dp_group_id")
        self._check_executors()
        if not isinstance(self.deterministic, bool):
            raise ConfigurationError(f"options(deterministic={self.deterministic!r}) must be True or False")
        if self.on_data_error not in ("raise", "skip"):
            raise ConfigurationError(f"options(on_data_error={self.on_data_error!r}) must be 'raise' or 'skip'")
        if self.max_skipped is not None and self.on_data_error != "skip":
            raise ConfigurationError("options(max_skipped=) has a meaning with on_data_error='skip' only")
        if (self.dp_degree is None) != (self.dp_group_id is None):
            raise ConfigurationError("options(dp_degree=, dp_group_id=) must be given together")
        self._check_ranks()

    def _check_executors(self) -> None:
        executor, chosen = self.executor, self.executors
        if not isinstance(executor, Executor) and executor not in _EXECUTORS:
            raise ConfigurationError(
                f"options(executor={executor!r}) must be one of {list(_EXECUTORS)}, or a concurrent.futures.Executor"
            )
        if chosen is not None:
            allowed = ("threads", "executor") if isinstance(executor, Executor) else ("threads", "processes")
            wrong = {k: v for k, v in chosen.items() if v not in allowed} if isinstance(chosen, Mapping) else chosen
            if wrong or executor == "inline":
                raise ConfigurationError(
                    f"options(executors={chosen!r}) must name operators with one of {list(allowed)}, and needs an executor "
                    "other than 'inline'"
                )
        if (limit := self.operator_timeout_s) is not None:
            _seconds("operator_timeout_s", limit)
            if executor == "inline":
                raise ConfigurationError(
                    "options(operator_timeout_s=) needs an executor other than 'inline', where nobody could interrupt"
                )

    def _check_ranks(self) -> None:
        _at_least(self, 1, "world_size")
        _at_least(self, 0, "global_rank")
        if (self.world_size is None) != (self.global_rank is None):
            raise ConfigurationError("options(world_size=, global_rank=) must be given together")
        if self.world_size is not None and self.global_rank is not None and self.global_rank >= self.world_size:
            raise ConfigurationError(
                f"options(global_rank={self.global_rank}) must be below world_size={self.world_size}; ranks count from 0"
            )
        if self.aggregate_dir is not None and self.aggregate_store is not None:
            raise ConfigurationError("options(aggregate_dir=) and options(aggregate_store=) exclude each other")
        if self.aggregate_dir is not None and (
            not isinstance(self.aggregate_dir, (str, os.PathLike)) or not os.fspath(self.aggregate_dir)
        ):
            raise ConfigurationError(
                f"options(aggregate_dir={self.aggregate_dir!r}) must be a path, or a gs:// or s3:// URL"
            )
        if self.aggregate_store not in (None, "jax://"):
            raise ConfigurationError(
                f"options(aggregate_store={self.aggregate_store!r}) must be 'jax://'; for storage, pass aggregate_dir="
            )
        _seconds("aggregate_timeout_s", self.aggregate_timeout_s)
        if self.run_id is not None and (
            not isinstance(self.run_id, str) or not self.run_id or "/" in self.run_id or len(self.run_id) > 100
        ):
            raise ConfigurationError(
                f"options(run_id={self.run_id!r}) must be a text of 1 to 100 characters without a slash"
            )

    @classmethod
    def names(cls) -> list[str]:
        """All options there are."""
        return [f.name for f in fields(cls)]


def _seconds(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ConfigurationError(f"options({name}={value!r}) must be a number of seconds above 0")


def _at_least(options: Options, least: int, *names: str) -> None:
    for name in names:
        value: Any = getattr(options, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigurationError(f"options({name}={value!r}) must be an integer")
        if value < least:
            raise ConfigurationError(f"options({name}={value}) must be at least {least}")
