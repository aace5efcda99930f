"""Executors of others, on real local clusters: the same stream, errors with their record, and nothing of theirs shut down."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest

import zephon_jax as zj
from tests.processes.everything import everything, taken

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
ROOT = pathlib.Path(__file__).parents[2]


def numbers():
    return zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", range(400)), shuffle_shards=False)


def mapped(fn, executor):
    options = {"executor": executor, "max_workers": 2, "micro_batch_records": 16}
    return zj.Pipeline(numbers()).map(fn, name="fn").batch(8).options(**options)


def check(executor, tmp_path, *, dies=True):
    with everything(tmp_path, executor="inline").steps() as it:
        reference = taken(it)
    with everything(tmp_path, executor=executor, max_workers=2, micro_batch_records=16).steps() as it:
        assert taken(it) == reference

    def bad(record):
        if int(record["value"]) == 137:
            raise KeyError("missing")
        return record

    with iter(mapped(bad, executor)) as it, pytest.raises(zj.WorkerError) as found:
        list(it)
    assert found.value.pointer == ("d", "d", 137)
    assert isinstance(found.value.__cause__, KeyError)
    if dies:

        def fatal(record):
            if int(record["value"]) == 137:
                os.kill(os.getpid(), signal.SIGKILL)
            return record

        with iter(mapped(fatal, executor)) as it, pytest.raises(zj.WorkerError) as found:
            list(it)
        assert "gave no result" in str(found.value)
        assert found.value.pointer == ("d", "d", 128)
    with iter(mapped(lambda record: record, executor)) as it:  # it is still there
        assert len(list(it)) == 50


def test_dask(tmp_path):
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        check(client.get_executor(pure=False, retries=0), tmp_path)


def test_ray(tmp_path):
    ray = pytest.importorskip("ray")
    from zephon_jax.runners.on_ray import RayExecutor

    with pytest.raises(zj.ConfigurationError, match=r"call ray.init\(\) first"):
        RayExecutor()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        check(RayExecutor(), tmp_path)
    finally:
        ray.shutdown()


def test_loky(tmp_path):
    loky = pytest.importorskip("loky")
    with loky.ProcessPoolExecutor(2) as pool:
        check(pool, tmp_path, dies=False)  # its pool does not survive that, as the standard library's does not


def test_mpi(tmp_path):
    pytest.importorskip("mpi4py")
    script = tmp_path / "script.py"
    body = """
        import zephon_jax as zj
        from mpi4py.futures import MPIPoolExecutor

        if __name__ == "__main__":
            work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", range(400)), shuffle_shards=False)
            with MPIPoolExecutor() as executor:
                p = zj.Pipeline(work).map(lambda r: {"x": r["value"] * 2}, name="fn").batch(8)
                with iter(p.options(executor=executor, max_workers=2)) as it:
                    assert sum((b["x"].tolist() for b in it), []) == list(range(0, 800, 2))
            print("same")
        """
    script.write_text(textwrap.dedent(body))
    command = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "3", sys.executable, "-m", "mpi4py.futures"]
    try:
        done = subprocess.run(
            [*command, str(script)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
    except FileNotFoundError:
        pytest.skip("no mpirun")
    assert "same" in done.stdout, done.stderr[-3000:]
