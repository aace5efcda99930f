"""Figures written into a page, between two marks, so that refreshing them is one command."""

from __future__ import annotations

import os
import pathlib
import platform
from importlib.metadata import version

__all__ = ["machine", "write_between"]


def write_between(path: str, name: str, text: str) -> None:
    """Replace what stands between `<!-- NAME -->` and `<!-- /NAME -->`."""
    page = pathlib.Path(path)
    before, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    if not begin or not end:
        raise SystemExit(f"{path} has no marks <!-- {name} --> and <!-- /{name} -->")
    page.write_text(f"{before}{begin}\n{text.strip()}\n\n{end}{after}", encoding="utf-8")


def machine() -> str:
    """Cores, processor and versions."""
    model = platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            model = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    named = [f"{name} {version(name)}" for name in ("numpy", "pyarrow", "jax", "grain", "tokenizers") if _there(name)]
    return f"{len(os.sched_getaffinity(0))} cores of {model}, Python {platform.python_version()}, {', '.join(named)}"


def _there(name: str) -> bool:
    try:
        version(name)
    except Exception:
        return False
    return True
