"""Small inputs from the field that break loaders, each as a test. The numbers are those of the project's list of cases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import zephon_jax as zj
from zephon_jax.checkpoint.codec import decode, encode


def data_mesh(n):
    return Mesh(np.array(jax.devices()[:n]), ("data",))


def values(it):
    return [int(r["value"]) for r in it]


# -- 1 -------------------------------------------------------------------------------------------------------------
def shuffled_range():
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("r", range(10)), chunk_size=3, shuffle_shards=False)
    return zj.Pipeline(work).shuffle(5).options(executor="inline", flush_every_k_chunks=2)


@pytest.mark.parametrize("k", range(11))
def test_case_1_shuffle_resumes_after_every_record(k):
    pipeline = shuffled_range()
    whole = values(pipeline)
    assert sorted(whole) == list(range(10))
    assert whole != list(range(10))
    it = iter(pipeline)
    head = [int(next(it)["value"]) for _ in range(k)]
    state = it.checkpoint()
    for fresh in (iter(pipeline), iter(shuffled_range())):  # of the same object, and of a fresh one
        fresh.restore(state)
        assert head + values(fresh) == whole


def test_case_1_a_fresh_interpreter(tmp_path):
    it = iter(shuffled_range())
    head = [int(next(it)["value"]) for _ in range(4)]
    (tmp_path / "state").write_bytes(encode(it.checkpoint()))
    program = textwrap.dedent(
        f"""
        from tests.test_cases import shuffled_range, values
        from zephon_jax.checkpoint.codec import decode
        it = iter(shuffled_range())
        it.restore(decode(open({str(tmp_path / "state")!r}, "rb").read()))
        print(values(it))
        """
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert head + json.loads(out.stdout) == values(shuffled_range())


# -- 2 -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("workers", [0, 2])
def test_case_2_ten_documents_in_three_rows(workers):
    docs = [{"tokens": [i + 1] * n} for i, n in enumerate([5, 3, 7, 2, 4, 6, 1, 8, 2, 4])]
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("docs", docs), chunk_size=4, shuffle_shards=False)
    settings = {"executor": "threads", "max_workers": workers} if workers else {"executor": "inline"}
    pipeline = zj.Pipeline(work).pack(16, num_bins=4).batch(1).options(**settings)
    with iter(pipeline) as it:
        whole = [b["tokens"] for b in it]
    assert len(whole) == 3
    assert sorted(t for row in whole for t in row[0] if t) == sorted(t for d in docs for t in d["tokens"])
    with iter(pipeline) as it:
        head = [next(it)["tokens"] for _ in range(2)]
        state = it.checkpoint()
    with iter(pipeline) as it:
        it.restore(state)
        tail = [b["tokens"] for b in it]
    assert np.array_equal(np.concatenate(head + tail), np.concatenate(whole))


# -- 16 ------------------------------------------------------------------------------------------------------------
def test_case_16_positions_segments_and_targets():
    docs = [{"tokens": [11, 12, 13]}, {"tokens": [21, 22]}]
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("docs", docs), shuffle_shards=False)
    pipeline = zj.Pipeline(work).pack(7).batch(1).options(executor="inline")
    (row,) = list(pipeline)
    assert row["tokens"].tolist() == [[11, 12, 13, 21, 22, 0, 0]]
    assert row["segment_ids"].tolist() == [[1, 1, 1, 2, 2, 0, 0]]
    assert row["positions"].tolist() == [[0, 1, 2, 0, 1, 0, 0]]
    (batch,) = list(pipeline.lm_targets())
    assert batch["inputs"].tolist() == [[11, 12, 13, 21, 22, 0]]
    assert batch["targets"].tolist() == [[12, 13, 0, 22, 0, 0]]
    assert batch["loss_weights"].tolist() == [[1, 1, 0, 1, 0, 0]]  # 13 is not trained to predict 21, nor 22 padding


# -- 21 ------------------------------------------------------------------------------------------------------------
def test_case_21_without_shuffling_the_order_is_that_of_the_files(tmp_path):
    lines = []
    for name, n in [("a", 5), ("b", 1), ("c", 9)]:
        part = [json.dumps({"id": f"{name}{i}", "text": "é" * i}, ensure_ascii=False) for i in range(n)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(part) + "\n", encoding="utf-8")
        lines += part
    ds = zj.Dataset.from_path("files", str(tmp_path / "*.jsonl"))
    work = zj.StaticMixtureWorkSource(ds, chunk_size=4, shuffle_shards=False)
    got = [json.dumps(dict(r), ensure_ascii=False) for r in zj.Pipeline(work).options(executor="inline")]
    assert got == lines


# -- 37 ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def broken_files(tmp_path):
    good = [json.dumps({"value": i}).encode() for i in range(20)]
    good[7] = b'{"value": 7, "text": "\xff"}'  # a byte that is no UTF-8
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(good) + b"\n")
    (tmp_path / "b.jsonl").write_bytes(b"\n".join([*good[:5], b'{"value": 99, "te']))  # cut off
    ds = zj.Dataset.from_path("broken", [tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    return zj.Pipeline(zj.StaticMixtureWorkSource(ds, chunk_size=4, shuffle_shards=False)).batch(1)


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_case_37_an_error_with_file_and_line(broken_files, executor):
    with iter(broken_files.options(executor=executor, micro_batch_records=1)) as it:
        for i in range(7):
            assert next(it)["value"] == [i]
        with pytest.raises(zj.DataError, match=r"a\.jsonl, line 8: not valid JSON") as caught:
            next(it)
        assert caught.value.record == 7
        with pytest.raises(zj.DataError, match="line 8"):  # again, not a fresh start
            next(it)


def test_case_37_skipping_is_counted_and_the_same_after_a_resume(broken_files):
    pipeline = broken_files.options(executor="inline", on_data_error="skip")
    it = iter(pipeline)
    whole = [int(b["value"][0]) for b in it]
    assert whole == [*range(7), *range(8, 20), *range(5)]
    for cut in range(len(whole) + 1):
        it = iter(pipeline)
        head = [int(next(it)["value"][0]) for _ in range(cut)]
        assert it.stats().skipped == {0: int(cut > 7)}  # what the cut has passed; the last line never is
        state = decode(encode(it.checkpoint()))
        again = iter(pipeline.options(micro_batch_records=3))
        again.restore(state)
        assert head + [int(b["value"][0]) for b in again] == whole
        assert again.stats().skipped == {0: 1}


def test_case_37_a_limit_on_skipping(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"value": 0}\nx\ny\nz\n{"value": 1}\n{"value": 2}\n')
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_path("a", tmp_path / "a.jsonl"), shuffle_shards=False)
    pipeline = zj.Pipeline(work).options(executor="inline", on_data_error="skip", max_skipped=2)
    it = iter(pipeline)
    assert next(it)["value"] == 0
    with pytest.raises(zj.DataError, match="skipped 3 unreadable samples, max_skipped allows 2"):
        next(it)


# -- 38 ------------------------------------------------------------------------------------------------------------
def test_case_38_a_glob_that_matches_nothing_fails_at_build(tmp_path):
    with pytest.raises(zj.ConfigurationError, match=r"nothing-\*\.jsonl matches no file"):
        zj.Dataset.from_path("none", str(tmp_path / "nothing-*.jsonl"))


# -- 40 ------------------------------------------------------------------------------------------------------------
def test_case_40_a_batch_that_the_mesh_cannot_split_names_the_sizes_that_work():
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("n", range(100)))
    pipeline = zj.Pipeline(work).batch(global_batch_size=30)
    with pytest.raises(zj.ConfigurationError, match=r"30 rows.*8 shards.*\[24, 32\]"):
        pipeline.to_global(NamedSharding(data_mesh(8), P("data")))
    with pytest.raises(
        zj.ConfigurationError, match=r"canonical_replicas=8 does not divide global_batch_size=30.*\[1, 2, 3, 5, 6"
    ):
        pipeline.options(canonical_replicas=8)


# -- 42 ------------------------------------------------------------------------------------------------------------
def numbers():
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("n", range(200)), chunk_size=8, seed=1)
    return zj.Pipeline(work).shuffle(8).batch(global_batch_size=8)


@pytest.fixture
def saved(tmp_path):
    """Step 3 with model and data, step 4 with the model alone."""
    model = {"w": jax.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(data_mesh(4), P("data")))}
    with ocp.CheckpointManager(tmp_path) as mgr, numbers().to_global(NamedSharding(data_mesh(4), P("data"))) as it:
        for _ in range(3):
            next(it)
        mgr.save(3, args=ocp.args.Composite(state=ocp.args.StandardSave(model), data=zj.PipelineSave(it)))
        mgr.wait_until_finished()
        mgr.save(4, args=ocp.args.Composite(state=ocp.args.StandardSave(model)))
        mgr.wait_until_finished()
        following = np.asarray(next(it)["value"])
    return tmp_path, following


def abstract(n):
    return {"w": jax.ShapeDtypeStruct((8,), np.float32, sharding=NamedSharding(data_mesh(n), P("data")))}


def test_case_42_restore_without_arguments_gives_the_raw_state(saved):
    path, following = saved
    with ocp.CheckpointManager(path) as mgr:
        state = mgr.restore(3).data
    with numbers().to_global(NamedSharding(data_mesh(2), P("data"))) as it:
        it.restore(state)
        assert it.step == 3
        assert np.array_equal(np.asarray(next(it)["value"]), following)


def test_case_42_item_metadata(saved):
    path, _ = saved
    handlers = ocp.handlers.DefaultCheckpointHandlerRegistry()
    handlers.add("data", zj.PipelineSave, zj.PipelineCheckpointHandler())
    handlers.add("data", zj.PipelineRestore, zj.PipelineCheckpointHandler())
    with ocp.CheckpointManager(path, handler_registry=handlers) as mgr:
        found = mgr.item_metadata(3).data
    assert found["lanes_total"] == 8
    assert found["rounds"] == dict.fromkeys(range(8), 3)
    assert found["state_bytes"] < 4000


def test_case_42_only_the_model(saved):
    path, _ = saved
    with ocp.CheckpointManager(path) as mgr:
        restored = mgr.restore(3, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract(2))))
    assert list(restored.keys()) == ["state"]
    assert np.array_equal(np.asarray(restored.state["w"]), np.arange(8))


def test_case_42_a_checkpoint_without_the_data_item_says_so(saved):
    path, _ = saved
    with ocp.CheckpointManager(path) as mgr, numbers().to_global(NamedSharding(data_mesh(2), P("data"))) as it:
        args = ocp.args.Composite(state=ocp.args.StandardRestore(abstract(2)), data=zj.PipelineRestore(it))
        with pytest.raises(KeyError, match='"data" was not found in the checkpoint'):
            mgr.restore(4, args=args)
        assert it.step == 0  # nothing was restored by half: the iterator is as fresh as before
        mgr.restore(3, args=ocp.args.Composite(data=zj.PipelineRestore(it)))
        assert it.step == 3


def test_case_42_not_an_iterator_is_refused(saved):
    path, _ = saved
    with (
        ocp.CheckpointManager(path) as mgr,
        pytest.raises(zj.ConfigurationError, match="take an iterator.*got Pipeline"),
    ):
        mgr.restore(3, args=ocp.args.Composite(data=zj.PipelineRestore(numbers())))


def test_case_42_a_machine_with_one_cpu_device(saved):
    path, following = saved
    program = textwrap.dedent(
        f"""
        import jax, numpy as np, orbax.checkpoint as ocp, zephon_jax as zj
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        from tests.test_cases import numbers
        assert jax.device_count() == 1
        sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
        with ocp.CheckpointManager({str(path)!r}) as mgr, numbers().to_global(sharding) as it:
            mgr.restore(3, args=ocp.args.Composite(data=zj.PipelineRestore(it)))
            print(np.asarray(next(it)["value"]).tolist())
        """
    )
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=1", "JAX_PLATFORMS": "cpu"}
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
    assert out.returncode == 0, out.stderr[-2000:]
    assert json.loads(out.stdout.splitlines()[-1]) == following.tolist()
