"""Object storage as a store, through tensorstore: gs://, s3://, and file:// for tests.

tensorstore brings credentials, signatures and retries; `create` writes only if the key has the generation of a missing
one. A process that is killed leaves nothing half-written in object storage. On a plain directory it may, which is why
`DirectoryStore` does without tensorstore. There is nothing to block on, so waiting asks again and again, at most every five
seconds.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any, Final

from zephon_jax.coordinate.store import poll, sealed, unsealed
from zephon_jax.errors import AggregationFailed, ConfigurationError
from zephon_jax.sources import remote

__all__ = ["ObjectStore"]

_MOST_PAUSE_S: Final = 5.0
_TIMEOUT_S: Final = 60.0
_AT_ONCE: Final = 64
_MISSING: Final = b"\x02"  # the generation of a key that has no value


class ObjectStore:
    """Keys stand below `url`. See `zephon_jax.coordinate.store.Store`."""

    def __init__(self, url: str):
        import tensorstore as ts

        self._url = url.rstrip("/") + "/"
        if url.startswith(("gs://", "s3://")):
            scheme, bucket, key = remote.split(self._url)
            spec: dict[str, Any] = {**remote.spec(scheme, bucket), "path": key}
        elif url.startswith("file://"):
            spec = {"driver": "file", "path": self._url.removeprefix("file://")}
        else:
            raise ConfigurationError(f"options(aggregate_dir={url!r}) must be a path, or begin with gs:// or s3://")
        try:
            self._store: Any = ts.KvStore.open(spec).result(timeout=_TIMEOUT_S)
        except (ValueError, TimeoutError) as error:
            raise ConfigurationError(f"options(aggregate_dir={url!r}) cannot be opened: {error}") from error
        self._range: Any = ts.KvStore.KeyRange

    def get(self, key: str) -> bytes | None:
        return self._value(key, self._done(key, self._store.read(key)))

    def put(self, key: str, value: bytes) -> None:
        self._done(key, self._store.write(key, sealed(value)))

    def create(self, key: str, value: bytes) -> bool:
        return self._done(key, self._store.write(key, sealed(value), if_equal=_MISSING)).generation != b""

    def delete(self, key: str) -> None:
        self._done(key, self._store.write(key, None))

    def list(self, prefix: str) -> list[str]:
        after = prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else ""
        return sorted(key.decode() for key in self._done(prefix, self._store.list(self._range(prefix, after))))

    def wait(self, key: str, timeout_s: float, seen: bytes | None = None) -> bytes | None:
        return poll(lambda: self.get(key), timeout_s, seen, _MOST_PAUSE_S)

    def get_each(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self._value(key, read) for key, read in zip(keys, self._together(self._store.read, keys), strict=True)]

    def delete_each(self, keys: Sequence[str]) -> None:
        self._together(lambda key: self._store.write(key, None), keys)

    def _together(self, ask: Any, keys: Sequence[str]) -> list[Any]:
        """The result of each request, `_AT_ONCE` of them under way."""
        waiting: collections.deque[tuple[str, Any]] = collections.deque()
        out: list[Any] = []
        for key in keys:
            if len(waiting) == _AT_ONCE:
                out.append(self._done(*waiting.popleft()))
            waiting.append((key, ask(key)))
        return out + [self._done(*asked) for asked in waiting]

    def _value(self, key: str, read: Any) -> bytes | None:
        return unsealed(bytes(read.value), self._url + key) if read.state == "value" else None

    def _done(self, key: str, future: Any) -> Any:
        try:
            return future.result(timeout=_TIMEOUT_S)
        except (ValueError, TimeoutError) as error:
            raise AggregationFailed(f"{self._url}{key}: {type(error).__name__}: {error}") from error
