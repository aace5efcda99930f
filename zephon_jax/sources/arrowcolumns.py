"""Arrow arrays → columns: what each type of Parquet and Arrow files becomes.

Numbers, lists of numbers, text and bytes are cut from Arrow's buffers without a Python object per value; everything else
goes through Python values as JSON would have them. What a record looks like depends on its own value and the column's
type only, never on its neighbours (see `columns.canonical`): a null is None and a list that holds one is a Python list,
while the records beside it keep their arrays.

Each array is looked at once, by the function that makes its reader, which then gives any of its rows in a few
microseconds. `docs/formats.md` has the table of types.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zephon_jax.columns import Column, Dense, Objects, Ragged, canonical, concat, row_values
from zephon_jax.errors import DataError
from zephon_jax.sources.base import ReadResult
from zephon_jax.sources.grouped import Part, Spans, gather, read_grouped, starts_of
from zephon_jax.sources.optional import optional
from zephon_jax.types import Int64s

__all__ = ["Batches", "load_pyarrow"]

Array: TypeAlias = NDArray[Any]
Rows: TypeAlias = NDArray[np.integer[Any]]
Reader: TypeAlias = Callable[[Rows], Column | Spans]
Mask: TypeAlias = NDArray[np.bool_]

_READERS_KEPT = 1024
_FEW = 64  # rows: text of fewer is decoded row by row, of more from one copy, which is faster if it is ASCII


@functools.cache
def load_pyarrow(module: str, purpose: str) -> Any:
    """`pyarrow`, `pyarrow.parquet` or `pyarrow.ipc`."""
    return optional(module, extra="formats", purpose=purpose)


class Batches:
    """Record batches of one schema, one after the other: rows are read by their number over all of them. Any thread."""

    def __init__(self, batches: Sequence[Any]):
        self._batches = list(batches)
        self._pa = load_pyarrow("pyarrow", "reading Arrow data")
        self._starts = starts_of(np.array([batch.num_rows for batch in self._batches], np.int64))
        self._readers: dict[tuple[int, str], Reader] = {}
        self.names: Sequence[str] = tuple(self._batches[0].schema.names) if self._batches else ()

    @property
    def num_rows(self) -> int:
        return int(self._starts[-1])

    @property
    def nbytes(self) -> int:
        """Of the batches' buffers, whether in memory or mapped."""
        return sum(int(batch.nbytes) for batch in self._batches)

    def read(self, rows: Int64s, fields: Sequence[str] | None = None) -> ReadResult:
        """These rows, in this order, of these fields (those of them that there are); an error for each row of broken text."""
        return read_grouped(self._starts, rows, lambda batch, at: self._read(batch, at, fields))

    def read_part(self, rows: Int64s) -> Part:
        """As `read`, but lists may be spans of the batches."""
        return self._read(0, rows, None) if len(self._batches) == 1 else self.read(rows)

    def _read(self, batch: int, rows: Int64s, fields: Sequence[str] | None) -> Part:
        columns: dict[str, Column | Spans] = {}
        bad: dict[int, DataError] = {}
        for name in self.names:
            if fields is None or name in fields:
                read = self._reader(batch, name)
                try:
                    columns[name] = read(rows)
                except UnicodeDecodeError:
                    columns[name], broken = _row_by_row(read, rows)
                    bad.update({i: DataError(f"field {name!r}: {error}") for i, error in broken.items()})
        return columns, bad

    def _reader(self, batch: int, name: str) -> Reader:
        reader = self._readers.get((batch, name))
        if reader is None:
            if len(self._readers) >= _READERS_KEPT:
                self._readers.clear()
            reader = self._readers[batch, name] = _reader(self._pa, self._batches[batch].column(name))
        return reader


def _row_by_row(read: Reader, rows: Int64s) -> tuple[Column, dict[int, Exception]]:
    """The column of text in which something is no UTF-8, and position → what is wrong there; these rows hold None."""
    parts: list[Column] = []
    bad: dict[int, Exception] = {}
    for i in range(len(rows)):
        part: Column | Spans = Objects([None])
        try:
            part = read(rows[i : i + 1])
        except UnicodeDecodeError as error:
            bad[i] = error
        assert not isinstance(part, Spans)
        parts.append(part)
    return concat(parts), bad


def _reader(pa: Any, array: Any) -> Reader:
    types, type_ = pa.types, array.type
    if _is_number(types, type_):
        return _number_reader(pa, array)
    if _is_list(types, type_) and _is_number(types, type_.value_type):
        return _number_list_reader(pa, array)
    if types.is_fixed_size_list(type_) and _is_number(types, _innermost(types, type_)):
        return _fixed_list_reader(pa, array)
    if _is_text(types, type_) or types.is_binary(type_) or types.is_large_binary(type_):
        return _text_reader(pa, array)
    if isinstance(type_, pa.BaseExtensionType):
        return _reader(pa, array.storage)
    if types.is_dictionary(type_) and not types.is_nested(type_.value_type):
        return lambda rows: _reader(pa, _taken(pa, array, rows).dictionary_decode())(np.arange(len(rows)))
    return lambda rows: Objects([canonical(value) for value in _python(pa, _taken(pa, array, rows))])


# -- types -----------------------------------------------------------------------------------------------------------------


def _is_number(types: Any, type_: Any) -> bool:
    return bool(types.is_integer(type_) or types.is_floating(type_) or types.is_boolean(type_))


def _is_list(types: Any, type_: Any) -> bool:
    return bool(types.is_list(type_) or types.is_large_list(type_))


def _is_text(types: Any, type_: Any) -> bool:
    return bool(types.is_string(type_) or types.is_large_string(type_))


def _innermost(types: Any, type_: Any) -> Any:
    while types.is_fixed_size_list(type_):
        type_ = type_.value_type
    return type_


# -- buffers ---------------------------------------------------------------------------------------------------------------


def _buffer(array: Any, number: int, dtype: Any) -> Array:
    """One of the array's buffers from its start, before the array's offset; empty where there is none."""
    buffer = array.buffers()[number]
    return np.zeros(0, dtype) if buffer is None or not buffer.size else np.frombuffer(buffer, np.uint8).view(dtype)


def _bits(array: Any, number: int) -> Callable[[Rows], Mask]:
    bits, offset = _buffer(array, number, np.uint8), array.offset

    def read(rows: Rows) -> Mask:
        at = rows + offset
        return (bits[at >> 3] >> (at & 7).astype(np.uint8)) & 1 != 0

    return read


def _nulls(array: Any) -> Callable[[Rows], Mask | None]:
    """Which of some rows are null; None if none is."""
    if not array.null_count:
        return lambda rows: None
    valid = _bits(array, 0)

    def read(rows: Rows) -> Mask | None:
        nulls = ~valid(rows)
        return nulls if nulls.any() else None

    return read


def _numbers(types: Any, array: Any) -> Callable[[Rows], Array]:
    """Copies of some values; undefined where null."""
    if types.is_boolean(array.type):
        return _bits(array, 1)
    return _flat(array).__getitem__


def _flat(array: Any) -> Array:
    """All values of an array of numbers other than booleans, as a view."""
    values = _buffer(array, 1, array.type.to_pandas_dtype())
    return values[array.offset : array.offset + len(array)]


def _offsets(types: Any, array: Any) -> Array:
    """Where the values of each row start among the child's, whatever the array's own offset; one more than rows."""
    type_ = array.type
    wide = types.is_large_list(type_) or types.is_large_string(type_) or types.is_large_binary(type_)
    offsets = _buffer(array, 1, np.int64 if wide else np.int32)
    return offsets[array.offset : array.offset + len(array) + 1]


def _spans(offsets: Array, rows: Rows, nulls: Mask | None) -> tuple[Int64s, Int64s]:
    starts, stops = offsets[rows].astype(np.int64), offsets[rows + 1].astype(np.int64)
    return starts, stops if nulls is None else np.where(nulls, starts, stops)  # what lies behind a null is anything


# -- readers ---------------------------------------------------------------------------------------------------------------


def _number_reader(pa: Any, array: Any) -> Reader:
    values, nulls_in = _numbers(pa.types, array), _nulls(array)

    def read(rows: Rows) -> Column:
        nulls = nulls_in(rows)
        column = values(rows)
        return Dense(column) if nulls is None else Objects(_none_where(list(column), nulls))

    return read


def _number_list_reader(pa: Any, array: Any) -> Reader:
    child, offsets, nulls_in = array.values, _offsets(pa.types, array), _nulls(array)
    if pa.types.is_boolean(child.type) or child.null_count:
        values, holes_in = _numbers(pa.types, child), _nulls(child)
    else:
        flat = _flat(child)

        def read_spans(rows: Rows) -> Column | Spans:
            nulls = nulls_in(rows)
            starts, stops = _spans(offsets, rows, nulls)
            if nulls is None:
                return Spans(flat, starts, stops)
            lists = Ragged(gather(flat, starts, stops), starts_of(stops - starts))
            return _without_holes(pa, array, rows, lists, nulls, None)

        return read_spans

    def read(rows: Rows) -> Column:
        nulls = nulls_in(rows)
        starts, stops = _spans(offsets, rows, nulls)
        splits = starts_of(stops - starts)
        at = np.arange(splits[-1]) + np.repeat(starts - splits[:-1], stops - starts)
        holes = holes_in(at)
        holed = None if holes is None else np.diff(starts_of(holes.astype(np.int64))[splits]) > 0
        return _without_holes(pa, array, rows, Ragged(values(at), splits), nulls, holed)

    return read


def _fixed_list_reader(pa: Any, array: Any) -> Reader:
    nulls_in = _nulls(array)
    levels: list[tuple[int, int, Callable[[Rows], Mask | None]]] = []
    child = array
    while pa.types.is_fixed_size_list(child.type):
        levels.append((int(child.type.list_size), int(child.offset), _nulls(child.values)))
        child = child.values
    values, shape = _numbers(pa.types, child), [size for size, _, _ in levels]

    def read(rows: Rows) -> Column:
        at, holed = rows, None
        for size, offset, holes_in in levels:
            at = ((at + offset)[:, None] * size + np.arange(size)).reshape(-1)
            if (holes := holes_in(at)) is not None:
                inside = np.logical_or.reduce(holes.reshape(len(rows), -1), axis=1)
                holed = inside if holed is None else np.logical_or(holed, inside)
        lists = Dense(values(at).reshape(len(rows), *shape))
        return _without_holes(pa, array, rows, lists, nulls_in(rows), holed)

    return read


def _without_holes(pa: Any, array: Any, rows: Rows, lists: Column, nulls: Mask | None, holed: Mask | None) -> Column:
    """Lists of numbers; None for those that are null, and a Python list for those in which something is."""
    if holed is not None and nulls is not None:
        holed = holed & ~nulls
    if nulls is None and (holed is None or not holed.any()):
        return lists
    items = list(row_values(lists))
    if holed is not None:
        at = np.flatnonzero(holed)
        for i, value in zip(at.tolist(), _python(pa, _taken(pa, array, rows[at])), strict=True):
            items[i] = value
    return Objects(_none_where(items, nulls))


def _text_reader(pa: Any, array: Any) -> Reader:
    offsets, data, nulls_in = _offsets(pa.types, array), _buffer(array, 2, np.uint8), _nulls(array)
    whole = data.data
    if not _is_text(pa.types, array.type):

        def read_binary(rows: Rows) -> Column | Spans:
            nulls = nulls_in(rows)
            starts, stops = _spans(offsets, rows, nulls)
            if nulls is None:
                return Spans(data, starts, stops, binary=True)
            items = [bytes(whole[a:b]) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
            return Objects(_none_where(items, nulls))

        return read_binary

    def read(rows: Rows) -> Column:
        nulls = nulls_in(rows)
        starts, stops = _spans(offsets, rows, nulls)
        items: list[Any]
        if len(rows) < _FEW:
            spans = zip(starts.tolist(), stops.tolist(), strict=True)
            items = [str(whole[a:b], "utf-8") for a, b in spans]
            return Objects(_none_where(items, nulls))
        blob = gather(data, starts, stops).tobytes()
        splits = starts_of(stops - starts).tolist()
        if blob.isascii():
            text = blob.decode("ascii")
            items = [text[a:b] for a, b in pairwise(splits)]
        else:
            items = [blob[a:b].decode() for a, b in pairwise(splits)]
        return Objects(_none_where(items, nulls))

    return read


def _none_where(items: list[Any], nulls: Mask | None) -> list[Any]:
    if nulls is not None:
        for i in np.flatnonzero(nulls).tolist():
            items[i] = None
    return items


# -- everything else -------------------------------------------------------------------------------------------------------


def _python(pa: Any, array: Any) -> list[Any]:
    """Python values, nested as JSON has them; times as NumPy scalars, which need no table of time zones and lose nothing."""
    types, type_ = pa.types, array.type
    if _is_list(types, type_):
        return _slices(types, array, lambda a, b: _python(pa, array.values[a:b]))
    if types.is_map(type_):
        return _slices(types, array, lambda a, b: _pairs(pa, array, a, b), dict)
    if types.is_fixed_size_list(type_):
        size, a = int(type_.list_size), int(array.offset)
        inner = _python(pa, array.values[a * size : (a + len(array)) * size])
        return _none_where([inner[i * size : (i + 1) * size] for i in range(len(array))], _all_nulls(array))
    if types.is_struct(type_):
        names = [type_.field(i).name for i in range(type_.num_fields)]
        children = [_python(pa, child) for child in array.flatten()]
        rows = zip(*children, strict=True) if children else iter([()] * len(array))
        return _none_where([dict(zip(names, row, strict=True)) for row in rows], _all_nulls(array))
    if isinstance(type_, pa.BaseExtensionType):
        return _python(pa, array.storage)
    if types.is_dictionary(type_):
        return _python(pa, array.dictionary_decode())
    if types.is_temporal(type_) and not types.is_interval(type_):
        return _none_where(list(_times(types, array)), _all_nulls(array))
    return list(array.to_pylist())


def _taken(pa: Any, array: Any, rows: Rows) -> Any:
    try:
        return array.take(pa.array(rows))
    except pa.ArrowNotImplementedError:  # of views, where only concatenation knows how
        return pa.concat_arrays([array[i : i + 1] for i in rows.tolist()])


def _all_nulls(array: Any) -> Mask | None:
    return _nulls(array)(np.arange(len(array)))


def _slices(
    types: Any, array: Any, inner: Callable[[int, int], list[Any]], make: Callable[[list[Any]], Any] = list
) -> list[Any]:
    """`make` of each row's part of the child's values, which `inner` converts at once."""
    if not len(array):
        return []
    offsets = _offsets(types, array).tolist()
    first = offsets[0]
    values = inner(first, offsets[-1])
    parts = [make(values[a - first : b - first]) for a, b in pairwise(offsets)]
    return _none_where(parts, _all_nulls(array))


def _pairs(pa: Any, array: Any, start: int, stop: int) -> list[Any]:
    keys, items = array.keys[start:stop], array.items[start:stop]
    return list(zip(_python(pa, keys), _python(pa, items), strict=True))


def _times(types: Any, array: Any) -> Array:
    """datetime64 (a time zone only says how to print it: the instant is kept) or timedelta64, in the column's unit."""
    type_ = array.type
    kind = "m8" if types.is_time(type_) or types.is_duration(type_) else "M8"
    unit = "D" if types.is_date32(type_) else "ms" if types.is_date64(type_) else type_.unit
    narrow = types.is_date32(type_) or types.is_time32(type_)
    values = _buffer(array, 1, np.int32 if narrow else np.int64)[array.offset : array.offset + len(array)]
    return values.astype(np.int64).view(f"{kind}[{unit}]")
