"""Kept indexes: the same entries as built ones, only what changed is built again, and damage is never trusted."""

from __future__ import annotations

import io
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from zephon_jax import DataError
from zephon_jax.cli import main
from zephon_jax.sources import index as rooms
from zephon_jax.sources.base import Dataset
from zephon_jax.sources.cache import cache_folder
from zephon_jax.sources.index import Entry, ahead, indexed, summaries
from zephon_jax.sources.storage import stat_all


class Builder:
    """Counts the bytes of a file, remembers which it was asked for, and may fail."""

    def __init__(self):
        self.asked: list[str] = []

    def __call__(self, file):
        name = pathlib.Path(file.path).name
        self.asked.append(name)
        content = pathlib.Path(file.path).read_bytes()
        if content.startswith(b"bad"):
            raise DataError(f"{name} is bad", path=file.path)
        arrays = {"values": np.arange(len(content), dtype=np.int64) * 3} if content else {}
        if name.startswith("b"):
            arrays |= {"small": np.array([1, 2, 3], np.uint16), "none": np.zeros(0, np.float32)}
        return Entry(len(content), content.hex()[:8], arrays, {"n": len(content)} if name.startswith("c") else {})

    def taken(self) -> list[str]:
        asked, self.asked = sorted(self.asked), []
        return asked


@pytest.fixture
def build():
    return Builder()


@pytest.fixture
def folder(tmp_path):
    """Five files, old enough for their time of change to be trusted."""
    for name, size in (("a", 10), ("b", 0), ("b2", 7), ("c", 300), ("d", 1)):
        write(tmp_path / name, bytes([size % 256]) * size)
    return tmp_path


def write(path: pathlib.Path, content: bytes, age_s: float = 100) -> None:
    path.write_bytes(content)
    when = time.time_ns() - int(age_s * 1e9)
    os.utime(path, ns=(when, when))


def replace(path: pathlib.Path, content: bytes) -> None:
    """By another file: what others have mapped stays."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


def look(folder, build, names="a b b2 c d", *, keep=True, beside=False, kind="test", version=1):
    files = stat_all([str(folder / name) for name in names.split()])
    if not keep:
        return indexed(kind, version, files, build)
    with ahead(beside=beside):
        return indexed(kind, version, files, build)


def same(left, right) -> bool:
    def plain(entry):
        arrays = {name: (a.dtype.str, a.tolist()) for name, a in entry.arrays.items()}
        return entry.num_samples, entry.digest, arrays, dict(entry.facts)

    return [plain(e) for e in left] == [plain(e) for e in right]


def kept_files() -> list[pathlib.Path]:
    return sorted((cache_folder() / "indexes").rglob("*.index"))


def test_a_kept_index_holds_what_was_built(folder, build):
    first = look(folder, build)
    assert build.taken() == ["a", "b", "b2", "c", "d"]
    again = look(folder, build)
    assert build.taken() == []
    plain = [build(file) for file in stat_all([str(folder / name) for name in ("a", "b", "b2", "c", "d")])]
    assert same(first, plain)
    assert same(again, plain)
    assert list(summaries(again)) == [(e.num_samples, e.digest) for e in plain]
    assert len(kept_files()) == 1
    assert not again[3].arrays["values"].flags.writeable
    assert same(again[1:3], plain[1:3])
    with pytest.raises(ValueError, match="read-only"):
        again[3].arrays["values"][0] = 1


def test_only_what_changed_is_built_again(folder, build):
    look(folder, build)
    build.taken()
    write(folder / "c", b"\x2c" * 299, age_s=50)
    entries = look(folder, build)
    assert build.taken() == ["c"]
    assert [e.num_samples for e in entries] == [10, 0, 7, 299, 1]
    assert same(look(folder, build), entries)
    assert build.taken() == []


def test_files_may_come_go_and_change_places(folder, build):
    """Entries are found by path, in the index of another list of the same folder too."""
    look(folder, build)
    write(folder / "e", b"e")
    build.taken()
    assert [e.num_samples for e in look(folder, build, "d c b2 a")] == [1, 300, 7, 10]
    assert [e.num_samples for e in look(folder, build, "a b b2 c d e")] == [10, 0, 7, 300, 1, 1]
    assert build.taken() == ["e"]


def test_names_that_are_no_utf_8(tmp_path, build):
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    write(tmp_path / name, b"1234")
    for asked in ([name], []):
        assert look(tmp_path, build, name)[0].num_samples == 4
        assert build.taken() == asked


def test_another_kind_and_another_version_are_built_anew(folder, build):
    look(folder, build)
    build.taken()
    for options in ({"kind": "other"}, {"version": 2}):
        look(folder, build, "a b", **options)
        assert build.taken() == ["a", "b"]
        look(folder, build, "a b", **options)
        assert build.taken() == []


@pytest.mark.parametrize("age_s", [0, 1, -100])
def test_a_stamp_too_young_to_mean_anything_is_not_trusted(folder, build, age_s):
    """A file may be written twice within one tick of the clock: the stamp is the same, the content is not."""
    write(folder / "a", b"x" * 10, age_s=age_s)
    look(folder, build)
    build.taken()
    stamp = os.stat(folder / "a").st_mtime_ns
    (folder / "a").write_bytes(b"y" * 10)
    os.utime(folder / "a", ns=(stamp, stamp))
    assert look(folder, build)[0].digest == "79797979"
    assert build.taken() == ["a"]


def test_small_data_keeps_nothing_unless_told_to(folder, build, monkeypatch):
    look(folder, build, keep=False)
    assert not (cache_folder() / "indexes").exists()
    monkeypatch.setattr(rooms, "_SMALL_BYTES", 318)
    look(folder, build, keep=False)
    assert len(kept_files()) == 1
    build.taken()
    look(folder, build, keep=False)
    assert build.taken() == []


def test_small_files_with_large_entries_keep_theirs(folder, build, monkeypatch):
    monkeypatch.setattr(rooms, "_SMALL_BYTES", 1000)  # the files have 318 bytes, their arrays eight times as many
    look(folder, build, keep=False)
    assert len(kept_files()) == 1


# -- damage ------------------------------------------------------------------------------------------------------------


def test_a_byte_altered_anywhere_is_noticed(folder, build):
    want = look(folder, build)
    (path,) = kept_files()
    whole = path.read_bytes()
    plain = list(want)
    noticed = 0
    for i in [*range(16), *range(16, len(whole), 61), *range(len(whole) - 40, len(whole))]:
        damaged = bytearray(whole)
        damaged[i] ^= 4
        replace(path, damaged)
        build.taken()
        with warnings_of("is damaged .* and is built again") as told:
            assert same(look(folder, build), plain)
        noticed += bool(told)
        if not told:  # the four bytes that pad the footer mean nothing
            assert len(whole) - 20 <= i < len(whole) - 16
        path.unlink(missing_ok=True)
    assert noticed > 40


class warnings_of:
    def __init__(self, match: str):
        self.match = match

    def __enter__(self):
        import warnings

        self.catcher = warnings.catch_warnings(record=True)
        self.told = self.catcher.__enter__()
        warnings.simplefilter("always")
        return self.told

    def __exit__(self, *error):
        import re

        self.catcher.__exit__(*error)
        assert all(re.search(self.match, str(w.message)) for w in self.told), [str(w.message) for w in self.told]


@pytest.mark.parametrize("size", [0, 1, 16, 40, 1000])
def test_an_index_that_is_cut_off_is_built_again(folder, build, size):
    want = list(look(folder, build))
    (path,) = kept_files()
    replace(path, path.read_bytes()[:size])
    build.taken()
    with pytest.warns(UserWarning, match="is damaged"):
        assert same(look(folder, build), want)
    assert build.taken() == ["a", "b", "b2", "c", "d"]
    assert same(look(folder, build), want)
    assert build.taken() == []


def test_a_damaged_entry_is_built_again_alone_and_compared(folder, build):
    want = list(look(folder, build))
    (path,) = kept_files()
    damaged = bytearray(path.read_bytes())
    damaged[500] ^= 1  # among the values of c
    replace(path, damaged)
    build.taken()
    entries = look(folder, build)
    assert same(entries[:3], want[:3])
    with pytest.warns(UserWarning, match=r"the entry of .*/c has another checksum"):
        assert same([entries[3]], [want[3]])
    assert same([entries[3]], [want[3]])
    assert build.taken() == ["c"]
    look(folder, build)  # the damaged one was removed
    build.taken()
    replace(path, damaged)
    entries = look(folder, build)
    write(folder / "c", b"something else")
    with (
        pytest.warns(UserWarning, match="damaged"),
        pytest.raises(DataError, match="neither its index nor its content"),
    ):
        entries[3]


# -- places ------------------------------------------------------------------------------------------------------------


def test_an_index_beside_the_data_moves_with_it(folder, build, tmp_path_factory):
    want = list(look(folder, build, beside=True))
    assert len(list((folder / ".zephon_jax").glob("*.index"))) == 1
    assert kept_files() == []
    build.taken()
    assert same(look(folder, build, keep=False), want)
    assert build.taken() == []
    assert len(kept_files()) == 1  # a copy: what is mapped over a network may go away
    elsewhere = tmp_path_factory.mktemp("mount") / "point"
    shutil.copytree(folder, elsewhere)  # with the times of change
    assert same(look(elsewhere, build, keep=False), want)
    assert build.taken() == []
    with ahead(beside=True) as kept:
        indexed("test", 1, stat_all([str(folder / n) for n in ("a", "b", "b2", "c", "d")]), build)
    assert build.taken() == []
    assert [(one.files, one.built, one.bytes) for one in kept] == [(5, 0, 318)]


def test_without_a_common_folder_there_is_no_place_beside(build):
    place = rooms._Place.of("k", 1, ["s3://one/a", "s3://other/b"])
    assert place.beside is None
    assert rooms._Place.of("k", 1, ["s3://one/a", "/b"]).beside is None
    assert rooms._Place.of("k", 1, ["s3://one/a/x", "s3://one/b/y"]).folder == "s3://one"
    assert rooms._Place.of("k", 1, ["/x/bc/1", "/x/bd/2"]).folder == "/x"
    assert rooms._Place.of("k", 1, ["/x/b/1", "/x/b/c/2"]).names == ["1", "c/2"]


def test_a_cache_that_cannot_be_written_is_one_warning(folder, build, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ZEPHON_JAX_CACHE_DIR", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(rooms, "_SMALL_BYTES", 1)
    with pytest.warns(UserWarning, match="cannot be written .*kept in memory.*ZEPHON_JAX_CACHE_DIR") as told:
        entries = look(folder, build, keep=False)
    assert len(told) == 1
    assert [e.num_samples for e in entries] == [10, 0, 7, 300, 1]


def test_a_full_disk_leaves_nothing_behind(folder, build, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        assert len(look(folder, build)) == 5
    assert list((cache_folder() / "indexes").rglob("*.*")) == []
    with pytest.raises(DataError, match="the index cannot be written: .*No space left"):
        look(folder, build, beside=True)
    assert list((folder / ".zephon_jax").iterdir()) == []


# -- building ----------------------------------------------------------------------------------------------------------


def test_the_first_bad_file_in_order_is_named_and_no_thread_is_left(folder, build, monkeypatch):
    monkeypatch.setattr(rooms, "_SMALL_BYTES", 1)
    for name in ("b2", "d"):
        write(folder / name, b"bad")
    with pytest.raises(DataError, match="b2 is bad"):
        look(folder, build)
    assert kept_files() == []


def test_files_are_built_at_once(folder, monkeypatch):
    monkeypatch.setattr(rooms, "_SMALL_BYTES", 1)
    monkeypatch.setattr(rooms, "_WORKERS", 5)
    together = threading.Barrier(5, timeout=10)

    def build(file):
        together.wait()
        return Entry(file.size, "00")

    assert [e.num_samples for e in look(folder, build)] == [10, 0, 7, 300, 1]


def test_entries_can_be_sent_to_another_process(folder, build):
    entries = look(folder, Plain())
    again = pickle.loads(pickle.dumps(entries))
    assert same(again, list(entries))
    (path,) = kept_files()
    sent = pickle.dumps(entries)
    write(folder / "a", b"other")
    look(folder, Plain())
    with pytest.raises(DataError, match="removed or replaced"):
        pickle.loads(sent)
    path.unlink()
    with pytest.raises(DataError, match="removed or replaced"):
        pickle.loads(sent)


class Plain:
    def __call__(self, file):
        return Builder()(file)


@pytest.mark.slow
def test_processes_that_build_at_once_and_are_killed_leave_a_whole_index_or_none(folder, build):
    for i in range(200):
        write(folder / f"s{i}.jsonl", b'{"v": 1}\n' * (i + 1))
    program = (
        "import sys, warnings; warnings.simplefilter('error')\n"
        "from zephon_jax.sources.base import Dataset\n"
        "from zephon_jax.sources.index import ahead\n"
        "import os, shutil\n"
        "print('ready', flush=True)\n"
        "for _ in range(int(sys.argv[2])):\n"
        "    with ahead(beside=False):\n"
        "        assert len(Dataset.from_path('d', sys.argv[1] + '/*.jsonl')) == 20100\n"
        "    shutil.rmtree(sys.argv[3], ignore_errors=True) if sys.argv[4:] else None\n"
    )
    command = [sys.executable, "-c", program, str(folder)]
    workers = [subprocess.Popen([*command, "12", ""]) for _ in range(2)]
    for k in range(8):
        with subprocess.Popen(
            [*command, "1000", str(cache_folder() / "indexes"), "x"], stdout=subprocess.PIPE
        ) as victim:
            assert victim.stdout is not None
            victim.stdout.readline()
            time.sleep(0.03 * k)
            victim.send_signal(signal.SIGKILL)
    for worker in workers:
        assert worker.wait(timeout=60) == 0
    assert len(Dataset.from_path("d", f"{folder}/*.jsonl")) == 20100


def test_leftovers_and_forgotten_indexes_are_removed(folder, build):
    look(folder, build)
    (path,) = kept_files()
    for name, age_s in ((".x.index.dead", 2 * 86_400), (".x.index.alive", 10), ("old.index", 1e7), ("used.index", 1e6)):
        write(path.parent / name, b"", age_s=age_s)
    write(folder / "a", b"changed")
    look(folder, build)
    left = {p.name for p in path.parent.iterdir()}
    assert not left & {".x.index.dead", "old.index"}
    assert {".x.index.alive", "used.index", path.name} <= left


class Screen(io.StringIO):
    def __init__(self, terminal: bool):
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_shown_where_somebody_looks(folder, build, monkeypatch, terminal):
    pytest.importorskip("tqdm")
    monkeypatch.setattr(rooms, "_SMALL_BYTES", 1)
    monkeypatch.setattr("zephon_jax.sources.progress._DELAY_S", 0)
    monkeypatch.setattr(sys, "stderr", screen := Screen(terminal))
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # which other tests may have loaded
    look(folder, build)
    assert ("indexing 5 files: 100%" in screen.getvalue()) == terminal
    assert terminal or not screen.getvalue()


def test_without_tqdm_there_is_no_bar_and_no_error(folder, build, monkeypatch):
    monkeypatch.setattr(rooms, "_SMALL_BYTES", 1)
    monkeypatch.setattr(sys, "stderr", screen := Screen(True))
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert len(look(folder, build)) == 5
    assert not screen.getvalue()


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def jsonl(tmp_path):
    for name, n in (("web/a", 3), ("web/b", 4), ("code/c", 5)):
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        write(path, b'{"v": 1}\n' * n)
    return tmp_path


def test_the_command_builds_and_tells(jsonl, capsys):
    assert main(["index", str(jsonl / "web"), str(jsonl / "code")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"{jsonl}/web: 2 shards, 63 bytes, 7 samples, ")
    assert out[1].startswith(f"  2 of 2 files indexed now, kept in {cache_folder()}")
    assert out[2].startswith(f"{jsonl}/code: 1 shards, 45 bytes, 5 samples, ")
    assert len(kept_files()) == 2
    assert main(["index", str(jsonl / "web")]) == 0
    assert "  0 of 2 files indexed now" in capsys.readouterr().out
    assert main(["index", "--beside", str(jsonl / "web" / "a.jsonl"), str(jsonl / "web" / "b.jsonl")]) == 0
    out = capsys.readouterr().out
    assert "a.jsonl and 1 more: 2 shards" in out
    assert f"kept in {jsonl}/web/.zephon_jax/jsonl-" in out
    assert len(Dataset.from_path("d", jsonl / "web")) == 7  # the folder beside is no data


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["{root}/none"], "no such file: {root}/none"),
        (["{root}/web/*.parquet"], "matches no file"),
        (["{root}"], "holds no file that ends in"),
        (["{root}/web", "--beside"], "the index cannot be written"),
    ],
)
def test_errors_of_the_command_are_text_and_exit_code_2(jsonl, capsys, arguments, text):
    (jsonl / "web" / ".zephon_jax").write_text("in the way")
    assert main(["index", *(a.format(root=jsonl) for a in arguments)]) == 2
    out, err = capsys.readouterr()
    assert text.format(root=jsonl) in err
    assert err.startswith("zephon-jax index: ")
    assert "Traceback" not in out + err


@pytest.mark.slow
def test_many_shards_are_one_index_to_open(capsys):
    from tests.benchmarks.many_shards import main as many_shards

    first, *later = many_shards(500)
    assert all(run["shards"] == 500 and run["samples"] == 1000 and run["open_files"] < 20 for run in [first, *later])
