"""Rule C8."""

from __future__ import annotations

import numpy as np

from zephon_jax.engine.fingerprint import MODULUS, combine, rows_digest, to_hex


def test_golden():
    """Digests stand in checkpoints: they must not change between versions."""
    assert to_hex(rows_digest(0, np.array([[0, 1], [5, 2], [0, 0]], np.int32))) == "a5d2f779d03eb4d4ee07530dac648f93"
    assert combine({0: 1, 1: 2}) == "9ba4dbe5238752119b65fbd2b219edc2"


def test_sums_over_any_grouping():
    cursors = np.random.default_rng(0).integers(0, 1000, (3, 50)).astype(np.int32)
    whole = rows_digest(7, cursors)
    parts = sum(rows_digest(7 + a, cursors[:, a:b]) for a, b in [(0, 1), (1, 20), (20, 20), (20, 50)])
    assert parts % MODULUS == whole


def test_order_and_content_count():
    a = np.array([[0, 1], [5, 2]], np.int32)
    assert rows_digest(0, a) != rows_digest(0, a[:, ::-1])
    assert rows_digest(0, a) != rows_digest(1, a)
    changed = a.copy()
    changed[1, 0] += 1
    assert rows_digest(0, a) != rows_digest(0, changed)


def test_combine_ignores_the_order_of_listing_but_not_the_lane():
    assert combine({0: 1, 1: 2}) == combine({1: 2, 0: 1})
    assert combine({0: 1, 1: 2}) != combine({0: 2, 1: 1})


def test_no_collisions_among_many():
    """A weak mix of small integers would collide at once."""
    seen = {rows_digest(n, np.array([[c], [o]], np.int32)) for n in range(20) for c in range(20) for o in range(20)}
    assert len(seen) == 8000
