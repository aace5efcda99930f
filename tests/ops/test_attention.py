"""A tiny attention model over packed rows: documents do not see each other, and masked targets train nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zephon_jax as zj

VOCABULARY, WIDTH = 32, 16


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(3)
    docs = [{"tokens": rng.integers(1, VOCABULARY, rng.integers(3, 9)).tolist()} for _ in range(12)]
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", docs), shuffle_shards=False)
    return next(iter(zj.Pipeline(work).pack(25).batch(2).lm_targets()))


@pytest.fixture(scope="module")
def model():
    keys = jax.random.split(jax.random.key(0), 6)
    shapes = [(VOCABULARY, WIDTH), (25, WIDTH), *[(WIDTH, WIDTH)] * 3, (WIDTH, VOCABULARY)]
    return [jax.random.normal(key, shape) / 4 for key, shape in zip(keys, shapes, strict=True)]


def logits(model, tokens, positions, segments):
    embed, place, query, key, value, out = model
    x = embed[tokens] + place[positions]
    q, k, v = x @ query, x @ key, x @ value
    s = tokens.shape[1]
    seen = (segments[:, :, None] == segments[:, None, :]) & jnp.tril(jnp.ones((s, s), bool))
    weights = jax.nn.softmax(jnp.where(seen, q @ k.swapaxes(1, 2) / WIDTH**0.5, -1e30), axis=-1)
    return (x + weights @ v) @ out


def of(batch):
    return batch["inputs"], batch["positions"], batch["segment_ids"]


def test_changing_one_document_changes_nothing_in_the_others(batch, model):
    tokens, positions, segments = of(batch)
    before = logits(model, tokens, positions, segments)
    for segment in range(1, int(segments.max()) + 1):
        changed = np.where(segments == segment, (tokens * 7 + 3) % VOCABULARY, tokens)
        after = logits(model, changed, positions, segments)
        others = (segments != segment)[..., None]
        assert bool(jnp.array_equal(jnp.where(others, before, 0), jnp.where(others, after, 0)))
        assert not bool(jnp.array_equal(before, after))


def test_without_segments_they_would(batch, model):
    tokens, positions, segments = of(batch)
    changed = np.where(segments == 1, (tokens * 7 + 3) % VOCABULARY, tokens)
    one = np.ones_like(segments)
    before, after = (logits(model, t, positions, one) for t in (tokens, changed))
    assert not bool(
        jnp.array_equal(
            jnp.where((segments == 2)[..., None], before, 0), jnp.where((segments == 2)[..., None], after, 0)
        )
    )


def test_a_packed_document_has_the_logits_that_it_has_alone(batch, model):
    tokens, positions, segments = of(batch)
    packed = logits(model, tokens, positions, segments)
    for row, segment in ((0, 1), (0, 2), (1, 2)):
        at = segments[row] == segment
        alone = logits(model, tokens[row][at][None], np.arange(at.sum())[None], np.ones((1, at.sum()), np.int32))
        np.testing.assert_allclose(packed[row][at], alone[0], rtol=1e-5, atol=1e-5)


def test_gradients_at_masked_positions_are_zero(batch, model):
    tokens, positions, segments = of(batch)
    given = logits(model, tokens, positions, segments)

    def loss(scores):
        nats = -jnp.take_along_axis(jax.nn.log_softmax(scores), batch["targets"][..., None], axis=-1)[..., 0]
        return jnp.sum(nats * batch["loss_weights"]) / jnp.sum(batch["loss_weights"])

    gradient = np.asarray(jax.grad(loss)(given))
    masked = batch["loss_weights"] == 0
    assert masked.any()
    assert not gradient[masked].any()
    assert gradient[~masked].any(axis=-1).all()
