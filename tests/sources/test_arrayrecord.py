"""ArrayRecord: the bytes that were written, by index, from groups of any size."""

from __future__ import annotations

import os
import pathlib
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zephon_jax as zj
from tests.ops import PROPERTY
from zephon_jax import ConfigurationError, DataError, Dataset
from zephon_jax.columns import Objects, rows_of
from zephon_jax.sources import arrayrecord as module
from zephon_jax.sources.arrayrecord import ArrayRecordSource

library = pytest.importorskip("array_record.python.array_record_module")


def write(path, records, options="group_size:1") -> str:
    writer = library.ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return str(path)


def record(i: int) -> bytes:
    return f"record {i} ".encode() * (1 + i % 5)


def values(source: ArrayRecordSource, shard: int, samples) -> list[bytes]:
    columns, bad = source.read(shard, np.array(samples, np.int64))
    assert bad == {}
    column = columns["value"]
    assert isinstance(column, Objects)
    return column.items


@pytest.mark.parametrize("group", [1, 3, 100])
def test_records_by_index(tmp_path, group):
    paths = [write(tmp_path / f"{n}.arrayrecord", map(record, range(n)), f"group_size:{group}") for n in (20, 0, 7)]
    source = ArrayRecordSource(paths, None)
    assert [(s.name, s.num_samples) for s in source.shards] == [(paths[0], 20), (paths[1], 0), (paths[2], 7)]
    for samples in ([0], [19], list(range(20)), list(range(5, 9)), [3, 2, 1], [19, 0, 7, 7, 8, 18], [4, 6]):
        assert values(source, 0, samples) == [record(i) for i in samples]
    assert values(source, 2, [6, 0]) == [record(6), record(0)]
    assert source.read(1, np.zeros(0, np.int64)) == ({}, {})
    assert source.block_hint == (None if group == 1 else group)


@PROPERTY
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=12), st.integers(1, 5), st.data())
def test_any_bytes_in_any_order(tmp_path_factory, records, group, data):
    path = write(tmp_path_factory.mktemp("ar") / "a.arrayrecord", records, f"group_size:{group}")
    samples = data.draw(st.lists(st.integers(0, len(records) - 1), min_size=1, max_size=10))
    assert values(ArrayRecordSource([path], None), 0, samples) == [records[i] for i in samples]


def test_by_path_with_a_map_that_decodes(tmp_path):
    write(tmp_path / "a.arrayrecord", map(record, range(4)))
    ds = Dataset.from_path("d", tmp_path / "*.arrayrecord", fields=["value"])
    work = zj.StaticMixtureWorkSource(ds, shuffle_shards=False)
    pipeline = zj.Pipeline(work).map(lambda sample: {"text": sample["value"].decode()}, name="decode")
    assert [r["text"] for r in pipeline] == [record(i).decode() for i in range(4)]
    with pytest.raises(ConfigurationError, match=r"fields=\['text'\]: a record of an ArrayRecord file is bytes"):
        Dataset.from_path("d", tmp_path / "*.arrayrecord", fields=["text"])


def test_a_group_is_decoded_once(tmp_path, monkeypatch):
    source = ArrayRecordSource([write(tmp_path / "a.arrayrecord", map(record, range(23)), "group_size:5")], None)
    calls, real = [], module._read
    monkeypatch.setattr(module, "_read", lambda file, *which: calls.append(which) or real(file, *which))
    values(source, 0, [12, 1, 3, 11, 4])
    values(pickle.loads(pickle.dumps(source)), 0, [0, 14, 21])
    assert calls == [(0, 5), (10, 15), (20, 23)]
    calls.clear()
    values(source, 0, [2])  # with this one, the first group was used up
    values(source, 0, [9, 8])
    assert calls == [(5, 10)]
    calls.clear()
    values(source, 0, [*range(5, 8), *range(10, 23)])  # the third and the last are still there
    assert calls == [(15, 20)]
    calls.clear()
    values(source, 0, range(2, 23))  # all at once, and what is left of the first is kept
    values(source, 0, [0, 1])
    assert calls == [(0, 23)]


@pytest.mark.parametrize("group", [1, 4])
def test_a_damaged_record_is_an_error_of_its_group(tmp_path, group):
    path = write(tmp_path / "a.arrayrecord", [os.urandom(3000) for _ in range(16)], f"group_size:{group}")
    whole = bytearray(pathlib.Path(path).read_bytes())
    whole[20_000] ^= 1  # of record 6
    pathlib.Path(path).write_bytes(whole)
    source = ArrayRecordSource([path], None)
    columns, bad = source.read(0, np.arange(15, -1, -1))
    broken = sorted(error.record for error in bad.values())
    assert broken == ([6] if group == 1 else [4, 5, 6, 7])
    assert all(15 - i == error.record and error.path == path and error.shard == 0 for i, error in bad.items())
    assert str(bad[9]).startswith(f"{path}, record 6: Corrupted Riegeli/records file: chunk data hash mismatch")
    assert [len(row["value"]) for row in (rows_of(columns, 16)[15 - i] for i in (0, 15))] == [3000, 3000]


def test_files_that_are_none(tmp_path):
    whole = pathlib.Path(write(tmp_path / "a.arrayrecord", map(record, range(100)))).read_bytes()
    bad = tmp_path / "b.arrayrecord"
    for content, text in (
        (b"", "is empty"),
        (whole[:-1], "is no ArrayRecord file"),
        (b'{"a": 1}\n' * 9, "is no ArrayRecord file"),
    ):
        bad.write_bytes(content)
        with pytest.raises(DataError, match=f"b.arrayrecord .*{text}" if content else text) as caught:
            ArrayRecordSource([str(bad)], None)
        assert caught.value.path == str(bad)


def test_a_file_that_changed_or_went_away(tmp_path):
    path = write(tmp_path / "a.arrayrecord", map(record, range(5)))
    source = ArrayRecordSource([path], None)
    before = source.shards[0].fingerprint
    write(tmp_path / "a.arrayrecord", map(record, range(6)))
    with pytest.raises(DataError, match="has changed since it was indexed"):
        source.read(0, np.array([0]))
    assert ArrayRecordSource([path], None).shards[0].fingerprint != before
    pathlib.Path(path).unlink()
    with pytest.raises(DataError, match="a.arrayrecord: cannot be read"):
        source.read(0, np.array([0]))


def test_the_fingerprint_is_that_of_size_and_tail(tmp_path):
    one, again = (write(tmp_path / name, map(record, range(50))) for name in ("a.arrayrecord", "b.arrayrecord"))
    other = write(tmp_path / "c.arrayrecord", [record(0), *map(record, range(2, 51))])
    fingerprints = [ArrayRecordSource([path], None).shards[0].fingerprint for path in (one, again, other)]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]
    content = bytearray(pathlib.Path(one).read_bytes())
    content[70] ^= 1
    pathlib.Path(again).write_bytes(content)
    assert ArrayRecordSource([again], None).shards[0].fingerprint != fingerprints[0]  # small files are hashed whole


def test_more_files_than_stay_open(tmp_path):
    paths = [write(tmp_path / f"{i:03}.arrayrecord", [record(i)]) for i in range(80)]
    before = len(os.listdir("/proc/self/fd"))
    source = ArrayRecordSource(paths, None)
    assert [values(source, shard, [0]) for shard in range(80)] == [[record(i)] for i in range(80)]
    assert len(os.listdir("/proc/self/fd")) <= before + 64


@pytest.mark.parametrize("group", [1, 7])
def test_threads_read_one_file_at_once(tmp_path, group):
    source = ArrayRecordSource(
        [write(tmp_path / "a.arrayrecord", map(record, range(200)), f"group_size:{group}")], None
    )
    wrong: list[object] = []

    def read(seed: int) -> None:
        try:
            for k in range(10):
                samples = np.random.Generator(np.random.Philox(key=[seed, k])).integers(0, 200, 30).tolist()
                if values(source, 0, samples) != [record(i) for i in samples]:
                    wrong.append(samples)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
