"""One measurement in a process of its own: `python -m zephon_jax.bench.child TARGET WHAT SECONDS`. For the command only.

Standard input is a connection to the command, over which the answer goes, since what a pipeline prints is its own business.
Before each stage goes a note on what begins, so that the command can say what did not return. It ends with the command.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from zephon_jax.bench.gil import gil_shares
from zephon_jax.bench.measure import run_for, source_for
from zephon_jax.bench.report import failed_run
from zephon_jax.errors import ConfigurationError, ZephonError, text_of
from zephon_jax.named import load_pipeline

SOURCE = "source"


def answer(target: str, what: str, seconds: float, note: Callable[[str], object]) -> dict[str, Any]:
    """What the command reads; `{"error": text}` if the pipeline cannot be had or fails. `note` is told what begins."""
    where = "" if what == SOURCE else f"{what}: "
    try:
        note("load")
        pipeline = load_pipeline(target)
        if what == SOURCE:
            note("source")
            source = source_for(pipeline, seconds)
            return {"source": asdict(source), "gil": gil_shares(pipeline, lambda name: note(f"probe {name}"))}
        try:
            return {"run": asdict(run_for(pipeline, what, seconds, note))}
        except ConfigurationError as error:
            return {"run": asdict(failed_run(pipeline, what, error))}
    except ZephonError as error:
        return {"error": f"{where}{error}"}
    except SystemExit as error:  # of an operator: inline it is not caught
        at = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}({error.code!r}), raised in {at.name} ({at.filename}:{at.lineno})"
        return {"error": f"{where}an operator ended the process: {text}"}
    except BaseException as error:  # with its lines: nobody foresaw it
        traceback.print_exc()
        return {"error": f"{where}{type(error).__name__}: {text_of(error)}"}


def _end_with(command: Connection) -> None:
    """A command that is killed says nothing, and a measurement may take for ever."""
    try:
        command.poll(None)  # nothing is ever sent: it is readable at its end
    finally:
        os._exit(1)


def main(arguments: Sequence[str]) -> None:
    """Measure, and send the answer."""
    target, what, seconds = arguments
    # The command decides. It was blocked until now, but multiprocessing unblocks it as it starts its resource tracker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    command = Connection(os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # for pipelines that read it
    os.close(nothing)
    threading.Thread(target=_end_with, args=(command,), name="bench-command", daemon=True).start()

    def send(message: dict[str, Any]) -> None:
        command.send_bytes(json.dumps(message).encode())

    send(answer(target, what, float(seconds), lambda text: send({"doing": text})))


if __name__ == "__main__":
    main(sys.argv[1:])
