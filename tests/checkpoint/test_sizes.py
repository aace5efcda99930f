"""Rule C2's budgets hold for what the documentation lists."""

from __future__ import annotations

import pytest

from tests.checkpoint import sizes


@pytest.mark.parametrize("size", [*sizes.of_pointers(), *sizes.of_records()], ids=lambda s: s.what)
def test_a_listed_size_is_within_its_budget(size):
    assert size.budget is None or size.size <= size.budget * size.count


def test_a_whole_state_is_small():
    plain, packed = sizes.of_states()
    assert plain.size < 1_000
    assert packed.size < 1.5 * packed.count
