"""From what a user names to the files meant, checked at once."""

from __future__ import annotations

import glob
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, cast

from zephon_jax.errors import ConfigurationError
from zephon_jax.sources.base import Source
from zephon_jax.sources.jsonl import JsonlSource

__all__ = ["open_files"]

_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl"}
_FORMATS = sorted(set(_SUFFIXES.values()))


def open_files(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], format: str | None, fields: Sequence[str] | None
) -> Source:
    """The source of these files; all must be of one format."""
    if format is not None and format not in _FORMATS:
        raise ConfigurationError(f"format={format!r} is not one of {_FORMATS}")
    if isinstance(fields, str):
        raise ConfigurationError(f"fields={fields!r} must be a list of names: [{fields!r}]")
    single = isinstance(paths, (str, os.PathLike)) or not isinstance(paths, Iterable)
    given: list[Any] = [paths] if single else list(cast(Iterable[Any], paths))
    for one in given:
        if not isinstance(one, (str, os.PathLike)):
            raise ConfigurationError(f"a path was expected, got {one!r}")
    found = [path for one in given for path in _expand(os.path.expanduser(one), any_suffix=format is not None)]
    if not found:
        raise ConfigurationError("an empty list of paths names no data")
    real = [os.path.realpath(p) for p in found]
    if len(set(real)) < len(real):
        twice = sorted({p for p, r in zip(found, real, strict=True) if real.count(r) > 1})
        raise ConfigurationError(f"files are named twice: {twice[:5]}; each sample would be read twice a pass")
    unknown = [p for p in found if format is None and pathlib.Path(p).suffix not in _SUFFIXES]
    if unknown:
        raise ConfigurationError(
            f"{unknown[0]}: the suffix is not one of {sorted(_SUFFIXES)}; pass format= if the content is one of {_FORMATS}"
        )
    return JsonlSource(found, fields)


def _expand(path: str, *, any_suffix: bool) -> list[str]:
    if "://" in path:
        raise ConfigurationError(f"{path}: this version reads local files only; copy the data to a local folder")
    if os.path.isdir(path):
        inside = sorted(os.path.join(path, entry) for entry in os.listdir(path) if not entry.startswith("."))
        found = [p for p in inside if os.path.isfile(p) and (any_suffix or pathlib.Path(p).suffix in _SUFFIXES)]
        if not found:
            raise ConfigurationError(f"folder {path} holds no file that ends in {sorted(_SUFFIXES)}")
        return found
    if os.path.exists(path):
        return [path]
    if glob.has_magic(path):
        found = [
            p
            for p in sorted(glob.glob(path, recursive=True))
            if not os.path.basename(p).startswith(".") and os.path.isfile(p)
        ]
        if not found:
            raise ConfigurationError(f"the pattern {path} matches no file (working directory {os.getcwd()})")
        return found
    raise ConfigurationError(f"no such file: {path} (working directory {os.getcwd()})")
