"""The values that were used most recently, within a limit: decoded blocks by their bytes, open readers by their number.

Readers of blocks (a row group, a group of records) decode a whole block for one sample, and what is asked next is most
often in the same one. Values are kept per process, not per source, so that a mixture of fifty datasets has one budget
and sources can be sent to workers; keys say all that a value depends on.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

__all__ = ["DECODED", "Recent"]

T = TypeVar("T")


class Recent(Generic[T]):
    """A mapping that makes what it lacks and forgets what was not used for longest; any number of threads may use it.

    The costs of what it holds add up to `limit` at most, except that the value used last stays whatever it costs: a
    block larger than the budget would be decoded again for each sample otherwise. A value that leaves is not closed,
    since another thread may be using it; it goes with its last reference.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._making: dict[Hashable, Future[T]] = {}
        self._left: dict[Hashable, int] = {}
        self._cost = 0

    @property
    def cost(self) -> int:
        """Of all that is held now."""
        return self._cost

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()
            self._left.clear()
            self._cost = 0

    def spend(self, key: Hashable, part: int, whole: int) -> None:
        """Say that `part` of a value's `whole` was used. When that is all of it, the value is forgotten: a pass uses each
        sample once, so room is better kept for blocks of which something is still to come.
        """
        with self._lock:
            if key in self._kept:
                self._left[key] = self._left.get(key, whole) - part
                if self._left[key] <= 0:
                    self._forget(key)

    def _forget(self, key: Hashable) -> None:
        self._cost -= self._kept.pop(key)[1]
        self._left.pop(key, None)

    def get(self, key: Hashable, make: Callable[[], tuple[T, int]]) -> T:
        """The value of `key`; `make` gives it and its cost if it is not held.

        Threads that ask for one key at once wait for the first, whose error, if any, is raised in all of them. Errors
        are not kept.
        """
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
            future = self._making.get(key)
            mine = future is None
            if future is None:
                future = self._making[key] = Future()
        if not mine:
            return future.result()
        try:
            value, cost = make()
        except BaseException as error:
            with self._lock:
                del self._making[key]
            future.set_exception(error)
            raise
        with self._lock:
            del self._making[key]
            self._kept[key] = (value, cost)
            self._cost += cost
            while self._cost > self.limit and len(self._kept) > 1:
                self._forget(next(iter(self._kept)))
        future.set_result(value)
        return value


DECODED: Final[Recent[Any]] = Recent(256 << 20)
"""Decoded blocks of every source of this process, in bytes: some hundred row groups of the size that is advised."""
