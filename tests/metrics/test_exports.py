"""Figures in other hands: Prometheus, and writers of curves."""

from __future__ import annotations

import gc

import pytest

import zephon_jax as zj
from zephon_jax.metrics.writers import write_scalars


def iterator():
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", range(100)), shuffle_shards=False)
    return iter(zj.Pipeline(work).filter(lambda r: r["value"] % 2 == 0, name="even").batch(10))


def test_prometheus():
    prometheus_client = pytest.importorskip("prometheus_client")
    from zephon_jax.metrics.prometheus import PipelineCollector

    registry = prometheus_client.CollectorRegistry()
    it = iterator()
    registry.register(PipelineCollector(it, "train"))
    for _ in range(3):
        next(it)

    def value(name, **labels):
        return registry.get_sample_value(name, {"pipeline": "train", **labels})

    assert value("zephon_jax_step_total") == 3
    assert value("zephon_jax_rows_total") == 30
    assert value("zephon_jax_operator_finished_total", operator="filter(even)") >= 29
    assert 0 <= value("zephon_jax_wait_fraction") <= 1
    assert b"# TYPE zephon_jax_bytes_ready gauge" in prometheus_client.generate_latest(registry)
    it.close()
    del it
    gc.collect()
    assert value("zephon_jax_step_total") is None  # the collector does not keep it alive


def test_writers():
    class TensorBoard:
        def __init__(self):
            self.seen = {}

        def add_scalar(self, name, value, step):
            self.seen[name, step] = value

    class Clu:
        def write_scalars(self, step, many):
            self.seen = step, many

    board, clu, called = TensorBoard(), Clu(), []
    with iterator() as it:
        next(it)
        stats = it.stats()
    write_scalars(stats, board)
    write_scalars(stats, clu, prefix="")
    write_scalars(stats, lambda *one: called.append(one))
    assert board.seen["data/rows", 1] == 10
    assert clu.seen[0] == 1
    assert clu.seen[1]["rows"] == 10
    assert ("data/rows", 10, 1) in called
    with pytest.raises(
        zj.ConfigurationError, match="needs an object with add_scalar or write_scalars, or a function, got int"
    ):
        write_scalars(stats, 3)
