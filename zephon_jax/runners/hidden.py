"""Processes that start afresh and do not run the caller's script again.

A spawned process usually imports the script that started it, to find its functions there. That runs a script without an
`if __name__ == "__main__"` guard once more in every worker, fails in notebooks, and imports jax where the script does.
Operators travel by value here, so the script is hidden for the moment in which a process starts.
"""

from __future__ import annotations

import signal
import sys
import threading
import types
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

__all__ = ["hidden_main"]

_starting = threading.Lock()


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        stand_in = types.ModuleType("__main__")
        stand_in.__spec__ = None
        resource_tracker.ensure_running()  # starting it would end the mask below
        with _starting:
            real = sys.modules["__main__"]
            # Ctrl-C goes to all processes of a terminal; only the parent answers it. A mask is inherited from the start.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            sys.modules["__main__"] = stand_in
            try:
                return SpawnProcess._Popen(process_obj)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
            finally:
                sys.modules["__main__"] = real
                signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Context(SpawnContext):
    Process = _Process  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]


hidden_main = _Context()
"""A multiprocessing context: `hidden_main.Process(target=..., args=...)`."""
