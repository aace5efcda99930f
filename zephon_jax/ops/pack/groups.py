"""Which documents may share a row: those of one group. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np

from zephon_jax.columns import row_values
from zephon_jax.errors import DataError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import RecordFailure
from zephon_jax.ops.fields import field_of
from zephon_jax.ops.pack.settings import PackSettings
from zephon_jax.origin import CHUNK, OFFSET
from zephon_jax.types import LaneContext

__all__ = ["group_keys", "runs_of"]


def group_keys(batch: MicroBatch, settings: PackSettings, ctx: LaneContext, operator: str) -> list[Any]:
    """The group of each record; an empty list if all are of one."""
    if settings.separate_datasets:
        firsts = batch.origin.table[:, batch.origin.firsts]
        return ctx.datasets_of(firsts[CHUNK], firsts[OFFSET]).tolist()
    if settings.separate_by is None:
        return []
    keys: list[Any] = []
    for i, value in enumerate(row_values(field_of(batch, settings.separate_by, operator))):
        key = value.item() if isinstance(value, np.generic) else value
        if not isinstance(key, (str, bytes, int)):
            raise RecordFailure(i) from DataError(
                f"{operator}: separate_by={settings.separate_by!r} needs text, bytes or integers, got {type(value).__name__}"
            )
        keys.append(key)
    return keys


def runs_of(keys: list[Any], n: int) -> Iterator[tuple[Any, int, int]]:
    """Runs [a, b) of neighbours of one group, in order: rows leave in the order of what made them leave."""
    if not keys:
        if n:
            yield None, 0, n
        return
    at = 0
    for key, members in groupby(keys):
        stop = at + sum(1 for _ in members)
        yield key, at, stop
        at = stop
