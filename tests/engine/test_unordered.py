"""O6: deterministic=False gives up order for latency, says so, and refuses checkpoints."""

from __future__ import annotations

import threading

import pytest

import zephon_jax as zj


def pipeline(fn, **options):
    ds = zj.Dataset.from_source("n", range(64))
    work = zj.StaticMixtureWorkSource(ds, chunk_size=8, shuffle_shards=False)
    p = zj.Pipeline(work).map(fn, name="fn").batch(4)
    return p.options(executor="threads", max_workers=2, micro_batch_records=4, deterministic=False, **options)


def test_what_is_ready_overtakes_what_is_slow():
    """The first micro-batch waits until the consumer has another's: in order, that would never end."""
    released = threading.Event()

    def fn(record):
        if record["value"] == 0:
            assert released.wait(30)
        return record

    with iter(pipeline(fn)) as it:
        first = [int(v) for v in next(it)["value"]]
        released.set()
        rest = [int(v) for batch in it for v in batch["value"]]
    assert sorted(first + rest) == list(range(64))
    assert 0 not in first


def test_nothing_overtakes_a_sentinel():
    with iter(pipeline(dict, flush_every_k_chunks=2)) as it:
        order = [int(v) for batch in it for v in batch["value"]]
    assert [sorted(order[a : a + 16]) for a in range(0, 64, 16)] == [list(range(a, a + 16)) for a in range(0, 64, 16)]


def test_it_says_so_and_refuses_checkpoints():
    p = pipeline(dict)
    assert "deterministic=False: records leave as workers finish; no checkpoints" in p.explain()
    with iter(p) as it:
        next(it)
        with pytest.raises(zj.ConfigurationError, match="a checkpoint needs options\\(deterministic=True\\)"):
            it.checkpoint()
        with pytest.raises(zj.ConfigurationError, match="a checkpoint needs"):
            it.get_state()
    ordered = iter(p.options(deterministic=True, executor="inline"))
    next(ordered)
    with iter(p) as it, pytest.raises(zj.ConfigurationError, match="restore\\(\\) needs options"):
        it.restore(ordered.checkpoint())
    with pytest.raises(zj.ConfigurationError, match="must be True or False"):
        p.options(deterministic=1)
