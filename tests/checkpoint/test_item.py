"""The files of an item: all of one save, every lane once, anything else refused by name. Written here as processes write them;
the processes themselves are in `tests/processes/test_savers.py`.
"""

from __future__ import annotations

import pathlib

import pytest
from etils import epath

import zephon_jax as zj
from tests.checkpoint.test_merge import pipeline, state
from zephon_jax.checkpoint.codec import decode, encode
from zephon_jax.checkpoint.item import begin_save, read_item, restore_item, write_save
from zephon_jax.checkpoint.merge import plan_digest
from zephon_jax.inspection import read_state


def write_parts(folder: pathlib.Path, whole: dict, lanes: list[list[int]], nonce: str = "000003.n", **said) -> None:
    """One file for each of these lists of lanes."""
    for writer, own in enumerate(lanes):
        item = {"nonce": nonce, "step": 5, "writer": writer, "writers": len(lanes), "plan": plan_digest(whole), **said}
        part = {**whole, "lanes": [lane for lane in whole["lanes"] if lane["lane"] in own], "item": item}
        (folder / f"lanes_{writer:05d}_of_{len(lanes):05d}.zst").write_bytes(encode(part))


@pytest.fixture
def folder(tmp_path):
    write_parts(tmp_path, state(5), [[0, 2], [1], [3]])
    return epath.Path(tmp_path)


def test_the_files_of_several_writers_are_the_state_of_one(folder):
    (folder / "commit_success.txt").write_text("of Orbax")
    (folder / "tmp-0123").write_bytes(b"of a process that was killed")
    (folder / "lanes_notes.zst").write_bytes(b"of somebody")
    assert encode(read_item(folder)) == encode(state(5))
    it = iter(pipeline())
    restore_item(folder, it)
    assert it.stats().rounds == dict.fromkeys(range(4), 5)


@pytest.mark.parametrize(("writer", "lanes"), [(0, r"\[0, 2\]"), (1, r"\[1\]"), (2, r"\[3\]")])
def test_case_8_a_file_that_is_missing_is_named_with_its_lanes(folder, writer, lanes):
    (folder / f"lanes_{writer:05d}_of_00003.zst").unlink()
    with pytest.raises(
        zj.CheckpointMismatch,
        match=rf"1 of 3 files are missing, \['lanes_{writer:05d}_of_00003.zst'\], and with them the state of lanes {lanes}",
    ):
        read_item(folder)


def test_a_name_that_claims_many_files_costs_nothing(tmp_path):
    (tmp_path / "lanes_00000_of_999999999.zst").write_bytes(encode(state(1)))
    with pytest.raises(zj.CheckpointMismatch, match="999999998 of 999999999 files are missing"):
        read_item(epath.Path(tmp_path))


def test_a_lane_that_is_in_no_file_is_named(tmp_path):
    write_parts(tmp_path, state(5), [[0, 2], [3]])
    with pytest.raises(zj.CheckpointMismatch, match=r"lanes \[1\] are in none of its 2 files"):
        read_item(epath.Path(tmp_path))


def test_a_lane_that_is_there_twice_is_named(tmp_path):
    write_parts(tmp_path, state(5), [[0, 1, 2], [2, 3]])
    with pytest.raises(zj.CheckpointMismatch, match="lists lane 2 twice"):
        read_item(epath.Path(tmp_path))


def test_a_file_of_another_save_is_named(folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    write_parts(other, state(6), [[0, 2], [1], [3]], nonce="000004.n")
    (other / "lanes_00001_of_00003.zst").rename(tmp_path / "lanes_00001_of_00003.zst")
    with pytest.raises(
        zj.CheckpointMismatch, match=r"lanes_00001_of_00003.zst is of save 000004.n, the others are of save 000003.n"
    ):
        read_item(folder)


def test_files_of_another_number_of_writers_are_refused(folder, tmp_path):
    write_parts(tmp_path, state(5), [[0, 1], [2, 3]])
    with pytest.raises(zj.CheckpointMismatch, match="holds files of several saves"):
        read_item(folder)


def test_a_save_other_than_the_one_that_was_agreed_on_is_refused(folder):
    assert read_item(folder, nonce="000003.n")
    with pytest.raises(
        zj.CheckpointMismatch, match="lanes_00000_of_00003.zst is of save 000003.n, the others are of save 000009.n"
    ):
        read_item(folder, nonce="000009.n")


def test_a_file_under_another_name_is_refused(folder):
    (folder / "lanes_00001_of_00003.zst").rename(folder / "lanes_00009_of_00003.zst")
    (folder / "lanes_00002_of_00003.zst").rename(folder / "lanes_00001_of_00003.zst")
    (folder / "lanes_00009_of_00003.zst").rename(folder / "lanes_00002_of_00003.zst")
    with pytest.raises(zj.CheckpointMismatch, match="what it says of itself does not fit its name"):
        read_item(folder)


def test_another_plan_beside_the_lanes_is_refused(tmp_path):
    whole = state(5)
    write_parts(tmp_path, whole, [[0, 2], [1, 3]])
    forged = decode((tmp_path / "lanes_00001_of_00002.zst").read_bytes())
    forged["plan"]["flush_every_k_chunks"] = 99
    (tmp_path / "lanes_00001_of_00002.zst").write_bytes(encode(forged))
    with pytest.raises(zj.CheckpointMismatch, match="plan and datasets are not those that were saved"):
        read_item(epath.Path(tmp_path))


def test_a_damaged_file_is_named_among_many(folder):
    path = folder / "lanes_00002_of_00003.zst"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(zj.CheckpointMismatch, match="lanes_00002_of_00003.zst: this is no pipeline state"):
        read_item(folder)


def test_a_folder_without_a_state_says_what_it_has(tmp_path):
    (tmp_path / "manifest").write_text("")
    with pytest.raises(zj.CheckpointMismatch, match=r"holds no pipeline state; it has \['manifest'\]"):
        read_item(epath.Path(tmp_path))


def test_one_process_writes_the_one_file_that_earlier_versions_wrote(tmp_path):
    """Its bytes are those of `checkpoint()` and nothing else, so either version reads the other's."""
    it = iter(pipeline())
    next(it)
    write_save(begin_save(it), epath.Path(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["lanes_00000_of_00001.zst"]
    assert (tmp_path / "lanes_00000_of_00001.zst").read_bytes() == encode(it.checkpoint())


def test_the_command_line_reads_the_files_of_several_processes(folder):
    assert encode(read_state(folder)) == encode(state(5))
    (folder / "lanes_00001_of_00003.zst").unlink()
    with pytest.raises(zj.CheckpointMismatch, match="1 of 3 files are missing"):
        read_state(folder)


def test_what_is_refused_changes_nothing(folder):
    it = iter(zj.Pipeline(pipeline().work).shuffle(9).batch(2).options(canonical_replicas=4, executor="inline"))
    with pytest.raises(zj.CheckpointMismatch, match="buffer_size: the checkpoint has 8, this pipeline 9"):
        restore_item(folder, it)
    it.restore(it.get_state())  # it had not been restored
