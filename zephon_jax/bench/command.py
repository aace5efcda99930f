"""`zephon-jax bench`: arguments, a process for each executor, and what is printed."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from zephon_jax.bench.measure import OperatorTime, Run, SourceRun
from zephon_jax.bench.report import EXECUTORS, Report, checked_executors, checked_seconds
from zephon_jax.errors import ConfigurationError, WorkerError, ZephonError

__all__ = ["add_arguments", "run_from"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `zephon-jax bench`."""
    parser.add_argument(
        "target",
        metavar="FILE.py:NAME",
        help="or MODULE:NAME: a Pipeline, or a function without parameters that returns one; NAME is `pipeline` if left out",
    )
    parser.add_argument(
        "--executor",
        default=",".join(EXECUTORS),
        metavar="NAMES",
        help="executors to compare, with commas between them (default: %(default)s)",
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="for each of them (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")


def run_from(arguments: argparse.Namespace) -> int:
    """Measure and print; 2 if the pipeline cannot be had or fails, or no executor takes it."""
    try:
        report = measured(arguments.target, arguments.executor, arguments.seconds)
    except ZephonError as error:
        sys.stderr.write(f"zephon-jax bench: {error}\n")
        return 2
    sys.stdout.write(f"{json.dumps(report.as_plain()) if arguments.json else report}\n")
    if report.fastest is None:
        sys.stderr.write("zephon-jax bench: the pipeline gave nothing to measure on any of these executors\n")
        return 2
    return 0


def measured(target: str, executors: str, seconds: float) -> Report:
    """Each executor in a process of its own, with memory of its own, after the source alone."""
    chosen = checked_executors([name.strip() for name in executors.split(",")])
    seconds = checked_seconds(seconds)
    first = _child(target, "source", seconds)
    runs = tuple(_run_of(_child(target, executor, seconds)["run"]) for executor in chosen)
    return Report(runs, SourceRun(**first["source"]), first["gil"])


def _run_of(plain: dict[str, Any]) -> Run:
    operators: Any = tuple(OperatorTime(**one) for one in plain["operators"])
    return Run(**{**plain, "operators": operators})


def _child(target: str, what: str, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="zephon-bench-") as folder:
        path = os.path.join(folder, "answer.json")
        command = [sys.executable, "-m", "zephon_jax.bench.child", target, what, str(seconds), path]
        # What the pipeline prints goes to standard error: standard output is for the report.
        code = subprocess.run(
            command, stdout=sys.stderr.fileno() if _has_descriptor() else None, check=False
        ).returncode
        if not os.path.exists(path):
            raise WorkerError(f"{what}: the process that measured {target!r} ended with exit code {code}; see above")
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    if "error" in found:
        raise ConfigurationError(f"{what}: {found['error']}" if what != "source" else found["error"])
    return found


def _has_descriptor() -> bool:
    try:
        return sys.stderr.fileno() >= 0
    except (OSError, ValueError):
        return False
