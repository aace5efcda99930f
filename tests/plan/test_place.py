"""Where operators run, and what `explain()` says of it."""

from __future__ import annotations

import json
from concurrent.futures import Executor, ThreadPoolExecutor

import pytest

import zephon_jax as zj
from zephon_jax.plan.compile import compile_plan
from zephon_jax.plan.place import legs_of


def same(record):
    return record


def in_memory():
    return zj.Dataset.from_source("memory", range(100))


def of_a_file(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps({"value": n}) + "\n" for n in range(100)))
    return zj.Dataset.from_path("file", path)


def places(dataset, *, first=True, **options):
    p = zj.Pipeline(zj.StaticMixtureWorkSource(dataset))
    if first:
        p = p.map(same, name="a").filter(lambda record: True, name="b")
    p = p.shuffle(3).map(same, name="c").options(**options)
    plan = compile_plan(p.work, p.operators, p.settings)
    found = {}
    for stage in plan.stages:
        for leg in legs_of(plan, stage.steps) if stage.stateless else ():
            found |= {step.op.name: leg.place for step in leg.steps}
    return " ".join(f"{name.split('(')[-1].strip(')')}:{place}" for name, place in found.items())


class Other(Executor):
    pass


@pytest.mark.parametrize(
    ("options", "memory", "file"),
    [
        ({"executor": "inline"}, "fetch:here a:here b:here c:here", None),
        ({"executor": "threads"}, "fetch:here a:here b:here c:here", None),
        ({"executor": ThreadPoolExecutor(1)}, "fetch:here a:here b:here c:here", None),
        (
            {"executor": "processes"},
            "fetch:here a:remote b:remote c:remote",
            "fetch:remote a:remote b:remote c:remote",
        ),
        ({"executor": Other()}, "fetch:here a:remote b:remote c:remote", "fetch:remote a:remote b:remote c:remote"),
        (
            {"executor": "processes", "executors": {"map": "threads"}},
            "fetch:here a:here b:remote c:here",
            "fetch:here a:here b:remote c:here",
        ),
        (
            {"executor": "processes", "executors": {"fetch": "threads", "filter(b)": "threads"}},
            "fetch:here a:remote b:here c:remote",
            "fetch:here a:remote b:here c:remote",
        ),
        (
            {"executor": "threads", "executors": {"map(c)": "processes"}},
            "fetch:here a:here b:here c:remote",
            "fetch:here a:here b:here c:remote",
        ),
        (
            {"executor": Other(), "executors": {"map(a)": "executor", "filter": "threads"}},
            "fetch:here a:remote b:here c:remote",
            "fetch:remote a:remote b:here c:remote",
        ),
    ],
)
def test_places(tmp_path, options, memory, file):
    assert places(in_memory(), **options) == memory
    assert places(of_a_file(tmp_path), **options) == (file or memory)


def test_samples_that_nothing_is_done_to_are_read_here(tmp_path):
    assert places(of_a_file(tmp_path), first=False, executor="processes") == "fetch:here c:remote"


def test_blocks_that_several_micro_batches_share_are_read_here(tmp_path, monkeypatch):
    dataset = of_a_file(tmp_path)
    monkeypatch.setattr(type(dataset), "block_hint", 1000)
    assert places(dataset, executor="processes").startswith("fetch:here a:remote")
    assert places(dataset, executor="processes", micro_batch_records=1000).startswith("fetch:remote a:remote")


def test_explain_says_which_operator_runs_where(tmp_path):
    p = zj.Pipeline(zj.StaticMixtureWorkSource(in_memory())).map(same, name="a").batch(4)
    text = p.options(executor="processes", max_workers=2).explain()
    assert "Stage[0] place=local runner=threads+processes cap=4 mode=microbatches records=auto" in text
    assert "  fetch@p2:threads -[in_q=4]-> map(a)@p2:processes" in text
    p = zj.Pipeline(zj.StaticMixtureWorkSource(of_a_file(tmp_path))).map(same, name="a").batch(4)
    text = p.options(executor="processes", max_workers=2).explain()
    assert "Stage[0] place=local runner=processes cap=4" in text
    assert "  fetch@p2 -[in_q=4]-> map(a)@p2" in text
    assert (
        "runner=threads+Other "
        in zj.Pipeline(zj.StaticMixtureWorkSource(in_memory())).map(same).options(executor=Other()).explain()
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"executor": ThreadPoolExecutor}, r"options\(executor=<class .*\) must be one of"),
        ({"executors": {"map(a)": "dask"}}, r"must name operators with one of \['threads', 'processes'\]"),
        ({"executors": {"map(a)": "executor"}}, r"must name operators with one of \['threads', 'processes'\]"),
        ({"executor": Other(), "executors": {"map(a)": "processes"}}, r"with one of \['threads', 'executor'\]"),
        ({"executor": "inline", "executors": {"map": "threads"}}, "needs an executor other than 'inline'"),
        (
            {"executors": {"nap": "threads", "shuffle": "threads"}},
            r"names \['nap', 'shuffle'\]; the operators that it can",
        ),
        ({"executors": ["map"]}, r"options\(executors=\['map'\]\) must name operators"),
        ({"operator_timeout_s": 0}, r"options\(operator_timeout_s=0\) must be a number of seconds above 0"),
        ({"operator_timeout_s": 1, "executor": "inline"}, "needs an executor other than 'inline', where nobody could"),
        ({"prefetch_bytes": 0}, r"options\(prefetch_bytes=0\) must be at least 1"),
    ],
)
def test_options_that_cannot_work(options, text):
    with pytest.raises(zj.ConfigurationError, match=text):
        places(in_memory(), **options)


def test_the_place_is_no_part_of_a_checkpoint():
    def plan(**options):
        p = zj.Pipeline(zj.StaticMixtureWorkSource(in_memory())).map(same, name="a").options(**options)
        return compile_plan(p.work, p.operators, p.settings).identity

    assert plan() == plan(executor="processes", executors={"map": "threads"}, operator_timeout_s=3, prefetch_bytes=9)
