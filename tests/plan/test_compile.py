"""From operators to a plan: what it costs to recover, how often to flush, what may stand where, and how it is told."""

from __future__ import annotations

import re
import warnings
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zephon_jax as zj
from tests.operators import Repeat, Wrap
from zephon_jax.lanes import default_lanes, divisors, lanes_of_group, lanes_of_rows, nearest_multiples
from zephon_jax.ops import Batch, Filter, LmTargets, Map, Pack, Shuffle, Split, Tokenize
from zephon_jax.options import Options
from zephon_jax.plan.compile import compile_plan
from zephon_jax.plan.explain import explain_plan, filter_name, stage_window, worker_count


def work(chunk_size: int = 4, n: int = 60) -> zj.StaticMixtureWorkSource:
    return zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", range(n)), chunk_size=chunk_size)


def letters(text):
    return [ord(c) for c in text]


def anything(record):
    return record


class Reordering(zj.RecordOperator):
    """Reorders within a micro-batch, and says so."""

    name = "reordering"
    traits = zj.OpTraits(preserves_cursor_order=False, buffer_records=100)

    def process(self, batch):
        return batch


def plan(*operators: Any, chunk_size: int = 4, **options: Any):
    return compile_plan(work(chunk_size), operators, Options(**options))


MAP, FILTER, TOKENIZE, SPLIT = Map(anything), Filter(anything), Tokenize(letters), Split(4)


@pytest.mark.parametrize(
    ("operators", "keeping"),
    [
        ((), None),
        ((MAP,), None),
        ((MAP, FILTER, TOKENIZE, SPLIT, Repeat(2)), None),
        ((MAP, Batch(2)), None),
        ((TOKENIZE, SPLIT, Batch(2)), None),
        ((Shuffle(3),), "shuffle(3)"),
        ((MAP, Shuffle(3), MAP), "shuffle(3)"),
        ((TOKENIZE, Pack(8), Batch(2), LmTargets()), "pack(8)"),
        ((Shuffle(3), TOKENIZE, Pack(8), Batch(2)), "shuffle(3), pack(8)"),
        # Keeps order, but where it cuts depends on all that came before.
        ((TOKENIZE, Wrap(4)), "wrap(4)"),  # P3: it keeps order, but where it cuts depends on history
        ((Reordering(),), "reordering"),
    ],
    ids=lambda v: ", ".join(op.name for op in v) if isinstance(v, tuple) else "",
)
def test_monotone_only_without_anything_that_keeps_or_reorders_records(operators, keeping):
    made = plan(*operators)
    if keeping is None:
        assert made.every is None
        assert made.strategy == "monotone (every operator keeps cursor order and nothing between records)"
        assert made.identity["flush_every_k_chunks"] == 0
    else:
        assert made.every is not None
        assert made.strategy == f"epoch (records are kept or reordered by {keeping})"
        assert made.identity["flush_every_k_chunks"] == made.every


@pytest.mark.parametrize(
    ("operators", "chunk_size", "want"),
    [
        ((Shuffle(1),), 4, 8),
        ((Shuffle(8),), 4, 8),  # 4 * 8 / 4
        ((Shuffle(9),), 4, 9),
        ((Shuffle(10),), 4, 10),
        ((Shuffle(100),), 4, 100),
        ((Shuffle(100),), 1, 400),
        ((Shuffle(100),), 7, 58),  # 400 / 7, rounded up
        ((Shuffle(100),), 512, 8),
        ((Shuffle(1024),), 512, 8),
        ((Shuffle(1025),), 512, 9),
        ((Shuffle(3), Shuffle(50), Shuffle(4)), 4, 50),
        ((Pack(8, num_bins=16),), 4, 16),
        ((Pack(8, num_bins=4),), 4, 8),
        ((Reordering(),), 4, 100),
        ((Wrap(4),), 4, 8),
        ((), 4, None),
        ((SPLIT,), 4, None),
    ],
)
def test_how_often_to_flush_if_nothing_is_said(operators, chunk_size, want):
    """The larger of 8 and the chunks that hold four times the largest buffer; rule P7."""
    assert plan(*operators, chunk_size=chunk_size).every == want


class Payloads(zj.Accumulator):
    """Its decisions need whole records."""

    name = "payloads"

    def init_state(self, ctx):
        return None

    def push(self, state, batch):
        return batch

    def flush(self, state):
        return None


class Unfounded(zj.RecordOperator):
    """Says of itself what only an accumulator can mean."""

    name = "unfounded"
    traits = zj.OpTraits(replays_on_lengths=True)

    def process(self, batch):
        return batch


IN_FULL = "Replay: in full (a stateless operator stands behind an accumulator, or one needs payloads, or lengths that pad hides)"
LENGTHS = "Replay: on lengths; only records still to be delivered are read again"
IDENTITIES = "Replay: on identities; only records still to be delivered are read again"


@pytest.mark.parametrize(
    ("operators", "text"),
    [
        ((), IDENTITIES),
        ((MAP, TOKENIZE, SPLIT, Batch(2)), IDENTITIES),
        ((TOKENIZE, Shuffle(3)), IDENTITIES),
        ((TOKENIZE, Pack(8)), LENGTHS),
        ((TOKENIZE, Shuffle(3), Pack(8), Shuffle(3)), LENGTHS),
        ((Shuffle(3), TOKENIZE), IN_FULL),
        ((TOKENIZE, Pack(8), MAP), IN_FULL),
        ((TOKENIZE, Payloads()), IN_FULL),
        ((TOKENIZE, Shuffle(3), Payloads(), Pack(8)), IN_FULL),
        ((TOKENIZE, Wrap(4)), IN_FULL),
        ((TOKENIZE, Pack(8), Unfounded()), IN_FULL),
    ],
    ids=lambda v: ", ".join(op.name for op in v) if isinstance(v, tuple) else "",
)
def test_what_a_restore_reads_again(operators, text):
    made = plan(*operators)
    assert text in explain_plan(made, 2).split("\n")
    assert (made.replays_on_lengths, made.keeps_lengths) == (text != IN_FULL, text == LENGTHS)


@pytest.mark.parametrize("asked", [1, 2, 8, 1000])
def test_a_number_of_chunks_that_is_given_is_taken(asked):
    made = plan(Shuffle(100), flush_every_k_chunks=asked)
    assert (made.every, made.notes) == (asked, ())


def test_no_flushes_are_an_error_where_records_are_kept():
    with pytest.raises(
        zj.ConfigurationError, match=r"flush_every_k_chunks=0, but shuffle\(3\) keeps or reorders records"
    ):
        plan(MAP, Shuffle(3), flush_every_k_chunks=0)
    with pytest.raises(zj.ConfigurationError, match="flush_every_k_chunks=0, but "):
        zj.Pipeline(work()).shuffle(3).options(flush_every_k_chunks=0)


def test_flushes_without_a_use_warn_and_become_none():
    made = plan(MAP, flush_every_k_chunks=5)
    assert made.every is None
    assert made.notes == (
        "flush_every_k_chunks=5 has no use in a pipeline that keeps order and nothing between records; it is taken as 0",
    )
    p = zj.Pipeline(work()).map(anything).options(flush_every_k_chunks=5, executor="inline")
    assert f"Note: {made.notes[0]}" in p.explain()
    with pytest.warns(UserWarning, match="flush_every_k_chunks=5 has no use"):
        iter(p).close()
    for quiet in (0, None):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            iter(p.options(flush_every_k_chunks=quiet)).close()


@pytest.mark.parametrize(
    ("operators", "text"),
    [
        (
            (Batch(2), MAP),
            r"map\(anything\) stands after batch\(2\), where only operators that keep rows are allowed; ",
        ),
        ((Batch(2), Shuffle(3)), r"shuffle\(3\) stands after batch\(2\)"),
        ((Batch(2), LmTargets(), SPLIT), r"split\(4\) stands after batch\(2\)"),
        ((Batch(2), Batch(4)), r"batch\(4\): the pipeline has batch\(2\) already; batch once"),
        ((LmTargets(), Batch(2)), r"lm_targets\(plain\) works on whole batches: put it after batch\(\)"),
        ((LmTargets(),), r"put it after batch\(\)"),
    ],
)
def test_what_may_not_stand_there(operators, text):
    with pytest.raises(zj.ConfigurationError, match=text):
        plan(*operators)


def test_an_operator_of_no_kind_is_refused():
    class Neither(zj.Operator):
        name = "neither"

    with pytest.raises(
        zj.ConfigurationError, match="neither: .*Neither must derive from RecordOperator, Accumulator or RowOp"
    ):
        plan(Neither())


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (lambda p: p.batch(2).map(anything), "map"),
        (lambda p: p.batch(2).filter(anything), "filter"),
        (lambda p: p.batch(2).shuffle(3), "shuffle"),
        (lambda p: p.map(anything).batch(2).split(3), "split"),
        (lambda p: p.map(anything).batch(2).pack(8), "pack"),
        (lambda p: p.map(anything).batch(2).tokenize(letters), "tokenize"),
        (lambda p: p.batch(2).batch(2), "batch"),
        (lambda p: p.lm_targets(), "lm_targets"),
    ],
)
def test_order_is_checked_where_the_mistake_is_made(step, text):
    with pytest.raises(zj.ConfigurationError, match=f"^{text}"):
        step(zj.Pipeline(work()))


def test_operators_that_keep_rows_may_follow():
    class Extra(zj.RowOperator):
        name = "extra"

        def process_rows(self, batch):
            return batch

    made = plan(MAP, Batch(2), Extra(), LmTargets())
    assert [op.name for op in made.after_batch] == ["extra", "lm_targets(plain)"]
    assert [step.op.name for stage in made.stages for step in stage.steps] == ["fetch", "map(anything)"]


@pytest.mark.parametrize(
    ("batch", "replicas", "lanes", "rows"),
    [
        (None, None, 1, None),
        (None, 3, 3, None),
        (Batch(5), None, 1, 5),
        (Batch(5), 4, 4, 5),
        (Batch(global_batch_size=64), None, 8, 8),
        (Batch(global_batch_size=12), None, 6, 2),
        (Batch(global_batch_size=7), None, 7, 1),
        (Batch(global_batch_size=11), None, 1, 11),
        (Batch(global_batch_size=64), 16, 16, 4),
        (Batch(global_batch_size=64), 64, 64, 1),
        (Batch(global_batch_size=64), 1, 1, 64),
    ],
)
def test_lanes_and_rows(batch, replicas, lanes, rows):
    made = plan(*([] if batch is None else [batch]), canonical_replicas=replicas)
    assert (made.lanes, made.rows_per_lane) == (lanes, rows)
    assert made.identity["canonical_replicas"] == lanes


@pytest.mark.parametrize(
    ("size", "replicas", "listed"),
    [(12, 5, [1, 2, 3, 4, 6, 12]), (7, 2, [1, 7]), (8, 16, [1, 2, 4, 8]), (36, 8, [1, 2, 3, 4, 6, 9, 12, 18, 36])],
)
def test_lanes_that_do_not_divide_list_those_that_do(size, replicas, listed):
    with pytest.raises(zj.ConfigurationError) as caught:
        plan(Batch(global_batch_size=size), canonical_replicas=replicas)
    assert str(caught.value) == (
        f"canonical_replicas={replicas} does not divide global_batch_size={size}; it may be one of {listed}"
    )


@settings(deadline=None, database=None, max_examples=60)
@given(st.integers(1, 500))
def test_divisors(n):
    want = [d for d in range(1, n + 1) if n % d == 0]
    assert divisors(n) == want
    assert default_lanes(n) == max(d for d in want if d <= 8)


@settings(deadline=None, database=None, max_examples=60)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 9))
def test_groups_share_out_the_lanes(degree, per_group, rows):
    lanes = degree * per_group
    groups = [list(lanes_of_group(g, degree, lanes)) for g in range(degree)]
    assert list(chain.from_iterable(groups)) == list(range(lanes))
    assert {len(g) for g in groups} == {per_group}
    for lane in range(lanes):
        assert lanes_of_rows([(lane * rows, lane * rows + rows)], rows) == [lane]
        assert lanes_of_rows([(lane * rows, lane * rows + rows + 1)], rows) == [lane, lane + 1]


def test_groups_that_do_not_divide_list_those_that_do():
    with pytest.raises(
        zj.ConfigurationError, match=r"dp_degree=4 does not divide canonical_replicas=6; .* \[1, 2, 3, 6\]"
    ):
        lanes_of_group(0, 4, 6)
    for group in (-1, 3):
        with pytest.raises(
            zj.ConfigurationError, match=f"dp_group_id={group} is not within dp_degree=3; it may be 0 to 2"
        ):
            lanes_of_group(group, 3, 6)


def test_nearest_multiples():
    assert nearest_multiples(10, 4) == [8, 12]
    assert nearest_multiples(3, 4) == [4]
    assert nearest_multiples(8, 4) == [8, 12]


def test_lineage_has_one_level_per_expanding_operator():
    made = plan(SPLIT, MAP, Repeat(2), Pack(8), Shuffle(3), Pack(9, on_overlong="drop"))
    levels = {step.op.name: step.level for stage in made.stages for step in stage.steps if step.op.traits.expands}
    assert levels == {"split(4)": 0, "repeat(2)": 1, "pack(8)": 2}
    assert made.depth == 3
    indices = {step.op.name: step.index for stage in made.stages for step in stage.steps}
    assert indices == {
        "fetch": -1, "split(4)": 0, "map(anything)": 1, "repeat(2)": 2, "pack(8)": 3, "shuffle(3)": 4, "pack(9)": 5,
    }  # fmt: skip


def test_stages_are_cut_at_accumulators():
    made = plan(MAP, FILTER, Shuffle(3), Shuffle(4), TOKENIZE, SPLIT, Pack(8), Batch(2))
    assert [([step.op.name for step in stage.steps], stage.stateless) for stage in made.stages] == [
        (["fetch", "map(anything)", "filter(anything)"], True),
        (["shuffle(3)"], False),
        (["shuffle(4)"], False),
        (["tokenize(letters)", "split(4)"], True),
        (["pack(8)"], False),
    ]


def test_names_that_occur_twice_are_numbered():
    assert plan(MAP, MAP, Shuffle(3), MAP).operator_names == [
        "fetch",
        "map(anything)",
        "map(anything)#1",
        "shuffle(3)",
        "map(anything)#3",
    ]


def test_operators_of_one_name_are_counted_apart():
    p = zj.Pipeline(work(n=6)).filter(lambda r: r["value"] > 0).filter(lambda r: r["value"] > 2).batch(1)
    with iter(p.options(executor="inline")) as it:
        assert len(list(it)) == 3
        counts = list(it.stats().operators.values())
    assert [(c.records_in, c.records_out, c.finished) for c in counts] == [(6, 6, 0), (6, 5, 1), (5, 3, 2)]


class Undeclared(zj.RecordOperator):
    """Expands, and does not say so: it has no child index of its own."""

    name = "undeclared"

    def process(self, batch):
        return batch.repeat(np.full(len(batch), 2))


@pytest.mark.parametrize("after", [(), (Map(lambda r: {"tokens": [1, 2, 3]}, name="t"), Split(2))], ids=len)
def test_expanding_without_declaring_it_breaks_the_contract(after):
    p = zj.Pipeline(work(n=6)).apply(Undeclared())
    for op in (*after, Shuffle(3)):
        p = p.apply(op)
    with iter(p.batch(1).options(executor="inline")) as it:
        with pytest.raises(zj.ContractViolation) as caught:
            list(it)
    assert caught.value.operator == "undeclared"


# -- explain -----------------------------------------------------------------------------------------------------


def lm(**options: Any) -> zj.Pipeline:
    p = zj.Pipeline(work(n=600)).map(lambda r: {"text": str(r["value"])}, name="text").tokenize(letters).shuffle(20)
    p = p.pack(16, num_bins=4).batch(global_batch_size=8).lm_targets()
    return p.options(**options)


def explained(p: zj.Pipeline, cpus: int) -> list[str]:
    made = compile_plan(p.work, p.operators, p.settings)
    return explain_plan(made, worker_count(made, cpus)).split("\n")


def test_the_whole_of_an_explanation():
    assert explained(lm(canonical_replicas=4, prefetch=3, micro_batch_records=64), cpus=4) == [
        "Pipeline: 4 lanes, 2 rows per lane and round, 8 rows per step",
        "Work: d 100.000% of 600 samples in 1 shards | shards shuffled, seed 0 | 600 draws, chunks of 4",
        "Eviction: epoch (records are kept or reordered by shuffle(20), pack(16)), flush every 20 chunks",
        "Replay: on lengths; only records still to be delivered are read again",
        "On broken data: raise",
        "Stage[0] place=local runner=threads cap=4 mode=microbatches records=64",
        "  fetch@p4 -[in_q=4]-> map(text)@p4 -[in_q=4]-> tokenize(letters)@p4",
        "  --[stage_out=4]-->",
        "Stage[1] place=local runner=inline cap=1 mode=lane_stream records=64",
        "  shuffle(20)@p1",
        "  --[stage_out=1]-->",
        "Stage[2] place=local runner=inline cap=1 mode=lane_stream records=64",
        "  pack(16)@p1",
        "Stage[3] place=local runner=inline cap=1 mode=rows",
        "  batch_replay_filter@p1 -> batch(8 global)@p1 -> lm_targets(plain)@p1",
        "  ==[final_prefetch=3]==> pipeline_end",
    ]


def test_everything_inside_next_is_told():
    text = "\n".join(explained(lm(executor="inline"), cpus=4))
    assert "fetch@p1 -[in_q=1]-> map(text)@p1" in text
    assert "runner=threads" not in text
    assert "==[final_prefetch=0]==>" in text


def test_monotone_pipelines_are_told():
    text = zj.Pipeline(work()).map(anything).batch(2).options(on_data_error="skip").explain()
    assert "Eviction: monotone (every operator keeps cursor order and nothing between records), no flushes" in text
    assert "On broken data: skip" in text
    assert "Pipeline: 1 lanes, 2 rows per lane and round, 2 rows per step" in text
    assert "batch_replay_filter@p1" in text


@pytest.mark.parametrize(
    ("operators", "name"),
    [
        ((), "fetch_replay_filter"),
        ((MAP,), "map(anything)_replay_filter"),
        ((MAP, Shuffle(3)), "shuffle(3)_replay_filter"),
        ((MAP, Shuffle(3), Batch(2)), "batch_replay_filter"),
        ((MAP, Batch(2), LmTargets()), "batch_replay_filter"),
    ],
)
def test_the_replay_filter_is_named_after_its_neighbour(operators, name):
    made = plan(*operators)
    assert filter_name(made) == name
    assert f"{name}@p1" in explain_plan(made, 2)
    if not operators or not isinstance(operators[-1], (Batch, LmTargets)):
        assert "records one by one" in explain_plan(made, 2)


@pytest.mark.parametrize(
    ("options", "cpus", "workers"), [({}, 1, 1), ({}, 4, 4), ({}, 64, 8), ({}, 0, 1), ({"max_workers": 20}, 4, 20)]
)
def test_workers(options, cpus, workers):
    made = plan(MAP, **options)
    assert worker_count(made, cpus) == workers
    assert f"fetch@p{workers} " in explain_plan(made, workers)


@pytest.mark.parametrize(
    ("lanes", "workers", "window"), [(1, 1, 2), (1, 4, 8), (2, 4, 4), (8, 4, 4), (2, 1, 2), (8, 3, 3)]
)
def test_the_window_keeps_all_workers_busy(lanes, workers, window):
    assert stage_window(plan(MAP, canonical_replicas=lanes), workers) == window


def test_custom_work_is_told_by_its_class():
    class Own(zj.WorkSource):
        @property
        def datasets_by_id(self):
            return {}

        def next_chunk(self):
            return None

        def clone_for_lane(self, lane_id, canonical_replicas):
            return self

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    made = compile_plan(Own(), [], Options())
    assert re.search(r"^Work: .*Own$", explain_plan(made, 1), re.M)
    assert made.identity["work"]["class"].endswith("Own")


# -- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"canonical_replicas": 0}, r"options\(canonical_replicas=0\) must be at least 1"),
        ({"prefetch": 0}, r"options\(prefetch=0\) must be at least 1"),
        ({"max_workers": 2.0}, r"options\(max_workers=2.0\) must be an integer"),
        ({"max_workers": True}, r"options\(max_workers=True\) must be an integer"),
        ({"flush_every_k_chunks": -1}, r"options\(flush_every_k_chunks=-1\) must be at least 0"),
        ({"micro_batch_records": 0}, r"options\(micro_batch_records=0\) must be at least 1"),
        (
            {"executor": "dask"},
            r"options\(executor='dask'\) must be one of \['threads', 'processes', 'inline', 'auto'\], or a conc",
        ),
        ({"on_data_error": "ignore"}, r"options\(on_data_error='ignore'\) must be 'raise' or 'skip'"),
        ({"max_skipped": 3}, r"options\(max_skipped=\) has a meaning with on_data_error='skip' only"),
        ({"dp_degree": 2}, r"options\(dp_degree=, dp_group_id=\) must be given together"),
        ({"prefetsch": 2}, r"options has no \['prefetsch'\]; there are \['canonical_replicas', "),
    ],
    ids=str,
)
def test_options_that_cannot_work(options, text):
    with pytest.raises(zj.ConfigurationError, match=text):
        zj.Pipeline(work()).options(**options)


def test_later_options_override_earlier_ones():
    p = zj.Pipeline(work()).options(prefetch=3, max_workers=2).options(prefetch=5)
    assert (p.settings.prefetch, p.settings.max_workers) == (5, 2)


def test_pipelines_are_immutable():
    base = zj.Pipeline(work()).map(anything)
    one, other = base.batch(2), base.shuffle(3)
    assert [op.name for op in base.operators] == ["map(anything)"]
    assert [op.name for op in one.operators] == ["map(anything)", "batch(2)"]
    assert [op.name for op in other.operators] == ["map(anything)", "shuffle(3)"]
