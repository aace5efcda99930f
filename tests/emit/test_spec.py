"""element_spec and steps_per_pass: what will come, before any data is read."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import zephon_jax as zj


class Unread:
    """A source that must not be read."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        raise AssertionError("data was read")


def work(source=None):
    return zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", source or Unread(), fingerprint="f"), chunk_size=8)


def letters(text):
    return [ord(c) for c in text]


def sharding(*spec):
    return NamedSharding(Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "seq")), P(*spec))


TEXTS = [{"text": "abcdefghij" * (1 + i % 5)} for i in range(64)]


@pytest.mark.parametrize("names", ["plain", "maxtext", "seqio"])
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"end": "pad"}], ids=str)
def test_the_spec_is_what_comes(names, options):
    def of(source):
        p = zj.Pipeline(work(source)).map(lambda r: r, name="same").tokenize(letters).pack(17).shuffle(4)
        return p.batch(global_batch_size=4).lm_targets(names, count=True)

    where = sharding("data", "seq")
    spec = of(TEXTS).element_spec(where, **options)
    with of(TEXTS).to_global(where, **options) as it:
        batch = next(it)
    assert set(spec) == set(batch)
    for name, array in batch.items():
        assert (spec[name].shape, spec[name].dtype) == (array.shape, array.dtype)
        assert spec[name].sharding.is_equivalent_to(array.sharding, array.ndim)


def test_no_data_is_read():
    p = zj.Pipeline(work()).map(lambda r: {"tokens": [1]}, name="made").pack(8, keep=["loss_mask"]).batch(4)
    spec = p.element_spec()
    assert {k: (v.shape, str(v.dtype)) for k, v in spec.items()} == {
        "tokens": ((4, 8), "int32"),
        "segment_ids": ((4, 8), "int32"),
        "positions": ((4, 8), "int32"),
        "loss_mask": ((4, 8), "bool"),
    }
    assert p.element_spec(dtypes={"tokens": np.int16})["tokens"].dtype == np.int16


def test_what_hides_the_shapes_is_named():
    with pytest.raises(zj.ConfigurationError, match=r"map\(f\): what its records look like is not known"):
        zj.Pipeline(work()).map(lambda r: r, name="f").batch(4).element_spec()
    made = zj.Pipeline(work()).map(lambda r: {"tokens": [1]}, name="f").pack(8).batch(4)
    with pytest.raises(zj.ConfigurationError, match=r"map_batch\(g\): what its records look like"):
        made.map_batch(lambda b: b, name="g").element_spec()
    with pytest.raises(zj.ConfigurationError, match="needs a batch"):
        zj.Pipeline(work()).element_spec()
    with pytest.raises(zj.ConfigurationError, match="the nearest lengths that work are"):
        zj.Pipeline(work()).map(lambda r: {"tokens": [1]}, name="f").pack(9).batch(4).element_spec(
            sharding("data", "seq")
        )


def test_steps_per_pass():
    p = zj.Pipeline(work())
    assert p.batch(global_batch_size=8).steps_per_pass() == 8
    assert p.map(lambda r: r, name="f").shuffle(3).batch(5).options(canonical_replicas=4).steps_per_pass() == 3
    assert p.filter(lambda r: True, name="t").batch(4).steps_per_pass() is None
    assert p.map(lambda r: {"tokens": [1]}, name="f").pack(8).batch(4).steps_per_pass() is None
    assert p.steps_per_pass() is None
    two = [zj.Dataset.from_source(name, [1] * n) for name, n in (("a", 30), ("b", 10))]
    mixed = zj.StaticMixtureWorkSource(two, {"a": 1, "b": 1})
    assert zj.Pipeline(mixed).batch(6).steps_per_pass() == (mixed.num_draws or 0) // 6
    endless = zj.StaticMixtureWorkSource(two, {"a": 1, "b": 1}, exhausted_policy="repeat")
    assert zj.Pipeline(endless).batch(6).steps_per_pass() is None
    with iter(zj.Pipeline(work(list(range(64)))).batch(7).options(executor="inline")) as it:
        assert len(list(it)) == zj.Pipeline(work()).batch(7).steps_per_pass()
