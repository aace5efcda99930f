"""The checks of storage, indexes and caches, checked: each mistake below, planted in a copy, fails the named test."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]

# what: (file, the right text, the wrong one, the tests that must notice)
MISTAKES = {
    "what was given up still occupies room": ("cache.py", "                os.ftruncate(descriptor, 0)\n", "", "test_cache.py::test_two_that_grow_and_do_not_fit_together_are_made_one_after_the_other"),
    "others begin while one is short": ("cache.py", "while self._locks.is_held(\"short\"):", "while False:", "test_cache.py::test_one_that_waits_for_room_holds_others_back_until_it_is_killed"),
    "copies that go on do not count": ("cache.py", "limit_s = _STALLED_S if others else _WAIT_S", "limit_s = _WAIT_S", "test_cache.py::test_who_waits_is_patient_as_long_as_others_go_on"),
    "who waits to mend occupies": ("cache.py", "fcntl.flock(descriptor, fcntl.LOCK_UN)  #", "pass  #", "test_cache.py::test_who_waits_to_mend_an_entry_does_not_occupy_it"),
    # the shard cache
    "entries in use are evicted": (
        "cache.py", "_locked(entry / \"data\", fcntl.LOCK_EX | fcntl.LOCK_NB)\n            if descriptor is not None:\n                self._remove", "_locked(entry / \"data\")\n            if descriptor is not None:\n                self._remove",
        "test_cache.py::test_an_entry_in_use_is_never_evicted"),
    "the newest leaves first": (
        "cache.py", "entries = sorted(self._entries())", "entries = sorted(self._entries(), reverse=True)",
        "test_cache.py::test_what_was_used_longest_ago_leaves_first"),
    "using an entry does not count": ("cache.py", "os.utime(entry)", "pass", "test_cache.py::test_what_was_used_longest_ago_leaves_first"),
    "copies are not compared": (
        "cache.py", "if (entry / \"checksum\").read_text() == digest.hexdigest():", "if True:",
        "test_cache.py::test_a_damaged_copy_is_noticed_when_first_opened_and_fetched_again"),
    "what others write does not count": (
        "cache.py", "+ sum(map(_size, self._tmp.glob(\"*/data\")))", "", "test_cache.py::test_what_others_are_writing_counts"),
    "half an entry is left behind": (
        "cache.py", "shutil.rmtree(folder, ignore_errors=True)\n            raise", "raise", "test_cache.py::test_an_error_on_the_way_leaves_nothing"),
    "entries being written are swept": (
        "cache.py", "descriptor = _locked(folder / \"data\", fcntl.LOCK_EX | fcntl.LOCK_NB)\n            if", "descriptor = os.open(folder / \"data\", os.O_RDONLY)\n            if",
        "test_cache.py::test_leftovers_are_swept_but_not_what_is_being_written"),
    "an entry is made by each thread": (
        "cache.py", "with self._holding(entry.name[:2]):\n                        if (descriptor", "with contextlib.nullcontext():\n                        if (descriptor", "test_cache.py::test_threads_that_want_one_entry_make_it_once"),
    "pins are never let go": ("cache.py", "while len(self._kept) > _KEPT:", "while False:", "test_cache.py::test_no_more_than_sixteen_stay_pinned"),
    "a mended entry is thrown away": (
        "cache.py", "if _is_at(descriptor, entry / \"data\"):  # else", "if True:  # else",
        "test_cache.py::test_threads_that_notice_one_damage_mend_it_once"),
    "an entry is in neither place for a moment": (
        "cache.py", "with self._holding(\"room\"):  # or", "with contextlib.nullcontext():  # or",
        "test_cache.py::test_who_counts_finds_an_entry_in_one_place_or_the_other"),
    # indexes
    "stamps are not compared": (
        "index.py", "row is None or index.stamps[row] != file.stamp", "row is None", "test_index.py::test_only_what_changed_is_built_again"),
    "young stamps are trusted": (
        "index.py", "file.stamp if settled(file, began_ns) else \"\"", "file.stamp", "test_index.py::test_a_stamp_too_young_to_mean_anything_is_not_trusted"),
    "headers are not compared": (
        "indexfile.py", "or zlib.crc32(packed) != checksum", "", "test_index.py::test_a_byte_altered_anywhere_is_noticed"),
    "entries are not compared": (
        "indexfile.py", "if zlib.crc32(body) != self.checksums[row]:", "if False:", "test_index.py::test_a_damaged_entry_is_built_again_alone_and_compared"),
    "versions are not told apart": ("index.py", "-{version}-", "-", "test_index.py::test_another_kind_and_another_version_are_built_anew"),
    "an index names absolute paths": (
        "index.py", "names = [path[len(folder) + 1 :] for path in full]", "names = full", "test_index.py::test_an_index_beside_the_data_moves_with_it"),
    "rows are taken by position": (
        "index.py", "range(len(files)) if index.names == place.names else map(index.row.get, place.names)", "range(len(files))",
        "test_index.py::test_files_may_come_go_and_change_places"),
    # JSONL
    "only the first member is read": ("compressed.py", "piece, decoder = decoder.unused_data, None", "return", "test_jsonl.py::test_every_byte_comes_out"),
    "a cut-off file is a short one": (
        "compressed.py", "if decoder is not None or not members:", "if False:", "test_jsonl.py::test_a_file_cut_off_anywhere_is_an_error"),
    "lines that span blocks": ("jsonl.py", "here[0] |= open_line", "pass", "test_jsonl.py::test_the_size_of_blocks_does_not_matter"),
    "a source that changed is not noticed": (
        "jsonl.py", "stat(file.path).stamp != file.stamp", "False", "test_jsonl.py::test_a_compressed_file_that_changes_is_an_error"),
    # object storage
    "etags are not compared": (
        "remote.py", "f\"{size}-{_generation(url, result)}\" != stamp", "False", "test_s3.py::test_an_object_that_changes_while_it_is_indexed"),
    "requests wait for each other": ("remote.py", "_IN_FLIGHT = 32", "_IN_FLIGHT = 1", "test_s3.py::test_consecutive_samples_are_one_request_and_others_go_together"),
    "a size is off by one": ("remote.py", "low, high = [low, *offsets][n], [*offsets, high][n]\n    return high", "low, high = [low, *offsets][n], [*offsets, high][n]\n    return low", "test_s3.py::test_a_size_that_the_server_does_not_tell_is_found_by_probing"),
    "hidden objects are data": ("files.py", "if name and name[0] != \".\"", "if name", "test_s3.py::test_folders_and_globs"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", MISTAKES)
def test_the_mistake_is_noticed(what, tmp_path):
    file, right, wrong, noticed_by = MISTAKES[what]
    if "test_s3" in noticed_by:
        pytest.importorskip("moto.server")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "zephon_jax", tmp_path / "zephon_jax", ignore=ignored)
    for part in ("tests/sources", "tests/ops"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=ignored)
    for part in ("tests/__init__.py", "tests/conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / part, tmp_path / part)
    path = tmp_path / "zephon_jax" / "sources" / file
    text = path.read_text()
    assert text.count(right) == 1, f"the text to replace occurs {text.count(right)} times: bring the mistake up to date"
    path.write_text(text.replace(right, wrong))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        f"tests/sources/{noticed_by}",
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1, f"the mistake went unnoticed: {done.stdout[-1500:]}{done.stderr[-1500:]}"
    assert "1 failed" in done.stdout
