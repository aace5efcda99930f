"""The main loop of a worker process: one request, one answer, until the parent closes the pipe or is gone."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection

from zephon_jax.runners.memory import Channel, SharedMemory
from zephon_jax.runners.outcome import perform

__all__ = ["serve"]


def serve(link: Connection, memory: SharedMemory | None) -> None:
    """Answer requests `(key, [operators or nothing, *packed argument])` with packed outcomes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when a worker ends
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    # Should an operator's module import jax after all, the accelerator stays the trainer's.
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the workers are the parallelism
    channel = Channel(link, memory, parent=False)
    channel.started()
    while True:
        try:
            key, (blob, *parts) = channel.receive()
        except (EOFError, OSError):
            return
        answer = perform(key, blob, parts, channel.mark)
        del blob, parts
        try:
            channel.send(None, answer)
        except OSError:
            return


def _end_with_parent() -> None:
    """A killed parent closes nothing in an orderly way, and a task may run for long."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
