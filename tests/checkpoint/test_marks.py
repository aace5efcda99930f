"""Which shards of a dataset changed since a checkpoint: named in the refusal, in a bounded number of bytes."""

from __future__ import annotations

import json

import pytest

import zephon_jax as zj
from zephon_jax.checkpoint.codec import decode, encode
from zephon_jax.checkpoint.marks import DatasetMark, changed_shards, shard_digests


def mark(*fingerprints: str) -> DatasetMark:
    count, digests = shard_digests((7, f) for f in fingerprints)
    return DatasetMark("web", 7 * count, "".join(fingerprints), count, digests)


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        ("abc", "abc", ""),
        ("abc", "axc", "changed: 's1'"),
        ("abcdef", "xbxdxx", "changed: 's0', 's2', 's4' and 1 more"),
        ("abc", "bac", "the order of its shards changed, from 's0' on"),
        ("abc", "ab", "it had 3 shards, now 2"),
        ("", "ab", "it had 0 shards, now 2"),
        ("a", "b", ""),
    ],
)
def test_what_changed_is_named(before, now, text):
    assert changed_shards(mark(*before), mark(*now), [f"s{i}" for i in range(len(now))]) == text


def test_many_shards_are_marked_in_groups_of_a_kilobyte_in_all():
    names = [f"s{i}" for i in range(1000)]
    before, now = mark(*names), mark(*(n + "x" * (n == "s501") for n in names))
    assert len(before.digests) == 4 * 250
    assert changed_shards(before, now, names) == "changed: one of 4 shards from 's500' to 's503'"
    assert len(mark(*map(str, range(100_000))).digests) <= 1024


def test_marks_that_do_not_tell():
    bare = DatasetMark("web", 7, "a")
    assert changed_shards(bare, mark(*"ab"), ["s0", "s1"]) == changed_shards(mark(*"ab"), bare, []) == ""
    assert changed_shards(mark(*"ab")._replace(digests=b"1"), mark(*"ac"), ["s0", "s1"]) == ""
    assert bare.same_content(bare._replace(shards=3))
    assert not bare.same_content(bare._replace(fingerprint="b"))


def write(path, texts):
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))


def pipeline(folder, names="abc"):
    data = zj.Dataset.from_path("web", [folder / f"{n}.jsonl" for n in names])
    work = zj.StaticMixtureWorkSource(data, chunk_size=2, shuffle_shards=False)
    return zj.Pipeline(work).batch(2).options(executor="inline")


def test_a_changed_file_a_changed_order_and_a_moved_file(tmp_path):
    for name in "abc":
        write(tmp_path / f"{name}.jsonl", [f"{name}{i}" for i in range(4)])
    it = iter(pipeline(tmp_path))
    next(it)
    state = decode(encode(it.checkpoint()))
    rest = [b["text"].tolist() for b in it]

    def refusal(make):
        with pytest.raises(zj.CheckpointMismatch) as caught:
            iter(make()).restore(state)
        return str(caught.value)

    assert "the order of its shards changed, from" in refusal(lambda: pipeline(tmp_path, "bac"))
    assert "it had 3 shards, now 2" in refusal(lambda: pipeline(tmp_path, "ab"))
    content = (tmp_path / "b.jsonl").read_bytes()
    (tmp_path / "b.jsonl").write_bytes(content.replace(b"b3", b"b4"))
    assert f"changed: {str(tmp_path / 'b.jsonl')!r}" in refusal(lambda: pipeline(tmp_path))
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in "ac":
        (tmp_path / f"{name}.jsonl").rename(moved / f"{name}.jsonl")
    (moved / "b.jsonl").write_bytes(content)
    again = iter(pipeline(moved))
    again.restore(state)
    assert [b["text"].tolist() for b in again] == rest
