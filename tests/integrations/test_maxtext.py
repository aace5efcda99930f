"""A pipeline behind MaxText's loader: the arrays that it forms, and Grain's own handler on one process and on several.

What MaxText does with an iterator is written in `tests.integrations.maxtext_hosts`; Grain and Orbax are the real ones.
"""

from __future__ import annotations

import json
import pathlib
import warnings

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import zephon_jax as zj
from tests.integrations.maxtext_hosts import LANES, ROWS, formed, manager, pipeline, restoring, saving
from tests.processes.hosts import assembled, launch
from zephon_jax.integrations.maxtext import Loader, main, redistribute

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    grain = pytest.importorskip("grain")

HOSTS = "tests.integrations.maxtext_hosts"
SIX = ["inputs", "inputs_position", "inputs_segmentation", "targets", "targets_position", "targets_segmentation"]


def mesh_here(devices=8, shape=(4, 2), order=1):
    return Mesh(np.array(jax.devices()[:devices])[::order].reshape(shape), ("data", "tensor"))


@pytest.fixture(scope="module")
def reference():
    """Steps 0 to 7 on the host, without a mesh."""
    with pipeline(executor="inline").steps() as it:
        return [{name: np.asarray(array, np.int32) for name, array in next(it).items()} for _ in range(8)]


def require(batch, wanted) -> None:
    assert sorted(batch) == sorted(wanted) == SIX
    for name, array in wanted.items():
        assert batch[name].dtype == np.int32
        assert np.array_equal(np.asarray(batch[name]), array), name


@pytest.mark.parametrize(("shape", "order"), [((4, 2), 1), ((2, 4), -1), ((8, 1), 1)])
def test_maxtext_forms_the_arrays_of_the_pipeline(reference, shape, order):
    mesh = mesh_here(8, shape, order)
    iterator = iter(Loader(pipeline(), mesh))
    for wanted in reference[:3]:
        local = next(iterator)
        assert {type(array) for array in local.values()} == {np.ndarray}
        require(formed(local, mesh), wanted)
    assert iterator.step == 3
    iterator.close()


def test_the_check_notices_rows_in_another_order(reference):
    iterator = iter(Loader(pipeline(), mesh_here()))
    local = {name: array[::-1] for name, array in next(iterator).items()}
    iterator.close()
    with pytest.raises(AssertionError):
        require(formed(local, mesh_here()), reference[0])


def test_each_iteration_starts_at_the_start(reference):
    """What MaxText calls a reset."""
    loader = Loader(pipeline(), mesh_here())
    for _ in range(2):
        iterator = iter(loader)
        require(next(iterator), reference[0])
        iterator.close()


def test_grains_handler_saves_and_restores(reference, tmp_path):
    from grain.python import PyGrainCheckpointHandler

    loader = Loader(pipeline(), mesh_here())
    first = iter(loader)
    with manager(tmp_path / "ck") as saved:
        for _ in range(3):
            next(first)
        saved.save(3, args=saving(first))
        require(next(first), reference[3])  # the state is that of the call
        saved.wait_until_finished()
        folder = saved.directory / "3" / "iter"
        assert [path.name for path in folder.glob("process*")] == ["process_0-of-1.json"]
        saved.restore(3, args=restoring(first))  # used before: it goes back
        require(next(first), reference[3])
    first.close()
    smaller = iter(Loader(pipeline(), mesh_here(2, (1, 2))))  # and on other devices
    PyGrainCheckpointHandler().restore(folder, smaller)
    assert smaller.step == 3
    for wanted in reference[3:5]:
        require(next(smaller), wanted)
    smaller.close()


def test_a_state_is_text_and_says_what_it_holds():
    iterator = iter(Loader(pipeline(), mesh_here()))
    next(iterator)
    state = iterator.get_state()
    iterator.close()
    assert state.isascii()
    whole = json.loads(state)
    assert (whole["format"], whole["step"], whole["lanes"]) == ("zephon_jax.process_state", 1, list(range(LANES)))


def test_grains_own_state_is_refused():
    state = json.dumps(iter(grain.MapDataset.range(4).to_iter_dataset()).get_state()).encode()
    iterator = iter(Loader(pipeline(), mesh_here()))
    with pytest.raises(zj.CheckpointMismatch, match="a state of Grain's own iterators cannot be continued"):
        iterator.set_state(state)
    iterator.close()


def broken(text: bytes, **changed) -> bytes:
    return json.dumps({**json.loads(text), **changed}).encode()


def test_broken_states_are_refused_and_change_nothing(reference):
    iterator = iter(Loader(pipeline(), mesh_here()))
    next(iterator)
    state = iterator.get_state()
    cut = json.loads(state)["state"][:-40]
    for wrong, text in {
        state[:50]: "is broken: JSONDecodeError",
        b"\xff": "is broken: UnicodeDecodeError",
        broken(state, version=2): "has version 2; this zephon_jax reads version 1",
        broken(state, state="%"): "is broken: Error",
        broken(state, state=cut): "this is no pipeline state",
        broken(state, step="1"): "its step is '1'",
        broken(state, format=None): "is not what LocalIterator.get_state",
    }.items():
        with pytest.raises(zj.CheckpointMismatch, match=text):
            iterator.set_state(wrong)
    require(next(iterator), reference[1])
    iterator.close()
    other = iter(Loader(pipeline(flush_every_k_chunks=3), mesh_here()))
    with pytest.raises(zj.CheckpointMismatch, match="belongs to another pipeline"):
        other.set_state(state)
    other.close()


def test_mistakes_are_named_at_construction():
    numbers = zj.StaticMixtureWorkSource(zj.Dataset.from_source("n", range(64)))
    with pytest.raises(zj.ConfigurationError, match=r'has lm_targets\(plain\): write lm_targets\("maxtext"\)'):
        Loader(zj.Pipeline(numbers).batch(global_batch_size=8).lm_targets(), mesh_here())
    with pytest.raises(zj.ConfigurationError, match="a global batch of 4 rows cannot be split over the 8 shards"):
        Loader(zj.Pipeline(numbers).batch(global_batch_size=4).lm_targets("maxtext"), mesh_here())
    with pytest.raises(zj.ConfigurationError, match="needs the jax.sharding.Mesh"):
        Loader(pipeline(), NamedSharding(mesh_here(), PartitionSpec("data")))
    with pytest.raises(zj.ConfigurationError, match="needs a Pipeline"):
        Loader([1, 2], mesh_here())
    iterator = iter(Loader(zj.Pipeline(numbers).batch(global_batch_size=8), mesh_here()))
    with pytest.raises(zj.ConfigurationError, match=r"the batch lacks \['inputs', .* it has \['value'\]"):
        next(iterator)
    iterator.close()


def test_finite_data_are_padded_with_rows_that_do_not_count():
    data = zj.Dataset.from_source("n", [{"tokens": np.arange(1, 5)} for _ in range(11)])
    p = zj.Pipeline(zj.StaticMixtureWorkSource(data)).pad(5).batch(global_batch_size=8, drop_last=False)
    iterator = iter(Loader(p.lm_targets("maxtext"), mesh_here(), end="pad"))
    batches = list(iterator)
    iterator.close()
    assert [sorted(batch) for batch in batches] == [SIX] * len(batches)
    real = sum(int((batch["targets_segmentation"].max(axis=1) > 0).sum()) for batch in batches)
    assert real == 11


# -- another number of processes -------------------------------------------------------------------------------------
def part(processes: int, group: int, rounds: int = 2, step: int = 2, **options) -> str:
    """What a process writes: its group's lanes after so many rounds, and the step that it says."""
    from zephon_jax.integrations.maxtext import _to_text

    with iter(pipeline(dp_degree=processes, dp_group_id=group, executor="inline", **options)) as it:
        for _ in range(rounds * LANES // processes):
            next(it)
        return _to_text(it.get_state(), step)


def parts(folder: pathlib.Path, processes: int) -> None:
    folder.mkdir()
    for i in range(processes):
        (folder / f"process_{i}-of-{processes}.json").write_text(part(processes, i))


def restored(folder: pathlib.Path, name: str, wanted) -> None:
    iterator = iter(Loader(pipeline(), mesh_here()))
    iterator.set_state((folder / name).read_bytes())
    require(next(iterator), wanted)
    iterator.close()


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (2, 2), (4, 1)])
def test_files_are_rewritten_for_another_number(tmp_path, reference, before, after):
    folder = tmp_path / "iter"
    parts(folder, before)
    names = redistribute(folder, after)
    assert names == [f"process_{i}-of-{after}.json" for i in range(after)]
    assert sorted(path.name for path in folder.iterdir()) == names
    for name in names:
        restored(folder, name, reference[2])


def test_a_part_alone_says_what_to_do(tmp_path):
    parts(tmp_path / "iter", 2)
    iterator = iter(Loader(pipeline(), mesh_here()))
    with pytest.raises(zj.CheckpointMismatch, match=r"lanes \[4, 5, 6, 7\] are missing(.|\n)*--processes 1"):
        iterator.set_state((tmp_path / "iter" / "process_0-of-2.json").read_bytes())
    iterator.close()


@pytest.mark.parametrize("at", range(6))
def test_interrupted_it_can_be_run_again(tmp_path, reference, monkeypatch, at):
    """After any number of files renamed and deleted."""
    folder, done = tmp_path / "iter", []
    parts(folder, 4)
    real = {name: getattr(pathlib.Path, name) for name in ("replace", "unlink")}

    def counted(name):
        def call(*args, **kwargs):
            if len(done) == at:
                raise KeyboardInterrupt
            done.append(name)
            return real[name](*args, **kwargs)

        return call

    from etils import epath

    kind = type(epath.Path(folder))
    with monkeypatch.context() as patch:
        for name in real:
            real[name] = getattr(kind, name)
            patch.setattr(kind, name, counted(name))
        with pytest.raises(KeyboardInterrupt):
            redistribute(folder, 2)
    assert len(done) == at
    assert main([str(folder), "--processes", "2"]) == 0
    assert sorted(path.name for path in folder.glob("process*")) == ["process_0-of-2.json", "process_1-of-2.json"]
    restored(folder, "process_1-of-2.json", reference[2])


def test_files_that_do_not_belong_together_are_refused(tmp_path, capsys):
    def told(name: str, change) -> str:
        folder = tmp_path / name
        parts(folder, 2)
        change(folder)
        before = sorted((path.name, path.read_bytes()) for path in folder.iterdir())
        with pytest.raises(zj.CheckpointMismatch) as found:
            redistribute(folder, 4)
        assert sorted((path.name, path.read_bytes()) for path in folder.iterdir()) == before
        return str(found.value)

    one, two = "process_0-of-2.json", "process_1-of-2.json"
    assert "does not hold the files of all processes: ['process_0-of-2.json']" in told(
        "missing", lambda folder: (folder / two).unlink()
    )
    assert f"{two} is of step 3, {one} of step 2" in told(
        "steps", lambda folder: (folder / two).write_text(part(2, 1, rounds=3, step=3))
    )
    assert f"{two} and {one} are of different pipelines" in told(
        "plans", lambda folder: (folder / two).write_text(part(2, 1, flush_every_k_chunks=3))
    )
    assert "lane 0 has 6 rows" in told("other rows", lambda folder: (folder / two).write_text(part(2, 0, rounds=3)))
    assert "lanes [4, 5, 6, 7] are in none of the files" in told(
        "twice", lambda folder: (folder / two).write_bytes((folder / one).read_bytes())
    )
    assert f"{two} is broken" in told(
        "cut", lambda folder: (folder / two).write_bytes((folder / two).read_bytes()[:99])
    )
    with pytest.raises(zj.ConfigurationError, match="must be an int of at least 1"):
        redistribute(tmp_path, 0)
    with pytest.raises(SystemExit):
        main([str(tmp_path / "nowhere"), "--processes", "2"])
    assert "no such folder" in capsys.readouterr().err


def require_steps(results, wanted) -> None:
    assert {len(process["steps"]) for process in results} == {len(wanted)}, [process["error"] for process in results]
    for k, batch in enumerate(wanted):
        require(assembled(results, k), batch)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_several_processes_and_another_number_of_them(tmp_path, reference):
    folder = tmp_path / "ck"
    for name in ("two", "four"):
        (tmp_path / name).mkdir()
    jobs = [
        {"folder": str(folder), "steps": 3, "save": 3},
        {"folder": str(folder), "steps": 2, "restore": 3},
        {"folder": str(folder), "steps": 2, "restore": 3, "order": "reversed"},
        {"job": "mixed_steps"},
    ]
    two = launch(tmp_path / "two", 2, 4, jobs, module=HOSTS)
    require_steps([process[0] for process in two], reference[:4])
    require_steps([process[1] for process in two], reference[3:5])
    for process in two:
        assert "CheckpointMismatch" in process[2]["error"]
        assert "another order of devices" in process[2]["error"]
        assert "AggregationFailed" in process[3]["error"]
        assert "step" in process[3]["error"]
    files = folder / "3" / "iter"
    assert sorted(path.name for path in files.glob("process*")) == ["process_0-of-2.json", "process_1-of-2.json"]
    redistribute(files, 4)
    jobs = [
        {"folder": str(folder), "steps": 2, "restore": 3},
        {"folder": str(folder), "steps": 2, "restore": 3, "order": "dealt"},
    ]
    four = launch(tmp_path / "four", 4, 2, jobs, module=HOSTS)
    for number in range(2):
        require_steps([process[number] for process in four], reference[3:5])
    redistribute(files, 1)
    restored(files, "process_0-of-1.json", reference[3])
    assert ROWS % LANES == 0
