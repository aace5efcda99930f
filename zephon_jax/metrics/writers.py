"""Figures to whatever draws curves: a function, or a writer in the manner of TensorBoard. No library is needed for either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zephon_jax.errors import ConfigurationError
from zephon_jax.metrics.stats import Stats, scalars

__all__ = ["write_scalars"]


def write_scalars(stats: Stats, writer: Any, *, prefix: str = "data/") -> None:
    """Hand every number of `stats` to `writer`: an object with `add_scalar(name, value, step)` (TensorBoard's writers have
    it) or with `write_scalars(step, {name: value})` (clu's), or a function of name, value and step.

    >>> import zephon_jax as zj
    >>> work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("n", range(8)))
    >>> seen = {}
    >>> with iter(zj.Pipeline(work).batch(4)) as it:
    ...     batch = next(it)
    ...     write_scalars(it.stats(), lambda name, value, step: seen.update({name: value}))
    >>> seen["data/step"]
    1
    """
    flat = {prefix + name: value for name, value in scalars(stats).items()}
    if callable(many := getattr(writer, "write_scalars", None)):
        many(stats.step, flat)
        return
    one: Callable[[str, float, int], Any] | None = getattr(writer, "add_scalar", writer if callable(writer) else None)
    if one is None:
        raise ConfigurationError(
            f"write_scalars needs an object with add_scalar or write_scalars, or a function, got {type(writer).__name__}"
        )
    for name, value in flat.items():
        one(name, value, stats.step)
