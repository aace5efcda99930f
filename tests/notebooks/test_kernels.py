"""What people do in notebooks: cells run again and again, stopped, edited, and kernels restarted."""

from __future__ import annotations

import time

import pytest

from tests.notebooks.kernel import CellFailed, Kernel

pytestmark = pytest.mark.slow

EXECUTORS = ("inline", "threads", "processes")

SETUP = """
import numpy as np
import zephon_jax as zj

def plus(record):
    return {"x": int(record["value"]) + offset()}

def offset():
    return 10

def build(executor, n=4000):
    numbers = zj.Dataset.from_source("numbers", range(n))
    work = zj.StaticMixtureWorkSource(numbers, shuffle_shards=False)
    p = zj.Pipeline(work).map(plus).shuffle(8).batch(8)
    return p.options(executor=executor, max_workers=1, micro_batch_records=16)
"""

# -- cells that are run again ---------------------------------------------------------------------------------------
DROPPED = """
it = iter(build({executor!r}))
batch = next(it)
batch = next(it)
"""
FAILED = """
def train():
    it = iter(build({executor!r}))
    for batch in it:
        if batch["x"].max() >= 0:
            raise RuntimeError("a mistake of the user's")
train()
"""
COUNT = """
import gc, os, threading
gc.collect()
print(threading.active_count(), len(os.listdir("/proc/self/fd")))
"""


def settled(kernel: Kernel, expected: tuple[int, int, int], within_s: float = 5) -> tuple[int, int, int]:
    """Threads, open files and processes, once they are no more than expected, or the time is up."""
    deadline = time.monotonic() + within_s
    while True:
        threads, files = map(int, kernel.run(COUNT).split())
        found = threads, files, len(kernel.processes())
        if all(a <= b for a, b in zip(found, expected, strict=True)) or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("cell", "executor"),
    [
        pytest.param(DROPPED, "threads", id="dropped-threads"),
        pytest.param(FAILED, "threads", id="failed-threads"),
        pytest.param(DROPPED, "processes", id="dropped-processes"),
        pytest.param(FAILED, "processes", id="failed-processes", marks=pytest.mark.long),
    ],
)
def test_a_cell_run_twenty_times_leaves_one_iterator_at_most(tmp_path, cell, executor):
    """The last iterator lives on in a variable, or in the traceback that IPython keeps; those before are gone."""

    def again() -> None:
        try:
            kernel.run(cell.format(executor=executor))
        except CellFailed as failure:
            if cell is not FAILED or "a mistake of the user's" not in str(failure):
                raise

    with Kernel(tmp_path) as kernel:
        kernel.run(SETUP)
        again()
        again()
        after_two = settled(kernel, (0, 0, 0), within_s=0.5)
        for _ in range(18):
            again()
        after_twenty = settled(kernel, after_two)
        assert all(a <= b for a, b in zip(after_twenty, after_two, strict=True)), (after_two, after_twenty)
        if cell is DROPPED:
            kernel.run("it = None")
            found = settled(kernel, (after_two[0] - 1, after_two[1], 1))
            assert found[0] < after_two[0] and found[2] == 1  # nobody but the kernel


# -- cells that are edited ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_is_defined_again_is_taken_by_the_next_iterator(tmp_path, executor):
    """A function, and a function that another one calls: also where the pipeline is not built again."""
    first = "with iter(p) as it:\n    print(sorted(next(it)['x'].tolist())[0] // 10)"
    with Kernel(tmp_path) as kernel:
        kernel.run(SETUP)
        kernel.run(f"p = build({executor!r})")
        assert kernel.run(first) == "1\n"
        kernel.run("def offset():\n    return 50")
        assert kernel.run(first) == "5\n"
        kernel.run(f"def plus(record):\n    return {{'x': int(record['value']) + 70}}\np = build({executor!r})")
        assert kernel.run(first) == "7\n"


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_module_that_autoreload_brings_up_to_date(tmp_path, executor):
    module = tmp_path / "mine.py"
    module.write_text("def plus(record):\n    return {'x': int(record['value']) + 10}\n")
    cell = f"""
numbers = zj.Dataset.from_source("numbers", range(64))
p = zj.Pipeline(zj.StaticMixtureWorkSource(numbers, shuffle_shards=False)).map(mine.plus).batch(8)
with iter(p.options(executor={executor!r}, max_workers=1)) as it:
    print(next(it)["x"].tolist())
"""
    with Kernel(tmp_path) as kernel:
        kernel.run("%load_ext autoreload\n%autoreload 2\nimport sys; sys.path.insert(0, '')\nimport mine")
        kernel.run("import zephon_jax as zj")
        assert kernel.run(cell) == f"{list(range(10, 18))}\n"
        module.write_text("def plus(record):\n    return {'x': int(record['value']) + 1000}\n")
        assert kernel.run(cell) == f"{list(range(1000, 1008))}\n"


# -- cells that are stopped -----------------------------------------------------------------------------------------
SLOW = """
import pathlib, time

def slow(record):
    if int(record["value"]) == 200 and not pathlib.Path("was_here").exists():
        pathlib.Path("was_here").touch()
        time.sleep({seconds})
    return record

def build():
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("numbers", range(320)), shuffle_shards=False)
    p = zj.Pipeline(work).map(slow).shuffle(16).batch(8)
    return p.options(executor={executor!r}, max_workers=1, micro_batch_records=8, prefetch=1)
"""
LOOP = """
it, got = iter(build()), []
for batch in it:
    got.append(batch["value"].tolist())
"""
GO_ON = """
so_far = list(got)
try:
    so_far += [batch["value"].tolist() for batch in it]
except Exception as error:
    told = error
"""


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_cell_that_is_stopped_in_next_and_run_again(tmp_path, executor):
    """The stop button signals the workers too. Run again, the cell gives all batches; going on gives the rest, or says why not."""
    with Kernel(tmp_path) as kernel:
        kernel.run("import zephon_jax as zj")
        kernel.run(SLOW.format(executor=executor, seconds=3))
        cell = kernel.begin(LOOP)
        deadline = time.monotonic() + 30
        while not (tmp_path / "was_here").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.3)  # until next() waits
        kernel.interrupt()
        with pytest.raises(CellFailed, match="KeyboardInterrupt|was interrupted"):
            kernel.result(cell)
        kernel.run(GO_ON)
        whole = kernel.run(f"{LOOP}\nprint(len(got), sorted(sum(got, [])) == list(range(320)))")
        assert whole == "40 True\n"
        went_on = kernel.run("print(so_far == got, so_far == got[:len(so_far)], type(globals().get('told')).__name__)")
        expected = "False True WorkerError\n" if executor == "inline" else "True True NoneType\n"
        assert went_on == expected


# -- kernels that are restarted -------------------------------------------------------------------------------------
JAX = """
import os, pathlib
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import zephon_jax as zj

def to_bytes(text):
    return list(text.encode())

texts = [{"text": f"document {n} " * (1 + n % 9)} for n in range(300)]
work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("docs", texts), seed=3, exhausted_policy="repeat")
pipeline = zj.Pipeline(work).tokenize(to_bytes).pack(33).shuffle(16).batch(global_batch_size=8).lm_targets()

def over(devices):
    return NamedSharding(Mesh(np.array(jax.devices()[:devices]), ("data",)), PartitionSpec("data"))
"""


def test_a_kernel_that_is_restarted_and_goes_on_from_a_checkpoint(tmp_path):
    """Killed while the iterator is at work; the cells run again on other devices give the batches that would have come."""
    with Kernel(tmp_path) as kernel:
        kernel.run(JAX)
        kernel.run(
            """
            manager = ocp.CheckpointManager(pathlib.Path("run").absolute())
            batches = pipeline.options(executor="processes", max_workers=1).to_global(over(4))
            for step in range(1, 21):
                np.save(f"step{step}.npy", np.asarray(next(batches)["inputs"]))
                if step == 11:
                    manager.save(step, args=ocp.args.Composite(data=zj.PipelineSave(batches)))
            manager.wait_until_finished()
            """
        )
        before = set(kernel.processes())
        kernel.restart()
        deadline = time.monotonic() + 10
        while before & set(kernel.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not before & set(kernel.processes())  # the workers of the killed kernel are gone too
        kernel.run(JAX)
        printed = kernel.run(
            """
            manager = ocp.CheckpointManager(pathlib.Path("run").absolute())
            with pipeline.to_global(over(2)) as batches:
                manager.restore(11, args=ocp.args.Composite(data=zj.PipelineRestore(batches)))
                same = [np.array_equal(np.asarray(next(batches)["inputs"]), np.load(f"step{n}.npy")) for n in range(12, 21)]
            print(len(same), all(same))
            """
        )
        assert printed == "9 True\n"
