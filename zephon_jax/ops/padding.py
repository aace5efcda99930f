"""pad: records to one length; pad_rows: the rows of a batch to one length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zephon_jax.columns import Column, Dense, from_values, row_values
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import OpTraits, RecordFailure, RecordOperator, RowOperator, checked_field, checked_int
from zephon_jax.ops.bucket import checked_boundaries
from zephon_jax.ops.fields import field_of, int32_ragged
from zephon_jax.types import Int32s, Int64s

__all__ = ["Pad", "PadRows"]

_OVERLONG: Final = ("truncate", "drop", "error")


class Pad(RecordOperator):
    """One document per row: pads `tokens` with zeros to `length`.

    Gives int32 `tokens`, `segment_ids` (1, and 0 for padding) and `positions` of shape (length,), as `pack` does, so that
    `lm_targets` works on either. `keep` names fields with one value per token that are padded alike, any rank behind the
    first axis; other fields stay as they are. Longer records are treated as `on_overlong` says: "truncate", "drop", "error".
    """

    def __init__(self, length: int, *, on_overlong: str = "error", keep: Iterable[str] = ()):
        self._length = checked_int("pad", "length", length, 1)
        if on_overlong not in _OVERLONG:
            raise ConfigurationError(f"pad(on_overlong={on_overlong!r}) must be one of {list(_OVERLONG)}")
        if isinstance(keep, str):
            raise ConfigurationError(f"pad(keep={keep!r}) must be a list of names: [{keep!r}]")
        self.traits = OpTraits(pads=True, keeps_count=on_overlong != "drop")
        self._overlong, self._keep = on_overlong, tuple(checked_field("pad", name) for name in keep)
        self.name = f"pad({length})"

    def identity(self) -> Mapping[str, Any]:
        return {"op": "pad", "length": self._length, "on_overlong": self._overlong, "keep": sorted(self._keep)}

    def process(self, batch: MicroBatch) -> MicroBatch:
        if not len(batch):
            return batch
        lengths = int32_ragged(field_of(batch, "tokens", self.name), self.name, "tokens").lengths
        over = lengths > self._length
        if over.any() and self._overlong == "error":
            i = int(np.flatnonzero(over)[0])
            raise RecordFailure(i) from DataError(
                f"{self.name}: a record has {int(lengths[i])} tokens; split it, or pass on_overlong='truncate' or 'drop'"
            )
        if self._overlong == "drop":
            batch, lengths = batch.keep(~over), lengths[~over]
            if not len(batch):
                return batch
        lists = int32_ragged(batch.columns["tokens"], self.name, "tokens")
        shown = np.minimum(lengths, self._length)
        inside = np.arange(self._length) < shown[:, None]
        made: dict[str, Column] = {
            "tokens": Dense(self._padded(lists.views(), np.dtype(np.int32))),
            "segment_ids": Dense(inside.astype(np.int32)),
            "positions": Dense(np.arange(self._length, dtype=np.int32) * inside),
        }
        for name in self._keep:
            made[name] = self._beside(batch, name, lengths)
        columns = {name: column for name, column in batch.columns.items() if name not in made}
        return batch.with_columns({**columns, **made}).spanned(shown)

    def _padded(self, views: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> Int32s:
        out = np.zeros((len(views), self._length), dtype)
        for row, view in zip(out, views, strict=True):
            n = min(len(view), self._length)
            row[:n] = view[:n]
        return out

    def _beside(self, batch: MicroBatch, name: str, lengths: Int64s) -> Column:
        """One by one: what a record becomes must not depend on the types of others."""
        rows: list[NDArray[Any]] = []
        for i, value in enumerate(row_values(field_of(batch, name, self.name))):
            part = np.asarray(value)
            if part.ndim < 1 or len(part) != lengths[i] or part.dtype.kind not in "biufV":
                raise RecordFailure(i) from DataError(
                    f"{self.name}(keep={name!r}) needs one number per token, got {type(value).__name__} "
                    f"{str(value)[:40]!r} for {int(lengths[i])} tokens"
                )
            row = np.zeros((self._length, *part.shape[1:]), part.dtype)
            row[: len(part)] = part[: self._length]
            rows.append(row)
        return from_values(rows)


class PadRows(RowOperator):
    """After `batch`: pads each field that is a list of another length in each row, to one length for the batch.

    That is the smallest of `boundaries` that the longest row fits in, or without them the longest row's. `tokens` also
    gives `segment_ids` and `positions` where the batch has none. Fields whose rows are alike already are padded as well if
    they are `tokens`, or named in `fields`; others stay. May change when a run is resumed: it is not part of a
    checkpoint's plan.

    Lanes are padded one by one: with several boundaries and several lanes their shapes may differ in a step, which a global
    array cannot hold. Use `canonical_replicas=1`, or one boundary.
    """

    def __init__(self, boundaries: Sequence[int] | int | None = None, *, fields: Iterable[str] | None = None):
        given = [boundaries] if isinstance(boundaries, (int, np.integer)) else boundaries
        self._boundaries = None if given is None else checked_boundaries("pad_rows", given)
        if isinstance(fields, str):
            raise ConfigurationError(f"pad_rows(fields={fields!r}) must be a list of names: [{fields!r}]")
        self._fields = None if fields is None else frozenset(checked_field("pad_rows", name) for name in fields)
        self.name = "pad_rows"

    def identity(self) -> None:
        return None

    def process_rows(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        out = dict(batch)
        for name, values in batch.items():
            if self._fields is not None and name not in self._fields:
                continue
            if self._fields is None and name != "tokens" and not _is_ragged(values):
                continue
            out[name] = self._padded(name, values)
            if name == "tokens" and "segment_ids" not in batch:
                inside = np.arange(out[name].shape[1]) < np.array([len(v) for v in values])[:, None]
                out["segment_ids"] = inside.astype(np.int32)
                out["positions"] = np.arange(out[name].shape[1], dtype=np.int32) * inside
        return out

    def _padded(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        rows = [np.asarray(value) for value in values]
        if any(row.ndim < 1 or row.dtype.kind not in "biufV" for row in rows):
            raise DataError(f"{self.name}: the field {name!r} has rows that are no lists of numbers")
        length = max((len(row) for row in rows), default=0)
        if self._boundaries is not None:
            fitting = [one for one in self._boundaries if one >= length]
            if not fitting:
                raise DataError(
                    f"{self.name}: a row has {length} values in {name!r}, more than the last boundary {self._boundaries[-1]}"
                )
            length = fitting[0]
        filled = [row for row in rows if len(row)] or rows
        if len({row.shape[1:] for row in filled}) > 1:
            raise DataError(f"{self.name}: the rows of {name!r} differ beyond their length")
        out = np.zeros((len(rows), length, *filled[0].shape[1:]), np.result_type(*{row.dtype for row in filled}))
        for laid, row in zip(out, rows, strict=True):
            if len(row):
                laid[: len(row)] = row
        return out


def _is_ragged(values: NDArray[Any]) -> bool:
    return values.dtype == object and all(isinstance(v, np.ndarray) and v.ndim for v in values)
