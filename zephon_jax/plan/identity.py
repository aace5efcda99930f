"""How two plans differ, in words (rule C6). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["plan_differences"]


def plan_differences(saved: Any, here: Any, path: str = "") -> list[str]:
    """One line per difference: where, what the checkpoint has, what this pipeline has."""
    if isinstance(saved, Mapping) and isinstance(here, Mapping):
        return _mappings(saved, here, path)  # pyright: ignore[reportUnknownArgumentType]
    if _is_list(saved) and _is_list(here):
        if path == "operators" and len(saved) != len(here):
            return [f"operators: the checkpoint has {_names(list(saved))}, this pipeline {_names(list(here))}"]
        if len(saved) == len(here):
            return [
                d
                for i, (a, b) in enumerate(zip(saved, here, strict=True))
                for d in plan_differences(a, b, f"{path}[{i}]")
            ]
    elif type(saved) is type(here) and saved == here:
        return []
    return [] if saved == here else [f"{path}: the checkpoint has {_shown(saved)}, this pipeline {_shown(here)}"]


def _mappings(saved: Mapping[str, Any], here: Mapping[str, Any], path: str) -> list[str]:
    label = f"{path}({saved['op']})" if "op" in saved and saved.get("op") == here.get("op") else path
    if saved.get("op") != here.get("op"):
        return [f"{path}: the checkpoint has {_names([saved])[0]}, this pipeline {_names([here])[0]}"]
    out: list[str] = []
    for key in dict.fromkeys([*saved, *here]):
        where = f"{label}.{key}" if label else str(key)
        if key not in here:
            out.append(f"{where}: the checkpoint has {_shown(saved[key])}, this pipeline has none")
        elif key not in saved:
            out.append(f"{where}: the checkpoint has none, this pipeline {_shown(here[key])}")
        else:
            out += plan_differences(saved[key], here[key], where)
    return out


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:150]}… ({len(text)} characters)"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _names(operators: Sequence[Any]) -> list[str]:
    return [str(op.get("op") or op.get("class")) if isinstance(op, Mapping) else str(op) for op in operators]
