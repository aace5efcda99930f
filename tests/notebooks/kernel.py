"""A real Jupyter kernel to run cells in, as a notebook does: interrupts and restarts included."""

from __future__ import annotations

import os
import pathlib
import queue
import re
import shutil
import tempfile
import time
import uuid

import pytest

from tests.processes.everything import MARK, marked

ROOT = pathlib.Path(__file__).parents[2]
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class CellFailed(AssertionError):
    """A cell raised; the text is its traceback."""


class Kernel:
    """A kernel in a folder of its own. `with Kernel(folder) as kernel: kernel.run("print(1)")`."""

    def __init__(self, folder: pathlib.Path):
        manager = pytest.importorskip("jupyter_client.manager")
        pytest.importorskip("ipykernel")
        self._sockets = tempfile.mkdtemp(prefix="zj-")  # short: names of sockets are at most 107 characters long
        self.mark = uuid.uuid4().hex
        self._env = {**os.environ, MARK: self.mark, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        self._folder = folder
        self._log = open(folder / "kernel.log", "wb")  # noqa: SIM115 - as long as the kernel
        self._manager = manager.KernelManager(
            kernel_name="python3", transport="ipc", ip=f"{self._sockets}/k", connection_file=f"{self._sockets}/k.json"
        )

    def __enter__(self) -> Kernel:
        out = {"stdout": self._log, "stderr": self._log}
        self._manager.start_kernel(cwd=str(self._folder), env=self._env, **out)
        self._connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
        self._log.close()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _connect(self) -> None:
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)

    def run(self, code: str, *, timeout_s: float = 60) -> str:
        """Run a cell; what it printed. What it displays counts as printed."""
        return self.result(self.begin(code), timeout_s=timeout_s)

    def begin(self, code: str) -> str:
        """Start a cell, for `result`."""
        return self._client.execute(code, store_history=True)

    def result(self, cell: str, *, timeout_s: float = 60) -> str:
        """Wait for a cell; what it printed."""
        printed, error, deadline = "", None, time.monotonic() + timeout_s
        while True:
            message = self._next(deadline, printed)
            if message["parent_header"].get("msg_id") != cell:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream" and content["name"] == "stdout":
                printed += content["text"]
            elif kind == "execute_result":
                printed += content["data"]["text/plain"]
            elif kind == "error":
                error = _COLOURS.sub("", "\n".join(content["traceback"]))
            elif kind == "status" and content["execution_state"] == "idle":
                if error is not None:
                    raise CellFailed(f"{error}\nprinted before: {printed}")
                return printed

    def _next(self, deadline: float, printed: str) -> dict:
        try:
            return self._client.get_iopub_msg(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise TimeoutError(f"the cell did not end; printed so far: {printed}") from None

    def interrupt(self) -> None:
        """What the stop button does: SIGINT to the kernel and to all processes that it has started."""
        self._manager.interrupt_kernel()

    def restart(self) -> None:
        """What `Restart` does: the kernel is killed without warning, and another one starts."""
        self._client.stop_channels()
        self._manager.restart_kernel(now=True)
        self._connect()

    def processes(self) -> dict[int, str]:
        """Every process of this kernel that is alive, the kernel's own included; not Python's own tracker of resources."""
        return {pid: line for pid, line in marked(self.mark).items() if "resource_tracker" not in line}
