"""Memory that a worker process shares with its parent, and the messages between the two.

The parent owns it: nothing has a name in the file system, and nothing is left behind, however either of them dies. A
micro-batch is copied in and out, so that arrays belong to whoever has them; what does not fit goes through the pipe.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["Channel", "SharedMemory"]

_HEADER_BYTES = 64
_HALF_BYTES = 16 << 20  # committed as it is touched


class SharedMemory:
    """An anonymous block of two halves, one for each direction; its descriptor travels while a process is spawned."""

    def __init__(self, fd: int | None = None):
        self.half = _HALF_BYTES
        self.size = _HEADER_BYTES + 2 * self.half
        self._fd = os.memfd_create("zephon_jax", os.MFD_CLOEXEC) if fd is None else fd
        if fd is None:
            os.ftruncate(self._fd, self.size)
        self.map = mmap.mmap(self._fd, self.size)
        if fd is not None:  # the map keeps it
            os.close(fd)
            self._fd = -1

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (reduction.DupFd(self._fd),)

    def close(self) -> None:
        """Give it back; the other side keeps its own map until it ends."""
        with contextlib.suppress(BufferError):  # a thread is copying out of it: it goes with the last reference
            self.map.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _attached(fd: Any) -> SharedMemory:
    return SharedMemory(fd.detach())


class Channel:
    """One end: lists of buffers in both directions, and a mark by which the worker says which operator is at work."""

    def __init__(self, connection: Connection, memory: SharedMemory | None, *, parent: bool):
        self.connection, self.memory = connection, memory
        half = memory.half if memory is not None else 0
        self._out, self._in = (0, half) if parent else (half, 0)
        self._half = half

    def send(self, what: Any, parts: Sequence[Any]) -> None:
        """`what` is a small plain value."""
        lengths = [memoryview(part).nbytes for part in parts]
        fits = self.memory is not None and sum(lengths) <= self._half
        if self.memory is not None and fits:
            at = _HEADER_BYTES + self._out
            for part, n in zip(parts, lengths, strict=True):
                if n:
                    self.memory.map[at : at + n] = memoryview(part).cast("B")
                at += n
        self.connection.send_bytes(pickle.dumps((what, lengths, fits)))
        if not fits:
            for part in parts:
                self.connection.send_bytes(part)

    def receive(self) -> tuple[Any, list[bytearray]]:
        """What was sent, in buffers of one's own. Raises EOFError or OSError if the other end is gone."""
        what, lengths, fits = pickle.loads(self.connection.recv_bytes())
        if not fits:
            return what, [bytearray(self.connection.recv_bytes()) for _ in lengths]
        assert self.memory is not None
        parts: list[bytearray] = []
        at = _HEADER_BYTES + self._in
        with memoryview(self.memory.map) as view:
            for n in lengths:
                with view[at : at + n] as part:
                    parts.append(bytearray(part))
                at += n
        return what, parts

    def started(self) -> None:
        """The worker waits for its first task."""
        if self.memory is not None:
            self.memory.map[5] = 1

    @property
    def ready(self) -> bool:
        """Whether the worker has `started`, as far as can be seen without waiting."""
        return self.memory is None or self.memory.map[5] == 1

    def mark(self, operator: int | None) -> None:
        """The worker is in this operator (from -1 on) now; a count tells that it entered another one of the same index."""
        if self.memory is not None:
            turn = self.memory.map[0] + 1 & 0x7F
            self.memory.map[1:5] = (0 if operator is None else operator + 2).to_bytes(4, "little")
            self.memory.map[0] = turn

    def marked(self) -> tuple[int, int | None]:
        """The count of marks, and the operator; None before and after all of them."""
        if self.memory is None:
            return 0, None
        found = int.from_bytes(self.memory.map[1:5], "little")
        return self.memory.map[0], found - 2 if found else None
