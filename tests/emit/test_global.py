"""Global arrays: the same on every topology (O5), fresh buffers, casts, errors before any data is read."""

from __future__ import annotations

import gc
import random
import threading

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import zephon_jax as zj
from tests.oracle import tokenize
from tests.pipelines import long_enough


def mesh(shape, names, reverse=False):
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return Mesh(devices[::-1] if reverse else devices, names)


def pipeline(lanes=8, **options):
    rng = random.Random(0)  # not a pattern of i: lanes are dealt by position
    samples = [{"text": "abcdefgh"[: rng.randint(1, 8)] * rng.randint(0, 8)} for _ in range(1500)]
    ds = zj.Dataset.from_source("text", samples, fingerprint="fixed")
    work = zj.StaticMixtureWorkSource(ds, chunk_size=8, shuffle_block_size=4, seed=3)
    return (
        zj.Pipeline(work).filter(long_enough).tokenize(tokenize).split(30).pack(33, num_bins=4).shuffle(6)
        .batch(global_batch_size=16).lm_targets().options(canonical_replicas=lanes, **options)
    )  # fmt: skip


MESHES = {
    "1": (mesh((1,), ("data",)), P("data")),
    "2": (mesh((2,), ("data",)), P("data")),
    "4": (mesh((4,), ("data",)), P("data")),
    "8": (mesh((8,), ("data",)), P("data")),
    "4x2 sequence": (mesh((4, 2), ("data", "seq")), P("data", "seq")),
    "2x4 tensor": (mesh((2, 4), ("data", "model")), P("data", None)),
    "2x2x2 two batch axes": (mesh((2, 2, 2), ("data", "fsdp", "model")), P(("data", "fsdp"), None)),
    "8 reversed": (mesh((8,), ("data",), reverse=True), P("data")),
    "4 replicated": (mesh((4,), ("data",)), P()),
}


@pytest.fixture(scope="module")
def reference():
    """Joined from `iter`, which knows no mesh: lane l's rows of a step are [l·R, (l + 1)·R)."""
    by_lane, rounds = {lane: [] for lane in range(8)}, dict.fromkeys(range(8), 0)
    with iter(pipeline(executor="inline")) as it:
        for batch in it:
            now = dict(it.stats().rounds)
            (lane,) = [lane for lane in now if now[lane] != rounds[lane]]
            by_lane[lane].append(batch)
            rounds = now
    shortest = min(map(len, by_lane.values()))
    assert max(map(len, by_lane.values())) > shortest  # or the end would show nothing
    steps = [
        {k: np.concatenate([by_lane[lane][t][k] for lane in range(8)]) for k in by_lane[0][t]} for t in range(shortest)
    ]
    assert len(steps) > 15
    return steps


@pytest.mark.parametrize("name", MESHES)
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_global_arrays_are_the_same_on_every_mesh(reference, name, executor):
    where, spec = MESHES[name]
    sharding = NamedSharding(where, spec)
    with pipeline(executor=executor).to_global(sharding) as it:
        for t, batch in zip(range(12), it, strict=False):
            assert set(batch) == set(reference[t])
            for key, value in batch.items():
                assert isinstance(value, jax.Array)
                assert value.sharding.is_equivalent_to(NamedSharding(where, P(*spec[: value.ndim])), value.ndim)
                assert value.dtype == reference[t][key].dtype
                assert np.array_equal(np.asarray(value), reference[t][key]), (t, key)


def test_a_resume_may_change_the_mesh(reference):
    state, at = None, 0
    for name, steps in [("8", 3), ("4x2 sequence", 4), ("1", 2), ("2x2x2 two batch axes", 3)]:
        where, spec = MESHES[name]
        with pipeline().to_global(NamedSharding(where, spec)) as it:
            if state is not None:
                it.restore(state)
                assert it.step == at
            for _ in range(steps):
                batch = next(it)
                assert all(np.array_equal(np.asarray(v), reference[at][k]) for k, v in batch.items())
                at += 1
            state = it.checkpoint()
    assert at == 12


def test_all_lanes_stop_after_the_same_step(reference):
    with pipeline().to_global(NamedSharding(MESHES["4"][0], P("data"))) as it:
        assert sum(1 for _ in it) == len(reference)
        rounds = set(it.stats().rounds.values())
        assert rounds == {len(reference)}
        assert next(it, None) is None


def test_to_local_gives_numpy_rows(reference):
    with pipeline().to_local(NamedSharding(MESHES["8"][0], P("data"))) as it:
        batch = next(it)
        assert all(type(v) is np.ndarray and np.array_equal(v, reference[0][k]) for k, v in batch.items())


def test_the_same_data_on_iter_and_global_gives_the_same_fingerprint():
    prints = set()
    for make in (iter, lambda p: p.to_global(NamedSharding(MESHES["4"][0], P("data")))):
        with make(pipeline()) as it:
            for _ in range(5 if make is not iter else 40):
                next(it)
            prints.add((it.fingerprint(), tuple(it.lane_fingerprints().items())))
    assert len(prints) == 1


def test_delivered_arrays_share_no_memory_and_may_be_donated():
    sharding = NamedSharding(MESHES["8"][0], P("data"))
    with pipeline().to_global(sharding) as it, pipeline().to_local(sharding) as other:
        kept = [next(it) for _ in range(4)]
        copies = [{k: np.asarray(v).copy() for k, v in b.items()} for b in kept]
        for _ in range(6):
            for array in next(other).values():
                array[...] = 77  # what is delivered belongs to the consumer
        more = next(it)
        step = jax.jit(lambda b: {k: v + 1 for k, v in b.items()}, donate_argnums=0)
        jax.block_until_ready(step(more))
        assert all(np.array_equal(np.asarray(v), copies[t][k]) for t, b in enumerate(kept) for k, v in b.items())


def numbers(rows, fn, **batch):
    ds = zj.Dataset.from_source("n", range(64))
    work = zj.StaticMixtureWorkSource(ds, shuffle_shards=False, chunk_size=16)
    return zj.Pipeline(work).map(fn, name="fields").batch(rows, **batch).options(executor="inline")


def test_casts_and_host_fields():
    p = numbers(
        8,
        lambda r: {
            "i": r["value"],
            "f": 0.5,
            "b": True,
            "u": np.uint8(3),
            "s": f"n{r['value']}",
            "r": list(range(r["value"] % 3)),
        },
    )
    with p.to_global(NamedSharding(MESHES["4"][0], P("data", None)), dtypes={"f": "float16"}) as it:
        batch = next(it)
        got = {k: (str(v.dtype), v.shape) for k, v in batch.items()}
        assert got == {"i": ("int32", (8,)), "f": ("float16", (8,)), "b": ("bool", (8,)), "u": ("uint8", (8,))}
        assert it.host()["s"].tolist() == [f"n{i}" for i in range(8)]
        assert [v.tolist() for v in it.host()["r"]] == [list(range(i % 3)) for i in range(8)]


def test_int64_out_of_range_names_the_field():
    p = numbers(8, lambda r: {"big": r["value"] + 2**40})
    with (
        p.to_global(NamedSharding(MESHES["4"][0], P("data"))) as it,
        pytest.raises(zj.DataError, match=r"'big' holds 1099511627783.*int32"),
    ):
        next(it)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda s: numbers(30, dict).to_global(s), r"30 rows cannot be split over the 8 shards.*\[24, 32\]"),
        (lambda s: numbers(8, dict, drop_last=False).to_global(s), "drop_last=True"),
        (lambda s: zj.Pipeline(numbers(8, dict).work).to_global(s), "need a batch"),
        (lambda s: numbers(8, dict).options(dp_degree=1, dp_group_id=0).to_global(s), "contradict a sharding"),
        (lambda s: numbers(8, dict).to_global("data"), "must be a jax.sharding.NamedSharding"),
        (lambda s: numbers(8, dict).to_global({}), "must be a jax.sharding.NamedSharding"),
    ],
)
def test_what_cannot_work_is_refused_at_build(make, text):
    with pytest.raises(zj.ConfigurationError, match=text):
        make(NamedSharding(MESHES["8"][0], P("data")))


def test_leaves_must_agree_on_the_batch_axis():
    m = MESHES["4x2 sequence"][0]
    with pytest.raises(zj.ConfigurationError, match=r"sharding\['y'\].*must agree"):
        numbers(8, dict).to_global({"x": NamedSharding(m, P("data")), "y": NamedSharding(m, P("seq"))})


def test_a_sharding_per_field():
    m = MESHES["4x2 sequence"][0]
    p = numbers(8, lambda r: {"x": np.zeros((4,), np.int32) + r["value"], "y": r["value"]})
    with p.to_global({"x": NamedSharding(m, P("data", "seq")), "y": NamedSharding(m, P("data"))}) as it:
        batch = next(it)
        assert batch["x"].sharding.spec == P("data", "seq")
    with (
        p.to_global({"x": NamedSharding(m, P("data", "seq"))}) as it,
        pytest.raises(zj.ConfigurationError, match="no sharding for the field 'y'"),
    ):
        next(it)


def test_a_state_in_the_middle_of_a_round_is_refused():
    with iter(pipeline(executor="inline")) as it:
        for _ in range(3):
            next(it)
        state = it.checkpoint()
    with (
        pipeline().to_global(NamedSharding(MESHES["4"][0], P("data"))) as it,
        pytest.raises(zj.ConfigurationError, match="middle of a round"),
    ):
        it.restore(state)


def test_abandoned_iterators_leave_no_threads():
    """F2: garbage collection stops what an iterator started."""
    before = set(threading.enumerate())
    for _ in range(20):
        next(pipeline().to_global(NamedSharding(MESHES["4"][0], P("data"))))
    gc.collect()
    assert not {t.name for t in set(threading.enumerate()) - before if "zephon_jax" in t.name}


def test_close_in_the_middle_of_a_full_queue():
    it = pipeline(prefetch=1).to_global(NamedSharding(MESHES["4"][0], P("data")))
    next(it)
    it.close()
    state = it.checkpoint()  # what was delivered is still known
    assert state["lanes"][0]["rounds"] == 1
    with pytest.raises(zj.ConfigurationError, match="closed"):
        next(it)
