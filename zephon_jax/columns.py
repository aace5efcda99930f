"""Values between operators, as columns: dense, ragged (Arrow's list layout), bytes end to end, laid out late, or objects.

Which of these holds a field is a matter of storage only. What an operator or a batch sees of a record is its
*row value*, and that never depends on which other records share the micro-batch: otherwise the output would depend on
micro-batch sizes. Hence `canonical`, applied to every value that Python code hands over, and `MISSING` for a field that
a record lacks while its neighbours have it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zephon_jax.errors import DataError
from zephon_jax.types import Int64s

__all__ = [
    "MISSING",
    "Binary",
    "Column",
    "Columns",
    "Dense",
    "Laid",
    "Objects",
    "Ragged",
    "as_rows",
    "canonical",
    "collate",
    "column_length",
    "columns_from_rows",
    "concat",
    "concat_columns",
    "from_values",
    "named_fields",
    "row_of",
    "row_value",
    "row_values",
    "rows_of",
    "slice_rows",
    "take",
]

Array: TypeAlias = NDArray[Any]


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"

    def __reduce__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""Stands in an `Objects` column for a field that the record does not have; row views leave the field out."""


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """One value of a fixed shape and dtype per record: `values` has shape (n, ...)."""

    values: Array


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """A 1-D array per record: row i is `values[splits[i]:splits[i + 1]]`; `splits` is int64 of shape (n + 1,)."""

    values: Array
    splits: Int64s

    @property
    def lengths(self) -> Int64s:
        return self.splits[1:] - self.splits[:-1]

    def views(self) -> list[Array]:
        """The rows, uncopied."""
        values, ends = self.values, self.splits.tolist()
        return [values[a:b] for a, b in itertools.pairwise(ends)]


@dataclass(frozen=True, slots=True, eq=False)
class Binary:
    """A `bytes` per record, end to end: row i is `values[splits[i]:splits[i + 1]]`, uint8, as `bytes`; `splits` as in `Ragged`."""

    values: NDArray[np.uint8]
    splits: Int64s

    @property
    def lengths(self) -> Int64s:
        return self.splits[1:] - self.splits[:-1]

    def items(self) -> list[bytes]:
        """The rows, copied."""
        blob, ends = self.values.tobytes(), self.splits.tolist()
        return [blob[a:b] for a, b in itertools.pairwise(ends)]


@dataclass(frozen=True, slots=True, eq=False)
class Objects:
    """Anything else: one Python object per record."""

    items: list[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Laid:
    """Records that become arrays only when looked at: `lay` turns n items into one array of shape (n, ...).

    So packed rows are moved, shuffled and dropped without touching a token, and each token is copied once, into the
    batch. Columns of equal `lay` are joined without laying anything out. An item's `detached()` is the item without
    views into larger blocks.
    """

    items: list[Any]
    lay: Callable[[list[Any]], Array]


Column: TypeAlias = Dense | Ragged | Binary | Objects | Laid
Columns: TypeAlias = Mapping[str, Column]


def canonical(value: Any) -> Any:
    """The one form in which a value is seen downstream, whatever it is stored next to.

    Python numbers become NumPy scalars of 64 bits, lists of numbers arrays; str, bytes, None, dicts and lists of
    anything else stay. Integers beyond 64 bits stay Python integers.
    """
    if isinstance(value, (str, bytes, np.generic)) or value is None:
        return value  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, np.ndarray):
        return _canonical_array(value)
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        return np.int64(value) if -(2**63) <= value < 2**63 else value
    if isinstance(value, float):
        return np.float64(value)
    if isinstance(value, (list, tuple)):
        return _canonical_sequence(value)  # pyright: ignore[reportUnknownArgumentType]
    if hasattr(value, "__array__"):
        return _canonical_array(np.asarray(value))
    return value


def _canonical_array(array: Array) -> Any:
    """Native byte order, and scalars as scalars: what NumPy makes of either when it stacks arrays."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array[()] if array.ndim == 0 else array


def _canonical_sequence(value: Sequence[Any]) -> Any:
    if not value:
        return np.zeros(0, np.int64)
    if isinstance(value[0], (str, bytes, dict)) or value[0] is None:
        return value
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):  # unequal lengths inside, or integers beyond 64 bits
        return value
    if array.dtype.kind not in "biufc" or _would_change(value, set(map(type, value)), array.dtype.kind):
        return value
    return array


def _would_change(value: Sequence[Any], types: set[type], kind: str) -> bool:
    """Whether NumPy stores some number as another: True as 1 among numbers, or an integer as a float that rounds it."""
    if list in types or tuple in types:
        kinds = {t for one in value for t in _leaf_types(one)}
        wide = kind == "f" and any(_holds_rounded(one) for one in value)
        return wide or (bool in kinds and len(kinds) > 1)
    if bool in types and len(types) > 1:
        return True
    return kind == "f" and int in types and _holds_rounded(value)


def _leaf_types(value: Any) -> set[type]:
    if isinstance(value, (list, tuple)):
        return {t for one in value for t in _leaf_types(one)}
    return {type(value)}


def _holds_rounded(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_holds_rounded(one) for one in value)
    return isinstance(value, int) and not -(2**53) <= value <= 2**53


def from_values(values: list[Any]) -> Column:
    """The column of these canonical values."""
    if not values:
        return Objects([])
    first = values[0]
    if not isinstance(first, (np.ndarray, np.generic)):
        return Objects(values)
    dtype, shape, dense = first.dtype, first.shape, True
    if dtype.kind not in "biufcV":
        return Objects(values)
    for value in values:
        if not isinstance(value, (np.ndarray, np.generic)) or value.dtype != dtype:
            return Objects(values)
        if value.shape != shape:
            dense = False
            if value.ndim != 1 or len(shape) != 1:
                return Objects(values)
    if dense:
        return Dense(np.stack(values) if shape else np.array(values, dtype))
    splits = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(v) for v in values], out=splits[1:])
    return Ragged(np.concatenate(values), splits)


def column_length(column: Column) -> int:
    """The number of records."""
    match column:
        case Dense(values):
            return len(values)
        case Ragged(_, splits) | Binary(_, splits):
            return len(splits) - 1
        case Objects(items) | Laid(items):
            return len(items)


def row_value(column: Column, i: int) -> Any:
    """Record i's value; arrays are views."""
    match column:
        case Dense(values):
            return values[i]
        case Ragged(values, splits):
            return values[splits[i] : splits[i + 1]]
        case Binary(values, splits):
            return values[splits[i] : splits[i + 1]].tobytes()
        case Objects(items):
            return items[i]
        case Laid(items, lay):
            return lay([items[i]])[0]


def row_values(column: Column) -> list[Any]:
    """Every record's value; arrays are views."""
    match column:
        case Dense(values):
            return list(values)
        case Ragged():
            return list(column.views())
        case Binary():
            return column.items()
        case Objects(items):
            return items
        case Laid(items, lay):
            return list(lay(items)) if items else []


def rows_of(columns: Columns, n: int) -> list[dict[str, Any]]:
    """The n records as dicts, each without the fields it lacks; fields in the order of their names, not of neighbours'."""
    names = sorted(columns)
    if not names:
        return [{} for _ in range(n)]
    lists = [row_values(columns[name]) for name in names]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]
    for name, values in zip(names, lists, strict=True):
        if isinstance(columns[name], Objects) and any(v is MISSING for v in values):
            for row in rows:
                if row[name] is MISSING:
                    del row[name]
    return rows


def row_of(columns: Columns, i: int) -> dict[str, Any]:
    """Record i as a dict, as `rows_of` gives it."""
    row = {name: row_value(columns[name], i) for name in sorted(columns)}
    return {name: value for name, value in row.items() if value is not MISSING}


def columns_from_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    """Records as columns; fields in the order in which they first appear."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: from_values([canonical(row[name]) if name in row else MISSING for row in rows]) for name in names}


def take(column: Column, index: NDArray[np.integer[Any]]) -> Column:
    """The records at `index`, in that order; copies."""
    match column:
        case Dense(values):
            return Dense(values[index])
        case Ragged(values, splits):
            return Ragged(*_taken(values, splits, index))
        case Binary(values, splits):
            return Binary(*_taken(values, splits, index))
        case Objects(items):
            return Objects([items[i] for i in index.tolist()])
        case Laid(items, lay):
            return Laid([items[i] for i in index.tolist()], lay)


def _taken(values: Array, splits: Int64s, index: NDArray[np.integer[Any]]) -> tuple[Array, Int64s]:
    starts, lengths = splits[:-1][index], (splits[1:] - splits[:-1])[index]
    out = np.zeros(len(index) + 1, np.int64)
    np.cumsum(lengths, out=out[1:])
    parts = [values[a : a + n] for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
    return np.concatenate(parts) if parts else values[:0], out


def slice_rows(column: Column, start: int, stop: int) -> Column:
    """Records start to stop, as views."""
    match column:
        case Dense(values):
            return Dense(values[start:stop])
        case Ragged(values, splits):
            a, b = int(splits[start]), int(splits[stop])
            return Ragged(values[a:b], splits[start : stop + 1] - a)
        case Binary(values, splits):
            a, b = int(splits[start]), int(splits[stop])
            return Binary(values[a:b], splits[start : stop + 1] - a)
        case Objects(items):
            return Objects(items[start:stop])
        case Laid(items, lay):
            return Laid(items[start:stop], lay)


def concat(parts: Sequence[Column]) -> Column:
    """One column after the other. Parts stored differently are stored as objects; the row values are the same."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    if isinstance(first, Dense):
        dense = [p.values for p in parts if isinstance(p, Dense)]
        if len(dense) == len(parts) and all(
            v.dtype == first.values.dtype and v.shape[1:] == first.values.shape[1:] for v in dense
        ):
            return Dense(np.concatenate(dense))
    if isinstance(first, Ragged):
        ragged = [p for p in parts if isinstance(p, Ragged)]
        if len(ragged) == len(parts) and all(p.values.dtype == first.values.dtype for p in ragged):
            return Ragged(*_end_to_end(ragged))
    if isinstance(first, Binary):
        binary = [p for p in parts if isinstance(p, Binary)]
        if len(binary) == len(parts):
            return Binary(*_end_to_end(binary))
    if isinstance(first, Laid):
        laid = [p for p in parts if isinstance(p, Laid) and p.lay == first.lay]
        if len(laid) == len(parts):
            return Laid([item for p in laid for item in p.items], first.lay)
    return Objects([value for part in parts for value in row_values(part)])


def _end_to_end(parts: Sequence[Ragged] | Sequence[Binary]) -> tuple[Array, Int64s]:
    offsets = np.cumsum([0] + [int(p.splits[-1] - p.splits[0]) for p in parts])
    splits = [p.splits[1:] - p.splits[0] + o for p, o in zip(parts, offsets.tolist(), strict=False)]
    values = np.concatenate([p.values[p.splits[0] : p.splits[-1]] for p in parts])
    return values, np.concatenate([np.zeros(1, np.int64), *splits])


def concat_columns(parts: Sequence[Columns], lengths: Sequence[int]) -> dict[str, Column]:
    """Records after records; a field that one part lacks is missing in that part's records."""
    if len(parts) == 1:
        return dict(parts[0])
    names = dict.fromkeys(name for part in parts for name in part)
    return {
        name: concat(
            [part[name] if name in part else Objects([MISSING] * n) for part, n in zip(parts, lengths, strict=True)]
        )
        for name in names
    }


def collate(parts: Sequence[Column], spans: Sequence[tuple[int, int]] | None = None) -> Array:
    """The rows of a batch as ONE fresh array of shape (n, ...), or an object array of shape (n,).

    `spans`: rows start to stop of each part; all, where left out. Dense exactly if all rows have one dtype and shape,
    however they were stored, so that a batch is a function of its rows. Always a copy: JAX may alias the buffer of a
    delivered array, and no operator may keep a view of it.
    """
    if spans is None:
        spans = [(0, column_length(part)) for part in parts]
    first = parts[0]
    if isinstance(first, Laid):
        items: list[Any] = []
        for part, (a, b) in zip(parts, spans, strict=True):
            if not isinstance(part, Laid) or part.lay != first.lay:
                break
            items += part.items[a:b]
        else:
            if items:
                return first.lay(items)
    elif isinstance(first, Dense):
        arrays = [part.values[a:b] for part, (a, b) in zip(parts, spans, strict=True) if isinstance(part, Dense)]
        if len(arrays) == len(parts) and all(
            v.dtype == arrays[0].dtype and v.shape[1:] == arrays[0].shape[1:] for v in arrays
        ):
            return np.concatenate(arrays)
    sliced = [slice_rows(part, a, b) for part, (a, b) in zip(parts, spans, strict=True)]
    values = [None if v is MISSING else v for part in sliced for v in row_values(part)]
    column = from_values(values)
    if isinstance(column, Dense):
        return column.values
    out = np.empty(len(values), object)
    for i, value in enumerate(values):
        out[i] = value.copy() if isinstance(value, np.ndarray) else value
    return out


def as_rows(values: Iterable[Any]) -> list[Mapping[str, Any]]:
    """Samples as dicts: a bare array, str or number becomes `{"value": ...}`. Raises DataError if a field's name is no str."""
    return [named_fields(value) if isinstance(value, Mapping) else {"value": value} for value in values]


def named_fields(row: Mapping[Any, Any]) -> Mapping[str, Any]:
    """The record itself, once every field is known to have a text for a name."""
    for name in row:
        if not isinstance(name, str):
            raise DataError(f"the names of a record's fields must be str, got {name!r}")
    return row
