"""From a described pipeline to a plan: stages, eviction strategy, flush interval, identity. Pure; nothing runs here.

Everything that can be wrong with a pipeline without reading data is found here, before the first batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zephon_jax.errors import ConfigurationError
from zephon_jax.lanes import default_lanes, divisors
from zephon_jax.ops.base import Accumulator, Operator, RecordOperator, RowOperator
from zephon_jax.ops.batch import Batch
from zephon_jax.ops.fetch import Fetch
from zephon_jax.options import Options
from zephon_jax.work.base import WorkSource

__all__ = ["Plan", "Stage", "Step", "compile_plan"]

_MIN_EPOCH_CHUNKS = 8
_BUFFERS_PER_EPOCH = 4  # else a shuffle mostly empties itself by flushes (rule P7)


@dataclass(frozen=True, slots=True)
class Step:
    """An operator at its place: `index` in the pipeline (fetch: -1), `level` its lineage index, -1 if it expands nothing."""

    op: RecordOperator | Accumulator[Any]
    index: int
    level: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Operators that run together: stateless ones in one task, or one accumulator in the lane's own thread."""

    steps: tuple[Step, ...]
    stateless: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What the engine runs.

    `every`: chunks in a flush epoch, None for a monotone pipeline. `depth`: number of expanding operators.
    `rows_per_lane`: R, or None without a batch operator (then records are delivered one by one). `identity`: plain
    values that a checkpoint of this pipeline must equal. `strategy`: why this eviction strategy, in words.
    `replays_on_lengths`: checkpoints keep what the stateless operators made of each sample in flight, so that a restore
    reads only what is still to be delivered; `keeps_lengths`: with the lengths of tokens.
    """

    work: WorkSource
    lanes: int
    stages: tuple[Stage, ...]
    batch: Batch | None
    rows_per_lane: int | None
    after_batch: tuple[RowOperator, ...]
    depth: int
    every: int | None
    options: Options
    identity: Mapping[str, Any]
    strategy: str
    replays_on_lengths: bool
    keeps_lengths: bool
    notes: tuple[str, ...]

    @property
    def operator_names(self) -> list[str]:
        """Of all operators before batch, in order; names that occur twice are numbered."""
        return list(self.names_by_index.values())

    @property
    def names_by_index(self) -> dict[int, str]:
        """An operator's index in the pipeline (fetch: -1) → its name, made unique."""
        names: dict[int, str] = {}
        for stage in self.stages:
            for step in stage.steps:
                taken = step.op.name in names.values()
                names[step.index] = f"{step.op.name}#{step.index}" if taken else step.op.name
        return names


def compile_plan(work: WorkSource, operators: Sequence[Operator], options: Options) -> Plan:
    """Check the pipeline and decide how it runs."""
    before, batch, after = _around_batch(operators)
    lanes = _lanes(batch, options)
    depth = 0
    steps = [Step(Fetch(work.datasets_by_id, skip_unreadable=options.on_data_error == "skip"), -1, -1)]
    for index, op in enumerate(before):
        steps.append(Step(op, index, depth if op.traits.expands else -1))
        depth += op.traits.expands
    every, strategy, notes = _eviction(before, options, work.chunk_size_hint)
    identity = {
        "work": dict(work.identity()),
        "operators": [dict(i) for op in (*before, *after) if (i := op.identity()) is not None],
        "canonical_replicas": lanes,
        "flush_every_k_chunks": every or 0,
        "on_data_error": options.on_data_error,
    }
    stages = _stages(steps)
    _check_executors(options, stages)
    # The first stage begins with fetch, so it is stateless; behind it there may be only such accumulators.
    lengths_only = options.deterministic and all(
        not s.stateless and s.steps[0].op.traits.replays_on_lengths for s in stages[1:]
    )
    keeps_lengths = lengths_only and any(s.steps[0].op.traits.uses_lengths for s in stages[1:])
    if keeps_lengths and any(step.op.traits.pads for step in stages[0].steps):
        lengths_only = keeps_lengths = False
    return Plan(
        work=work,
        lanes=lanes,
        stages=stages,
        batch=batch,
        rows_per_lane=None if batch is None else batch.rows_per_lane(lanes),
        after_batch=after,
        depth=depth,
        every=every,
        options=options,
        identity=identity,
        strategy=strategy,
        replays_on_lengths=lengths_only,
        keeps_lengths=keeps_lengths,
        notes=notes,
    )


def _around_batch(
    operators: Sequence[Operator],
) -> tuple[list[RecordOperator | Accumulator[Any]], Batch | None, tuple[RowOperator, ...]]:
    before: list[RecordOperator | Accumulator[Any]] = []
    after: list[RowOperator] = []
    batch: Batch | None = None
    for op in operators:
        match op:
            case Batch():
                if batch is not None:
                    raise ConfigurationError(f"{op.name}: the pipeline has {batch.name} already; batch once")
                batch = op
            case RowOperator():
                if batch is None:
                    raise ConfigurationError(f"{op.name} works on whole batches: put it after batch()")
                after.append(op)
            case RecordOperator() | Accumulator():
                if batch is not None:
                    raise ConfigurationError(
                        f"{op.name} stands after {batch.name}, where only operators that keep rows are allowed; put it before"
                    )
                before.append(op)
            case _:
                raise ConfigurationError(
                    f"{op.name}: {type(op).__qualname__} must derive from RecordOperator, Accumulator or RowOperator"
                )
    return before, batch, tuple(after)


def _lanes(batch: Batch | None, options: Options) -> int:
    size = batch.global_batch_size if batch else None
    lanes = options.canonical_replicas or default_lanes(size)
    if size is not None and size % lanes:
        raise ConfigurationError(
            f"canonical_replicas={lanes} does not divide global_batch_size={size}; it may be one of {divisors(size)}"
        )
    return lanes


def _eviction(
    before: Sequence[RecordOperator | Accumulator[Any]], options: Options, chunk_size: int
) -> tuple[int | None, str, tuple[str, ...]]:
    asked = options.flush_every_k_chunks
    reordering = [op for op in before if isinstance(op, Accumulator) or not op.traits.preserves_cursor_order]
    if not options.deterministic:
        buffer = max((op.traits.buffer_records for op in reordering), default=0)
        every = asked or max(_MIN_EPOCH_CHUNKS, -(-_BUFFERS_PER_EPOCH * buffer // max(chunk_size, 1)))
        return every, "epoch (deterministic=False: records leave as workers finish; no checkpoints)", ()
    if not reordering:
        notes = ()
        if asked:
            why = "keeps order and nothing between records; it is taken as 0"
            notes = (f"flush_every_k_chunks={asked} has no use in a pipeline that {why}",)
        return None, "monotone (every operator keeps cursor order and nothing between records)", notes
    why = ", ".join(op.name for op in reordering)
    if asked == 0:
        raise ConfigurationError(
            f"flush_every_k_chunks=0, but {why} keeps or reorders records: without flushes nothing could ever be evicted. "
            "Leave it out, or give the number of chunks between flushes"
        )
    buffer = max(op.traits.buffer_records for op in reordering)
    every = asked or max(_MIN_EPOCH_CHUNKS, -(-_BUFFERS_PER_EPOCH * buffer // max(chunk_size, 1)))
    return every, f"epoch (records are kept or reordered by {why})", ()


def _check_executors(options: Options, stages: Sequence[Stage]) -> None:
    """`options(executors=)` names operators that there are, by their whole name or by its part before the parenthesis."""
    names = [step.op.name for stage in stages if stage.stateless for step in stage.steps]
    known = {name.split("#")[0] for name in (*names, *(name.split("(")[0] for name in names))}
    unknown = sorted(name for name in options.executors or {} if name.split("#")[0] not in known)
    if unknown:
        raise ConfigurationError(
            f"options(executors=) names {unknown}; the operators that it can place are {names}. Give it after them"
        )


def _stages(steps: Sequence[Step]) -> tuple[Stage, ...]:
    stages: list[Stage] = []
    for step in steps:
        stateless = isinstance(step.op, RecordOperator)
        if stateless and stages and stages[-1].stateless:
            stages[-1] = Stage((*stages[-1].steps, step), True)
        else:
            stages.append(Stage((step,), stateless))
    return tuple(stages)
