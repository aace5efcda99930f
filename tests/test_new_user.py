"""What new users met, each as a test."""

from __future__ import annotations

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import zephon_jax as zj
from zephon_jax.testing import check_operator, check_resume


def pipeline_of(samples, **options):
    return zj.Pipeline(zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", samples), **options)).options(
        executor="inline"
    )


def ones(text):
    return [1] * len(text)


DOCS = [{"text": "ab" * (1 + i % 3)} for i in range(120)]


@pytest.mark.parametrize(
    "build",
    [
        lambda p: p.tokenize(ones).pad(8).shuffle(4),
        lambda p: p.tokenize(ones).pad(4, on_overlong="drop").shuffle(4),
        lambda p: p.tokenize(ones).split(2).pad(8),
        lambda p: p.flat_map(lambda r: [r, r], name="two").tokenize(ones).pad(8),
        lambda p: p.split(3, field="text").tokenize(ones).pad(8),
        lambda p: p.tokenize(ones).pad(8).bucket_by_length([3, 8], 4),
        lambda p: p.tokenize(ones).pad(8).ensure_mixture(mixture={"d": 1}),
    ],
)
def test_padded_records_resume(build):
    """Padding hides how many tokens a record has: what a checkpoint keeps of it must not be taken for that."""
    check_resume(build(pipeline_of(DOCS, chunk_size=8)).batch(global_batch_size=4), batches=9)


def test_provenance_counts_the_tokens_not_the_padding_also_after_a_resume():
    pipeline = pipeline_of(DOCS, chunk_size=8, shuffle_shards=False).tokenize(ones).pad(8).shuffle(4).batch(4)
    with iter(pipeline) as it:
        next(it)
        state = it.checkpoint()
        next(it)
        want = it.provenance()
    with iter(pipeline) as again:
        again.restore(state)
        next(again)
        assert again.provenance() == want
    assert {(stop or 0) - start for ((_, _, _, start, stop),) in want.values()} <= {2, 4, 6}


def test_a_resume_that_compares_nothing_is_no_proof():
    with pytest.raises(zj.ConfigurationError, match=r"check_resume\(batches=5\): only 0 batches came out"):
        check_resume(pipeline_of(list(range(100))).batch(1000), batches=5)
    with pytest.raises(zj.ConfigurationError, match="only 1 batches came out"):
        check_resume(pipeline_of(list(range(100))).batch(60), batches=9)


def test_a_map_that_changes_its_input_leaves_the_users_data_alone():
    talks = [{"messages": [{"role": "user", "content": "hi"}], "more": {"k": [1]}} for _ in range(4)]

    def insert(record):
        record["messages"].insert(0, {"role": "system", "content": "s"})
        record["more"]["k"].append(2)
        return record

    before = json.dumps(talks)
    seen = list(pipeline_of(talks, stop_after_passes=3).map(insert))
    assert {(len(r["messages"]), len(r["more"]["k"])) for r in seen} == {(2, 2)}
    assert json.dumps(talks) == before


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_lone_surrogate_says_what_it_is(executor):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    pipeline = pipeline_of([{"text": "ok"}, {"text": "a\ud83d"}], shuffle_shards=False).tokenize(tokenizer)
    with pytest.raises(zj.DataError, match=r"holds a lone surrogate \('\\ud83d' at character 1\).*sample 1"):
        list(pipeline.options(executor=executor))


def sharding():
    return NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), P("data"))


@pytest.mark.parametrize(
    ("value", "dtypes", "text"),
    [
        (1e300, {}, "holds 1e\\+300, which float32 cannot hold"),
        (100001.0, {"v": "float16"}, "holds 100001.0, which float16 cannot hold"),
        (1.7, {"v": "int32"}, "holds 1.7, which int32 cannot hold"),
        (float("nan"), {"v": "int32"}, "holds nan, which int32 cannot hold"),
    ],
)
def test_a_float_that_does_not_fit_is_refused_by_name(value, dtypes, text):
    with pipeline_of([{"v": value}] * 2).batch(2).to_global(sharding(), dtypes=dtypes) as it:
        with pytest.raises(zj.DataError, match=f"the field 'v' {text}"):
            next(it)


def test_floats_that_fit_and_those_that_are_not_finite_pass():
    values = [1.5, float("inf"), float("nan"), -2.25]
    with pipeline_of([{"v": v} for v in values], shuffle_shards=False).batch(4).to_global(sharding()) as it:
        np.testing.assert_array_equal(np.asarray(next(it)["v"]), np.array(values, np.float32))
    with pipeline_of([{"v": 3.0}] * 2).batch(2).to_global(sharding(), dtypes={"v": "int32"}) as it:
        assert np.asarray(next(it)["v"]).tolist() == [3, 3]


def test_a_kept_value_beyond_float32_is_refused():
    with pytest.raises(zj.DataError, match="'m': the value 1e\\+300 does not fit in float32"):
        next(iter(pipeline_of([{"tokens": [1], "m": [1e300]}]).pack(4, keep=["m"]).batch(1)))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: zj.StaticMixtureWorkSource(None), "needs a Dataset or a list of them, got NoneType"),
        (lambda: zj.StaticMixtureWorkSource("x"), "needs a Dataset or a list of them, got str"),
        (lambda: zj.StaticMixtureWorkSource([[1, 2]]), "needs Datasets, got list; make one with Dataset.from_path"),
        (lambda: pipeline_of([1], chunk_size=10**9), "chunk_size=1000000000: a chunk is held in memory"),
        (lambda: pipeline_of([1]).map(lambda r: r, name=5), "name=5 must be a text"),
        (lambda: check_operator(zj.ops.Map(lambda r: r), [5] * 5), "needs records, dicts of fields, got int"),
        (lambda: zj.explain_batch(None), "needs a batch, a dict of arrays, got NoneType"),
        (lambda: zj.explain_batch({"tokens": [[1]]}, row="x"), r"explain_batch\(row='x'\) must be the number of a row"),
    ],
)
def test_wrong_arguments_are_refused_in_words(make, text):
    with pytest.raises(zj.ConfigurationError, match=text):
        make()


class Astray(zj.WorkSource):
    """Hands out samples of a dataset that it does not have."""

    def __init__(self):
        self.given = False

    @property
    def datasets_by_id(self):
        return {0: zj.Dataset.from_source("d", [1, 2, 3])}

    def next_chunk(self):
        if self.given:
            return None
        self.given = True
        return zj.WorkChunk.from_pointers([(7, 0, 0)])

    def clone_for_lane(self, lane_id, canonical_replicas):
        return Astray()

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


def test_a_pointer_to_no_dataset_names_the_work_source():
    with pytest.raises(zj.ContractViolation, match=r"hands out samples of dataset 7, but its datasets_by_id are \[0\]"):
        list(zj.Pipeline(Astray()).options(executor="inline"))


def test_inspect_into_head_ends_quietly(tmp_path):
    from zephon_jax.checkpoint.codec import encode

    with iter(pipeline_of(list(range(50))).batch(2)) as it:
        next(it)
        (tmp_path / "state.zst").write_bytes(encode(it.checkpoint()))
    command = f"{sys.executable} -m zephon_jax.cli inspect {tmp_path / 'state.zst'} | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
