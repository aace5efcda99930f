"""CPU time and memory of this process and all below it, as Linux tells them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

__all__ = ["PeakMemory", "machine_cpu_s", "tree_cpu_s", "tree_memory_bytes"]

_TICKS = os.sysconf("SC_CLK_TCK")


def _tree(pid: int) -> Iterator[int]:
    """The process and all below it that are there now."""
    yield pid
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children") as file:
                children = file.read().split()
        except OSError:
            continue
        for child in children:
            yield from _tree(int(child))


def tree_cpu_s(pid: int | None = None) -> float:
    """CPU seconds, user and system, of this process and all below it, with those that have ended and been waited for.

    To the nanosecond for this process, to 10 ms for others.
    """
    me = os.getpid()
    total = 0.0
    for one in _tree(me if pid is None else pid):
        if one == me:
            ended = os.times()
            total += time.process_time() + ended.children_user + ended.children_system
            continue
        try:
            with open(f"/proc/{one}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / _TICKS  # its own, and that of its children which have ended
    return total


def machine_cpu_s() -> float:
    """CPU seconds that all processes of the machine have used since it started."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / _TICKS


def tree_memory_bytes(pid: int | None = None) -> int:
    """Memory that is resident and no page of a mapped file; what processes share counts once for each page."""
    total = 0
    tree = list(_tree(os.getpid() if pid is None else pid))
    for one in tree:
        try:
            total += _shared_fairly(one) if len(tree) > 1 else _anonymous(one)
        except OSError:
            continue
    return total


def _anonymous(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        return 1024 * sum(int(line.split()[1]) for line in file if line.startswith(("RssAnon:", "RssShmem:")))


def _shared_fairly(pid: int) -> int:
    """Slower: the kernel walks all pages, and divides each by those who map it."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return 1024 * sum(int(line.split()[1]) for line in file if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


class PeakMemory:
    """The most memory of the tree while the block runs, looked at now and then from a thread: `with PeakMemory() as peak`."""

    def __init__(self, every_s: float = 0.05):
        self.bytes = 0
        self._every_s, self._quit = every_s, threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench-memory", daemon=True)

    def _run(self) -> None:
        while not self._quit.wait(self._every_s):
            self.sample()

    def sample(self) -> None:
        """Look now as well."""
        self.bytes = max(self.bytes, tree_memory_bytes())

    def __enter__(self) -> PeakMemory:
        self.sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._quit.set()
        self._thread.join()
        self.sample()
