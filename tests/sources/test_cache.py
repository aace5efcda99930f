"""The shard cache: bounded, whole or nothing, safe between processes and after SIGKILL."""

from __future__ import annotations

import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from tests.sources.objectstore import wait_for
from zephon_jax import ConfigurationError, DataError
from zephon_jax.sources import cache
from zephon_jax.sources.cache import ShardCache, Wanted, cache_folder, shard_cache


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(cache, "_WAIT_S", 0.05)
    monkeypatch.setattr(cache, "_STALLED_S", 0.05)


def wanted(name: str, content: bytes = b"x" * 100, *, told: bool = True, calls: list[str] | None = None) -> Wanted:
    def blocks():
        if calls is not None:
            calls.append(name)
        yield content[:7]
        yield content[7:]

    return Wanted(name, "stamp", len(content) if told else None, blocks)


def content_of(kept: ShardCache, entry: Wanted) -> bytes:
    with kept.pinned(entry) as path:
        return pathlib.Path(path).read_bytes()


def size_of(kept: ShardCache) -> int:
    return sum(p.stat().st_size for p in kept._folder.rglob("data"))


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 1000])
def test_an_entry_is_written_once_and_read_as_it_was(tmp_path, size, told):
    kept, calls = ShardCache(tmp_path, 10_000), []
    content = os.urandom(size)
    for _ in range(3):
        assert content_of(kept, wanted("a", content, told=told, calls=calls)) == content
    assert content_of(ShardCache(tmp_path, 10_000), wanted("a", content, calls=calls)) == content
    assert calls == ["a"]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_another_stamp_is_another_entry(tmp_path):
    kept = ShardCache(tmp_path, 10_000)
    assert content_of(kept, wanted("a", b"old content")) == b"old content"
    assert content_of(kept, wanted("a", b"new content")._replace(stamp="later")) == b"new content"
    assert content_of(kept, wanted("a", b"another one")._replace(path="b")) == b"another one"


def test_what_was_used_longest_ago_leaves_first(tmp_path):
    kept, calls = ShardCache(tmp_path, 350), []
    for name in "abc":
        content_of(kept, wanted(name, calls=calls))
        os.utime(kept._entry(wanted(name)), ns=(ord(name), ord(name)))  # clocks of file systems tick coarsely
    content_of(kept, wanted("a", calls=calls))
    content_of(kept, wanted("d", calls=calls))
    assert size_of(kept) == 300
    for name in "acd":
        content_of(kept, wanted(name, calls=calls))
    assert calls == list("abcd")
    content_of(kept, wanted("b", calls=calls))
    assert calls == list("abcdb")


@pytest.mark.parametrize("told", [True, False])
def test_the_bound_holds_whatever_comes(tmp_path, monkeypatch, told):
    monkeypatch.setattr(cache, "_STEP_BYTES", 10)
    kept = ShardCache(tmp_path, 250)
    for i in range(30):
        content_of(kept, wanted(f"{i}", bytes(1 + i * 37 % 200), told=told))
        assert size_of(kept) <= 250


def test_a_file_larger_than_the_bound_is_an_error_that_says_so(tmp_path):
    kept = ShardCache(tmp_path, 50)
    for told in (True, False):
        with pytest.raises(DataError, match=r"big: a local copy has (100|51) bytes or more.*bounded to 50") as caught:
            content_of(kept, wanted("big", b"x" * 51 if not told else b"x" * 100, told=told))
        assert caught.value.path == "big"
        assert "ZEPHON_JAX_CACHE_BYTES" in str(caught.value)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_an_entry_in_use_is_never_evicted(tmp_path):
    kept = ShardCache(tmp_path, 250)
    with kept.pinned(wanted("a")) as path, kept.pinned(wanted("b")):
        for name in "cd":
            with pytest.raises(
                DataError,
                match="no room for a copy of [cd] .100 bytes.*the rest has been in use for 0.05 s by this or other processes",
            ):
                content_of(kept, wanted(name))
        assert pathlib.Path(path).read_bytes() == b"x" * 100
    content_of(kept, wanted("c"))
    assert size_of(kept) == 200


def test_another_process_s_entry_in_use_is_never_evicted(tmp_path):
    """The lock is the kernel's: it goes with the process, however that ends."""
    kept = ShardCache(tmp_path, 150)
    content_of(kept, wanted("a"))
    data = kept._entry(wanted("a")) / "data"
    program = (
        "import fcntl, sys\n"
        f"file = open({str(data)!r}, 'rb')\n"
        "fcntl.flock(file, fcntl.LOCK_SH)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(DataError, match="has been in use"):
            content_of(kept, wanted("b"))
        other.send_signal(signal.SIGKILL)
        other.wait(timeout=10)
    assert content_of(kept, wanted("b")) == b"x" * 100
    assert not data.exists()


def test_what_was_handed_out_stays_for_a_while_but_makes_room_in_need(tmp_path):
    kept = ShardCache(tmp_path, 1000)
    paths = [kept.keep(wanted(f"{i}")) for i in range(10)]
    assert all(os.path.exists(path) for path in paths)
    assert kept.keep(wanted("3")) == paths[3]
    opened = [open(path, "rb") for path in paths[:2]]  # noqa: SIM115
    kept.keep(wanted("more", b"y" * 500))
    assert size_of(kept) <= 1000
    for file in opened:  # evicted or not: what is open can be read to its end
        assert file.read() == b"x" * 100
        file.close()
    kept.release()


def test_no_more_than_sixteen_stay_pinned(tmp_path):
    kept = ShardCache(tmp_path, 10_000)
    before = len(os.listdir("/proc/self/fd"))
    for i in range(40):
        kept.keep(wanted(f"{i}"))
    assert len(os.listdir("/proc/self/fd")) == before + 16
    kept.release()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("at", [0, 50, 99])
def test_a_damaged_copy_is_noticed_when_first_opened_and_fetched_again(tmp_path, at):
    calls: list[str] = []
    first = ShardCache(tmp_path, 1000)
    content_of(first, wanted("a", calls=calls))
    data = first._entry(wanted("a")) / "data"
    damaged = bytearray(data.read_bytes())
    damaged[at] ^= 1
    data.write_bytes(damaged)
    with pytest.warns(UserWarning, match=r"the copy of a in the cache .* was damaged; it is fetched again"):
        assert content_of(ShardCache(tmp_path, 1000), wanted("a", calls=calls)) == b"x" * 100
    assert calls == ["a", "a"]
    assert content_of(ShardCache(tmp_path, 1000), wanted("a", calls=calls)) == b"x" * 100


def test_threads_that_notice_one_damage_mend_it_once(tmp_path):
    calls: list[str] = []
    content_of(ShardCache(tmp_path, 1000), wanted("a", calls=calls))
    later, together, seen = ShardCache(tmp_path, 1000), threading.Barrier(4, timeout=10), []
    mended = threading.Event()
    (later._entry(wanted("a")) / "data").write_bytes(b"y" * 100)
    intact = later._intact

    def at_once(entry, descriptor):
        found = intact(entry, descriptor)
        if not found and together.wait() > 0:  # all four know; three of them act when the first has done so
            assert mended.wait(10)
        return found

    later._intact = at_once

    def one():
        seen.append(content_of(later, wanted("a", calls=calls)))
        mended.set()

    def all_of_them():
        threads = [threading.Thread(target=one) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=20)

    with pytest.warns(UserWarning, match="damaged"):
        all_of_them()
    assert seen == [b"x" * 100] * 4
    assert calls == ["a", "a"]


@pytest.mark.parametrize("what", ["checksum", "data"])
def test_an_entry_of_which_a_part_is_gone_is_made_again(tmp_path, what):
    calls: list[str] = []
    content_of(ShardCache(tmp_path, 1000), wanted("a", calls=calls))
    later = ShardCache(tmp_path, 1000)
    (later._entry(wanted("a")) / what).unlink()
    if what == "checksum":
        with pytest.warns(UserWarning, match="damaged"):
            assert content_of(later, wanted("a", calls=calls)) == b"x" * 100
    else:
        assert content_of(later, wanted("a", calls=calls)) == b"x" * 100
    assert calls == ["a", "a"]


def test_an_error_on_the_way_leaves_nothing(tmp_path):
    kept = ShardCache(tmp_path, 1000)

    def blocks():
        yield b"half"
        raise DataError("the source failed")

    with pytest.raises(DataError, match="the source failed"):
        content_of(kept, Wanted("a", "s", None, blocks))
    assert list((tmp_path / "tmp").iterdir()) == []
    assert content_of(kept, wanted("a")._replace(stamp="s")) == b"x" * 100


def test_threads_that_want_one_entry_make_it_once(tmp_path):
    kept, calls = ShardCache(tmp_path, 1000), []
    together, seen = threading.Barrier(8, timeout=10), []

    def ask():
        together.wait()
        seen.append(content_of(kept, wanted("a", calls=calls)))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert seen == [b"x" * 100] * 8
    assert calls == ["a"]


def test_threads_that_want_more_than_fits_each_get_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_WAIT_S", 20.0)
    kept, wrong = ShardCache(tmp_path, 1000), []

    def ask(k: int):
        for i in range(40):
            n = (i * (k + 3)) % 15
            if content_of(kept, wanted(f"{n}", bytes([n]) * 100)) != bytes([n]) * 100:
                wrong.append(n)

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert wrong == []
    assert size_of(kept) <= 1000


# -- copies that do not fit together ------------------------------------------------------------------------------------


@pytest.fixture
def patient(monkeypatch):
    monkeypatch.setattr(cache, "_WAIT_S", 20.0)
    monkeypatch.setattr(cache, "_STALLED_S", 20.0)


def grown(name: str, size: int, halfway: threading.Barrier | None = None, *, told: bool = False) -> Wanted:
    """Comes in small blocks; copies that are begun wait for each other once, halfway."""
    began: list[int] = []

    def blocks():
        began.append(1)
        for at in range(0, size, 100):
            if halfway is not None and len(began) == 1 and at == size // 200 * 100:
                halfway.wait()
            yield name.encode() * min(100, size - at)

    return Wanted(name, "stamp", size if told else None, blocks)


def all_at_once(kept: ShardCache, several: list[Wanted]) -> dict[str, bytes | DataError]:
    got: dict[str, bytes | DataError] = {}

    def ask(one: Wanted):
        try:
            got[one.path] = content_of(kept, one)
        except DataError as error:
            got[one.path] = error

    threads = [threading.Thread(target=ask, args=(one,), daemon=True) for one in several]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return got


def test_two_that_grow_and_do_not_fit_together_are_made_one_after_the_other(tmp_path, patient):
    kept, halfway = ShardCache(tmp_path, 30_000), threading.Barrier(2, timeout=10)
    assert all_at_once(kept, [grown("a", 25_000, halfway), grown("b", 26_000, halfway)]) == {
        "a": b"a" * 25_000,
        "b": b"b" * 26_000,
    }
    assert size_of(kept) <= 30_000
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("bound", [1.2, 2.3, 4.0])
@pytest.mark.parametrize("told", [(), "ace", "abcdefgh"])
def test_many_that_do_not_fit_together_are_all_made(tmp_path, patient, bound, told):
    sizes = {name: 10_000 + 700 * k for k, name in enumerate("abcdefgh")}
    kept = ShardCache(tmp_path, int(bound * max(sizes.values())))
    got = all_at_once(kept, [grown(name, size, told=name in told) for name, size in sizes.items()])
    assert got == {name: name.encode() * size for name, size in sizes.items()}
    assert size_of(kept) <= kept.bound_bytes


def test_one_that_is_too_large_fails_alone(tmp_path, patient):
    kept = ShardCache(tmp_path, 30_000)
    got = all_at_once(kept, [grown("a", 25_000), grown("b", 31_000), grown("c", 26_000)])
    assert "bounded to 30,000" in str(got.pop("b"))
    assert got == {"a": b"a" * 25_000, "c": b"c" * 26_000}


def test_readers_that_stay_are_an_error_for_all_who_wait(tmp_path):
    kept = ShardCache(tmp_path, 30_000)
    with kept.pinned(wanted("x", b"x" * 20_000)):
        got = all_at_once(kept, [grown(name, 11_000, told=name == "c") for name in "abcd"])
        assert sorted(got) == list("abcd")
        assert all("has been in use for 0.05 s" in str(error) for error in got.values())
    assert content_of(kept, grown("a", 11_000)) == b"a" * 11_000
    assert list((tmp_path / "tmp").iterdir()) == []


def test_who_waits_is_patient_as_long_as_others_go_on(tmp_path, monkeypatch):
    """A large copy takes minutes. The clock is the test's."""
    monkeypatch.setattr(cache, "_WAIT_S", 30.0)
    monkeypatch.setattr(cache, "_STALLED_S", 300.0)
    now = [0.0]
    monkeypatch.setattr(cache.time, "monotonic", lambda: now[0])
    kept = ShardCache(tmp_path, 1000)
    for name in ("mine", "other"):
        (tmp_path / "tmp" / name).mkdir()
        (tmp_path / "tmp" / name / "data").write_bytes(b"x")
    other = tmp_path / "tmp" / "other" / "data"
    with open(tmp_path / "tmp" / "mine" / "data", "rb") as mine:
        copy, patience = cache._Copy(mine.fileno(), wanted("a")), cache._Patience()
        for k in range(5):
            os.utime(other, ns=(k, 10**18 + k))
            kept._pause(copy, patience)
            now[0] += 299
            kept._pause(copy, patience)
        now[0] += 2
        with pytest.raises(DataError, match="in use for 300 s"):
            kept._pause(copy, patience)
        os.rename(tmp_path / "tmp" / "other", tmp_path / ("0" * 32))  # it is done: readers may have it for a while
        kept._pause(copy, patience)
        now[0] += 29
        kept._pause(copy, patience)
        now[0] += 2
        with pytest.raises(DataError, match="in use for 30 s"):
            kept._pause(copy, patience)


def test_who_waits_to_mend_an_entry_does_not_occupy_it(tmp_path):
    content_of(ShardCache(tmp_path, 150), wanted("a"))
    later, looked = ShardCache(tmp_path, 150), threading.Event()
    entry = later._entry(wanted("a"))
    (entry / "data").write_bytes(b"y" * 100)
    intact = later._intact
    later._intact = lambda entry, descriptor: (intact(entry, descriptor), looked.set())[0]
    got: list[bytes] = []

    def evictable() -> bool:
        with open(entry / "data", "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    def mended_while_another_has_the_lock():
        with later._holding(entry.name[:2]):
            thread = threading.Thread(target=lambda: got.append(content_of(later, wanted("a"))), daemon=True)
            thread.start()
            assert looked.wait(10)
            wait_for(evictable)
        thread.join(timeout=10)

    with pytest.warns(UserWarning, match="damaged"):
        mended_while_another_has_the_lock()
    assert got == [b"x" * 100]


# -- processes ---------------------------------------------------------------------------------------------------------

CHURN = """
import pathlib, random, sys
from zephon_jax.sources.cache import ShardCache, Wanted
kept, rng = ShardCache(pathlib.Path(sys.argv[1]), 100_000), random.Random(int(sys.argv[2]))
print("ready", flush=True)
for i in range(int(sys.argv[3])):
    n = rng.randrange(30)
    content = bytes([n]) * (1000 + 500 * n)
    blocks = [content[i : i + 999] for i in range(0, len(content), 999)]
    wanted = Wanted(f"{n}", "s", len(content) if n % 2 else None, lambda: blocks)
    with kept.pinned(wanted) as path:
        assert pathlib.Path(path).read_bytes() == content
print("done", flush=True)
"""


def churn(folder: pathlib.Path, seed: int, rounds: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", CHURN, str(folder), str(seed), str(rounds)], stdout=subprocess.PIPE
    )


@pytest.mark.slow
def test_processes_share_it_and_may_be_killed_at_any_moment(tmp_path):
    workers = [churn(tmp_path, seed, 150) for seed in range(3)]
    for seed in range(8):
        with churn(tmp_path, seed, 100_000) as victim:
            assert victim.stdout is not None
            victim.stdout.readline()
            time.sleep(0.02 * seed)
            victim.kill()
    for worker in workers:
        out, _ = worker.communicate(timeout=60)
        assert worker.returncode == 0
        assert out.endswith(b"done\n")
    kept = ShardCache(tmp_path, 100_000)
    for n in range(30):
        content = bytes([n]) * (1000 + 500 * n)
        assert content_of(kept, Wanted(f"{n}", "s", len(content), lambda content=content: [content])) == content
    assert size_of(kept) <= 100_000
    assert list((tmp_path / "tmp").iterdir()) == []


SEVERAL = """
import concurrent.futures, pathlib, sys
from zephon_jax.sources import cache
cache._WAIT_S = cache._STALLED_S = 20.0
kept = cache.ShardCache(pathlib.Path(sys.argv[1]), int(sys.argv[2]))

def ask(name):
    size = 10_000 + ord(name)
    wanted = cache.Wanted(name, "s", None, lambda: (name.encode() * min(500, size - at) for at in range(0, size, 500)))
    with kept.pinned(wanted) as path:
        assert pathlib.Path(path).read_bytes() == name.encode() * size

print("ready", flush=True)
with concurrent.futures.ThreadPoolExecutor(3) as pool:
    list(pool.map(ask, sys.argv[3] * int(sys.argv[4])))
print("done", flush=True)
"""


def several(folder: pathlib.Path, bound: int, names: str, rounds: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "error", "-c", SEVERAL, str(folder), str(bound), names, str(rounds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


@pytest.mark.slow
def test_processes_whose_copies_do_not_fit_together_each_get_theirs(tmp_path):
    """Others, that are killed meanwhile, may hold any of the locks."""
    workers = [several(tmp_path, 12_500, names, 5) for names in ("abc", "bcd")]
    for k in range(4):
        with several(tmp_path, 12_500, "efg", 1000) as victim:
            assert victim.stdout is not None
            victim.stdout.readline()
            time.sleep(0.03 * k)
            victim.kill()
    for worker in workers:
        out, _ = worker.communicate(timeout=60)
        assert worker.returncode == 0
        assert out.endswith(b"done\n")
    kept = ShardCache(tmp_path, 12_500)
    assert size_of(kept) <= 12_500
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
def test_one_that_waits_for_room_holds_others_back_until_it_is_killed(tmp_path):
    kept = ShardCache(tmp_path, 12_500)
    with kept.pinned(wanted("x", b"x" * 5000)):
        with several(tmp_path, 12_500, "a", 1) as victim:
            try:
                wait_for(lambda: kept._locks.is_held("short"))
                with pytest.raises(DataError, match="has been in use"):
                    content_of(kept, wanted("b"))
            finally:
                victim.kill()
        assert content_of(kept, wanted("b")) == b"x" * 100
    assert content_of(kept, grown("c", 12_000)) == b"c" * 12_000


def test_leftovers_are_swept_but_not_what_is_being_written(tmp_path):
    ShardCache(tmp_path, 1000)
    for name in ("dead", "alive", "half removed"):
        (tmp_path / "tmp" / name).mkdir()
        if name != "half removed":
            (tmp_path / "tmp" / name / "data").write_bytes(b"x")
    with open(tmp_path / "tmp" / "alive" / "data", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ShardCache(tmp_path, 1000)
        assert sorted(p.name for p in (tmp_path / "tmp").iterdir()) == ["alive"]


def test_what_others_are_writing_counts(tmp_path):
    """The room for an entry is taken before it is written, so downloads at the same moment do not exceed the bound."""
    kept, started, finish = ShardCache(tmp_path, 250), threading.Event(), threading.Event()

    def slow():
        yield b"x"
        started.set()
        finish.wait(10)
        yield b"x" * 199

    thread = threading.Thread(target=lambda: content_of(kept, Wanted("slow", "s", 200, slow)))
    thread.start()
    try:
        wait_for(started.is_set)
        with pytest.raises(DataError, match="no room"):
            content_of(ShardCache(tmp_path, 250), wanted("a"))
        assert content_of(kept, wanted("b", b"x" * 50)) == b"x" * 50
    finally:
        finish.set()
        thread.join(timeout=10)
    assert content_of(kept, wanted("a")) == b"x" * 100


def test_who_counts_finds_an_entry_in_one_place_or_the_other(tmp_path):
    """It moves from `tmp` to its place under the lock under which others add up both."""
    kept, started, finish = ShardCache(tmp_path, 250), threading.Event(), threading.Event()

    def gated():
        started.set()
        finish.wait(10)
        yield b"x" * 100

    entry = Wanted("a", "s", 100, gated)
    thread = threading.Thread(target=lambda: content_of(kept, entry))
    thread.start()
    wait_for(started.is_set)
    with kept._holding("room"):
        finish.set()
        wait_for(lambda: bool(list((tmp_path / "tmp").glob("*/checksum"))))
        time.sleep(0.05)
        assert not kept._entry(entry).exists()
    thread.join(timeout=10)
    assert kept._entry(entry).exists()


# -- where and how large -----------------------------------------------------------------------------------------------


def test_the_folder_and_the_bound_come_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("ZEPHON_JAX_CACHE_DIR", str(tmp_path / "here"))
    monkeypatch.setenv("ZEPHON_JAX_CACHE_BYTES", "12345")
    assert cache_folder() == tmp_path / "here"
    assert shard_cache().bound_bytes == 12345
    assert shard_cache() is shard_cache()
    assert shard_cache()._folder == tmp_path / "here" / "shards"
    monkeypatch.delenv("ZEPHON_JAX_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "zephon_jax"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "zephon_jax"

    def no_home(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(pathlib.Path, "expanduser", no_home)
    assert cache_folder() == pathlib.Path(tempfile.gettempdir()) / f"zephon_jax-{os.getuid()}"


def test_half_of_what_is_free_is_the_bound_if_none_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("", (), {"free": 1000}))
    kept = ShardCache(tmp_path)
    assert kept.bound_bytes == 500
    content_of(kept, wanted("a", bytes(400)))
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("", (), {"free": 600}))
    assert ShardCache(tmp_path).bound_bytes == 500  # what it holds counts, so that it does not shrink as it fills


@pytest.mark.parametrize("text", ["0", "-5", "10GB", "1e9", " "])
def test_a_bound_that_is_none(monkeypatch, text):
    monkeypatch.setenv("ZEPHON_JAX_CACHE_BYTES", text)
    with pytest.raises(ConfigurationError, match=f"ZEPHON_JAX_CACHE_BYTES='{text}' must be a positive number of bytes"):
        shard_cache()


def test_a_folder_that_cannot_be_written_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="the cache folder .* cannot be used: .*Set ZEPHON_JAX_CACHE_DIR"):
        ShardCache(tmp_path / "file" / "below", 100)
    kept = ShardCache(tmp_path / "cache", 1000)

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(DataError, match="a needs a local copy: .*No space left on device.*has room"):
        content_of(kept, wanted("a"))
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []
