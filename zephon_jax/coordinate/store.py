"""What several processes need of shared storage to agree: a few operations on one key at a time.

One key at a time is linearizable in every store here: whoever reads after a write has returned sees it. Nothing else is
asked for: no compare-and-set and no conditional delete, which the key-value store of the JAX coordination service does not
have, and no order between keys. `list` may lag behind, so it serves sweeping and wording only.

Values are sealed: their length and a checksum stand in front. A file that was cut off, or that keeps the tail of an older
value, is noticed rather than believed.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from zephon_jax.errors import AggregationFailed

__all__ = ["Store", "Within", "poll", "sealed", "unsealed"]

_HEADER: Final = 16
_FIRST_PAUSE_S: Final = 0.005
_GROWTH: Final = 1.5


class Store(Protocol):
    """Keys are flat texts, values bytes. Every effect may be repeated. Usable from any thread.

    What fails for good raises AggregationFailed, naming the key and the place.
    """

    def get(self, key: str) -> bytes | None:
        """The value, or None."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Write, over what there is."""
        ...

    def create(self, key: str, value: bytes) -> bool:
        """Write unless there is a value already; False then. Of several at once, one is told True."""
        ...

    def delete(self, key: str) -> None:
        """No error if there is none."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Keys that begin so, sorted; it may lag behind."""
        ...

    def wait(self, key: str, timeout_s: float, seen: bytes | None = None) -> bytes | None:
        """The value once there is one other than `seen`; what there is when the time is up."""
        ...

    def get_each(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of these keys, each read at some moment during the call."""
        ...

    def delete_each(self, keys: Sequence[str]) -> None:
        """Delete these keys, in any order."""
        ...


class Within:
    """The part of a store whose keys begin with a prefix; keys are given without it."""

    def __init__(self, store: Store, prefix: str):
        self._store, self._prefix = store, prefix

    def get(self, key: str) -> bytes | None:
        return self._store.get(self._prefix + key)

    def put(self, key: str, value: bytes) -> None:
        self._store.put(self._prefix + key, value)

    def create(self, key: str, value: bytes) -> bool:
        return self._store.create(self._prefix + key, value)

    def delete(self, key: str) -> None:
        self._store.delete(self._prefix + key)

    def list(self, prefix: str) -> list[str]:
        return [key[len(self._prefix) :] for key in self._store.list(self._prefix + prefix)]

    def wait(self, key: str, timeout_s: float, seen: bytes | None = None) -> bytes | None:
        return self._store.wait(self._prefix + key, timeout_s, seen)

    def get_each(self, keys: Sequence[str]) -> list[bytes | None]:
        return self._store.get_each([self._prefix + key for key in keys])

    def delete_each(self, keys: Sequence[str]) -> None:
        self._store.delete_each([self._prefix + key for key in keys])


def poll(get: Callable[[], bytes | None], timeout_s: float, seen: bytes | None, most_pause_s: float) -> bytes | None:
    """`Store.wait` of a store that can only be asked: with pauses from 5 ms up to `most_pause_s`."""
    end, pause = time.monotonic() + timeout_s, _FIRST_PAUSE_S
    while True:
        value = get()
        left = end - time.monotonic()
        if (value is not None and value != seen) or left <= 0:
            return value
        time.sleep(min(pause, left))
        pause = min(pause * _GROWTH, most_pause_s)


def sealed(value: bytes) -> bytes:
    """The value with its length and checksum in front: 16 hexadecimal digits."""
    return b"%08x%08x" % (len(value), zlib.crc32(value)) + value


def unsealed(data: bytes, where: str) -> bytes:
    """The value. What stands behind it is ignored: a file's tail may be of an older, longer one.

    Raises:
        AggregationFailed: It is damaged; `where` says which.
    """
    try:
        length, checksum = int(data[:8], 16), int(data[8:_HEADER], 16)
    except ValueError:
        length, checksum = -1, 0
    value = data[_HEADER : _HEADER + length]
    if length < 0 or len(value) != length or zlib.crc32(value) != checksum:
        raise AggregationFailed(
            f"{where} is damaged: {len(data)} bytes that are no whole value of zephon_jax. Delete it if nothing else uses "
            "it, or choose another run_id"
        )
    return value
