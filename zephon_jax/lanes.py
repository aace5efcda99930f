"""Arithmetic of lanes: which lanes a group or a span of rows means, and which counts are possible. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from zephon_jax.errors import ConfigurationError

__all__ = ["default_lanes", "divisors", "lanes_of_group", "lanes_of_rows", "nearest_multiples"]


def divisors(n: int) -> list[int]:
    """All divisors of n, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def default_lanes(global_batch_size: int | None) -> int:
    """The largest divisor up to 8, so that every run is elastic unplanned; 1 where only rows per lane are given."""
    return 1 if global_batch_size is None else max(d for d in divisors(global_batch_size) if d <= 8)


def lanes_of_group(group: int, degree: int, lanes: int) -> range:
    """Lanes of data-parallel group `group` of `degree` (rule O4): [group·L/D, (group + 1)·L/D)."""
    if lanes % degree:
        raise ConfigurationError(
            f"dp_degree={degree} does not divide canonical_replicas={lanes}; it may be one of {divisors(lanes)}"
        )
    if not 0 <= group < degree:
        raise ConfigurationError(f"dp_group_id={group} is not within dp_degree={degree}; it may be 0 to {degree - 1}")
    return range(group * lanes // degree, (group + 1) * lanes // degree)


def lanes_of_rows(spans: Iterable[tuple[int, int]], rows_per_lane: int) -> list[int]:
    """Lanes that hold any of these row spans [start, stop) of the global batch (rule O5): lane l has rows [l·R, (l + 1)·R)."""
    return sorted({lane for a, b in spans for lane in range(a // rows_per_lane, -(-b // rows_per_lane))})


def nearest_multiples(size: int, of: int) -> list[int]:
    """The multiples of `of` at or below `size` and above it, without 0."""
    below = size // of * of
    return [m for m in (below, below + of) if m > 0]
