"""One measurement in a process of its own: `python -m zephon_jax.bench.child TARGET WHAT SECONDS FILE`. For the command only.

The answer goes to FILE, since what a pipeline prints is its own business.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from zephon_jax.bench.gil import gil_shares
from zephon_jax.bench.measure import run_for, source_for
from zephon_jax.bench.report import failed_run
from zephon_jax.bench.target import load_pipeline
from zephon_jax.errors import ConfigurationError, ZephonError

SOURCE = "source"


def answer(target: str, what: str, seconds: float) -> dict[str, Any]:
    """What the command reads; `{"error": text}` if the pipeline itself cannot be had."""
    try:
        pipeline = load_pipeline(target)
        if what == SOURCE:
            return {"source": asdict(source_for(pipeline, seconds)), "gil": gil_shares(pipeline)}
        try:
            return {"run": asdict(run_for(pipeline, what, seconds))}
        except ConfigurationError as error:
            return {"run": asdict(failed_run(pipeline, what, error))}
    except ZephonError as error:
        return {"error": str(error)}


def main(arguments: Sequence[str]) -> None:
    """Measure, and write the answer."""
    target, what, seconds, path = arguments
    found = answer(target, what, float(seconds))
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1:])
