"""Small JSON files that describe a folder, local or in object storage."""

from __future__ import annotations

import json
from typing import Any

from zephon_jax.errors import DataError
from zephon_jax.sources.storage import is_remote

__all__ = ["read_json_object"]


def read_json_object(path: str) -> dict[str, Any] | None:
    """The object in the file; None if there is no such file. DataError if it cannot be read or holds something else."""
    content = _content(path)
    if content is None:
        return None
    try:
        value = json.loads(content)
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON ({error})", path=path) from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: a JSON object is needed, got {str(value)[:60]!r}", path=path)
    return value  # pyright: ignore[reportUnknownVariableType]


def _content(path: str) -> bytes | None:
    if is_remote(path):
        from zephon_jax.sources import remote as objects

        return objects.read_object(path)
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}", path=path) from error
