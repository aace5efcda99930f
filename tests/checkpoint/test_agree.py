"""Rule C6: a state continues in the pipeline that made it, and every difference that matters is refused by its name."""

from __future__ import annotations

import copy
import pathlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import zephon_jax as zj
from zephon_jax.checkpoint.agree import require_same_pipeline
from zephon_jax.checkpoint.codec import decode, encode, plain_values, state_from_plain
from zephon_jax.checkpoint.schema import DatasetMark, LaneSnapshot, PipelineState
from zephon_jax.origin import LINEAGE, Origin
from zephon_jax.plan.compile import compile_plan
from zephon_jax.plan.identity import plan_differences
from zephon_jax.types import WorkChunk


def words(*extra: str) -> Tokenizer:
    vocabulary = {word: i for i, word in enumerate(["<unk>", "a", "b", *extra])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def data(name: str, n: int = 60, fingerprint: str | None = None) -> zj.Dataset:
    samples = [{"text": "a b " * (1 + i % 3), "n": i} for i in range(n)]
    return zj.Dataset.from_source(name, samples, fingerprint=fingerprint or f"{name} {n}")


def small(record):
    return record["n"] < 55


BASE: dict[str, Any] = {
    "datasets": lambda: [data("web"), data("code", 40)],
    "mixture": {"web": 3, "code": 1},
    "work": {"seed": 0, "chunk_size": 4},
    "tokenizer": words,
    "tokenize": {},
    "filter": {"name": "small", "version": 1},
    "split": {"max_length": 4},
    "shuffle": {"buffer_size": 5, "seed": 0},
    "pack": {"max_length": 8},
    "batch": {"batch_size": 2},
    "targets": None,
    "options": {"canonical_replicas": 2, "flush_every_k_chunks": 3, "executor": "inline"},
}


def pipeline(order=("filter", "tokenize", "split", "shuffle", "pack"), **changes: Any) -> zj.Pipeline:
    """BASE with changes; options that are changed are added to BASE's."""
    a = {**BASE, **changes}
    for name in ("work", "tokenize", "filter", "split", "shuffle", "pack", "batch", "options"):
        a[name] = {**BASE[name], **changes.get(name, {})}
    p = zj.Pipeline(zj.StaticMixtureWorkSource(a["datasets"](), a["mixture"], **a["work"]))
    steps = {
        "filter": lambda p: p.filter(small, **a["filter"]),
        "tokenize": lambda p: p.tokenize(a["tokenizer"](), **a["tokenize"]),
        "split": lambda p: p.split(**a["split"]),
        "shuffle": lambda p: p.shuffle(**a["shuffle"]),
        "pack": lambda p: p.pack(**a["pack"]),
    }
    for name in order:
        p = steps[name](p)
    p = p.batch(**a["batch"])
    if a["targets"]:
        p = p.lm_targets(a["targets"])
    return p.options(**a["options"])


pytestmark = pytest.mark.filterwarnings("ignore:pack.* drops the fields")


@pytest.fixture(scope="module")
def saved() -> dict[str, Any]:
    """After three batches."""
    with iter(pipeline()) as it:
        for _ in range(3):
            next(it)
        return decode(encode(it.checkpoint()))


def refusal(state: Any, p: zj.Pipeline) -> list[str]:
    """The differences that are named; what refused one state still takes the right one."""
    with iter(p) as it:
        with pytest.raises(zj.CheckpointMismatch) as caught:
            it.restore(state)
        assert it.step == 0
    first, *lines = str(caught.value).split("\n  ")
    assert first == "the checkpoint belongs to another pipeline:"
    return lines


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"options": {"canonical_replicas": 3}},
            "canonical_replicas: the checkpoint has 2 lanes, this pipeline 3; pass options(canonical_replicas=2)",
        ),
        ({"options": {"flush_every_k_chunks": 4}}, "flush_every_k_chunks: the checkpoint has 3, this pipeline 4"),
        ({"options": {"on_data_error": "skip"}}, "on_data_error: the checkpoint has 'raise', this pipeline 'skip'"),
        ({"work": {"seed": 1}}, "work.seed: the checkpoint has 0, this pipeline 1"),
        ({"work": {"chunk_size": 5}}, "work.chunk_size: the checkpoint has 4, this pipeline 5"),
        ({"work": {"shuffle_shards": False}}, "work.shuffle_shards: the checkpoint has True, this pipeline False"),
        (
            {"work": {"shuffle_within_shard": True}},
            "work.shuffle_within_shard: the checkpoint has False, this pipeline True",
        ),
        ({"work": {"shuffle_block_size": 8}}, "work.shuffle_block_size: the checkpoint has None, this pipeline 8"),
        ({"work": {"stop_after_passes": 2}}, "work.stop_after_passes: the checkpoint has None, this pipeline 2"),
        (
            {"work": {"exhausted_policy": "stop"}},
            "work.exhausted_policy: the checkpoint has None, this pipeline 'stop'",
        ),
        (
            {"work": {"reshuffle_on_repeat": False}},
            "work.reshuffle_on_repeat: the checkpoint has True, this pipeline False",
        ),
        ({"mixture": {"web": 1, "code": 1}}, "work.weights[0]: the checkpoint has 3, this pipeline 1"),
        ({"mixture": None}, "work.weights[1]: the checkpoint has 1, this pipeline 2"),
        ({"split": {"max_length": 5}}, "operators[2](split).max_length: the checkpoint has 4, this pipeline 5"),
        ({"shuffle": {"buffer_size": 6}}, "operators[3](shuffle).buffer_size: the checkpoint has 5, this pipeline 6"),
        ({"shuffle": {"seed": 7}}, "operators[3](shuffle).seed: the checkpoint has 0, this pipeline 7"),
        ({"pack": {"max_length": 9}}, "operators[4](pack).max_length: the checkpoint has 8, this pipeline 9"),
        ({"pack": {"num_bins": 4}}, "operators[4](pack).num_bins: the checkpoint has 16, this pipeline 4"),
        (
            {"pack": {"on_overlong": "drop"}},
            "operators[4](pack).on_overlong: the checkpoint has 'split', this pipeline 'drop'",
        ),
        (
            {"filter": {"name": "tiny"}},
            "operators[0](filter).function: the checkpoint has 'small', this pipeline 'tiny'",
        ),
        ({"filter": {"version": 2}}, "operators[0](filter).version: the checkpoint has '1', this pipeline '2'"),
        ({"filter": {"version": None}}, "operators[0](filter).version: the checkpoint has '1', this pipeline has none"),
        ({"tokenize": {"add_eos": 0}}, "operators[1](tokenize).eos: the checkpoint has [], this pipeline [0]"),
        ({"tokenize": {"add_bos": 0}}, "operators[1](tokenize).bos: the checkpoint has [], this pipeline [0]"),
        ({"tokenizer": lambda: words("c")}, "operators[1](tokenize).content: the checkpoint has '"),
        ({"order": ("tokenize", "split", "shuffle", "pack")}, "operators: the checkpoint has ['filter', 'tokenize', "),
        (
            {"order": ("filter", "tokenize", "split", "shuffle", "shuffle", "pack")},
            "operators: the checkpoint has ['filter', 'tokenize', 'split', 'shuffle', 'pack'], "
            "this pipeline ['filter', 'tokenize', 'split', 'shuffle', 'shuffle', 'pack']",
        ),
        (
            {"order": ("tokenize", "filter", "split", "shuffle", "pack")},
            "operators[0]: the checkpoint has filter, this pipeline tokenize",
        ),
        (
            {"datasets": lambda: [data("web", fingerprint="other"), data("code", 40)]},
            "dataset 'web': its content changed (checkpoint: 60 samples, fingerprint ",
        ),
        (
            {"datasets": lambda: [data("web"), data("code", 41)], "mixture": {"web": 3, "code": 1}},
            "dataset 'code': its content changed (checkpoint: 40 samples, fingerprint ",
        ),
        (
            {"datasets": lambda: [data("web"), data("math", 40)], "mixture": {"web": 3, "math": 1}},
            "datasets: the checkpoint has ['web', 'code'], this pipeline ['web', 'math']",
        ),
        (
            {"datasets": lambda: [data("code", 40), data("web")]},
            "datasets: the checkpoint has ['web', 'code'], this pipeline ['code', 'web']",
        ),
    ],
    ids=lambda v: "" if isinstance(v, str) else str(v).split(" at 0x")[0],
)
def test_each_difference_is_named(saved, changes, text):
    lines = refusal(saved, pipeline(**changes))
    assert any(line.startswith(text) for line in lines), lines
    if "canonical_replicas" not in text and not text.startswith(("dataset", "operators[0]: ", "work.weights")):
        assert len(lines) == 1, lines


def test_all_differences_are_named_at_once(saved):
    lines = refusal(saved, pipeline(work={"seed": 1}, split={"max_length": 5}, options={"canonical_replicas": 3}))
    assert [line.split(":")[0] for line in lines] == [
        "canonical_replicas",
        "work.seed",
        "operators[2](split).max_length",
    ]


def test_a_pipeline_without_flushes_does_not_take_one_with(saved):
    lines = refusal(saved, pipeline(order=("filter", "tokenize", "split"), options={"flush_every_k_chunks": None}))
    assert lines[0].startswith("operators: ")
    assert "flush_every_k_chunks: the checkpoint has 3, this pipeline 0" in lines


def test_a_missing_lane_is_named(saved):
    state = copy.deepcopy(saved)
    del state["lanes"][1]
    assert refusal(state, pipeline()) == ["lanes [1] are missing from the checkpoint, which has [0]"]


def test_only_the_lanes_of_the_process_are_needed(saved):
    state = copy.deepcopy(saved)
    del state["lanes"][1]
    with iter(pipeline(options={"dp_degree": 2, "dp_group_id": 0})) as it:
        it.restore(state)
        assert it.get_state() == state
    lines = refusal(state, pipeline(options={"dp_degree": 2, "dp_group_id": 1}))
    assert lines == ["lanes [1] are missing from the checkpoint, which has [0]"]


def test_a_newer_format_is_refused(saved):
    with iter(pipeline()) as it:
        with pytest.raises(zj.CheckpointMismatch, match="format version 2, this zephon_jax reads version 1; upgrade"):
            it.restore({**saved, "version": 2})


def rest(p: zj.Pipeline, state: Any, rows: int) -> dict[int, list[Any]]:
    """Tokens of the next rows, per lane."""
    out: dict[int, list[Any]] = {}
    with iter(p) as it:
        it.restore(state)
        before = it.stats().rows
        for batch in it:
            lane = next(lane for lane, n in it.stats().rows.items() if n > before[lane])
            before = it.stats().rows
            out.setdefault(lane, []).extend(batch["tokens" if "tokens" in batch else "inputs"][:, :7].tolist())
    return {lane: tokens[:rows] for lane, tokens in out.items()}


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": {"batch_size": 1}},
        {"batch": {"batch_size": None, "global_batch_size": 6}},
        {"batch": {"drop_last": False}},
        {"targets": "plain"},
        {"options": {"executor": "threads"}},
        {"options": {"executor": "threads", "max_workers": 3, "prefetch": 5}},
        {"options": {"micro_batch_records": 1}},
    ],
    ids=str,
)
def test_what_may_change_changes_no_row(saved, changes):
    want = rest(pipeline(), saved, 10)
    assert {lane: len(tokens) for lane, tokens in want.items()} == {0: 10, 1: 10}
    assert rest(pipeline(**changes), saved, 10) == want


def test_paths_may_change_where_the_content_is_the_same(tmp_path):
    content = "".join(f'{{"text": "a b", "n": {i}}}\n' for i in range(40))

    def of(path: pathlib.Path) -> zj.Pipeline:
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        work = zj.StaticMixtureWorkSource(zj.Dataset.from_path("web", path), chunk_size=4)
        return zj.Pipeline(work).batch(2).options(executor="inline")

    with iter(of(tmp_path / "here" / "a.jsonl")) as it:
        next(it)
        state, want = it.checkpoint(), next(it)["n"].tolist()
    with iter(of(tmp_path / "there" / "b.jsonl")) as it:
        it.restore(state)
        assert next(it)["n"].tolist() == want
    content = content.replace("a b", "a c", 1)
    assert refusal(state, of(tmp_path / "there" / "b.jsonl"))[0].startswith("dataset 'web': its content changed")


# -- what the lanes themselves show ------------------------------------------------------------------------------


def snapshot(**changes: Any) -> LaneSnapshot:
    chunks = (WorkChunk.from_pointers([(0, 0, 0)]),) * 3
    whole = LaneSnapshot(
        lane=0, first=6, chunks=chunks, skipped=(), boundaries=(6, 9), source={}, delivered=1, cursor=(8, 0, 0),
        high_offset=0, rounds=1, rows=1, digest=0, skipped_total=0,
    )  # fmt: skip
    return replace(whole, **changes)


def known(depth: int):
    return Origin.of_chunk(6, np.arange(1), depth).table


def disagreement(s: LaneSnapshot, every: int | None, depth: int = 1, known: bool = False) -> str:
    mark = DatasetMark("web", 1, "f")
    try:
        require_same_pipeline(
            PipelineState(1, {}, (mark,), {0: s}),
            lanes_total=1,
            differences=[],
            datasets=[mark],
            lanes=[0],
            every=every,
            depth=depth,
            known=known,
        )
    except zj.CheckpointMismatch as error:
        return str(error).split("\n  ", 1)[1]
    return ""


@pytest.mark.parametrize(
    ("changes", "every", "text"),
    [
        ({}, 3, ""),
        ({"chunks": snapshot().chunks[:2], "boundaries": (6,), "cursor": (7, 0, 0)}, 3, ""),
        ({"chunks": (), "boundaries": (), "cursor": None, "delivered": 0}, 3, ""),
        ({"chunks": snapshot().chunks[:1], "boundaries": ()}, None, ""),
        ({}, 4, "lane 0: sentinels at [6, 9], this pipeline flushes every 4 chunks"),
        ({}, 2, "lane 0: sentinels at [6, 9], this pipeline flushes every 2 chunks"),
        ({"boundaries": (6,)}, 3, "lane 0: sentinels at [6], this pipeline flushes every 3 chunks"),
        ({"first": 7, "boundaries": (7,)}, 3, "lane 0: sentinels at [7], this pipeline flushes every 3 chunks"),
        (
            {"chunks": snapshot().chunks * 2, "boundaries": (6, 12)},
            3,
            "lane 0: sentinels at [6, 12], this pipeline flushes every 3 chunks",
        ),
        ({}, None, "lane 0: 3 chunks in flight, this pipeline keeps one"),
        ({"cursor": (8, 0)}, 3, "lane 0: a cursor of 2 parts, this pipeline has 3"),
        ({"cursor": (8, 0, 0, 0)}, 3, "lane 0: a cursor of 4 parts, this pipeline has 3"),
    ],
    ids=str,
)
def test_lanes_that_do_not_fit_the_plan(changes, every, text):
    assert disagreement(snapshot(**changes), every) == text


@pytest.mark.parametrize(
    ("kept", "here", "text"),
    [
        (None, False, ""),
        (known(1), True, ""),
        (None, True, "lane 0: what became of the samples in flight is not in the state"),
        (known(1), False, "lane 0: what became of the samples in flight is in the state"),
        (known(2), True, f"lane 0: samples with {LINEAGE + 2} parts of identity, this pipeline has {LINEAGE + 1}"),
    ],
    ids=["without", "with", "missing", "superfluous", "of another depth"],
)
def test_what_became_of_samples_is_kept_where_a_replay_needs_it(kept, here, text):
    assert disagreement(snapshot(known=kept), 3, known=here) == text


# -- differences of plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saved_plan", "here", "want"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, ["a: the checkpoint has 1, this pipeline 2"]),
        ({"a": {"b": "x"}}, {"a": {"b": None}}, ["a.b: the checkpoint has 'x', this pipeline None"]),
        ({"a": 1}, {}, ["a: the checkpoint has 1, this pipeline has none"]),
        ({}, {"a": 1}, ["a: the checkpoint has none, this pipeline 1"]),
        ({"a": [1, 2]}, {"a": (1, 3)}, ["a[1]: the checkpoint has 2, this pipeline 3"]),
        ({"a": [1]}, {"a": [1, 2]}, ["a: the checkpoint has [1], this pipeline [1, 2]"]),
        ({"a": "12"}, {"a": [1, 2]}, ["a: the checkpoint has '12', this pipeline [1, 2]"]),
        ({"a": {}}, {"a": []}, ["a: the checkpoint has {}, this pipeline []"]),
        (
            {"operators": [{"op": "map"}]},
            {"operators": []},
            ["operators: the checkpoint has ['map'], this pipeline []"],
        ),
        (
            {"operators": [{"class": "m.A"}]},
            {"operators": [{"op": "map", "function": "f"}]},
            ["operators[0]: the checkpoint has m.A, this pipeline map"],
        ),
        (
            {"operators": [{"class": "m.A"}]},
            {"operators": [{"class": "m.B"}]},
            ["operators[0].class: the checkpoint has 'm.A', this pipeline 'm.B'"],
        ),
        ({"a": float("1.0")}, {"a": 1}, []),
    ],
    ids=str,
)
def test_differences_of_plans(saved_plan, here, want):
    assert plan_differences(saved_plan, here) == want


def test_a_plan_equals_itself_after_it_was_saved():
    p = pipeline()
    plan = compile_plan(p.work, p.operators, p.settings)
    assert plan_differences(decode(encode(plain_values(plan.identity))), plain_values(plan.identity)) == []


def test_the_state_names_what_it_belongs_to(saved):
    state = state_from_plain(saved)
    assert [m.name for m in state.datasets] == ["web", "code"]
    assert [m.num_samples for m in state.datasets] == [60, 40]
    assert [op["op"] for op in state.plan["operators"]] == ["filter", "tokenize", "split", "shuffle", "pack"]
    assert all(isinstance(snap.source["position"], int) for snap in state.lanes.values())
    assert np.array([len(s.chunks) for s in state.lanes.values()]).min() >= 1
