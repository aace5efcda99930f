"""What the standard work source is given, checked: datasets, weights, and values that hold for all datasets or by name.

A mistake is found here, in the frame of the caller who made it, and the message lists what would be right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import Any, Literal, SupportsIndex, TypeAlias, TypeVar, cast

import numpy as np

from zephon_jax.errors import ConfigurationError
from zephon_jax.types import Int64s
from zephon_jax.work.base import WorkDataset
from zephon_jax.work.cursor import AUTO_BLOCK_SIZE, block_size_of
from zephon_jax.work.permutation import MAX_SIZE
from zephon_jax.work.schedule import checked_weights
from zephon_jax.work.segments import Passes

__all__ = [
    "ExhaustedPolicy",
    "checked_blocks",
    "checked_choice",
    "checked_datasets",
    "checked_int",
    "checked_named_weights",
    "checked_names",
    "checked_passes",
    "checked_totals",
    "one_or_named",
]

ExhaustedPolicy: TypeAlias = Literal["stop", "repeat"] | None
"""What happens when a dataset has completed its passes; see `StaticMixtureWorkSource`."""

T = TypeVar("T")

_LEAST_HINT, _MOST_HINT = 64, 1024  # smaller blocks cost a read each for little, larger ones mix too few places


def checked_int(name: str, value: object, least: int) -> int:
    """`value` as an int from `least` to 2**63 - 1."""
    number = index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else least - 1
    if not least <= number < 2**63:
        raise ConfigurationError(f"{name}={value!r}: give an integer from {least} to 2**63 - 1.")
    return number


def checked_choice(name: str, value: object, choices: Sequence[str | None]) -> None:
    """Raise `ConfigurationError` unless `value` is one of these."""
    if value not in choices:
        shown = [repr(c).replace("'", '"') for c in choices]
        raise ConfigurationError(f"{name}={value!r}: give {', '.join(shown[:-1])} or {shown[-1]}.")


def checked_datasets(datasets: WorkDataset | Sequence[WorkDataset]) -> tuple[WorkDataset, ...]:
    """The datasets, at least one, with different names."""
    single = hasattr(datasets, "shards")  # asked first: a dataset may itself be a sequence, of samples
    if not single and (isinstance(datasets, (str, bytes, Mapping)) or not isinstance(datasets, Iterable)):
        raise ConfigurationError(f"a work source needs a Dataset or a list of them, got {type(datasets).__name__}.")
    found = (cast(WorkDataset, datasets),) if single else tuple(cast(Iterable[WorkDataset], datasets))
    if not found:
        raise ConfigurationError("a work source needs at least one dataset, got none.")
    for dataset in found:
        if not hasattr(dataset, "shards") or not hasattr(dataset, "name"):
            raise ConfigurationError(
                f"a work source needs Datasets, got {type(dataset).__name__}; make one with Dataset.from_path or from_source."
            )
    names = [dataset.name for dataset in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"datasets need different names, but {', '.join(map(repr, twice))} came more than once. "
            "Rename one: dataset.rename(name)."
        )
    return found


def checked_totals(names: Sequence[str], sizes: Sequence[Int64s]) -> list[int]:
    """Samples of each dataset, none without."""
    totals = [int(size.sum()) for size in sizes]
    empty = [name for name, total in zip(names, totals, strict=True) if not total]
    if empty:
        raise ConfigurationError(f"no samples in {', '.join(map(repr, empty))}. Leave it out, or check its path.")
    if sum(totals) > MAX_SIZE:
        raise ConfigurationError(f"{sum(totals):,} samples in all: up to 2**48 are possible. Use fewer.")
    return totals


def checked_names(argument: str, given: Sequence[str], names: Sequence[str], *, all_of: str | None = None) -> None:
    """Raise `ConfigurationError` if `given` holds other names than these, or lacks one where `all_of` it need a value."""
    unknown = [name for name in given if name not in names]
    if unknown:
        known = ", ".join(map(repr, names))
        raise ConfigurationError(f"{argument} names {', '.join(map(repr, unknown))}, but the datasets are {known}.")
    missing = [name for name in names if name not in given]
    if all_of is not None and missing:
        raise ConfigurationError(
            f"{argument} has no {all_of} for {', '.join(map(repr, missing))}. Give one, or leave the dataset out."
        )


def checked_named_weights(argument: str, given: Mapping[str, float], names: Sequence[str], what: str) -> list[float]:
    """A positive number for each of these names, in their order."""
    checked_names(argument, list(given), names, all_of=what)
    checked_weights(argument, given, zero_allowed=False)
    return [given[name] for name in names]


def _each(
    argument: str, value: T | Mapping[str, T] | None, names: Sequence[str], check: Callable[[str, T], T]
) -> list[T | None]:
    """The value of each dataset: the one given, or its own in a dictionary by name; `None` where it has none."""
    if not isinstance(value, Mapping):
        checked = None if value is None else check(argument, value)
        return [checked] * len(names)
    named = cast(Mapping[str, T], value)
    checked_names(argument, list(named), names)
    return [None if named.get(name) is None else check(f"{argument}[{name!r}]", named[name]) for name in names]


def one_or_named(names: Sequence[str], values: Sequence[Any]) -> Any:
    """How a checkpoint remembers such values: as one where all are equal, else by name, without those that are None."""
    if all(value == values[0] for value in values):
        return values[0]
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def checked_passes(
    names: Sequence[str], totals: Sequence[int], stop_after_passes: Any, exhausted_policy: Any, max_repeats: Any
) -> tuple[list[Passes], dict[str, Any]]:
    """What each dataset's passes decide, and the three arguments as a checkpoint remembers them."""

    def policy_of(argument: str, value: Any) -> Any:
        checked_choice(argument, value, ("stop", "repeat", None))
        return value

    def number(least: int) -> Callable[[str, Any], Any]:
        return lambda argument, value: checked_int(argument, value, least)

    passes = _each("stop_after_passes", stop_after_passes, names, number(1))
    policies = _each("exhausted_policy", exhausted_policy, names, policy_of)
    repeats = _each("max_repeats", max_repeats, names, number(0))
    found: list[Passes] = []
    for name, total, n, policy, m in zip(names, totals, passes, policies, repeats, strict=True):
        decides = policy != "repeat" or n is not None
        if decides and m is not None and (n or 1) > 1 + m:
            raise ConfigurationError(
                f"stop_after_passes asks for {n} passes of {name!r}, but with max_repeats={m} it drops out after {1 + m}. "
                f"Raise max_repeats to {(n or 1) - 1}, or lower stop_after_passes."
            )
        ends = (n or 1) * total
        if policy == "stop":  # it never drops out: the source ends first
            found.append(Passes(name, stop=ends))
        else:
            found.append(Passes(name, ends if decides else None, None, None if m is None else (1 + m) * total))
    remembered = {
        "stop_after_passes": one_or_named(names, passes),
        "exhausted_policy": one_or_named(names, policies),
        "max_repeats": one_or_named(names, repeats),
    }
    return found, remembered


def checked_blocks(datasets: Sequence[WorkDataset], block_size: Any) -> list[int | None]:
    """Samples in a block of each dataset; "auto" is its `block_hint` within bounds, or 256 where it has none."""
    names = [dataset.name for dataset in datasets]
    hints = {dataset.name: _hinted(dataset) for dataset in datasets}
    if isinstance(block_size, Mapping):
        named = cast(Mapping[str, Any], block_size)
        checked_names("shuffle_block_size", list(named), names)
        return [_block(f"[{name!r}]", named.get(name), hints[name]) for name in names]
    return [_block("", block_size, hints[name]) for name in names]


def _block(where: str, value: Any, hinted: int) -> int | None:
    return hinted if value == "auto" else block_size_of(value, where)


def _hinted(dataset: WorkDataset) -> int:
    hint: object = getattr(dataset, "block_hint", None)
    if not isinstance(hint, (int, np.integer)) or isinstance(hint, bool) or hint < 1:
        return AUTO_BLOCK_SIZE
    return min(max(int(hint), _LEAST_HINT), _MOST_HINT)
