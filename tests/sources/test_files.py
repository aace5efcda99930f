"""From names to files and formats."""

from __future__ import annotations

import os
import pathlib
import threading

import pytest

from zephon_jax import ConfigurationError, Dataset
from zephon_jax.sources import files
from zephon_jax.sources.base import Shard


class Recorded:
    """Stands for a format's source: remembers what it was given."""

    def __init__(self, paths, fields):
        self.paths, self.fields = list(paths), fields
        self.shards = [Shard(path, 1, "00") for path in paths]


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """What a name comes to: the format and the paths below the test's folder."""

    got: list[tuple[str, list[str]]] = []

    def source_class(format):
        return lambda paths, fields: got.append((format, list(paths))) or Recorded(paths, fields)

    monkeypatch.setattr(files, "_source_class", source_class)

    def of(*names, format=None):
        given = [name if "://" in name else f"{tmp_path}/{name}" for name in names]
        Dataset.from_path("d", given[0] if len(given) == 1 else given, format=format)
        format, paths = got.pop()
        return format, [path.removeprefix(f"{tmp_path}/") for path in paths]

    return of


def touch(root: pathlib.Path, *names: str) -> None:
    for name in names:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.jsonl", "jsonl"),
        ("a.ndjson", "jsonl"),
        ("a.jsonl.gz", "jsonl"),
        ("a.ndjson.zst", "jsonl"),
        ("a.parquet", "parquet"),
        ("a.arrayrecord", "arrayrecord"),
        ("a.array_record", "arrayrecord"),
        ("a.b-00001-of-00002.parquet", "parquet"),
        ("a.zarr/", "zarr"),
    ],
)
def test_the_suffix_tells_the_format(tmp_path, opened, name, format):
    touch(tmp_path, name)
    assert opened(name) == (format, [name]) or opened(name) == (format, [name.rstrip("/")])
    assert opened("*") == (format, [name.rstrip("/")])
    assert opened("") == (format, [name.rstrip("/")])


def test_every_format_has_a_class():
    for format in files.FORMATS:
        assert callable(files._source_class(format))


def test_a_zarr_folder_is_one_unit_and_a_saved_dataset_too(tmp_path, opened):
    touch(tmp_path, "s/a.zarr/zarr.json", "s/a.zarr/x.jsonl", "s/b.zarr/c/0", "s/.c.zarr/")
    assert opened("s") == ("zarr", ["s/a.zarr", "s/b.zarr"])
    assert opened("s/*.zarr") == ("zarr", ["s/a.zarr", "s/b.zarr"])
    assert opened("s/a.zarr/") == ("zarr", ["s/a.zarr/"])
    assert opened("s/a.zarr/x.jsonl") == ("jsonl", ["s/a.zarr/x.jsonl"])
    touch(
        tmp_path,
        "h/state.json",
        "h/dataset_info.json",
        "h/data-00000-of-00001.arrow",
        "g/train/state.json",
        "g/train/dataset_info.json",
    )
    assert opened("h") == ("arrow", ["h"])
    assert opened("g/train", "h") == ("arrow", ["g/train", "h"])
    assert opened("g") == ("arrow", ["g/train"])
    touch(tmp_path, "k/dataset_dict.json", "k/train/")
    assert opened("k") == ("arrow", ["k"])  # which tells what to name instead
    touch(tmp_path, "plain/x")
    assert opened("plain", format="zarr") == ("zarr", ["plain"])


def test_hidden_files_are_data_only_when_named(tmp_path, opened):
    touch(tmp_path, "a.jsonl", "._a.jsonl", ".b.jsonl", ".d/c.jsonl", "e/.f/c.jsonl")
    assert opened("") == ("jsonl", ["a.jsonl"])
    assert opened("*.jsonl") == ("jsonl", ["a.jsonl"])
    assert opened("**/*.jsonl") == ("jsonl", ["a.jsonl"])
    assert opened("._a.jsonl") == ("jsonl", ["._a.jsonl"])


def test_a_file_url_is_a_path(tmp_path, opened):
    touch(tmp_path, "some data/a.jsonl")
    for url in (
        f"file://{tmp_path}/some data/a.jsonl",
        f"file://{tmp_path}/some%20data/*.jsonl",
        f"file://localhost{tmp_path}/some data",
    ):
        assert opened(url) == ("jsonl", ["some data/a.jsonl"])


def test_a_dataset_has_one_format(tmp_path, opened):
    touch(tmp_path, "a.jsonl", "b.parquet", "sub/")
    with pytest.raises(
        ConfigurationError, match="a dataset has one format, but here are several: .*a.jsonl.*b.parquet"
    ):
        opened("")
    assert opened("*.jsonl") == ("jsonl", ["a.jsonl"])
    assert opened("a.jsonl", "b.parquet", format="parquet") == ("parquet", ["a.jsonl", "b.parquet"])
    assert opened("", format="jsonl") == ("jsonl", ["a.jsonl", "b.parquet"])


def test_links_to_one_file_are_one_file(tmp_path, opened):
    touch(tmp_path, "d/a.jsonl", "d/b.jsonl")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "d" / "a.jsonl")
    (tmp_path / "other").symlink_to(tmp_path / "d")
    for names in (
        ["d/a.jsonl", "link.jsonl"],
        ["d", "other"],
        ["d/a.jsonl", "d/../d/a.jsonl"],
        ["d/a.jsonl", "other/a.jsonl"],
    ):
        with pytest.raises(ConfigurationError, match="files are named twice"):
            opened(*names)
    assert opened("link.jsonl", "d/b.jsonl") == ("jsonl", ["link.jsonl", "d/b.jsonl"])


@pytest.mark.parametrize(
    ("key", "pattern", "want"),
    [
        ("a.x", "*.x", True),
        ("d/a.x", "*.x", False),
        ("d/a.x", "*/*.x", True),
        ("d/a.x", "**/*.x", True),
        ("a.x", "**/*.x", True),
        ("d/e/a.x", "**/*.x", True),
        ("d/e/a.x", "d/**", True),
        ("d/e/a.x", "d/**/a.x", True),
        ("d/.e/a.x", "**/a.x", False),
        (".a.x", "*.x", False),
        (".a.x", ".*.x", True),
        ("a.x", "?.x", True),
        ("ab.x", "?.x", False),
        ("a.x", "[ab].x", True),
        ("A.x", "a.x", False),
    ],
)
def test_globs_of_keys_match_as_those_of_paths_do(tmp_path, monkeypatch, key, pattern, want):
    import glob

    touch(tmp_path, key)
    monkeypatch.chdir(tmp_path)
    assert (key in glob.glob(pattern, recursive=True)) == want
    assert files._matches(key.split("/"), pattern.split("/")) == want


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrayrecord"])
@pytest.mark.parametrize("named", ["{}", "", "*"])
def test_what_is_no_file_is_an_error_and_never_waited_for(tmp_path, name, named):
    library = {".parquet": "pyarrow", ".arrayrecord": "array_record"}.get(os.path.splitext(name)[1])
    if library is not None:
        pytest.importorskip(library)
    os.mkfifo(tmp_path / name)
    got: list[BaseException] = []

    def ask():
        try:
            Dataset.from_path("d", f"{tmp_path}/{named.format(name)}")
        except BaseException as error:
            got.append(error)

    thread = threading.Thread(target=ask, daemon=True)  # which would wait for a writer
    thread.start()
    thread.join(timeout=10)
    assert [type(error) for error in got] == [ConfigurationError]
    assert f"{name} is a pipe, a socket or a device (prw" in str(got[0])


def test_a_device_is_no_file():
    with pytest.raises(
        ConfigurationError, match=r"/dev/null is a pipe, a socket or a device \(crw.*a file was expected"
    ):
        Dataset.from_path("d", "/dev/null", format="jsonl")
