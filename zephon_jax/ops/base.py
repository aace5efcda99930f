"""The contract of an operator.

There are three kinds. A `RecordOperator` turns a micro-batch into another and keeps nothing in between; it may run in
any worker. An `Accumulator` keeps records between calls (a packer, a shuffle buffer); it runs in order, per lane, and
its state is made anew for every flush epoch, so nothing can survive a sentinel. A `RowOperator` works on whole batches,
after `batch`, and keeps rows. Identity is never touched by hand: the verbs of `MicroBatch` do that, and after each call
the engine checks the law of conservation, so that a lost or doubled record is reported with the operator's name.
"""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from zephon_jax.errors import ConfigurationError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.types import LaneContext

__all__ = [
    "Accumulator",
    "Fields",
    "OpTraits",
    "Operator",
    "RecordFailure",
    "RecordOperator",
    "RowOperator",
    "callable_name",
    "checked_field",
    "checked_int",
]

State = TypeVar("State")


Fields: TypeAlias = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Per field of a record its shape and dtype."""


@dataclass(frozen=True, slots=True)
class OpTraits:
    """What the engine must know of an operator before it runs.

    Attributes:
        preserves_cursor_order: Records leave in the order in which they came, and nothing is kept between calls. If all
            operators before `batch` say so, a watermark is enough to evict chunks; else flush epochs are needed.
        expands: A record may become several (`MicroBatch.repeat`); gives the operator a child index in every cursor.
        buffer_records: The largest number of samples that an accumulator holds; decides how often to flush.
        replays_on_lengths: An accumulator whose decisions need nothing of a record but its identity and the length of
            its tokens (`MicroBatch.token_lengths`; its fields are not there in a replay). If all accumulators say so, a
            restore repeats decisions without reading what was delivered.
        uses_lengths: Its decisions do need that length, so checkpoints keep it.
        pads: Records leave with more tokens than they are made of, so that a length says no longer which tokens are whose; an
            accumulator behind it that needs lengths is replayed in full.
        keeps_count: Every record that comes in goes out, and no other: lets `steps_per_pass` count.
    """

    preserves_cursor_order: bool = True
    expands: bool = False
    buffer_records: int = 0
    replays_on_lengths: bool = False
    uses_lengths: bool = False
    pads: bool = False
    keeps_count: bool = False


class Operator(abc.ABC):  # noqa: B024 - what is abstract differs between the three kinds
    """Base of all operators. Subclass one of `RecordOperator`, `Accumulator` and `RowOperator`."""

    name: str = "operator"
    traits: OpTraits = OpTraits()

    def identity(self) -> Mapping[str, Any] | None:
        """Plain values that decide the output; a checkpoint of another identity is refused. None: may change freely.

        By default the class's qualified name. Include every parameter, and a version when the code's meaning changes.
        """
        return {"class": f"{type(self).__module__}.{type(self).__qualname__}"}

    def describe(self) -> str:
        """One line for `explain()`."""
        return self.name

    def fields(self, before: Fields | None) -> Fields | None:
        """What a record looks like behind this operator, given what it looks like before; None: not known without data.

        For operators after `batch`, one row of it.
        """
        return None


class RecordOperator(Operator):
    """Stateless: the output depends on the records alone, not on how they are cut into micro-batches."""

    @abc.abstractmethod
    def process(self, batch: MicroBatch) -> MicroBatch:
        """Called with up to some hundred records, possibly from several threads at once."""


class Accumulator(Operator, Generic[State]):
    """Keeps records of a lane between calls.

    The engine owns the state: `init_state` makes it, empty, at the start of each flush epoch of each lane; `push` and
    `flush` change it. The operator object itself must not change, since it serves all lanes.
    """

    traits: OpTraits = OpTraits(preserves_cursor_order=False)

    @abc.abstractmethod
    def init_state(self, ctx: LaneContext) -> State:
        """An empty state. Randomness may be keyed by `ctx` and by draws since then, by nothing else."""

    @abc.abstractmethod
    def push(self, state: State, batch: MicroBatch) -> MicroBatch:
        """Take records in; return those that leave, with all that was closed: `batch.without_records()` if none."""

    @abc.abstractmethod
    def flush(self, state: State) -> MicroBatch | None:
        """All records still held, in their final order; None if there are none. The state is thrown away afterwards."""

    def figures(self, state: State) -> Mapping[str, int]:
        """What this operator counts, since `init_state`: numbers by name, which `stats()` adds up."""
        return {}


class RowOperator(Operator):
    """Works on a batch, after `batch`: same rows, same order, other fields."""

    @abc.abstractmethod
    def process_rows(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """`batch`: arrays of shape (rows, ...). Every array returned must have as many rows."""

    def figures(self, batch: Mapping[str, NDArray[Any]]) -> Mapping[str, int]:
        """What this operator counts of a batch that it returned: numbers by name, which `stats()` adds up."""
        return {}


class RecordFailure(Exception):
    """Raised inside `process` when record `index` of the micro-batch failed; `__cause__` is the exception."""

    def __init__(self, index: int):
        super().__init__(index)
        self.index = index


def callable_name(fn: Any, name: str | None) -> str:
    """The identity of a function in checkpoints: the name given, or its qualified name with what it is bound to.

    A partial is named after its function and its arguments, an object or a bound method after its class and plain
    attributes. Arguments that are no plain values have no name that another process would give them as well.
    """
    if name is not None:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"name={name!r} must be a text: it stands for the function in checkpoints")
        return name
    if isinstance(fn, functools.partial):
        inner: Any = fn.func
        bound = [*(("", value) for value in fn.args), *fn.keywords.items()]
        if not all(_is_plain(value) for _, value in bound):
            raise ConfigurationError(
                f"a partial of {callable_name(inner, None)} with arguments that are no numbers or texts cannot be told from "
                "another in a checkpoint; pass name= (and version= when its meaning changes)"
            )
        shown = ", ".join(f"{key}={value!r}" if key else repr(value) for key, value in bound)
        return f"{callable_name(inner, None)}({shown})"
    found = getattr(fn, "__qualname__", None)
    owner = getattr(fn, "__self__", None) if found else fn
    if owner is None or isinstance(owner, type) or inspect.ismodule(owner):
        return found or type(fn).__qualname__
    attributes = {k: v for k, v in getattr(owner, "__dict__", {}).items() if _is_plain(v)}
    shown = ", ".join(f"{key}={value!r}" for key, value in sorted(attributes.items()))
    label = found or type(fn).__qualname__
    return f"{label}({shown})" if shown else label


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_is_plain(v) for v in value)
    return value is None or isinstance(value, (bool, int, float, str, bytes))


def checked_int(operator: str, parameter: str, value: Any, least: int, below: int = 2**31) -> int:
    """`value`, once it is known to be an integer in [least, below)."""
    what = f"{operator}({parameter}={value!r})"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ConfigurationError(f"{what} must be an integer")
    if not least <= value < below:
        raise ConfigurationError(f"{what} must be at least {least} and below {below}")
    return int(value)


def checked_field(operator: str, field: Any) -> str:
    """`field`, once it is known to be a name."""
    if not isinstance(field, str) or not field:
        raise ConfigurationError(f"{operator}(field={field!r}) must be the name of a field")
    return field


def used(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not None, False, 0 or empty: an identity leaves out what is not used, so that plans stay equal when an
    operator learns something new.
    """
    return {name: value for name, value in options.items() if value or isinstance(value, str)}


def function_identity(name: str, version: str | int | None) -> dict[str, Any]:
    """What a checkpoint remembers of a function. Bytecode is not hashed: cells are re-run and Pythons upgraded."""
    return {"function": name} if version is None else {"function": name, "version": str(version)}


def bool_mask(values: list[Any]) -> NDArray[np.bool_]:
    """Truth of each value."""
    return np.fromiter((bool(v) for v in values), np.bool_, len(values))
