"""The same stream from every executor, and what each says when something goes wrong; real processes throughout."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import zephon_jax as zj
from tests.processes.everything import documents, everything, taken
from zephon_jax.runners.hidden import hidden_main

SLOW = pytest.mark.slow


def numbers(n=600):
    return zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", range(n)), shuffle_shards=False)


def mapped(fn, n=600, **options):
    given = {"executor": "processes", "max_workers": 2, "micro_batch_records": 32, **options}
    return zj.Pipeline(numbers(n)).map(fn, name="fn").batch(8).options(**given)


def drained(pipeline):
    with iter(pipeline) as it:
        return [value for batch in it for value in batch["value"].tolist()]


def raised(pipeline) -> tuple[Any, float]:
    """The error of a run, and the seconds until it came."""
    began = time.monotonic()
    with iter(pipeline) as it, pytest.raises(zj.ZephonError) as found:
        for _ in it:
            pass
    with pytest.raises(type(found.value), match=r".") as again:  # and the same one ever after
        next(it)
    assert again.value is found.value
    return found.value, time.monotonic() - began


# -- the same stream -----------------------------------------------------------------------------------------------
@SLOW
def test_every_operator_gives_the_same_on_every_executor_and_restores_across(tmp_path):
    with everything(tmp_path, executor="inline").steps() as it:
        reference = taken(it)
        skipped = dict(it.stats().skipped)
    assert len(reference) > 30
    assert sum(skipped.values()) == 4  # two broken lines, two passes
    with ThreadPoolExecutor(2) as pool:
        others = [
            {"executor": "threads", "max_workers": 3, "micro_batch_records": 5},
            {"executor": "processes", "max_workers": 2, "micro_batch_records": 7},
            {
                "executor": "threads",
                "max_workers": 1,
                "executors": {"tokenize": "processes", "map(double)": "processes"},
            },
            {"executor": pool, "micro_batch_records": 3},
        ]
        for at, options in zip((9, 17, 25, 3), others, strict=True):
            with everything(tmp_path, **options).steps() as it:
                it.restore(_decoded(reference[at][1]))  # taken by inline
                assert taken(it, 6) == reference[at + 1 : at + 7], options
            with everything(tmp_path, **options).steps() as it:
                assert taken(it, 5) == reference[:5], options
                state = it.checkpoint()
            with everything(tmp_path, executor="inline", micro_batch_records=1).steps() as it:
                it.restore(state)
                assert taken(it, 3) == reference[5:8], options


def _decoded(data):
    from zephon_jax.checkpoint.codec import decode

    return decode(data)


@SLOW
def test_too_many_skipped_samples_are_the_same_error_everywhere(tmp_path):
    texts = set()
    for executor in ("inline", "threads", "processes"):
        with everything(tmp_path, executor=executor, max_skipped=0, max_workers=1).steps() as it:
            with pytest.raises(zj.DataError) as found:
                list(it)
        texts.add((str(found.value), it.step))
    assert len(texts) == 1, texts


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_every_operator_on_every_number_of_workers(tmp_path, executor, workers):
    with everything(tmp_path, executor="inline").steps() as it:
        reference = taken(it)
    for records in (1, 5, 128):
        options = {"executor": executor, "max_workers": workers, "micro_batch_records": records}
        with everything(tmp_path, **options).steps() as it:
            assert taken(it) == reference
        for at in range(0, len(reference) - 1, 7):
            with everything(tmp_path, **options).steps() as it:
                it.restore(_decoded(reference[at][1]))
                assert taken(it, 4) == reference[at + 1 : at + 5]


@SLOW
def test_a_pool_of_the_users():
    with ProcessPoolExecutor(2, mp_context=hidden_main) as pool:
        for _ in range(2):  # it is the user's, and goes on after an iterator has ended
            got = drained(mapped(lambda record: {"value": record["value"] * 2}, executor=pool))
            assert got == list(range(0, 1200, 2))
        big = np.arange(100_000)  # too large to travel with every task: each worker asks for it once
        got = drained(mapped(lambda record: {"value": big[int(record["value"])] + 1}, executor=pool))
        assert got == list(range(1, 601))
        error, _ = raised(mapped(bad_at_137, executor=pool))
        assert str(error).startswith("map(fn) raised ")
        error, _ = raised(mapped(lambda record: os.kill(os.getpid(), signal.SIGKILL), executor=pool))
        assert "ProcessPoolExecutor gave no result: BrokenProcessPool" in str(error)


@SLOW
def test_strings_and_blocks_of_all_sizes_arrive_unchanged():
    """Also those that do not fit into the shared memory."""
    sizes = [3, 30, 3000, 0, 9_000_000]
    samples = [{"text": "aé" * (n // 2), "blob": bytes([n % 251]) * n, "x": np.arange(n // 4)} for n in sizes]
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", samples, fingerprint="s"), shuffle_shards=False)
    p = zj.Pipeline(work).map(lambda record: {**record, "pid": os.getpid()}, name="pid")
    with iter(p.options(executor="processes", max_workers=1)) as it:
        for sample, got in zip(samples, it, strict=True):
            assert int(got["pid"]) != os.getpid()
            assert got["text"] == sample["text"]
            assert got["blob"] == sample["blob"]
            assert got["x"].flags.writeable
            np.testing.assert_array_equal(got["x"], sample["x"])


@SLOW
def test_workers_do_not_import_jax_and_the_accelerator_is_not_theirs():
    import jax

    jax.devices()
    with iter(mapped(lambda record: {"jax": "jax" in sys.modules, "cpu": os.environ["JAX_PLATFORMS"] == "cpu"})) as it:
        batch = next(it)
    assert not batch["jax"].any()
    assert batch["cpu"].all()


def test_functions_that_use_jax_are_refused_when_the_iterator_is_made():
    import jax
    import jax.numpy as jnp

    array = jnp.arange(3)

    def inside(record):
        import jax.numpy

        return {"x": jax.numpy.zeros(3)}

    functions = [lambda r: {"x": jnp.zeros(3)}, lambda r: {"x": array}, inside, jax.jit(lambda r: r)]
    for fn in functions:
        with pytest.raises(zj.ConfigurationError, match=r"^map\(fn\) uses .*jax.*a worker process must not import jax"):
            iter(mapped(fn))
    with iter(mapped(lambda r: {"word": "jax"}, executors={"map": "threads"})):  # mentions it in a text only
        pass


def test_what_cannot_be_sent_is_refused_by_name():
    lock = threading.Lock()
    with pytest.raises(
        zj.ConfigurationError, match=r"^map\(fn\) cannot be sent to a worker process: TypeError: .*lock"
    ):
        iter(mapped(lambda record: {"x": lock.locked()}))


# -- exceptions ----------------------------------------------------------------------------------------------------
class NeedsArguments(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class HoldsALock(Exception):
    def __init__(self):
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class BrokenText(Exception):
    def __str__(self):
        raise RuntimeError


def bad_at_137(record):
    if int(record["value"]) == 137:
        raise NeedsArguments("this", "that")
    return record


ERRORS = {
    "plain": (ValueError("plain"), "ValueError: plain"),
    "arguments": (NeedsArguments("this", "that"), "NeedsArguments: this and that"),
    "lock": (HoldsALock(), "HoldsALock: holds a lock"),
    "exit": (SystemExit(3), "SystemExit: 3"),
}


@SLOW
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_an_exception_of_any_kind_names_operator_and_record(executor):
    if executor != "processes":
        for kind, (error, text) in ERRORS.items():
            # In the caller's thread SystemExit may be that of a signal handler, and means what it says.
            if (executor, kind) != ("inline", "exit"):
                check_exception(executor, kind, error, text)
        return
    # Made in the worker, where they are raised: some could not travel there.
    makers = {
        "plain": lambda: ValueError("plain"),
        "arguments": lambda: NeedsArguments("this", "that"),
        "lock": HoldsALock,
        "exit": lambda: SystemExit(3),
    }
    for kind, make in makers.items():
        check_exception(executor, kind, make, ERRORS[kind][1])


def check_exception(executor, kind, error, text):
    def fn(record):
        if int(record["value"]) == 137:
            raise error if isinstance(error, BaseException) else error()
        return record

    found, _ = raised(mapped(fn, executor=executor))
    assert type(found) is zj.WorkerError
    assert found.operator == "map(fn)"
    if kind != "exit":  # no record's fault: it is the micro-batch that is named
        assert str(found) == f"map(fn) raised {text}; lane 0, record (0, 137) (dataset 'd', shard 'd', sample 137)"
        assert found.pointer == ("d", "d", 137)
    else:
        assert str(found).startswith(f"map(fn) raised {text}; lane 0, record (0, 128)")
    assert type(found.__cause__).__name__ == text.split(":")[0]
    if kind == "plain":
        assert isinstance(found.__cause__, ValueError)
    shown = "".join(traceback.format_exception(found))
    assert f'File "{__file__}"' in shown  # the original traceback, with its lines
    assert "raise error if isinstance(error, BaseException) else error()" in shown


@SLOW
def test_results_that_cannot_come_back():
    error, _ = raised(mapped(lambda record: {"x": threading.Lock()}))
    assert "what it returned cannot be sent to the main process" in str(error)


def test_an_exception_whose_text_cannot_be_made():
    from zephon_jax.plan.shipping import packed, ship
    from zephon_jax.runners.outcome import opened, perform
    from zephon_jax.runners.watch import Watch

    def task(argument, entering):
        raise BrokenText

    answer = perform("broken-text", ship(task, "task"), [bytearray(p) for p in packed(1)])
    with pytest.raises(Exception, match="its text could not be made: RuntimeError") as found:
        opened([bytearray(part) for part in answer], Watch())
    assert type(found.value).__name__ == "BrokenText"


# -- workers that die or hang --------------------------------------------------------------------------------------
@SLOW
@pytest.mark.parametrize("at", [5, 137])
def test_one_death_changes_nothing_but_a_count(tmp_path, at):
    """Of a micro-batch by itself, as the first ones are, or in one task with others."""
    flag = str(tmp_path / "died")

    def dies_once(record):
        if int(record["value"]) == at and not os.path.exists(flag):
            open(flag, "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return record

    with iter(mapped(dies_once)) as it:
        assert [value for batch in it for value in batch["value"].tolist()] == list(range(600))
        assert it.stats().workers_lost == 1
        assert "1 workers lost" in str(it.stats())


@SLOW
@pytest.mark.parametrize(
    ("number", "text"),
    [(signal.SIGKILL, "SIGKILL (as the kernel does when memory runs out)"), (signal.SIGSEGV, "SIGSEGV")],
)
def test_a_record_that_kills_every_worker_is_named(number, text):
    def fatal(record):
        if int(record["value"]) == 137:
            os.kill(os.getpid(), number)
        return record

    error, seconds = raised(mapped(fatal))
    assert seconds < 10
    assert (error.operator, error.pointer) == ("map(fn)", ("d", "d", 128))
    expected = (
        f"its worker process was killed by {text} each of the 3 times that it was given these records, in a micro-batch of 32 "
        "records that begins here; lane 0, record (0, 128) (dataset 'd', shard 'd', sample 128)"
    )
    assert str(error) == f"map(fn): {expected}"


@SLOW
@pytest.mark.parametrize("records", [32, 8, 1])  # also several micro-batches in one task, which are tried one by one
def test_workers_that_keep_dying_are_not_replaced_for_ever(tmp_path, records):
    """Each record kills a worker once, so that every single attempt goes well in the end."""

    def dies(record):
        flag = str(tmp_path / str(int(record["value"])))
        if int(record["value"]) % 40 == 0 and not os.path.exists(flag):
            open(flag, "x").close()
            os._exit(7)
        return record

    error, _ = raised(mapped(dies, micro_batch_records=records))
    assert re.search(
        r"its worker process ended with exit status 7; [56] worker processes have died in \d+ tasks", str(error)
    )


@pytest.mark.parametrize("executor", ["threads", pytest.param("processes", marks=SLOW)])
def test_a_hung_operator_is_an_error_in_time(executor):
    release = threading.Event()

    def hangs(record):
        if int(record["value"]) == 137:
            if executor == "threads":
                release.wait(60)
            else:
                time.sleep(60)
        return record

    fn = hangs if executor == "threads" else _hangs_elsewhere
    error, seconds = raised(mapped(fn, executor=executor, operator_timeout_s=0.5))
    release.set()  # for the fixture that looks for threads
    assert seconds < 25  # and not the minute for which it hangs
    assert error.operator == "map(fn)"
    assert "gave no result within operator_timeout_s=0.5; its" in str(error)
    assert "in a micro-batch of 32 records that begins here; lane 0, record (0, 128)" in str(error)
    deadline = time.monotonic() + 5
    while any(t.name.startswith("zephon_jax") for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_hung_operator_is_an_error_in_time_also_out_of_order():
    release = threading.Event()

    def hangs(record):
        if int(record["value"]) == 137:
            release.wait(60)
        return record

    error, _ = raised(mapped(hangs, executor="threads", operator_timeout_s=0.3, deterministic=False))
    release.set()
    assert error.pointer == ("d", "d", 128)
    while any(t.name.startswith("zephon_jax") for t in threading.enumerate()):
        time.sleep(0.01)


def _hangs_elsewhere(record):
    if int(record["value"]) == 137:
        time.sleep(60)
    return record


@SLOW
def test_the_timeout_is_of_each_operator_and_micro_batch_not_of_the_run():
    p = zj.Pipeline(numbers(40))
    for name in "abcdefgh":
        p = p.map(lambda record: time.sleep(0.005) or record, name=name)
    for executor in ("threads", "processes"):
        given = {"max_workers": 1, "micro_batch_records": 20, "operator_timeout_s": 0.5}
        assert drained(p.batch(8).options(executor=executor, **given)) == list(range(40))


# -- the consumer --------------------------------------------------------------------------------------------------
def test_two_threads_are_refused():
    started, release = threading.Event(), threading.Event()

    def waits(record):
        started.set()
        release.wait(30)
        return record

    with iter(mapped(waits, executor="threads")) as it:
        first = []
        other = threading.Thread(target=lambda: first.append(next(it)))
        other.start()
        started.wait(30)
        try:
            with pytest.raises(zj.ConfigurationError, match="runs in another thread at this moment"):
                next(it)
        finally:
            release.set()
            other.join(30)
        assert first[0]["value"].tolist() == list(range(8))
        assert next(it)["value"].tolist() == list(range(8, 16))  # one after the other is fine


@SLOW
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
def test_a_forked_child_is_refused_and_leaves_the_parent_alone():
    with iter(mapped(lambda record: record)) as it:
        next(it)
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                next(it)
            except zj.ConfigurationError as error:
                os.write(write, str(error).encode())
            it.close()  # must not touch the parent's workers
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            assert "is forked from it: threads and queues do not survive a fork" in pipe.read()
        assert os.waitpid(child, 0)[1] == 0
        assert len([next(it) for _ in range(50)]) == 50


def handles():
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def test_iterators_abandoned_200_times_leak_nothing():
    pipeline = mapped(lambda record: record, executor="threads")

    def abandon(times):
        for _ in range(times):
            next(iter(pipeline))
        return handles()

    before = abandon(3)
    assert abandon(200) <= before


@SLOW
def test_process_iterators_abandoned_leak_nothing():
    pipeline = mapped(lambda record: {"pid": os.getpid()}, max_workers=1)

    def abandon(times):
        pids = {int(next(iter(pipeline))["pid"][0]) for _ in range(times)}
        assert len(pids) == times
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
        return handles()

    before = abandon(2)
    assert abandon(4) <= before


# -- bytes ---------------------------------------------------------------------------------------------------------
def test_a_slow_consumer_of_huge_documents_holds_few_bytes():
    made = []

    def huge(record):
        made.append(1)
        return {"x": np.full(1 << 20, int(record["value"]), np.uint8)}

    p = zj.Pipeline(numbers(400)).map(huge, name="huge").batch(2)
    options = {"executor": "threads", "max_workers": 2, "prefetch": 50, "prefetch_bytes": 16 << 20}
    with iter(p.options(**options, micro_batch_records=32)) as it:
        most = 0
        for step in range(120):
            next(it)
            time.sleep(0.003)
            most = max(most, it.stats().bytes_ready)
            if step > 80:  # what was under way before the records were found to be large is gone
                assert len(made) - 2 * (step + 1) <= 30, step
        assert 2 << 20 <= most <= 8 << 20


def test_a_batch_larger_than_the_ceiling_passes_all_the_same():
    p = zj.Pipeline(numbers(20)).map(lambda r: {"value": np.zeros(1000)}, name="x").batch(4)
    with iter(p.options(prefetch_bytes=1)) as it:
        assert len(list(it)) == 5


@SLOW
def test_a_short_soak():
    from tests.processes.soak import soak

    done = soak(4, seed=2, warm_up=4, quiet=True).done
    assert sum(done.values()) >= 8


def test_documents_are_of_many_lengths():
    assert {len(str(one["text"]).split()) for one in documents(180)} == set(range(23))
