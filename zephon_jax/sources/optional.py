"""Libraries that only some formats need: imported when the first source of the format is made, never with the package."""

from __future__ import annotations

import importlib
from typing import Any

from zephon_jax.errors import ConfigurationError

__all__ = ["optional"]


def optional(module: str, *, extra: str, purpose: str) -> Any:
    """The module; a ConfigurationError that names the extra to install if it is not there."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f'{purpose} needs {module.split(".")[0]}, which is not installed: pip install "zephon-jax[{extra}]" ({error})'
        ) from error
