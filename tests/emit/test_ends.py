"""Ends of finite data and accumulated steps, in one process: dropped or padded rows, slices, states and resumes."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import zephon_jax as zj
from zephon_jax.checkpoint.codec import encode


def sharding(devices=4, *spec):
    return NamedSharding(Mesh(np.array(jax.devices()[:devices]), ("data",)), P(*(spec or ("data",))))


def uneven(record):
    return int(record["n"]) % 5 != 1 and int(record["n"]) > 20


def pipeline(lanes=4, rows=8, drop_last=True, executor="threads", n=150, **options):
    """Lanes end at different steps, since a filter takes more from some."""
    samples = [{"n": i, "x": np.full(3, i, np.float32), "name": f"s{i}"} for i in range(n)]
    work = zj.StaticMixtureWorkSource(
        zj.Dataset.from_source("d", samples, fingerprint="f"), chunk_size=4, shuffle_shards=False
    )
    p = zj.Pipeline(work).filter(uneven).shuffle(5).batch(global_batch_size=rows, drop_last=drop_last)
    return p.options(canonical_replicas=lanes, executor=executor, flush_every_k_chunks=3, **options)


def by_lane(**options):
    """Per lane its rows in order, from `iter`, which knows no steps."""
    out = {lane: [] for lane in range(4)}
    with iter(pipeline(executor="inline", **options)) as it:
        before = dict(it.stats().rows)
        for batch in it:
            now = dict(it.stats().rows)
            (lane,) = [lane for lane in now if now[lane] != before[lane]]
            out[lane] += batch["n"].tolist()
            before = now
    return out


def test_the_lanes_of_these_tests_end_at_different_steps():
    rows = {lane: len(n) for lane, n in by_lane(drop_last=False).items()}
    assert len({-(-n // 2) for n in rows.values()}) > 1
    assert any(n % 2 for n in rows.values())


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("drop_last", [True, False])
def test_padding_delivers_every_row(executor, drop_last):
    lanes = by_lane(drop_last=drop_last)
    steps = max(-(-len(n) // 2) for n in lanes.values())
    with pipeline(drop_last=drop_last, executor=executor).to_global(sharding(), end="pad") as it:
        got = [{k: np.asarray(v) for k, v in batch.items()} for batch in it]
        assert it.step == steps
    assert len(got) == steps
    for lane, want in lanes.items():
        seen = []
        for batch in got:
            assert batch["row_valid"].dtype == np.bool_
            assert (batch["n"].shape, batch["x"].shape, batch["row_valid"].shape) == ((8,), (8, 3), (8,))
            rows = slice(2 * lane, 2 * lane + 2)
            valid = batch["row_valid"][rows]
            seen += batch["n"][rows][valid].tolist()
            assert not batch["n"][rows][~valid].any()
            assert not batch["x"][rows][~valid].any()
        assert seen == want


def test_dropping_ends_with_the_shortest_lane():
    lanes = by_lane()
    steps = min(len(n) // 2 for n in lanes.values())
    with pipeline().to_global(sharding()) as it:
        got = [np.asarray(batch["n"]) for batch in it]
    assert len(got) == steps
    assert [batch.tolist() for batch in got] == [
        [n for lane in range(4) for n in lanes[lane][2 * t : 2 * t + 2]] for t in range(steps)
    ]


def host_rows(batch):
    return {k: v.tolist() for k, v in batch[0].items()}


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_resume_continues_also_where_lanes_have_ended(drop_last):
    p = pipeline(drop_last=drop_last, executor="inline")
    with p.to_global(sharding(), end="pad") as it:
        states, steps = [encode(it.checkpoint())], []
        plain = [it.checkpoint()]
        for batch in it:
            steps.append({k: np.asarray(v).tolist() for k, v in batch.items()})
            plain.append(it.checkpoint())
            states.append(encode(plain[-1]))
    for cut, state in enumerate(plain):
        with p.to_global(sharding(2), end="pad") as again:
            again.restore(state)
            assert again.step == cut
            assert encode(again.checkpoint()) == states[cut]
            assert [{k: np.asarray(v).tolist() for k, v in batch.items()} for batch in again] == steps[cut:]
            assert encode(again.checkpoint()) == states[-1]


def test_padding_is_refused_where_it_cannot_be():
    with pytest.raises(zj.ConfigurationError, match="end='stop' must be 'drop' or 'pad'"):
        pipeline().to_global(sharding(), end="stop")
    with pytest.raises(zj.ConfigurationError, match="drop_last=True, or end='pad', which fills it"):
        pipeline(drop_last=False).to_global(sharding())
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", [{"row_valid": 1}] * 8))
    with pytest.raises(zj.ConfigurationError, match="'row_valid' is made by end='pad'"):
        next(zj.Pipeline(work).batch(4).to_global(sharding(), end="pad"))
    nothing = zj.Pipeline(work).filter(lambda r: False, name="none").batch(4)
    with pytest.warns(UserWarning, match="not one whole step"), nothing.to_global(sharding(), end="pad") as it:
        assert list(it) == []


def test_text_is_none_in_padded_rows():
    with pipeline().to_global(sharding(), end="pad") as it:
        for batch in it:
            valid = np.asarray(batch["row_valid"])
            assert [name is None for name in it.host()["name"]] == (~valid).tolist()


def test_steps_on_the_host_may_be_padded_too():
    with pipeline(drop_last=False).steps(end="pad") as it:
        total = sum(int(arrays["row_valid"].sum()) for arrays in it)
    assert total == sum(map(len, by_lane(drop_last=False).values()))


# -- accumulate ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_slice_of_an_accumulated_step_is_a_batch(executor):
    with pipeline(executor=executor).to_global(sharding()) as it:
        plain = [{k: np.asarray(v) for k, v in batch.items()} for batch in it]
    with pipeline(executor=executor).to_global(sharding(), accumulate=3) as it:
        steps = []
        for batch in it:
            assert batch["x"].shape == (3, 8, 3)
            assert batch["x"].sharding.is_equivalent_to(sharding(4, None, "data"), 3)
            steps.append({k: np.asarray(v) for k, v in batch.items()})
            assert it.step == len(steps)
            assert it.host()["name"].shape == (3, 8)
    assert len(steps) == len(plain) // 3
    for t, step in enumerate(steps):
        for a in range(3):
            assert all(np.array_equal(step[k][a], plain[3 * t + a][k]) for k in step)


def test_accumulated_steps_resume_with_another_number():
    with pipeline().to_global(sharding(), accumulate=2) as it:
        first = [np.asarray(next(it)["n"]) for _ in range(2)]
        state = it.checkpoint()
        found = it.provenance()
        assert sorted(found) == list(range(16))
        assert [found[row][0][2] for row in range(16)] == first[1].reshape(-1).tolist()
    with pipeline().to_global(sharding(2)) as it:
        it.restore(state)
        assert it.step == 4
        rest = [np.asarray(batch["n"]) for batch in it]
    with pipeline().to_global(sharding()) as it:
        whole = [np.asarray(batch["n"]) for batch in it]
    assert [a.tolist() for step in first for a in step] + [a.tolist() for a in rest] == [a.tolist() for a in whole]
    with pipeline().to_global(sharding(), accumulate=4) as it:
        it.restore(state)
        assert it.step == 1
        assert np.asarray(next(it)["n"]).tolist() == [a.tolist() for a in whole[4:8]]


@pytest.mark.parametrize("accumulate", [2, 3, 5, 7])
def test_accumulate_and_padding_together(accumulate):
    p = pipeline(drop_last=False)
    with p.to_global(sharding(), end="pad", accumulate=accumulate) as it:
        steps = list(it)
        valid = sum(int(np.asarray(batch["row_valid"]).sum()) for batch in steps)
        state = it.checkpoint()
        assert it.step == len(steps)
    assert valid == sum(map(len, by_lane(drop_last=False).values()))
    with p.to_global(sharding(), end="pad", accumulate=accumulate) as it:
        it.restore(state)
        assert list(it) == []


@pytest.mark.parametrize("accumulate", [0, -1, 1.5, True])
def test_accumulate_is_a_number(accumulate):
    with pytest.raises(zj.ConfigurationError, match=r"to_global\(accumulate="):
        pipeline().to_global(sharding(), accumulate=accumulate)
