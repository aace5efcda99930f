"""Sample pointers as few bytes. Pure.

Per dataset, in the chunk's order, the pointers are runs of consecutive samples: shard, start, count. Each of the three
is stored as differences (of the start: against where the run before it ended), in the narrowest integer type. The
component order is stored apart, one byte per pointer if there is more than one dataset. Compression follows outside:
sequential reading costs some bytes per chunk, blocks of b samples some bytes per b.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zephon_jax.origin import CHUNK, LAST, LINEAGE, OFFSET, START, TOKENS
from zephon_jax.types import Int32s, Int64s, WorkChunk

__all__ = ["MAX_LANE_POINTERS", "pack_chunks", "pack_known", "unpack_chunks", "unpack_known"]

_TYPES: Final = ("<i1", "<i2", "<i4", "<i8")
MAX_LANE_POINTERS: Final = 1 << 24  # a lane's flush epoch holds far fewer; a claim beyond it is a broken state
_MAX_SAMPLE: Final = 2**63 - 1 - MAX_LANE_POINTERS  # so that the last sample of a run is an int64 too
Packed = list[Any]


def pack_chunks(chunks: Sequence[WorkChunk]) -> Packed:
    """Plain values that `unpack_chunks` turns back: sizes, component order, and runs per dataset."""
    sizes = [len(c) for c in chunks]
    dataset = np.concatenate([c.dataset for c in chunks]) if chunks else np.zeros(0, np.int32)
    shard = np.concatenate([c.shard for c in chunks]) if chunks else np.zeros(0, np.int32)
    sample = np.concatenate([c.sample for c in chunks]) if chunks else np.zeros(0, np.int64)
    ids, order = np.unique(dataset, return_inverse=True)
    runs = [_pack_runs(shard[order == k].astype(np.int64), sample[order == k]) for k in range(len(ids))]
    return [_pack_ints(np.array(sizes, np.int64)), ids.tolist(), _pack_ints(order) if len(ids) > 1 else None, runs]


def unpack_chunks(packed: Any, most: int = MAX_LANE_POINTERS) -> tuple[WorkChunk, ...]:
    """The chunks, of at most `most` pointers. ValueError on anything that `pack_chunks` cannot have made; memory is
    bounded by the input's claims.
    """
    sizes_packed, ids, order_packed, runs = _list(packed, 4)
    sizes = _unpack_ints(sizes_packed)
    total = int(sizes.sum()) if len(sizes) else 0
    if (len(sizes) and (sizes.min() < 0 or sizes.max() > MAX_LANE_POINTERS)) or total > min(most, MAX_LANE_POINTERS):
        raise ValueError(f"chunk sizes {sizes[:4].tolist()} … are out of bounds")
    ids, runs = _list(ids), _list(runs)
    if len(ids) != len(runs) or not all(isinstance(i, int) and 0 <= i < 2**31 for i in ids):
        raise ValueError("dataset ids do not match the runs")
    # Every claim is checked before memory is taken for it: runs claim many pointers in a few bytes.
    parts = [_unpack_runs(run, total) for run in runs]
    claimed = [int(count.sum()) for _, _, count in parts]
    if sum(claimed) != total:
        raise ValueError(f"the runs hold {sum(claimed)} pointers, the chunks {total}")
    if order_packed is None:
        if len(ids) > 1:
            raise ValueError("the component order is missing")
        order = np.zeros(total, np.int64)
    else:
        order = _unpack_ints(order_packed)
        if len(order) != total or (total and (order.min() < 0 or order.max() >= len(ids))):
            raise ValueError("the component order does not match the pointers")
    dataset, shard, sample = np.zeros(total, np.int32), np.zeros(total, np.int32), np.zeros(total, np.int64)
    for k, part in enumerate(parts):
        at = np.flatnonzero(order == k)
        if len(at) != claimed[k]:
            raise ValueError("the runs of a dataset do not match its pointers")
        dataset[at] = ids[k]
        shard[at], sample[at] = _expanded(*part)
    ends = np.cumsum(sizes).tolist()
    return tuple(
        WorkChunk(dataset[b - n : b], shard[b - n : b], sample[b - n : b])
        for n, b in zip(sizes.tolist(), ends, strict=True)
    )


def pack_known(known: Int32s) -> Packed:
    """What became of samples: a column per part of identity; what grows from record to record as differences."""
    table = known.astype(np.int64)
    for row in _growing(len(table)):
        table[row] = np.diff(table[row], prepend=0)
    return [_pack_ints(row) for row in table]


def _growing(rows: int) -> list[int]:
    return [START, CHUNK, OFFSET, *range(LINEAGE, rows)]


def unpack_known(packed: Any, first: int, chunks: Sequence[WorkChunk]) -> Int32s:
    """The inverse; ValueError unless every record is one of a sample in these chunks, in feed order."""
    columns = _list(packed)
    rows = [_unpack_ints(c) for c in columns] if LINEAGE <= len(columns) <= LINEAGE + 64 else []
    if len({len(r) for r in rows}) != 1:
        raise ValueError("the parts of identity do not match")
    table = np.stack(rows)
    for row in _growing(len(table)):
        table[row] = np.cumsum(table[row])
    if not table.shape[1]:
        return table.astype(np.int32)
    chunk, offset = table[CHUNK] - first, table[OFFSET]
    sizes = np.array([len(c) for c in chunks], np.int64)
    if not ((chunk >= 0) & (chunk < len(sizes))).all() or (offset < 0).any() or (offset >= sizes[chunk]).any():
        raise ValueError("a record lies outside the chunks in flight")
    if (np.diff(chunk * (int(sizes.max()) + 1) + offset) < 0).any():
        raise ValueError("the records are not in feed order")
    if (table[LINEAGE:] < 0).any() or (table[TOKENS] < -1).any() or not np.isin(table[LAST], (0, 1)).all():
        raise ValueError("the identity of a record is broken")
    if table.max() >= 2**31 or table.min() < -(2**31):
        raise ValueError("a part of identity is too large")
    return table.astype(np.int32)


def _pack_runs(shard: Int64s, sample: Int64s) -> Packed:
    new = np.ones(len(sample), np.bool_)
    new[1:] = (np.diff(shard) != 0) | (np.diff(sample) != 1)
    first = np.flatnonzero(new)
    count = np.diff(np.append(first, len(sample)))
    start = sample[first]
    gap = start.copy()
    gap[1:] -= start[:-1] + count[:-1]
    step = np.diff(shard[first], prepend=0)
    return [_pack_ints(step), _pack_ints(gap), _pack_ints(count)]


def _unpack_runs(packed: Any, most: int) -> tuple[Int64s, Int64s, Int64s]:
    """Shard, start and count of each run, of at most `most` pointers together."""
    step, gap, count = (_unpack_ints(p) for p in _list(packed, 3))
    if not len(step) == len(gap) == len(count) <= most:
        raise ValueError("the columns of a dataset's runs do not match")
    if len(count) and (count.min() < 1 or count.max() > most):  # so the sum cannot wrap
        raise ValueError("a run is empty, or longer than all chunks")
    shard = np.cumsum(step)
    start = np.cumsum(gap + count) - count
    if len(count) and (shard.min() < 0 or shard.max() >= 2**31 or start.min() < 0 or start.max() > _MAX_SAMPLE):
        raise ValueError("a pointer is negative or too large")
    return shard, start, count


def _expanded(shard: Int64s, start: Int64s, count: Int64s) -> tuple[Int64s, Int64s]:
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(shard, count), np.repeat(start, count) + within


def _pack_ints(values: NDArray[np.integer[Any]]) -> Packed:
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    for code, name in enumerate(_TYPES):
        info = np.iinfo(name)
        if info.min <= low and high <= info.max:
            # Byte after byte of all values, not value after value: the high bytes are alike and compress to nothing.
            return [code, values.astype(name).view(np.uint8).reshape(len(values), np.dtype(name).itemsize).T.tobytes()]
    raise AssertionError("int64 holds every int64")


def _unpack_ints(packed: Any) -> Int64s:
    code, data = _list(packed, 2)
    if (
        not isinstance(code, int)
        or isinstance(code, bool)
        or not 0 <= code < len(_TYPES)
        or not isinstance(data, bytes)
    ):
        raise ValueError("a column of integers was expected")
    dtype = np.dtype(_TYPES[code])
    if len(data) % dtype.itemsize:
        raise ValueError("a column of integers is cut off")
    planes = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, -1)
    return np.ascontiguousarray(planes.T).view(dtype).reshape(-1).astype(np.int64)


def _list(value: Any, length: int | None = None) -> list[Any]:
    if not isinstance(value, (list, tuple)) or (length is not None and len(value) != length):  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(f"a list{'' if length is None else f' of {length}'} was expected, got {type(value).__name__}")  # pyright: ignore[reportUnknownArgumentType]
    return list(value)  # pyright: ignore[reportUnknownArgumentType]
