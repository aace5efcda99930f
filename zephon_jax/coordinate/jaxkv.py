"""The key-value store of the JAX coordination service: there whenever `jax.distributed` is initialised, and gone with it.

There is no public interface to it. All use of the private one is in this file, with what is needed checked by name; it
has been the same from jax 0.7.2 to 0.10.2. jax is not imported here unless the program has done so.

The service lives in process 0 and keeps values in its memory, some megabytes each at most. Errors are told apart by the
status that their text begins with.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from zephon_jax.coordinate.store import poll, sealed, unsealed
from zephon_jax.errors import AggregationFailed, AggregationTimeout, ConfigurationError

__all__ = ["JaxStore", "client", "launch_nonce", "processes"]

_METHODS: Final = (
    "key_value_set_bytes",
    "key_value_try_get_bytes",
    "blocking_key_value_get_bytes",
    "key_value_dir_get_bytes",
    "key_value_delete",
)
_MOST_PAUSE_S: Final = 0.5
_LONGEST_CALL_S: Final = 30.0
_LAUNCH: Final = "zephon_jax/launch"
_AT_ONCE: Final = 16


def client() -> Any | None:
    """The coordination service's client, or None where jax.distributed is not initialised."""
    return getattr(_service(), "client", None)


def processes() -> tuple[int, int]:
    """This process's index and their number, as jax has them; (0, 1) where jax.distributed is not initialised.

    Not of `jax.process_index()`: that starts the devices, for which all processes wait for each other without a time-out.
    """
    service = _service()
    if getattr(service, "client", None) is None:
        return 0, 1
    index, number = getattr(service, "process_id", None), getattr(service, "num_processes", None)
    if isinstance(index, int) and isinstance(number, int):
        return index, number
    import jax

    return jax.process_index(), jax.process_count()


def _service() -> Any | None:
    if "jax" not in sys.modules:
        return None
    try:
        from jax._src import distributed
    except ImportError:
        return None
    return getattr(distributed, "global_state", None)


class JaxStore:
    """See `zephon_jax.coordinate.store.Store`."""

    def __init__(self, *, of: Any | None = None):
        found = client() if of is None else of
        if found is None:
            raise ConfigurationError(
                "aggregate_store='jax://' needs jax.distributed.initialize() before; without it, pass aggregate_dir= a "
                "directory that all processes share"
            )
        if missing := [name for name in _METHODS if not hasattr(found, name)]:
            raise ConfigurationError(
                f"aggregate_store='jax://' needs {missing} of the coordination service's client, which this jax does not "
                "have; pass aggregate_dir= a directory that all processes share"
            )
        self._client = found

    @property
    def gone(self) -> bool:
        """Whether jax.distributed was shut down, and all keys with it."""
        return client() is not self._client

    def get(self, key: str) -> bytes | None:
        try:
            return unsealed(self._client.key_value_try_get_bytes(key), f"jax://{key}")
        except RuntimeError as error:
            if _is(error, "NOT_FOUND"):
                return None
            raise _failed(key, error) from error

    def put(self, key: str, value: bytes) -> None:
        try:
            self._client.key_value_set_bytes(key, sealed(value), allow_overwrite=True)
        except RuntimeError as error:
            raise _failed(key, error) from error

    def create(self, key: str, value: bytes) -> bool:
        try:
            self._client.key_value_set_bytes(key, sealed(value))
        except RuntimeError as error:
            if _is(error, "ALREADY_EXISTS"):
                return False
            raise _failed(key, error) from error
        return True

    def delete(self, key: str) -> None:
        try:
            self._client.key_value_delete(key)
        except RuntimeError as error:
            raise _failed(key, error) from error

    def list(self, prefix: str) -> list[str]:
        # The service looks up whole parts of a path; the rest of the prefix is compared here.
        folder = prefix.rpartition("/")[0]
        try:
            found = self._client.key_value_dir_get_bytes(f"{folder}/")
        except RuntimeError as error:
            raise _failed(prefix, error) from error
        return sorted(key for key, _ in found if key.startswith(prefix))

    def wait(self, key: str, timeout_s: float, seen: bytes | None = None) -> bytes | None:
        if seen is not None:
            return poll(lambda: self.get(key), timeout_s, seen, _MOST_PAUSE_S)
        end = time.monotonic() + timeout_s
        while True:
            left = end - time.monotonic()
            if left <= 0.001:
                return self.get(key)
            try:
                call_ms = max(1, int(min(left, _LONGEST_CALL_S) * 1000))
                return unsealed(self._client.blocking_key_value_get_bytes(key, call_ms), f"jax://{key}")
            except RuntimeError as error:
                if not _is(error, "DEADLINE_EXCEEDED"):
                    raise _failed(key, error) from error

    def get_each(self, keys: Sequence[str]) -> list[bytes | None]:
        if len(keys) < 2:
            return [self.get(key) for key in keys]
        with ThreadPoolExecutor(min(_AT_ONCE, len(keys)), thread_name_prefix="zephon_jax-store") as pool:
            return list(pool.map(self.get, keys))

    def delete_each(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)


def launch_nonce(timeout_s: float) -> str:
    """Another text in each launch of jax.distributed, the same on all its processes; "" where there is none."""
    if client() is None:
        return ""
    store = JaxStore()
    if processes()[0] == 0:
        store.create(_LAUNCH, uuid.uuid4().hex[:12].encode())
    nonce = store.wait(_LAUNCH, timeout_s)
    if nonce is None:
        raise AggregationTimeout(
            f"process 0 has not named this launch within {timeout_s:g} s; it must call checkpoint() as well; missing: rank 0"
        )
    return nonce.decode()


def _is(error: RuntimeError, status: str) -> bool:
    return str(error).startswith(status)


def _failed(key: str, error: RuntimeError) -> AggregationFailed:
    return AggregationFailed(f"the JAX coordination service failed on key {key}: {error}")
