"""Whether two values that an operator or a pipeline produced are the same, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["difference"]


def difference(a: Any, b: Any, where: str = "") -> str | None:
    """Where and how two values differ; None if they are the same. NaN equals NaN, and 1 differs from 1.0."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if set(a) != set(b):
            return f"{where or 'the record'} has the fields {sorted(a)} against {sorted(b)}"
        return next(
            (d for k in a if (d := difference(a[k], b[k], f"{where}[{k!r}]" if where else f"field {k!r}"))), None
        )
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return f"{where} has {len(a)} values against {len(b)}"
        return next(
            (d for i, (x, y) in enumerate(zip(a, b, strict=True)) if (d := difference(x, y, f"{where}[{i}]"))), None
        )
    if isinstance(a, (np.ndarray, np.generic)) and isinstance(b, (np.ndarray, np.generic)):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{where} is {a.dtype}{a.shape} against {b.dtype}{b.shape}"
        if a.dtype == object:
            return difference(a.tolist(), b.tolist(), where)
        return None if a.tobytes() == b.tobytes() else f"{where} differs: {_shown(a)} against {_shown(b)}"
    if type(a) is not type(b):
        return f"{where} is a {type(a).__name__} against a {type(b).__name__}"
    return None if a == b else f"{where} differs: {_shown(a)} against {_shown(b)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
