"""The command's side of a measurement in a process of its own: it is started, waited for so long, and never left behind.

A pipeline's operators may hang, crash or end the process. Then the words here say what it was doing; what is measured, and
what the figures mean, is the business of others.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from zephon_jax.errors import ConfigurationError, WorkerError

__all__ = ["measured_apart"]

_LOOK_S = 0.1


def measured_apart(target: str, what: str, seconds: float, limit_s: float) -> dict[str, Any]:
    """The answer of `bench.child`, which is no longer there on return, nor after an exception.

    Args:
        target: As in `load_pipeline`.
        what: "source", or an executor.
        seconds: To measure for.
        limit_s: It is killed if it has not answered so long after that.

    Raises:
        WorkerError: The limit was reached, or the process ended without an answer; it says what it was doing.
        ConfigurationError: The pipeline cannot be had, or failed.
    """
    here, there = Pipe()
    with here:
        with there:
            process = _started(target, what, seconds, there)
        try:
            deadline, doing = time.monotonic() + seconds + limit_s, "load"
            while True:
                try:
                    found = _message(here, process, deadline)
                except TimeoutError:
                    limit = f"{seconds + limit_s:g} s (--seconds {seconds:g} and --limit {limit_s:g})"
                    raise WorkerError(_too_long(target, what, doing, limit)) from None
                except EOFError:
                    raise WorkerError(_ended(target, what, doing, process.wait())) from None
                if "doing" not in found:
                    break
                doing = found["doing"]
        finally:
            process.kill()  # by its id, if it is still there; its workers end with it
            process.wait()
    if "error" in found:
        raise ConfigurationError(found["error"])
    return found


def _started(target: str, what: str, seconds: float, link: Connection) -> subprocess.Popen[bytes]:
    # What the pipeline prints goes to standard error: standard output is for the report.
    command = [sys.executable, "-m", "zephon_jax.bench.child", target, what, str(seconds)]
    # Ctrl-C goes to all processes of a terminal; only the command answers it. A mask is inherited from the start.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(command, stdin=link.fileno(), stdout=sys.stderr.fileno() if _has_descriptor() else None)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _message(here: Connection, process: subprocess.Popen[bytes], deadline: float) -> dict[str, Any]:
    """The next one. EOFError if the process has ended; processes forked from it may hold its end of the connection."""
    while not here.poll(_LOOK_S):
        if process.poll() is not None and not here.poll(0):
            raise EOFError
        if time.monotonic() > deadline:
            raise TimeoutError
    try:
        return json.loads(here.recv_bytes())
    except OSError:  # reset: it ended within a message
        raise EOFError from None


def _too_long(target: str, what: str, doing: str, limit: str) -> str:
    begun, _, operator = doing.partition(" ")
    killed = "the process was killed; if it only needs longer, give a larger --limit"
    match begun:
        case "load":
            return f"{what}: {target!r} was not imported within {limit}; {killed}"
        case "source":
            return f"the source alone (fetch; no operator runs): it did not return within {limit}; {killed}"
        case "probe":
            return f"{operator}, run alone on a few records, did not return within {limit}; {killed}"
        case "first":
            return f"{what}: no batch within {limit}: an operator or the source does not return; {killed}"
        case _:
            return (
                f"{what}: batches came, but then none to the end of {limit}: an operator or the source does not return; "
                f"{killed}"
            )


def _ended(target: str, what: str, doing: str, code: int) -> str:
    begun, _, operator = doing.partition(" ")
    match begun:
        case "load":
            where, who = f"{what}, while {target!r} was imported", "its code"
        case "source":
            where, who = "the source alone (fetch; no operator runs)", "the source"
        case "probe":
            where, who = f"{operator}, run alone on a few records", "the operator"
        case "first":
            where, who = f"{what}, before the first batch", "an operator (or the source)"
        case _:
            where, who = f"{what}, after the first batch", "an operator (or the source)"
    if code >= 0:
        return f"{where}: {who} ended the process, with exit code {code}, as os._exit({code}) does"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if -code == signal.SIGKILL:
        return f"{where}: the process was killed by SIGKILL, as the kernel does when memory runs out"
    return f"{where}: {who} ended the process, or another process did: it was killed by {name}"


def _has_descriptor() -> bool:
    try:
        return sys.stderr.fileno() >= 0
    except (OSError, ValueError):
        return False
