"""The pipeline that a command names: in a file or a module, as a value or a function that makes it.

Of `zephon-jax inspect --next` and `zephon-jax bench`, so it stands below both, and knows neither.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pathlib
import sys
from types import ModuleType

from zephon_jax.errors import ConfigurationError, text_of
from zephon_jax.pipeline import Pipeline

__all__ = ["load_pipeline"]

_MODULE = "zephon_jax_named_pipeline"


def load_pipeline(name: str) -> Pipeline:
    """`FILE.py:NAME` or `MODULE:NAME`, a `Pipeline` or a function without parameters that returns one; NAME may be left out.

    Raises:
        ConfigurationError: What is named is not there, cannot be imported, or is no pipeline; it says which.
    """
    module_name, _, attribute = name.partition(":")
    attribute = attribute or "pipeline"
    if not module_name:
        raise ConfigurationError(f"{name!r}: name the pipeline as FILE.py:NAME or MODULE:NAME")
    module = _imported(module_name)
    found = getattr(module, attribute, None)
    if found is None:
        there = sorted(key for key, value in vars(module).items() if isinstance(value, Pipeline))
        hint = f"; there are {there}" if there else ""
        raise ConfigurationError(f"{module_name!r} has no {attribute!r}: name the pipeline as {module_name}:NAME{hint}")
    if isinstance(found, Pipeline):
        return found
    if not callable(found):
        raise ConfigurationError(
            f"{name!r} is a {type(found).__name__}; a Pipeline, or a function that returns one, is needed"
        )
    try:
        made = found()
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"{name!r} was called without arguments and failed: {_line_of(error)}") from error
    if not isinstance(made, Pipeline):
        raise ConfigurationError(f"{name!r} returned a {type(made).__name__}; it must return a Pipeline")
    return made


def _imported(name: str) -> ModuleType:
    is_file = name.endswith(".py")
    if is_file and not os.path.isfile(name):
        raise ConfigurationError(f"{name!r}: no such file")
    # What the file imports lies beside it, what a module imports where the command was given. It stays: functions of the
    # pipeline may import later.
    beside = str(pathlib.Path(name).resolve().parent) if is_file else os.getcwd()
    if beside not in sys.path:
        sys.path.insert(0, beside)
    try:
        if not is_file:
            return importlib.import_module(name)
        spec = importlib.util.spec_from_file_location(_MODULE, name)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[_MODULE] = module  # dataclasses look themselves up while they are made
        try:
            spec.loader.exec_module(module)
        finally:
            del sys.modules[
                _MODULE
            ]  # so that worker processes are sent functions by their code: they could not import them
        return module
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"{name!r} cannot be imported: {_line_of(error)}") from error


def _line_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(text_of(error).split())}".removesuffix(": ")
