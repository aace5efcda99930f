"""What each record brings to be packed: its tokens, other lists beside them, or what stands in for them in a replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zephon_jax.columns import Objects, row_values, take
from zephon_jax.deferred import DEFERRED, Deferred, Piece
from zephon_jax.errors import DataError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import RecordFailure
from zephon_jax.ops.fields import field_of, int32_ragged
from zephon_jax.ops.pack.cuts import Cuts
from zephon_jax.ops.pack.layout import packable
from zephon_jax.types import Int64s

__all__ = ["Part", "Parts", "beside_parts", "token_parts"]

Part: TypeAlias = NDArray[Any] | Piece
"""A piece's values, or what stands in for them."""


@dataclass(slots=True)
class Parts:
    """Per record its tokens, and its parts of each field beside them."""

    tokens: list[Part]
    beside: dict[str, list[Part]]

    def take(self, index: list[int]) -> Parts:
        """The records at `index`."""
        beside = {name: [parts[i] for i in index] for name, parts in self.beside.items()}
        return Parts([self.tokens[i] for i in index], beside)

    def truncated(self, size: int, other: Mapping[str, int]) -> Parts:
        """At most `size` of each, or what `other` says for a field."""
        beside = {
            name: [_span(part, 0, min(other.get(name, size), len(part))) for part in parts]
            for name, parts in self.beside.items()
        }
        return Parts([_span(part, 0, min(size, len(part))) for part in self.tokens], beside)

    def cut(self, cuts: Cuts) -> Parts:
        """In pieces of these lengths. Documents of one piece are not touched."""
        return Parts(_cut(self.tokens, cuts), {name: _cut(parts, cuts) for name, parts in self.beside.items()})


def _span(part: Part, start: int, stop: int) -> Part:
    return part.cut(start, stop) if isinstance(part, Piece) else part[start:stop]


def _cut(parts: list[Part], cuts: Cuts) -> list[Part]:
    out: list[Part] = []
    for part, pieces in zip(parts, cuts, strict=True):
        if len(pieces) == 1:
            out.append(part)
        else:
            ends = list(accumulate(pieces))
            out += [_span(part, end - n, end) for end, n in zip(ends, pieces, strict=True)]
    return out


def token_parts(batch: MicroBatch, operator: str) -> tuple[list[Part], Int64s]:
    """Each record's int32 tokens, and how many they are; those of a replay may not have been read."""
    handles = batch.columns.get(DEFERRED)
    if not isinstance(handles, Objects):
        lists = int32_ragged(field_of(batch, "tokens", operator), operator, "tokens")
        return list(lists.views()), lists.lengths
    parts: list[Any] = [Piece(h, 0, h.length) if isinstance(h, Deferred) else None for h in handles.items]
    read = np.flatnonzero([part is None for part in parts])
    if len(read):
        tokens = take(batch.columns["tokens"], read)
        for i, view in zip(read.tolist(), int32_ragged(tokens, operator, "tokens").views(), strict=True):
            parts[i] = view
    return parts, np.array([len(part) for part in parts], np.int64)


def beside_parts(batch: MicroBatch, name: str, tokens: list[Part] | None, operator: str) -> list[Part]:
    """Each record's values of another field, as long as its `tokens` where these are given."""
    if tokens is not None and DEFERRED in batch.columns:
        values = row_values(batch.columns[name]) if name in batch.columns else [None] * len(batch)
    else:
        values = row_values(field_of(batch, name, operator))
    parts: list[Part] = []
    for i, value in enumerate(values):
        stand_in = None if tokens is None else tokens[i]
        if isinstance(stand_in, Piece):
            parts.append(stand_in)
            continue
        try:
            part = packable(np.asarray(value))
        except DataError as error:
            raise RecordFailure(i) from DataError(f"{operator}: {name!r}: {error}")
        if part.ndim < 1 or part.dtype.kind not in "biufV":  # V: bfloat16 and its kin
            raise RecordFailure(i) from DataError(
                f"{operator} needs a list of numbers in {name!r}, got {type(value).__name__} {str(value)[:40]!r}"
            )
        if stand_in is not None and len(part) != len(stand_in):
            raise RecordFailure(i) from DataError(
                f"{operator}(keep={name!r}) needs one value per token, got {len(part)} for {len(stand_in)} tokens"
            )
        parts.append(part)
    return parts
