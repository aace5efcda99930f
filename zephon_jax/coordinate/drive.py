"""Performs the effects of a protocol's generators on a store, with a real clock.

Values are msgpack within zstd, of plain tuples: a value that this version does not understand is an error, nothing in it is
executed, and a frame that declares more than a state may have is not opened.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import msgpack
import zstandard

from zephon_jax.coordinate.protocol import (
    Check,
    Create,
    Delete,
    DeleteEach,
    Departure,
    Failed,
    Get,
    GetEach,
    List,
    Merged,
    Part,
    Put,
    Share,
    Stamp,
    Steps,
    Wait,
)
from zephon_jax.coordinate.store import Store
from zephon_jax.errors import AggregationFailed

__all__ = ["drive", "packed", "unpacked"]

_MAX_BYTES: Final = 1 << 30
_LEVEL: Final = 1
_SLICE_S: Final = 0.25  # the first turn of waiting for one of several keys; each further one is twice as long
_LONGEST_SLICE_S: Final = 4.0


def packed(value: Part | Merged | Failed | str) -> bytes:
    """The bytes of a protocol's value; equal values give equal bytes."""
    body = msgpack.packb([type(value).__name__, value])
    assert body is not None
    return zstandard.ZstdCompressor(level=_LEVEL).compress(body)


def unpacked(data: bytes, where: str) -> Any:
    """The value; AggregationFailed if this version does not understand it."""
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size > _MAX_BYTES:
            raise ValueError(f"it declares {size:,} bytes")
        body = zstandard.ZstdDecompressor().decompress(data, max_output_size=size, allow_extra_data=False)
        kind, value = msgpack.unpackb(body, use_list=False, strict_map_key=True)
        return _MAKE[kind](value)
    except (zstandard.ZstdError, msgpack.UnpackException, ValueError, TypeError, KeyError) as error:
        raise AggregationFailed(
            f"{where} holds what this version of zephon_jax does not understand ({type(error).__name__}: {error}); all ranks "
            "need the same version, and a run_id of their own"
        ) from error


def _part(value: Any) -> Part:
    rank, nonce, stamp, owned, shares, error = value
    return Part(rank, nonce, Stamp(*stamp), tuple(owned), tuple(Share(*share) for share in shares), error)


def _merged(value: Any) -> Merged:
    round_, stamp, parts, lanes = value
    pairs = tuple((rank, nonce) for rank, nonce in parts)
    return Merged(round_, Stamp(*stamp), pairs, tuple((lane, rank, state) for lane, rank, state in lanes))


def _failed(value: Any) -> Failed:
    reason, missing, kind = value
    return Failed(reason, tuple((rank, tuple(lanes)) for rank, lanes in missing), kind)


_MAKE: Final[dict[str, Callable[[Any], Any]]] = {"Part": _part, "Merged": _merged, "Failed": _failed, "str": str}


def drive(steps: Steps, store: Store, check: Callable[[Merged], str] = lambda merged: "") -> Departure | None:
    """Run one generator to its end, in this thread; what it returns. Deadlines are of `time.monotonic`."""

    def value_of(key: str, data: bytes | None) -> Any:
        return None if data is None else unpacked(data, key)

    answer: Any = None
    try:
        while True:
            match steps.send(answer):
                case Get(key):
                    answer = value_of(key, store.get(key))
                case GetEach(keys):
                    answer = tuple(value_of(k, v) for k, v in zip(keys, store.get_each(keys), strict=True))
                case Put(key, value):
                    answer = store.put(key, packed(value))
                case Create(key, value):
                    answer = store.create(key, packed(value))
                case List(prefix):
                    answer = tuple(store.list(prefix))
                case Delete(key):
                    answer = store.delete(key)
                case DeleteEach(keys):
                    answer = store.delete_each(keys)
                case Wait(seen, deadline):
                    answer = _wait(store, [(k, None if v is None else packed(v)) for k, v in seen], deadline)
                case Check(merged):
                    answer = check(merged)
    except StopIteration as stop:
        return stop.value


def _wait(store: Store, seen: list[tuple[str, bytes | None]], deadline: float) -> bool:
    """Wait for the first key, which is expected to change, and look at the others now and then."""
    slice_s = _SLICE_S
    first, before = seen[0]
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return True
        alone = len(seen) == 1
        got = store.wait(first, left if alone else min(slice_s, left), before)
        if got != before or any(store.get(key) != value for key, value in seen[1:]):
            return False
        slice_s = min(2 * slice_s, _LONGEST_SLICE_S)
