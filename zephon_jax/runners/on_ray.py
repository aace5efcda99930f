"""Ray as a `concurrent.futures.Executor`, since it brings none: `options(executor=RayExecutor())` after `ray.init()`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from zephon_jax.errors import ConfigurationError

__all__ = ["RayExecutor"]

Result = TypeVar("Result")


class RayExecutor(Executor):
    """Runs tasks on the Ray cluster that this process is connected to; `options` are those of `ray.remote`, such as `num_cpus`.

    A worker that dies makes Ray's own error, and the pipeline runs the micro-batch again; Ray itself does not.
    """

    def __init__(self, **options: Any):
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ConfigurationError("RayExecutor needs Ray, which is not installed: pip install ray") from error
        if not ray.is_initialized():
            raise ConfigurationError("RayExecutor needs a connection to a cluster: call ray.init() first")
        self._ray = ray
        self._call: Any = ray.remote(max_retries=0, **options)(_call)
        self._stored: dict[Callable[..., Any], Any] = {}

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """As `Executor.submit`; `cancel` of the future does not reach a task that runs."""
        if fn not in self._stored:
            self._stored[fn] = self._ray.put(fn)
        return self._call.remote(self._stored[fn], args, kwargs).future()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing: the cluster is whoever's called `ray.init()`."""


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)
