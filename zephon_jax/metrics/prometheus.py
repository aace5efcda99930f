"""Figures of iterators for Prometheus, taken when it scrapes: nothing runs in between."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Protocol

from zephon_jax.errors import ConfigurationError
from zephon_jax.metrics.stats import Stats, scalars

__all__ = ["PipelineCollector"]

_GAUGES = frozenset({"wait_fraction", "steps_per_second", "batches_ready", "bytes_ready", "chunks_in_flight"})


class _HasStats(Protocol):
    def stats(self) -> Stats: ...


class PipelineCollector:
    """A collector of one iterator; `pipeline` tells several apart. It ends with the iterator, which it does not keep alive.

    >>> from prometheus_client import CollectorRegistry, generate_latest
    >>> import zephon_jax as zj
    >>> work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("n", range(8)))
    >>> registry = CollectorRegistry()
    >>> with iter(zj.Pipeline(work).batch(4)) as it:
    ...     registry.register(PipelineCollector(it, "train"))
    ...     batch = next(it)
    ...     b'zephon_jax_step_total{pipeline="train"} 1.0' in generate_latest(registry)
    True
    """

    def __init__(self, iterator: _HasStats, pipeline: str):
        try:
            from prometheus_client import core
        except ImportError as error:
            raise ConfigurationError(
                'PipelineCollector needs prometheus_client, which is not installed; pip install "zephon-jax[metrics]"'
            ) from error
        self._core: Any = core
        self._iterator, self._pipeline = weakref.ref(iterator), pipeline

    def collect(self) -> Iterator[Any]:
        """For the registry."""
        iterator = self._iterator()
        if iterator is None:
            return
        found = iterator.stats()
        families: dict[str, Any] = {}
        for name, value in scalars(found).items():
            labels = {"pipeline": self._pipeline}
            if name.startswith("operator/"):
                operator, name = name.removeprefix("operator/").rsplit("/", 1)
                labels["operator"] = operator
                name = f"operator_{name}"
            if name not in families:
                kind = self._core.GaugeMetricFamily if name in _GAUGES else self._core.CounterMetricFamily
                families[name] = kind(f"zephon_jax_{name}", _TEXTS.get(name, name.replace("_", " ")), labels=[*labels])
            families[name].add_metric([*labels.values()], value)
        yield from families.values()


_TEXTS = {
    "step": "Steps delivered since the start of the stream.",
    "rows": "Rows delivered since the start of the stream, of the lanes of this process.",
    "wait_seconds": "Seconds for which the consumer waited in next().",
    "wait_fraction": "The part of the time for which the consumer waited in next().",
    "blocked_seconds": "Seconds for which the producer waited for room in the queue.",
    "workers_wait_seconds": "Seconds for which lanes waited for operators that keep nothing.",
    "batches_ready": "Batches made ahead.",
    "bytes_ready": "Bytes of batches made ahead.",
    "samples_skipped": "Samples skipped because their content is broken.",
    "workers_lost": "Workers that died and were replaced.",
    "operator_finished": "Records finished without leaving one behind.",
    "operator_busy_seconds": "Seconds spent in the operator, by all workers together.",
}
