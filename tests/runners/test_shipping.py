"""Operators and outcomes on their way to another process, and who may not go; the messages and their shared memory."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import sys
import threading
import types
from typing import Any

import numpy as np
import pytest

import zephon_jax as zj
from zephon_jax.engine import bundles
from zephon_jax.engine.tasks import StepFailed
from zephon_jax.plan.shipping import packed, ship, ship_within, unpacked
from zephon_jax.runners import memory
from zephon_jax.runners.memory import Channel, SharedMemory
from zephon_jax.runners.outcome import LostException, RemoteTraceback, Stopped, Unknown, opened, perform, run_elsewhere
from zephon_jax.runners.watch import Watch


def loaded(blob):
    return pickle.loads(blob)


def test_closures_and_lambdas_travel_by_value():
    table = {"a": 1}
    fn = lambda text: [table[c] for c in text]  # noqa: E731
    again = loaded(ship(fn, "fn"))
    assert again("aa") == [1, 1]
    table["a"] = 2
    assert again("aa") == [1, 1]


def test_tracebacks_keep_the_file_of_a_function():
    assert loaded(ship(lambda: None, "fn")).__code__.co_filename == __file__


def fake_jax(monkeypatch):
    """A stand-in for jax that costs nothing to import."""
    module: Any = types.ModuleType("jax.numpy")
    module.zeros = types.FunctionType((lambda: 0).__code__, {"__name__": "jax._src.lax"}, "zeros")
    module.zeros.__module__ = "jax._src.lax"
    monkeypatch.setitem(sys.modules, "jax.numpy", module)
    return module


@pytest.mark.parametrize("case", ["module", "function", "nested", "import", "default"])
def test_mentions_of_jax_are_found(monkeypatch, case):
    jnp = fake_jax(monkeypatch)
    namespace = {"jnp": jnp, "zeros": jnp.zeros, "__name__": "__main__"}
    source = {
        "module": "def fn(r): return jnp.zeros()",
        "function": "def fn(r): return zeros()",
        "nested": "def fn(r): return [jnp.zeros() for _ in r]",
        "import": "def fn(r):\n    import jax.numpy\n    return r",
        "default": "def fn(r, make=zeros): return make()",
    }[case]
    exec(source, namespace)
    with pytest.raises(zj.ConfigurationError, match=r"^map\(x\) uses .*jax|^map\(x\) uses jnp|^map\(x\) uses zeros"):
        ship(namespace["fn"], "map(x)")


def test_mentions_in_inner_functions_of_modules_that_a_worker_can_import_are_found(monkeypatch, tmp_path):
    """Such a function travels by its name, so its inner functions are only there to be read."""
    import importlib

    fake_jax(monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_operators.py").write_text("import jax.numpy as jnp\ndef fn(r):\n    return lambda: jnp.zeros()\n")
    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(numpy=sys.modules["jax.numpy"]))
    module = importlib.import_module("own_operators")
    monkeypatch.setattr(module, "jnp", sys.modules["jax.numpy"])
    with pytest.raises(zj.ConfigurationError, match="uses jnp"):
        ship(module.fn, "map(x)")
    sys.modules.pop("own_operators")


def test_texts_and_attributes_named_jax_are_no_mention():
    def fn(record):
        return {"x": "jax" in record["text"], "y": record.jax, "z": "jax.numpy"}

    assert callable(loaded(ship(fn, "fn")))


def test_only_so_many_bytes():
    assert ship_within(np.zeros(10), 10_000) is not None
    assert ship_within(np.zeros(10_000), 10_000) is None
    assert ship_within(threading.Lock(), 10_000) is None


def run(task, argument=1, key="k"):
    from zephon_jax.runners import outcome

    outcome._tasks.pop(key, None)
    answer = perform(key, ship(task, "task"), [bytearray(p) for p in packed(argument)])
    watch = Watch()
    return opened([bytearray(p) for p in answer], watch), watch


def test_results_are_ones_own():
    shared = np.arange(6.0)
    (result, _) = run(lambda x, entering: {"x": x, "twice": x * 2}, shared)
    assert result["x"].tolist() == shared.tolist()
    assert result["x"].flags.writeable
    result["x"][:] = 0
    assert shared.tolist() == [0, 1, 2, 3, 4, 5]


def test_seconds_and_the_operator_that_failed_come_along():
    def task(x, entering):
        entering(-1)
        entering(3)
        entering(None)
        return x

    _, watch = run(task)
    assert sorted(watch.seconds) == [-1, 3]

    def fails(x, entering):
        entering(-1)
        entering(5)
        raise SystemExit(1)

    answer = perform("fails", ship(fails, "task"), [bytearray(p) for p in packed(1)])
    watch = Watch()
    with pytest.raises(SystemExit):
        opened([bytearray(p) for p in answer], watch)
    assert watch.operator == 5


_number = itertools.count()


def failure(task) -> Any:
    answer = perform(f"failure-{next(_number)}", ship(task, "task"), [bytearray(p) for p in packed(1)])
    with pytest.raises(BaseException) as found:
        opened([bytearray(p) for p in answer], Watch())
    return found.value


class Two(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a}{b}")


def test_an_exception_that_survives_comes_back_as_itself():
    def task(x, entering):
        raise KeyError("k")

    error = failure(task)
    assert type(error) is KeyError
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "in task" in str(error.__cause__)


def test_one_that_does_not_comes_back_by_name():
    def task(x, entering):
        raise Two(1, 2)

    error = failure(task)
    assert isinstance(error, LostException)
    assert type(error).__name__ == "Two"
    assert str(error) == "12"


class Changes(Exception):
    def __reduce__(self):
        return ValueError, ("another",)


def test_one_that_comes_back_as_another_is_not_taken_at_its_word():
    def task(x, entering):
        raise Changes("this")

    error = failure(task)
    assert type(error).__name__ == "Changes"
    assert str(error) == "this"


def test_our_own_errors_keep_what_they_say_and_their_cause():
    def task(x, entering):
        try:
            raise ValueError("inner")
        except ValueError as inner:
            raise StepFailed("map(f)", (0, 7)) from inner

    error = failure(task)
    assert (type(error), error.operator, error.cursor) == (StepFailed, "map(f)", (0, 7))
    assert type(error.__cause__) is ValueError

    def data(x, entering):
        raise zj.DataError("broken", path="p", shard=1, record=2)

    error = failure(data)
    assert (str(error), error.path, error.shard, error.record) == ("broken", "p", 1, 2)


def both(answer):
    """What was done and what was raised of an outcome of several parts."""
    with pytest.raises(Stopped) as found:
        opened([bytearray(p) for p in answer], Watch())
    return found.value.done, found.value.error


def test_of_several_parts_the_first_ones_arrive_with_the_error():
    def task(x, entering):
        raise Stopped([1, 2], ValueError("third"))

    done, error = both(perform("several", ship(task, "task"), [bytearray(p) for p in packed(0)]))
    assert done == [1, 2]
    assert (type(error), str(error)) == (ValueError, "third")


@pytest.mark.parametrize("fails", [False, True])
def test_of_several_parts_those_before_one_that_cannot_be_sent_arrive(fails):
    def task(x, entering):
        parts = [1, threading.Lock(), 3]
        if x:
            raise Stopped(parts, ValueError("fourth"))
        return parts

    done, error = both(perform(f"unsendable {fails}", ship(task, "task"), [bytearray(p) for p in packed(fails)]))
    assert done == [1]
    assert "what it returned cannot be sent to the main process" in str(error)


def test_a_bundle_ends_where_a_micro_batch_fails(monkeypatch):
    def run(steps, batch, entering):
        if batch == "bad":
            raise KeyError(batch)
        return batch * 2, []

    monkeypatch.setattr(bundles, "run_steps", run)
    assert bundles.run_bundle((), [1, 2], print) == [(2, []), (4, [])]
    with pytest.raises(KeyError):
        bundles.run_bundle((), ["bad", 1], print)
    with pytest.raises(Stopped) as found:
        bundles.run_bundle((), [1, 2, "bad", 3], print)
    assert found.value.done == [(2, []), (4, [])]
    assert type(found.value.error) is KeyError


def test_operators_that_a_worker_does_not_know_are_asked_for():
    blob, parts = ship(lambda x, entering: x + 1, "task"), [bytes(p) for p in packed(1)]
    with pytest.raises(Unknown):
        opened(run_elsewhere("asked", b"", parts), Watch())
    assert opened(run_elsewhere("asked", blob, parts), Watch()) == 2
    assert opened(run_elsewhere("asked", b"", parts), Watch()) == 2  # from now on it does


def test_operators_that_cannot_be_loaded_are_a_failure_like_any_other():
    answer = perform("broken", b"not a pickle", [bytearray(p) for p in packed(1)])
    with pytest.raises(pickle.UnpicklingError):
        opened([bytearray(p) for p in answer], Watch())


def test_packing_copies_no_array():
    array = np.arange(1000)
    parts = packed({"x": array})
    assert np.shares_memory(np.frombuffer(parts[1], array.dtype), array)
    assert unpacked(parts)["x"].tolist() == array.tolist()


# -- messages ------------------------------------------------------------------------------------------------------
@pytest.fixture(params=["memory", "pipe"])
def ends(request, monkeypatch):
    monkeypatch.setattr(memory, "_HALF_BYTES", 1000)
    here, there = multiprocessing.get_context("spawn").Pipe()
    block = SharedMemory() if request.param == "memory" else None
    yield Channel(here, block, parent=True), Channel(there, block, parent=False)
    here.close()
    there.close()
    if block is not None:
        block.close()


@pytest.mark.parametrize("lengths", [[], [0], [1], [0, 7, 0, 993], [1000], [1001], [3000, 0, 5]])
def test_messages_arrive_in_both_directions_at_once(ends, lengths):
    parent, child = ends
    there = [bytes([n % 256]) * n for n in lengths]
    back = [bytes([(n + 1) % 256]) * n for n in lengths]
    parent.send("key", there)
    assert child.receive() == ("key", there)
    child.send(None, back)
    parent.send("next", there)  # one half does not touch the other
    assert parent.receive() == (None, back)
    assert child.receive() == ("next", there)


def test_marks(ends):
    parent, child = ends
    if parent.memory is None:
        child.mark(3)
        assert parent.marked() == (0, None)
        return
    seen = [parent.marked()]
    for operator in (-1, 0, 70_000, 0, None):
        child.mark(operator)
        seen.append(parent.marked())
    assert [operator for _, operator in seen] == [None, -1, 0, 70_000, 0, None]
    assert len({turn for turn, _ in seen}) == 6


def test_memory_has_no_name_and_gives_back_its_handle():
    import os

    before = len(os.listdir("/proc/self/fd"))
    block = SharedMemory()
    assert len(os.listdir("/proc/self/fd")) > before
    block.close()
    assert len(os.listdir("/proc/self/fd")) == before
