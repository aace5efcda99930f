"""The fluent description of a pipeline. Nothing runs here: methods check what can be checked and return a new pipeline."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from zephon_jax.checkpoint.marks import DatasetMark, marks_of
from zephon_jax.emit.iterator import PipelineIterator
from zephon_jax.emit.rows import HostRound
from zephon_jax.emit.start import step_iterator
from zephon_jax.emit.topology import alone
from zephon_jax.engine.engine import Engine
from zephon_jax.errors import ConfigurationError
from zephon_jax.lanes import lanes_of_group
from zephon_jax.ops import (
    Batch,
    BucketByLength,
    Chat,
    EnsureMixture,
    Filter,
    FlatMap,
    LmTargets,
    Map,
    MapBatch,
    MapColumns,
    Operator,
    Pack,
    Pad,
    PadRows,
    RandomMap,
    Shuffle,
    Split,
    StatefulTransform,
    Tokenize,
)
from zephon_jax.ops.base import checked_int
from zephon_jax.ops.ensure import checked_shares
from zephon_jax.options import Options
from zephon_jax.plan.compile import Plan, compile_plan
from zephon_jax.plan.fields import require_field, row_fields, steps_per_pass
from zephon_jax.plan.flow import Shown, available_cpus
from zephon_jax.work.base import WorkSource

if TYPE_CHECKING:
    from jax.sharding import NamedSharding

__all__ = ["Pipeline"]


_TRANSFORMS = ("map", "random_map", "filter", "flat_map")


@dataclass(frozen=True)
class Pipeline(Shown):
    """What to do with the samples of a work source, in order.

    Immutable: each method returns a new pipeline, so one can be forked for training and evaluation. `iter(pipeline)`,
    `to_local` and `to_global` start iterators, any number of them, each with operators' state of its own.

    >>> import zephon_jax as zj
    >>> numbers = zj.Dataset.from_source("numbers", range(10))
    >>> work = zj.StaticMixtureWorkSource(numbers, shuffle_shards=False)
    >>> pipeline = zj.Pipeline(work).map(lambda r: {"x": r["value"] * 2}, name="double").batch(4)
    >>> [batch["x"].tolist() for batch in pipeline]
    [[0, 2, 4, 6], [8, 10, 12, 14]]
    """

    work: WorkSource
    operators: tuple[Operator, ...] = ()
    settings: Options = field(default_factory=Options)
    _repr_pretty_ = Shown._repr_pretty_  # here, or a terminal would take the dataclass's repr

    def __post_init__(self) -> None:
        if not isinstance(self.work, WorkSource):
            raise ConfigurationError(
                f"Pipeline needs a WorkSource such as StaticMixtureWorkSource, got {type(self.work).__name__}; "
                "for a Dataset write Pipeline(StaticMixtureWorkSource(dataset))"
            )

    # -- operators -------------------------------------------------------------------------------------------------
    def apply(self, op: Any) -> Pipeline:
        """Append an operator of your own: a `RecordOperator`, an `Accumulator` or, after batch, a `RowOperator`.

        A Grain transform class (with a method `map`, `random_map`, `filter` or `flat_map`) is taken as that method.
        """
        if not isinstance(op, Operator):
            for method in _TRANSFORMS:
                if callable(getattr(op, method, None)):
                    return getattr(self, method)(op)
            raise ConfigurationError(
                f"apply needs an Operator, or an object with one of the methods {list(_TRANSFORMS)}, got "
                f"{type(op).__name__}; for a function use map or filter"
            )
        grown = replace(self, operators=(*self.operators, op))
        grown._compile_operators()
        return grown

    def map(self, fn: Any, *, name: str | None = None, version: str | int | None = None) -> Pipeline:
        """`fn(record) -> record` for each record; a Grain MapTransform works too. See `zephon_jax.ops.Map`."""
        return self.apply(Map(fn, name=name, version=version))

    def filter(self, fn: Any, *, name: str | None = None, version: str | int | None = None) -> Pipeline:
        """Keep the records for which `fn(record)` is true. See `zephon_jax.ops.Filter`."""
        return self.apply(Filter(fn, name=name, version=version))

    def flat_map(self, fn: Any, *, name: str | None = None, version: str | int | None = None) -> Pipeline:
        """`fn(record)` returns or yields any number of records. See `zephon_jax.ops.FlatMap`."""
        return self.apply(FlatMap(fn, name=name, version=version))

    def random_map(
        self, fn: Any, *, seed: int = 0, name: str | None = None, version: str | int | None = None
    ) -> Pipeline:
        """`fn(record, rng) -> record` with a generator of the record's own. See `zephon_jax.ops.RandomMap`."""
        return self.apply(RandomMap(fn, seed=seed, name=name, version=version))

    def map_columns(self, fn: Any, *, name: str | None = None, version: str | int | None = None) -> Pipeline:
        """`fn(columns) -> columns` for many records at once. See `zephon_jax.ops.MapColumns`."""
        return self.apply(MapColumns(fn, name=name, version=version))

    def tokenize(
        self,
        tokenizer: Any,
        *,
        field: str = "text",
        add_bos: bool | int | None = None,
        add_eos: bool | int | None = None,
        max_length: int | None = None,
        keep_offsets: bool = False,
        name: str | None = None,
        version: str | int | None = None,
    ) -> Pipeline:
        """Replace the text in `field` by int32 `tokens`. See `zephon_jax.ops.Tokenize`."""
        self._check_field(field, "tokenize")
        op = Tokenize(
            tokenizer,
            field=field,
            add_bos=add_bos,
            add_eos=add_eos,
            max_length=max_length,
            keep_offsets=keep_offsets,
            name=name,
            version=version,
        )
        return self.apply(op)

    def chat(
        self,
        tokenizer: Any,
        template: str | None = None,
        *,
        field: str = "messages",
        train_on: Iterable[str] = ("assistant",),
        context: Iterable[str] = (),
        max_length: int | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
    ) -> Pipeline:
        """Replace a list of messages by `tokens` and `loss_mask`. See `zephon_jax.ops.Chat`."""
        self._check_field(field, "chat")
        op = Chat(
            tokenizer,
            template,
            field=field,
            train_on=train_on,
            context=context,
            max_length=max_length,
            bos_token=bos_token,
            eos_token=eos_token,
        )
        return self.apply(op)

    def split(
        self,
        max_length: int | None = None,
        *,
        field: str = "tokens",
        overlap: int = 0,
        separators: Iterable[int | str] | None = None,
        keep_separator: bool = True,
    ) -> Pipeline:
        """Cut `field` into records of at most `max_length`, or at separators. See `zephon_jax.ops.Split`."""
        self._check_field(field, "split")
        return self.apply(
            Split(max_length, field=field, overlap=overlap, separators=separators, keep_separator=keep_separator)
        )

    def pack(
        self,
        max_length: int | Mapping[str, int],
        *,
        algorithm: Literal["first_fit", "best_fit", "wrap", "best_fit_wrap"] = "first_fit",
        num_bins: int = 16,
        on_overlong: Literal["split", "truncate", "drop", "error"] = "split",
        max_segments: int | None = None,
        keep: Iterable[str] = (),
        separate_datasets: bool = False,
        separate_by: str | None = None,
    ) -> Pipeline:
        """Pack `tokens` of several records into rows of `max_length`. See `zephon_jax.ops.Pack`."""
        op = Pack(
            max_length,
            algorithm=algorithm,
            num_bins=num_bins,
            on_overlong=on_overlong,
            max_segments=max_segments,
            keep=keep,
            separate_datasets=separate_datasets,
            separate_by=separate_by,
        )
        for field_name in op.field_names:
            self._check_field(field_name, "pack")
        return self.apply(op)

    def shuffle(self, buffer_size: int, *, seed: int = 0) -> Pipeline:
        """Reorder records through a buffer of at most `buffer_size` per lane. See `zephon_jax.ops.Shuffle`."""
        return self.apply(Shuffle(buffer_size, seed=seed))

    def ensure_mixture(
        self,
        *,
        weight_by: Literal["tokens", "samples"] = "tokens",
        max_buffer_size: int = 1000,
        mixture: Mapping[str, float] | None = None,
    ) -> Pipeline:
        """Reorder records so that each dataset keeps its share. See `zephon_jax.ops.EnsureMixture`.

        `mixture`: dataset name → weight; left out, that of the work source.
        """
        names = {i: dataset.name for i, dataset in self.work.datasets_by_id.items()}
        shares = checked_shares(mixture, self.work.mixture, names)
        return self.apply(EnsureMixture(shares, names, weight_by=weight_by, max_buffer_size=max_buffer_size))

    def bucket_by_length(self, boundaries: Sequence[int], rows: int, *, field: str = "tokens") -> Pipeline:
        """Let records of like length go together, `rows` at a time. See `zephon_jax.ops.BucketByLength`."""
        self._check_field(field, "bucket_by_length")
        return self.apply(BucketByLength(boundaries, rows, field=field))

    def pad(
        self,
        length: int,
        *,
        on_overlong: Literal["truncate", "drop", "error"] = "error",
        keep: Iterable[str] = (),
    ) -> Pipeline:
        """Pad `tokens` to `length`, one record per row. See `zephon_jax.ops.Pad`."""
        self._check_field("tokens", "pad")
        return self.apply(Pad(length, on_overlong=on_overlong, keep=keep))

    def pad_rows(
        self, boundaries: Sequence[int] | int | None = None, *, fields: Iterable[str] | None = None
    ) -> Pipeline:
        """After `batch`, pad rows of unequal lengths to one. See `zephon_jax.ops.PadRows`."""
        return self.apply(PadRows(boundaries, fields=fields))

    def stateful_transform(
        self,
        name: str,
        *,
        init_state: Callable[[], Any],
        push: Callable[[Any, dict[str, Any]], Iterable[Mapping[str, Any]]],
        flush: Callable[[Any], Iterable[Mapping[str, Any]]],
        preserves_cursor_order: bool = True,
        version: str | int | None = None,
    ) -> Pipeline:
        """A function with a memory over the records of a lane. See `zephon_jax.ops.StatefulTransform`."""
        return self.apply(
            StatefulTransform(
                name,
                init_state=init_state,
                push=push,
                flush=flush,
                preserves_cursor_order=preserves_cursor_order,
                version=version,
            )
        )

    def map_batch(self, fn: Any, *, name: str | None = None, version: str | int | None = None) -> Pipeline:
        """`fn(batch) -> batch` after `batch`, which must keep rows. See `zephon_jax.ops.MapBatch`."""
        return self.apply(MapBatch(fn, name=name, version=version))

    def batch(
        self, batch_size: int | None = None, *, global_batch_size: int | None = None, drop_last: bool = True
    ) -> Pipeline:
        """Rows per lane and round, or rows of the whole step over all lanes. See `zephon_jax.ops.Batch`."""
        return self.apply(Batch(batch_size, global_batch_size=global_batch_size, drop_last=drop_last))

    def lm_targets(
        self,
        names: Literal["plain", "maxtext", "seqio"] = "plain",
        *,
        positions: Literal["document", "row"] = "document",
        across_documents: bool = False,
        count: bool = False,
    ) -> Pipeline:
        """Shift rows into inputs and targets with loss weights. See `zephon_jax.ops.LmTargets`."""
        return self.apply(LmTargets(names, positions=positions, across_documents=across_documents, count=count))

    def options(self, **options: Any) -> Pipeline:
        """Set options by name; see `Options`. Later calls override earlier ones."""
        unknown = sorted(set(options) - set(Options.names()))
        if unknown:
            raise ConfigurationError(f"options has no {unknown}; there are {Options.names()}")
        changed = replace(self, settings=replace(self.settings, **options))
        changed._compile_operators()
        return changed

    # -- looking at it ---------------------------------------------------------------------------------------------
    def explain(self) -> str:
        """Stages, places, executors, parallelism, bounds of queues, eviction strategy and the replay filter, as text."""
        return str(self)

    def element_spec(
        self,
        sharding: NamedSharding | Mapping[str, NamedSharding] | None = None,
        *,
        accumulate: int | None = None,
        end: Literal["drop", "pad"] = "drop",
        dtypes: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Field → `jax.ShapeDtypeStruct` of what `to_global` with these arguments gives, without reading data.

        Known for pipelines that end in `pack` and `lm_targets`; a map or another operator of one's own hides shapes, and
        the error names it.
        """
        from zephon_jax.emit.sharding import step_spec

        plan = self._plan()
        return step_spec(plan, row_fields(plan), sharding, accumulate=accumulate, end=end, dtypes=dtypes or {})

    def steps_per_pass(self) -> int | None:
        """Whole steps in one pass over the dataset, or until each of several has completed one.

        None where packing or filtering makes it unknown, or the work source does not say.
        """
        return steps_per_pass(self._plan())

    # -- iterating -------------------------------------------------------------------------------------------------
    def __iter__(self) -> PipelineIterator:
        """NumPy batches of one lane at a time, round-robin over the owned lanes; records where there is no batch()."""
        plan = self._checked_plan()
        degree, group = plan.options.dp_degree, plan.options.dp_group_id
        lanes = range(plan.lanes) if degree is None or group is None else lanes_of_group(group, degree, plan.lanes)
        return PipelineIterator(
            plan, self._marks(), lanes, available_cpus(), Engine.batches, by_round=False, prefetch=plan.options.prefetch
        )

    def steps(self, *, end: Literal["drop", "pad"] = "drop") -> PipelineIterator:
        """Whole steps on the host, without a sharding: NumPy arrays of all lanes' rows, for looking at what comes."""
        plan = self._checked_plan()
        if plan.rows_per_lane is None:
            raise ConfigurationError("steps() needs a batch() in the pipeline")
        topology, ahead = alone(range(plan.lanes)), plan.options.prefetch
        return step_iterator(
            plan, self._marks(), available_cpus(), topology, _as_joined, prefetch=ahead, dtypes=None, end=end
        )

    def to_local(
        self,
        sharding: NamedSharding | Mapping[str, NamedSharding],
        *,
        end: Literal["drop", "pad"] = "drop",
        dtypes: Mapping[str, Any] | None = None,
        prefetch: int | None = None,
    ) -> PipelineIterator:
        """This process's rows of each global batch, as NumPy arrays: what a loader that makes its own arrays expects.

        They are the rows that its devices hold under `sharding`, ascending; the arguments are those of `to_global`.
        """
        from zephon_jax.emit.sharding import local_batch, placement_of

        plan = self._checked_plan()
        place = placement_of(plan, sharding, end)
        finish, ahead = local_batch(dtypes or {}, place), self._ahead(prefetch)
        return step_iterator(
            plan, self._marks(), available_cpus(), place.topology, finish, prefetch=ahead, dtypes=dtypes, end=end
        )

    def to_global(
        self,
        sharding: NamedSharding | Mapping[str, NamedSharding],
        *,
        accumulate: int | None = None,
        end: Literal["drop", "pad"] = "drop",
        dtypes: Mapping[str, Any] | None = None,
        prefetch: int | None = None,
    ) -> PipelineIterator:
        """Dicts of global `jax.Array`s, one per step, made ahead of the consumer; all lanes stop after the same step.

        Call it on every process, with a mesh over the devices of all; each makes the rows that its own devices hold.

        Args:
            sharding: One NamedSharding, whose spec is cut to each leaf's rank, or one per field. The first axis of every
                leaf is the batch axis; other axes may be sharded too.
            accumulate: So many batches as one step, of shape (accumulate, rows, ...) with the spec `P(None, *spec)`: slice a
                of step t is batch t * accumulate + a.
            end: Of finite data: "drop", after the last step that all lanes fill; or "pad", once every lane has ended, with
                zeros for rows that are lacking, and a bool field `row_valid` of shape (rows,) in every step.
            dtypes: Field → dtype, cast on the host. Left out, int64 becomes int32 (range checked) and float64 float32.
            prefetch: Steps made ahead; by default the pipeline's.

        Raises:
            ConfigurationError: The sizes do not fit the mesh; the message lists those that do.
        """
        from zephon_jax.emit.sharding import device_batch, placement_of

        plan = self._checked_plan()
        place = placement_of(plan, sharding, end)
        if accumulate is not None:
            accumulate = checked_int("to_global", "accumulate", accumulate, 1)
        finish, ahead = device_batch(sharding, dtypes or {}, place, accumulate), self._ahead(prefetch)
        return step_iterator(
            plan, self._marks(), available_cpus(), place.topology, finish, prefetch=ahead, dtypes=dtypes, end=end,
            accumulate=accumulate,
        )  # fmt: skip

    def _ahead(self, prefetch: int | None) -> int:
        return self.settings.prefetch if prefetch is None else checked_int("to_global", "prefetch", prefetch, 1)

    # -- checks ----------------------------------------------------------------------------------------------------
    def _plan(self) -> Plan:
        return compile_plan(self.work, self.operators, self.settings)

    def _compile_operators(self) -> None:
        """Mistakes in the order and options of operators are raised in the caller's frame, where they are made."""
        self._plan()

    def _checked_plan(self) -> Plan:
        plan = self._plan()
        for note in plan.notes:
            warnings.warn(note, stacklevel=3)
        self.work.check_lanes(plan.lanes)
        return plan

    def _check_field(self, name: str, operator: str) -> None:
        """A field that no sample has, named directly behind the source, is a misspelling."""
        if all(isinstance(op, Filter) for op in self.operators):  # else a map may have made it
            require_field(self.work.datasets_by_id.values(), name, operator)

    def _marks(self) -> list[DatasetMark]:
        return marks_of(self.work.datasets_by_id)


def _as_joined(joined: HostRound) -> HostRound:
    return joined
