"""What pack was asked for, checked in the caller's frame. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from zephon_jax.errors import ConfigurationError
from zephon_jax.ops.base import checked_field, checked_int, used

__all__ = ["PackSettings", "pack_settings"]

ALGORITHMS: Final = ("first_fit", "best_fit", "wrap", "best_fit_wrap")
_OVERLONG: Final = ("split", "truncate", "drop", "error")


@dataclass(frozen=True, slots=True)
class PackSettings:
    """See `Pack`. `other_lengths`: of fields beside the tokens that have a length of their own."""

    max_length: int
    other_lengths: Mapping[str, int]
    algorithm: str
    num_bins: int
    on_overlong: str
    max_segments: int | None
    keep: tuple[str, ...]
    separate_datasets: bool
    separate_by: str | None

    @property
    def cuts(self) -> bool:
        """Whether the packing itself cuts documents."""
        return self.algorithm in ("wrap", "best_fit_wrap")

    def identity(self) -> dict[str, Any]:
        """Everything that decides the output."""
        options = {
            "other_lengths": dict(self.other_lengths),
            "max_segments": self.max_segments,
            "keep": sorted(self.keep),
            "separate_datasets": self.separate_datasets,
            "separate_by": self.separate_by,
        }
        return {
            "max_length": self.max_length,
            "algorithm": self.algorithm,
            "num_bins": self.num_bins,
            "on_overlong": self.on_overlong,
            **used(options),
        }


def pack_settings(
    max_length: int | Mapping[str, int],
    algorithm: str,
    num_bins: int,
    on_overlong: str,
    max_segments: int | None,
    keep: Iterable[str],
    separate_datasets: bool,
    separate_by: str | None,
) -> PackSettings:
    """The settings; ConfigurationError says which cannot work, and why."""
    lengths: dict[Any, Any] = dict(max_length) if isinstance(max_length, Mapping) else {"tokens": max_length}
    if "tokens" not in lengths:
        raise ConfigurationError(f"pack(max_length={lengths!r}): a length for 'tokens' is needed")
    for name, length in lengths.items():
        checked_int("pack", "max_length" if len(lengths) == 1 else f"max_length[{name!r}]", length, 1)
    own = {checked_field("pack", name): int(length) for name, length in lengths.items() if name != "tokens"}
    if algorithm not in ALGORITHMS:
        raise ConfigurationError(f"pack(algorithm={algorithm!r}) must be one of {list(ALGORITHMS)}")
    if on_overlong not in _OVERLONG:
        raise ConfigurationError(f"pack(on_overlong={on_overlong!r}) must be one of {list(_OVERLONG)}")
    if isinstance(keep, str):
        raise ConfigurationError(f"pack(keep={keep!r}) must be a list of names: [{keep!r}]")
    kept = tuple(checked_field("pack", name) for name in keep)
    made = [
        "tokens",
        "segment_ids",
        "positions",
        *(f"{name}_{what}" for name in own for what in ("segment_ids", "positions")),
    ]
    if clash := sorted({*kept, *own} & set(made)) or sorted(set(kept) & set(own)):
        raise ConfigurationError(f"pack: the fields {clash} are made by pack, or named twice; rename them in a map")
    if own and algorithm in ("wrap", "best_fit_wrap"):
        raise ConfigurationError(f"pack(algorithm={algorithm!r}) cuts documents, which several lengths do not allow")
    if own and on_overlong == "split":
        raise ConfigurationError(
            "pack: with several lengths a record cannot be split; pass on_overlong='truncate', 'drop' or 'error'"
        )
    if separate_by is not None:
        checked_field("pack", separate_by)
        if separate_datasets:
            raise ConfigurationError("pack: give separate_datasets or separate_by, not both")
    return PackSettings(
        max_length=int(lengths["tokens"]),
        other_lengths=own,
        algorithm=algorithm,
        num_bins=checked_int("pack", "num_bins", num_bins, 1, 2**20 + 1),
        on_overlong=on_overlong,
        max_segments=None if max_segments is None else checked_int("pack", "max_segments", max_segments, 1),
        keep=kept,
        separate_datasets=bool(separate_datasets),
        separate_by=separate_by,
    )
