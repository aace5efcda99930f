"""`zephon-jax bench`: arguments, a process for each executor, and what is printed."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from zephon_jax.bench.apart import measured_apart
from zephon_jax.bench.measure import OperatorTime, Run, SourceRun
from zephon_jax.bench.report import EXECUTORS, Report, checked_executors, checked_seconds
from zephon_jax.errors import ConfigurationError, ZephonError

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
    parser.add_argument(
        "--limit",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="that each may take beyond --seconds, start-up included, before it is killed (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")


def run_from(arguments: argparse.Namespace) -> int:
    """Measure and print; 2 if the pipeline cannot be had or fails, or no executor takes it, 130 after Ctrl-C."""
    try:
        report = measured(arguments.target, arguments.executor, arguments.seconds, arguments.limit)
    except KeyboardInterrupt:
        sys.stderr.write("zephon-jax bench: interrupted\n")
        return 130
    except ZephonError as error:
        sys.stderr.write(f"zephon-jax bench: {error}\n")
        return 2
    sys.stdout.write(f"{json.dumps(report.as_plain()) if arguments.json else report}\n")
    if report.fastest is None:
        sys.stderr.write("zephon-jax bench: nothing to measure on any of these executors; the report says why\n")
        return 2
    return 0


def measured(target: str, executors: str, seconds: float, limit_s: float) -> Report:
    """Each executor in a process of its own, with memory of its own, after the source alone and the probe of operators."""
    chosen = checked_executors([name.strip() for name in executors.split(",")])
    seconds = checked_seconds(seconds)
    if not 0 < limit_s < float("inf"):
        raise ConfigurationError(f"--limit {limit_s:g}: give a number of seconds above 0")
    first = measured_apart(target, "source", seconds, limit_s)
    runs = tuple(_run_of(measured_apart(target, executor, seconds, limit_s)["run"]) for executor in chosen)
    return Report(runs, SourceRun(**first["source"]), first["gil"])


def _run_of(plain: dict[str, Any]) -> Run:
    operators: Any = tuple(OperatorTime(**one) for one in plain["operators"])
    return Run(**{**plain, "operators": operators})
