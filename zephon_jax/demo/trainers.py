"""Starting, watching and killing trainer processes, each by the pid of the process that was started here."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from zephon_jax.demo.steplog import RunLog

__all__ = ["Trainer", "TrainerError", "ending", "watch"]

POLL_S = 0.02
STALL_S = 240.0  # importing and compiling take seconds; a trainer silent for this long hangs
ERROR_LINES = 25


class TrainerError(RuntimeError):
    """A trainer ended by itself with an error, ended too early, or stopped writing its log."""


class Trainer:
    """One trainer process: `name` is that of its run; the log and the standard error lie in the work folder."""

    def __init__(self, name: str, work: pathlib.Path, *, checkpoints: str, devices: int) -> None:
        self.name, self.devices = name, devices
        self.checkpoints = work / "checkpoints" / checkpoints
        self.log = RunLog()
        self._log_path = work / f"{name}.jsonl"
        self._error_path = work / f"{name}.stderr.txt"
        self._log_bytes = 0
        self._heard = time.monotonic()
        command = [sys.executable, "-m", "zephon_jax.demo.train", f"--work={work}", f"--log={self._log_path}"]
        command += [f"--checkpoints={self.checkpoints}", f"--devices={devices}"]
        with self._error_path.open("wb") as errors:
            # The open pipe to its standard input is how the trainer notices that this process is gone.
            self._process = subprocess.Popen(
                command, env=_environment(devices), stdin=subprocess.PIPE, stdout=errors, stderr=errors
            )

    @property
    def returncode(self) -> int | None:
        """None while it runs; minus the signal's number if a signal ended it."""
        return self._process.poll()

    def refresh(self) -> None:
        """Read what is new in the log. Raises `TrainerError` if the process has failed or hangs."""
        code = self.returncode
        self._read()
        if code:
            raise TrainerError(f"{self.name}: ended with {ending(code)}\n{self._errors()}")
        if code is None and time.monotonic() - self._heard > STALL_S:
            raise TrainerError(f"{self.name}: no step for {STALL_S:.0f} s after {self.log.last_step}\n{self._errors()}")

    def kill(self) -> int:
        """SIGKILL: no handler runs, nothing is flushed, nothing is saved. Returns what `waitpid` saw."""
        os.kill(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        self._read()
        return code

    def end(self) -> None:
        """Terminate the process if it still runs."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()

    def committed_steps(self) -> list[int]:
        """Steps with a committed checkpoint; Orbax renames a folder to its number once everything is in it."""
        if not self.checkpoints.exists():
            return []
        return sorted(int(path.name) for path in self.checkpoints.iterdir() if path.name.isdecimal())

    def _read(self) -> None:
        size = self._log_path.stat().st_size if self._log_path.exists() else 0
        if size != self._log_bytes:
            self._log_bytes, self._heard = size, time.monotonic()
            self.log = RunLog.read(self._log_path)

    def _errors(self) -> str:
        lines = self._error_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  | {line}" for line in lines[-ERROR_LINES:])


def ending(code: int) -> str:
    """A return code in words: `SIGKILL (returncode -9)`."""
    return f"{signal.Signals(-code).name} (returncode {code})" if code < 0 else f"returncode {code}"


def watch(trainers: Sequence[Trainer], until: Callable[[], bool]) -> None:
    """Read the trainers' logs as they grow, until `until()` holds. Raises `TrainerError` as soon as one fails."""
    while True:
        for trainer in trainers:
            trainer.refresh()
        if until():
            return
        time.sleep(POLL_S)


def _environment(devices: int) -> dict[str, str]:
    forced = f"--xla_force_host_platform_device_count={devices}"
    flags = f"{os.environ.get('XLA_FLAGS', '')} {forced}".strip()  # of two equal flags the last one counts
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
