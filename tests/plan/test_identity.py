"""What a plan is known by: everything that decides a row, and nothing that does not."""

from __future__ import annotations

from typing import Any

import pytest

import zephon_jax as zj
from tests.operators import Repeat
from zephon_jax.checkpoint.codec import plain_values
from zephon_jax.plan.compile import compile_plan
from zephon_jax.plan.identity import plan_differences


def letters(text):
    return [ord(c) for c in text]


def anything(record):
    return record


def double(record):
    return record


def base(seed: int = 0, **options: Any) -> zj.Pipeline:
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", [{"text": "a"}] * 60), chunk_size=4, seed=seed)
    return zj.Pipeline(work).options(**options)


def identity(p: zj.Pipeline) -> dict[str, Any]:
    return plain_values(compile_plan(p.work, p.operators, p.settings).identity)


def test_the_whole_of_an_identity():
    p = base().filter(anything, name="all").tokenize(letters, add_eos=0).split(5).shuffle(9, seed=3).pack(8)
    p = p.batch(global_batch_size=4).lm_targets()
    assert identity(p) == {
        "work": {
            "class": "StaticMixtureWorkSource",
            "order_version": 1,
            "datasets": ["d"],
            "weights": [1],
            "seed": 0,
            "chunk_size": 4,
            "shuffle_shards": True,
            "shuffle_within_shard": False,
            "shuffle_block_size": None,
            "stop_after_passes": None,
            "exhausted_policy": None,
            "reshuffle_on_repeat": True,
        },
        "operators": [
            {"op": "filter", "function": "all"},
            {"op": "tokenize", "field": "text", "bos": [], "eos": [0], "function": "letters"},
            {"op": "split", "max_length": 5, "field": "tokens"},
            {"op": "shuffle", "buffer_size": 9, "seed": 3},
            {"op": "pack", "max_length": 8, "algorithm": "first_fit", "num_bins": 16, "on_overlong": "split"},
        ],
        "canonical_replicas": 4,
        "flush_every_k_chunks": 16,
        "on_data_error": "raise",
    }


SAME = [
    base().map(anything).shuffle(5),
    base().map(anything).shuffle(5).batch(1),
    base().map(anything).shuffle(5).batch(7, drop_last=False),
    base().map(anything).shuffle(5).batch(7).lm_targets("maxtext"),
    base(executor="inline", prefetch=9, max_workers=3, micro_batch_records=5).map(anything).shuffle(5),
    base(dp_degree=1, dp_group_id=0).map(anything).shuffle(5),
    base(canonical_replicas=1, flush_every_k_chunks=8).map(anything).shuffle(5),
]
OTHER = [
    base(seed=1).map(anything).shuffle(5),
    base().map(double).shuffle(5),
    base().map(anything, version=1).shuffle(5),
    base().map(anything, name="another").shuffle(5),
    base().filter(anything).shuffle(5),
    base().shuffle(5).map(anything),
    base().map(anything).shuffle(6),
    base().map(anything).shuffle(5, seed=1),
    base().map(anything).shuffle(5).apply(Repeat(2)),
    base().map(anything).shuffle(5).apply(Repeat(3)),
    base(canonical_replicas=2).map(anything).shuffle(5),
    base(flush_every_k_chunks=9).map(anything).shuffle(5),
    base(on_data_error="skip").map(anything).shuffle(5),
]


@pytest.mark.parametrize("other", SAME, ids=range(len(SAME)))
def test_what_decides_no_row_is_in_no_identity(other):
    assert plan_differences(identity(SAME[0]), identity(other)) == []
    assert identity(SAME[0]) == identity(other)


@pytest.mark.parametrize("i", range(len(OTHER)))
def test_what_decides_rows_is_in_the_identity(i):
    for other in [SAME[0], *OTHER[:i], *OTHER[i + 1 :]]:
        one, two = identity(OTHER[i]), identity(other)
        assert one != two
        there, back = plan_differences(one, two), plan_differences(two, one)
        assert len(there) == len(back) > 0
        assert [text.split(":")[0] for text in there] == [text.split(":")[0] for text in back] or "(" in there[0]


def test_an_operator_of_ones_own_is_known_by_its_class():
    class Mine(zj.RecordOperator):
        def process(self, batch):
            return batch

    assert identity(base().apply(Mine()))["operators"] == [
        {"class": f"{__name__}.test_an_operator_of_ones_own_is_known_by_its_class.<locals>.Mine"}
    ]


def test_functions_without_a_name_of_their_own_share_one():
    """Bytecode is not hashed: a lambda is told apart by name= and version= only."""
    assert identity(base().map(lambda r: r)) == identity(base().map(lambda r: {**r, "x": 1}))
    assert identity(base().map(lambda r: r, name="a")) != identity(base().map(lambda r: r, name="b"))
