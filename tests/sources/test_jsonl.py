"""JSONL: whatever Python's own reader gives of each line, by index, and errors that name file and line."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import os
import pathlib
import pickle
import shutil

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.ops import PROPERTY, same, same_rows
from zephon_jax import ConfigurationError, DataError, Dataset
from zephon_jax.columns import as_rows, columns_from_rows, rows_of
from zephon_jax.sources.cache import cache_folder
from zephon_jax.sources.compressed import decompressed
from zephon_jax.sources.jsonl import JsonlSource, _scanned

BOM = b"\xef\xbb\xbf"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("jsonl")


@pytest.fixture
def write(tmp_path):
    def written(content: bytes | str, name: str = "a.jsonl") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return written


def rows_in(path: str, **options) -> list[dict]:
    ds = Dataset.from_path("d", path, **options)
    return [ds[i] for i in range(len(ds))]


def values_in(path: str) -> list:
    return [row["v"] for row in rows_in(path)]


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=3)),
    max_leaves=5,
)
lines = st.one_of(
    st.builds(lambda v, raw: json.dumps(v, ensure_ascii=not raw).encode("utf-8", "replace"), values, st.booleans()),
    st.sampled_from([b"", b" ", b"\t \r", b"  \v\f", b'  {"v": 1}  ', b'{"v":\t1}\r']),
)


@PROPERTY
@given(st.lists(lines, max_size=8), st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_every_line_that_holds_something_is_a_sample(folder, content, bom, newline, rng):
    path = folder / "any.jsonl"
    path.write_bytes((BOM if bom else b"") + b"\n".join(content) + (b"\n" if newline else b""))
    want = [json.loads(line) for line in content if line.strip()]
    ds = Dataset.from_path("d", path)
    assert len(ds) == len(want)
    index = [rng.randrange(len(want)) for _ in range(6)] if want else []
    columns, bad = ds.read(0, np.array(index, np.int64))
    assert bad == {}
    expected = rows_of(columns_from_rows(as_rows([want[i] for i in index])), len(index))
    assert same_rows(rows_of(columns, len(index)), expected)


@pytest.mark.parametrize(
    ("content", "want"),
    [
        ('{"v": 1}\n{"v": 2}\n', [1, 2]),
        ('{"v": 1}\n{"v": 2}', [1, 2]),
        ('\n\n{"v": 1}\n\n   \n\t\n{"v": 2}\n \n\n', [1, 2]),
        ('{"v": 1}\r\n\r\n  \r\n{"v": 2}\r\n', [1, 2]),
        (BOM + b'{"v": 1}\n{"v": 2}\n', [1, 2]),
        (BOM + b'\n{"v": 1}\n', [1]),
        (BOM + b'{"v": 1}\n' + BOM + b'{"v": 2}\n', [1, 2]),  # two files put together
        ('   {"v": 1}\n\t{"v": 2}', [1, 2]),
        ("", []),
        ("\n", []),
        (" ", []),
        (BOM, []),
        (BOM + b"\n", []),
        ("\r\n \n", []),
        ('{"v": "\u2028 \u0085 \\n \\u0000"}\n{"v": "日本\U0001f600"}\n', ["\u2028 \u0085 \n \x00", "日本\U0001f600"]),
    ],
    ids=repr,
)
def test_lines_blanks_and_marks(write, content, want):
    assert values_in(write(content)) == want


def test_a_value_that_is_no_object_is_a_field(write):
    rows = rows_in(write('1\n"a"\nnull\n[1, 2]\n[]\n'))
    want = [np.int64(1), "a", None, np.array([1, 2]), np.zeros(0, np.int64)]
    assert all(list(row) == ["value"] and same(row["value"], w) for row, w in zip(rows, want, strict=True))


def test_a_huge_line_between_small_ones(write):
    huge = "x\u00e9" * 2_500_000
    path = write(f'{{"v": "a"}}\n{{"v": "{huge}"}}\n\n{{"v": "b"}}\n')
    assert pathlib.Path(path).stat().st_size > 5 << 20
    ds = Dataset.from_path("d", path)
    assert [len(ds), ds[0]["v"], ds[2]["v"]] == [3, "a", "b"]
    assert ds[1]["v"] == huge
    columns, bad = ds.read(0, np.array([2, 1, 0]))
    assert bad == {}
    assert [len(row["v"]) for row in rows_of(columns, 3)] == [1, 5_000_000, 1]


def test_lines_beyond_the_block_in_which_files_are_indexed(write, monkeypatch):
    monkeypatch.setattr("zephon_jax.sources.jsonl._BLOCK_BYTES", 7)
    content = "".join(f'{{"v": {i}}}\n' + "\n" * (i % 3) for i in range(30))
    path = write(content)
    assert values_in(path) == list(range(30))
    small = Dataset.from_path("d", path).fingerprint
    monkeypatch.undo()
    assert Dataset.from_path("d", path).fingerprint == small


def broken_line(path: str, sample: int) -> DataError:
    ds = Dataset.from_path("d", path)
    with pytest.raises(DataError) as caught:
        ds[sample]
    assert caught.value.path == path
    assert caught.value.shard == 0
    assert caught.value.record == sample
    return caught.value


@pytest.mark.parametrize(
    ("content", "sample", "line", "begins"),
    [
        ('{"v": 1}\n{"v": }\n', 1, 2, "'{\"v\": }' and has 7 bytes"),
        ('{"v": 1}\n\n\n{"v": 2}\n{"v": "cut o', 2, 5, '\'{"v": "cut o\' and has 12 bytes'),
        ('{"v": 1} {"v": 2}\n', 0, 1, "and has 17 bytes"),
        ("no json\r\n", 0, 1, r"'no json\r' and has 8 bytes"),
        (b'{"v": "\xff\xfe"}\n', 0, 1, r"\\xff\\xfe"),
        (b'{"v": 1}\n\x00\n', 1, 2, r"'\x00' and has 1 bytes"),
        ("\u00a0\n", 0, 1, "and has 2 bytes"),
        ('{"v": ' + "9" * 5000 + "}\n", 0, 1, "and has 5007 bytes"),
    ],
    ids=["syntax", "cut off", "two values", "text", "utf-8", "nul", "hard space", "huge number"],
)
def test_a_line_that_is_no_json_names_file_and_line(write, content, sample, line, begins):
    path = write(content)
    error = broken_line(path, sample)
    assert str(error).startswith(f"{path}, line {line}: not valid JSON (")
    assert begins in str(error)
    assert "on_data_error='skip'" in str(error)


def test_a_broken_line_does_not_touch_its_neighbours(write):
    path = write('{"v": 1}\nbad\n{"v": 3}\nworse\n')
    columns, bad = JsonlSource([path]).read(0, np.array([2, 1, 0, 3, 1]))
    rows = rows_of(columns, 5)
    assert [rows[0], rows[2]] == [{"v": 3}, {"v": 1}]
    assert {i: error.record for i, error in bad.items()} == {1: 1, 3: 3, 4: 1}


def test_a_line_nested_too_deeply_names_file_and_line(write):
    path = write('{"v": 1}\n' + "[" * 100_000 + "\n")
    assert str(broken_line(path, 1)).startswith(f"{path}, line 2: ")


def test_a_file_that_shrank_is_an_error_of_storage(write):
    path = write('{"v": 1}\n{"v": 2}\n')
    source = JsonlSource([path])
    write('{"v": 1}\n')
    with pytest.raises(DataError):
        source.read(0, np.array([1]))


def test_a_file_that_went_away_is_an_error_of_storage(write):
    path = write('{"v": 1}\n')
    source = JsonlSource([path])
    pathlib.Path(path).unlink()
    with pytest.raises(DataError, match=r"a.jsonl: cannot be read: .*No such file"):
        source.read(0, np.array([0]))


def test_only_these_fields(write):
    path = write('\n{"a": 1, "b": 2, "c": 3}\n{"b": 5}\n{"a": 6, "d": 7}\n')
    rows = rows_in(path, fields=["c", "a"])
    assert rows == [{"c": 3, "a": 1}, {}, {"a": 6}]
    with pytest.raises(
        ConfigurationError, match=r"a.jsonl, line 2: no field \['x', 'd'\]; the first sample has \['a', 'b', 'c'\]"
    ):
        Dataset.from_path("d", path, fields=["a", "x", "d"])


def test_the_first_file_with_samples_tells_the_fields(write):
    empty, full = write("\n", "empty.jsonl"), write('{"a": 1}\n', "full.jsonl")
    assert Dataset.from_path("d", [empty, full], fields=["a"])[0] == {"a": 1}
    with pytest.raises(ConfigurationError, match=r"full.jsonl, line 1: no field \['b'\]"):
        Dataset.from_path("d", [empty, full], fields=["b"])
    assert len(Dataset.from_path("d", write("bad\n", "bad.jsonl"), fields=["b"])) == 1  # known when it is read
    assert len(Dataset.from_path("d", empty, fields=["b"])) == 0


def test_other_fields_are_other_samples(write):
    path = write('{"a": 1, "b": 2}\n')
    assert (
        Dataset.from_path("d", path, fields=["a"]).fingerprint != Dataset.from_path("d", path, fields=["b"]).fingerprint
    )


def test_the_fingerprint_is_that_of_every_byte(write):
    content = b'{"v": 1}\n\n{"v": 22}\n'
    whole = Dataset.from_path("d", write(content)).fingerprint
    assert whole == Dataset.from_path("e", write(content, "other/b.jsonl")).fingerprint  # not of names and paths
    for i in range(len(content)):
        changed = bytearray(content)
        changed[i] ^= 1
        assert Dataset.from_path("d", write(bytes(changed))).fingerprint != whole
    assert Dataset.from_path("d", write(content + b"\n")).fingerprint != whole


def names(*paths) -> list[str]:
    return [pathlib.Path(shard.name).name for shard in Dataset.from_path("d", *paths).shards]


@pytest.fixture
def tree(write):
    """b, a, a hidden one, a folder, and something else."""
    for name in ("b.jsonl", "a.jsonl", ".hidden.jsonl", "deep/c.jsonl", "c.ndjson"):
        write(f'{{"v": "{name}"}}\n', name)
    root = pathlib.Path(write("nothing", "notes.txt")).parent
    return root


def test_a_folder_a_glob_and_a_list(tree):
    assert names(tree) == ["a.jsonl", "b.jsonl", "c.ndjson"]
    assert names(str(tree)) == ["a.jsonl", "b.jsonl", "c.ndjson"]
    assert names(f"{tree}/*.jsonl") == ["a.jsonl", "b.jsonl"]
    assert names(f"{tree}/**/*.jsonl") == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert names(f"{tree}/[b].jsonl") == ["b.jsonl"]
    assert names([tree / "b.jsonl", f"{tree}/a*"]) == ["b.jsonl", "a.jsonl"]
    assert names([str(tree / "deep"), tree / "a.jsonl"]) == ["c.jsonl", "a.jsonl"]
    assert names(tree / ".hidden.jsonl") == [".hidden.jsonl"]  # named outright


def test_a_name_with_the_signs_of_a_glob(write):
    assert values_in(write('{"v": 1}', "part[1].jsonl")) == [1]


@pytest.mark.parametrize(
    ("paths", "text"),
    [
        ("{tree}/none.jsonl", "no such file: {tree}/none.jsonl"),
        ("{tree}/*.parquet", "the pattern {tree}/*.parquet matches no file"),
        ("{tree}/.h*.jsonl", "the pattern {tree}/.h*.jsonl matches no file"),
        ("{tree}/notes.txt", "notes.txt: the suffix is not one of ['.array_record', "),
        (
            "https://example.org/a.jsonl",
            "https://example.org/a.jsonl: only local paths, file://, s3:// and gs:// can be read",
        ),
        ([], "an empty list of paths names no data"),
        (["{tree}/a.jsonl", "{tree}/a.jsonl"], "files are named twice: ['{tree}/a.jsonl']"),
        (["{tree}/a.jsonl", "{tree}/*.jsonl"], "files are named twice: ['{tree}/a.jsonl']"),
    ],
    ids=str,
)
def test_paths_that_cannot_be_meant(tree, paths, text):
    given_paths = [p.format(tree=tree) for p in paths] if isinstance(paths, list) else paths.format(tree=tree)
    with pytest.raises(ConfigurationError) as caught:
        Dataset.from_path("d", given_paths)
    assert text.format(tree=tree) in str(caught.value)


def test_a_folder_without_data(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "readme.txt").write_text("nothing")
    with pytest.raises(ConfigurationError, match=r"holds no file that ends in \[.*'.jsonl', '.jsonl.gz', '.jsonl.zst'"):
        Dataset.from_path("d", tmp_path)


def test_one_file_named_in_two_ways(tree):
    with pytest.raises(ConfigurationError, match="named twice"):
        Dataset.from_path("d", [f"{tree}/a.jsonl", f"{tree}/deep/../a.jsonl"])


def test_the_format_may_be_told(write):
    path = write('{"v": 1}\n', "data.txt")
    assert rows_in(path, format="jsonl") == [{"v": 1}]
    with pytest.raises(ConfigurationError, match=r"format='csv' is not one of \[.*'jsonl'"):
        Dataset.from_path("d", path, format="csv")


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, bz2.compress], ids=["gzip", "zstd", "bzip2"])
def test_compressed_content_under_another_name_is_told_apart(write, name, pack):
    path = write(pack(b'{"v": 1}\n'), name)
    with pytest.raises(ConfigurationError, match=f"{name} is compressed, but its name does not end in .gz or .zst"):
        Dataset.from_path("d", path, format="jsonl")


# -- compressed --------------------------------------------------------------------------------------------------------

CONTENT = "".join(f'{{"v": {i}, "t": "{"text " * (i % 9)}"}}\n' + "\n" * (i % 2) for i in range(2000)).encode()
SKIPPABLE = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"


def in_parts(pack):
    return pack(CONTENT[:7000]) + pack(b"") + pack(CONTENT[7000:])


def zstd_stream(content):
    """As a pipe writes it: the frame does not tell its size."""
    packer = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    return packer.compress(content) + packer.flush()


PACKED = {
    "gzip": (".gz", gzip.compress(CONTENT)),
    "gzip members": (".gz", in_parts(gzip.compress)),
    "gzip padded": (".gz", gzip.compress(CONTENT) + bytes(100)),
    "zstd": (".zst", zstandard.compress(CONTENT)),
    "zstd frames": (".zst", in_parts(zstandard.compress)),
    "zstd stream": (".zst", zstd_stream(CONTENT)),
    "zstd skippable": (".zst", SKIPPABLE + in_parts(zstandard.compress) + SKIPPABLE),
}


@pytest.mark.parametrize("feed", [1, 1000, 1 << 16])
@pytest.mark.parametrize("case", PACKED)
def test_every_byte_comes_out(monkeypatch, case, feed):
    if feed == 1:
        monkeypatch.setattr("zephon_jax.sources.compressed._FEED_BYTES", 1)
    suffix, packed = PACKED[case]
    blocks = [packed[i : i + feed] for i in range(0, len(packed), feed)]
    assert b"".join(decompressed(blocks, f"x{suffix}")) == CONTENT


@pytest.mark.parametrize("case", PACKED)
def test_a_compressed_file_is_the_plain_one(write, case):
    suffix, packed = PACKED[case]
    plain = Dataset.from_path("d", write(CONTENT))
    ds = Dataset.from_path("d", write(packed, f"a.jsonl{suffix}"))
    assert ds.fingerprint == plain.fingerprint
    assert [ds[i]["v"] for i in (0, 7, 1999)] == [0, 7, 1999]
    columns, bad = ds.read(0, np.array([1500, 3, 4, 5, 3]))
    assert not bad
    assert same_rows(rows_of(columns, 5), [plain[i] for i in (1500, 3, 4, 5, 3)])


@pytest.mark.parametrize("case", [case for case in PACKED if case not in ("gzip padded", "zstd skippable")])
def test_a_file_cut_off_anywhere_is_an_error(case):
    suffix, packed = PACKED[case]
    complete = {len(packed)} | ({len(gzip.compress(CONTENT[:7000]))} if "members" in case else set())
    if case.endswith(("members", "frames")):  # between members, a cut leaves a whole file: nothing can tell
        pack = gzip.compress if suffix == ".gz" else zstandard.compress
        first = len(pack(CONTENT[:7000]))
        complete |= {first, first + len(pack(b""))}
    for stop in [*range(40), *range(40, len(packed), 97), *range(len(packed) - 20, len(packed))]:
        if stop in complete:
            continue
        with pytest.raises(
            DataError, match=rf"x\.jsonl{suffix}: the compressed content is cut off after {stop:,} bytes"
        ):
            list(decompressed([packed[:stop]], f"x.jsonl{suffix}"))


@pytest.mark.parametrize("case", ["gzip", "zstd stream"])
def test_a_damaged_compressed_file_is_an_error(write, case):
    suffix, packed = PACKED[case]
    for i in range(0, len(packed), max(1, len(packed) // 50)):
        damaged = bytearray(packed)
        damaged[i] ^= 0x10
        with contextlib.suppress(DataError):
            # No error, so the byte means nothing, as those of gzip's time stamp do.
            assert b"".join(decompressed([bytes(damaged)], f"x{suffix}")) == CONTENT, i
    path = write(packed + b"and more", f"a.jsonl{suffix}")
    with pytest.raises(DataError, match="damaged near byte") as caught:
        Dataset.from_path("d", path)
    assert caught.value.path == path


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_an_empty_file_is_no_compressed_one(write, suffix):
    with pytest.raises(DataError, match=f"a.jsonl{suffix}: the compressed content is cut off after 0 bytes"):
        Dataset.from_path("d", write(b"", f"a.jsonl{suffix}"))


def test_errors_in_compressed_files_name_file_and_line(write):
    path = write(gzip.compress(b'{"v": 1}\n\nbad\n'), "a.ndjson.gz")
    assert str(broken_line(path, 1)).startswith(f"{path}, line 3: not valid JSON")


def test_a_compressed_file_is_read_from_its_copy_and_copied_again_when_that_is_gone(write):
    path = write(gzip.compress(CONTENT), "a.jsonl.gz")
    ds = Dataset.from_path("d", path)
    shutil.rmtree(cache_folder())
    assert ds[1234]["v"] == 1234


def test_a_compressed_file_that_changes_is_an_error(write):
    path = write(gzip.compress(CONTENT), "a.jsonl.gz")
    ds = Dataset.from_path("d", path)
    write(gzip.compress(CONTENT + b"1\n"), "a.jsonl.gz")
    with pytest.raises(DataError, match="a.jsonl.gz has changed since it was indexed"):
        ds[0]


def test_plain_and_compressed_files_may_be_mixed(write):
    write(gzip.compress(b'{"v": 1}\n'), "b.jsonl.gz")
    write('{"v": 0}\n', "a.jsonl")
    root = pathlib.Path(write(zstandard.compress(b'{"v": 2}\n'), "c.ndjson.zst")).parent
    ds = Dataset.from_path("d", root)
    assert [ds[i]["v"] for i in range(3)] == [0, 1, 2]


# -- others ------------------------------------------------------------------------------------------------------------


def test_shards_are_files(write):
    paths = [write('{"v": 1}\n{"v": 2}\n', "a.jsonl"), write("", "b.jsonl"), write('{"v": 3}\n', "c.jsonl")]
    ds = Dataset.from_path("d", paths)
    assert [(s.name, s.num_samples) for s in ds.shards] == [(paths[0], 2), (paths[1], 0), (paths[2], 1)]
    assert [ds[i]["v"] for i in range(3)] == [1, 2, 3]
    assert rows_of(ds.read(2, np.array([0]))[0], 1) == [{"v": 3}]


def test_nothing_of_a_shard(write):
    columns, bad = JsonlSource([write('{"v": 1}\n')]).read(0, np.zeros(0, np.int64))
    assert (dict(columns), bad) == ({}, {})


@PROPERTY
@given(st.lists(lines, max_size=8), st.booleans(), st.integers(3, 30))
def test_the_size_of_blocks_does_not_matter(content, bom, block):
    data = (BOM if bom else b"") + b"\n".join(content)
    whole = _scanned([data] if data else [], "x")
    parts = _scanned([data[i : i + block] for i in range(0, len(data), block)], "x")
    assert (whole.num_samples, whole.digest) == (parts.num_samples, parts.digest)
    assert whole.arrays.keys() == parts.arrays.keys()
    assert all(np.array_equal(whole.arrays[name], parts.arrays[name]) for name in whole.arrays)


def test_integers_beyond_64_bits_and_nan_stay_what_they_are(write):
    """Why the parser is not orjson, which makes floats of the former and refuses the latter."""
    rows = rows_in(write('{"v": 123456789012345678901234567890}\n{"v": NaN}\n'))
    assert rows[0]["v"] == 123456789012345678901234567890
    assert np.isnan(rows[1]["v"])


def test_no_number_of_shards_exhausts_handles(tmp_path):
    resource = pytest.importorskip("resource")
    for i in range(120):
        (tmp_path / f"{i:03}.jsonl").write_text(f'{{"v": {i}}}\n')
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/proc/self/fd"))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 40, limits[1]))
        ds = Dataset.from_path("d", tmp_path)
        assert [int(ds[i]["v"]) for i in range(120)] == list(range(120))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_dataset_can_be_sent_to_another_process(write):
    big = "".join(f'{{"v": {i}, "t": "{"x" * 500}"}}\n' for i in range(3000))
    for path in (write(big, "big.jsonl"), write('{"v": 0}\n', "small.jsonl")):
        ds = Dataset.from_path("d", path)
        again = pickle.loads(pickle.dumps(ds))
        assert again.fingerprint == ds.fingerprint
        assert same_rows([again[0], again[len(ds) - 1]], [ds[0], ds[len(ds) - 1]])
