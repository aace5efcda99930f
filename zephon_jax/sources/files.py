"""From what a user names to the files meant, and the format that reads them, checked at once.

A name is a path, a folder, a glob or a URL of object storage. Some formats keep one dataset in a folder (`.zarr`, and what
Hugging Face's `save_to_disk` writes): such a folder is one unit here, as a file is. Hidden files, whose name begins with a
dot, are data only when they are named outright.
"""

from __future__ import annotations

import collections
import fnmatch
import glob
import importlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast
from urllib.parse import unquote

from zephon_jax.errors import ConfigurationError
from zephon_jax.sources.base import Source
from zephon_jax.sources.compressed import SUFFIXES as COMPRESSED
from zephon_jax.sources.storage import is_remote

__all__ = ["FORMATS", "open_files"]

# Format → where its class is. Imported when it is needed: most need a library that is not always there.
_CLASSES = {
    "jsonl": ("zephon_jax.sources.jsonl", "JsonlSource"),
    "parquet": ("zephon_jax.sources.parquet", "ParquetSource"),
    "arrayrecord": ("zephon_jax.sources.arrayrecord", "ArrayRecordSource"),
    "zarr": ("zephon_jax.sources.zarr", "ZarrSource"),
    "arrow": ("zephon_jax.sources.arrow", "ArrowSource"),
}
FORMATS = sorted(_CLASSES)
_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    **{suffix + packed: "jsonl" for suffix in (".jsonl", ".ndjson") for packed in COMPRESSED},
    ".parquet": "parquet",
    ".arrayrecord": "arrayrecord",
    ".array_record": "arrayrecord",
    ".zarr": "zarr",
}
_FOLDERS = {"zarr", "arrow"}  # formats of which one unit is a folder
_SAVED = ("state.json", "dataset_info.json")  # in a folder that `save_to_disk` wrote
_MAGIC = re.compile(r"[*?[]")


def open_files(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], format: str | None, fields: Sequence[str] | None
) -> Source:
    """The source of these files; all must be of one format."""
    if format is not None and format not in FORMATS:
        raise ConfigurationError(f"format={format!r} is not one of {FORMATS}")
    if isinstance(fields, str):
        raise ConfigurationError(f"fields={fields!r} must be a list of names: [{fields!r}]")
    single = isinstance(paths, (str, os.PathLike)) or not isinstance(paths, Iterable)
    given: list[Any] = [paths] if single else list(cast(Iterable[Any], paths))
    for one in given:
        if not isinstance(one, (str, os.PathLike)):
            raise ConfigurationError(f"a path was expected, got {one!r}")
    found = [path for one in given for path in _expand(os.fspath(one), format)]
    if not found:
        raise ConfigurationError("an empty list of paths names no data")
    _check_unique(found)
    return _source_class(format or _format_of_all(found))(found, fields)


def _source_class(format: str) -> Callable[[Sequence[str], Sequence[str] | None], Source]:
    module, name = _CLASSES[format]
    return getattr(importlib.import_module(module), name)


def _format_of_all(paths: Sequence[str]) -> str:
    first: dict[str, str] = {}
    for path in paths:
        format = _format_of(path)
        if format is None:
            raise ConfigurationError(
                f"{path}: the suffix is not one of {sorted(_SUFFIXES)}; pass format= if the content is one of {FORMATS}"
            )
        first.setdefault(format, path)
    if len(first) > 1:
        raise ConfigurationError(
            f"a dataset has one format, but here are several: {first}. Name the files of one of them, as with "
            "'folder/*.jsonl', and mix the datasets by a work source"
        )
    return next(iter(first))


def _format_of(path: str) -> str | None:
    name = path.rstrip("/").rpartition("/")[2]
    for suffix, format in _SUFFIXES.items():
        if name.endswith(suffix):
            return format
    return "arrow" if not is_remote(path) and _is_saved_dataset(path) else None


def _is_saved_dataset(folder: str) -> bool:
    return all(os.path.isfile(os.path.join(folder, name)) for name in _SAVED) or os.path.isfile(
        os.path.join(folder, "dataset_dict.json")  # several of them: the source says how to name one
    )


def _check_unique(paths: Sequence[str]) -> None:
    """Refuse a file that is named twice. Links are followed; each folder is resolved once, since there may be many files."""
    folders: dict[str, str] = {}

    def real(path: str) -> str:
        if is_remote(path):
            return path.rstrip("/")
        if os.path.islink(path):
            return os.path.realpath(path)
        folder, name = os.path.split(path.rstrip("/"))
        if name in ("", ".", ".."):
            return os.path.realpath(path)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        return f"{folders[folder]}/{name}"

    resolved = [real(path) for path in paths]
    times = collections.Counter(resolved)
    if len(times) < len(paths):
        twice = sorted({path for path, r in zip(paths, resolved, strict=True) if times[r] > 1})
        raise ConfigurationError(f"files are named twice: {twice[:5]}; each sample would be read twice a pass")


# -- what a name means -------------------------------------------------------------------------------------------------
def _expand(path: str, format: str | None) -> list[str]:
    if path.startswith("file://"):
        path = unquote(path.removeprefix("file://").removeprefix("localhost"))
    if is_remote(path):
        return _expand_url(path, format)
    if "://" in path:
        raise ConfigurationError(
            f"{path}: only local paths, file://, s3:// and gs:// can be read; copy the data to one of them"
        )
    path = os.path.expanduser(path)
    if os.path.isdir(path):
        if format in _FOLDERS or _format_of(path) in _FOLDERS:
            return [path]
        return _in_folder(path, format)
    if os.path.exists(path):
        return [path]
    if glob.has_magic(path):
        found = [p for p in sorted(glob.glob(path, recursive=True)) if _is_unit(p, format)]
        if not found:
            raise ConfigurationError(f"the pattern {path} matches no file (working directory {os.getcwd()})")
        return found
    raise ConfigurationError(f"no such file: {path} (working directory {os.getcwd()})")


def _in_folder(path: str, format: str | None) -> list[str]:
    with os.scandir(path) as entries:
        inside = sorted((f"{path.rstrip('/')}/{e.name}", e.is_dir()) for e in entries if not e.name.startswith("."))
    known = [(p, is_dir, format or _format_of(p)) for p, is_dir in inside]
    found = [p for p, is_dir, kind in known if kind is not None and is_dir == (kind in _FOLDERS)]
    if not found:
        raise ConfigurationError(f"folder {path} holds no file that ends in {sorted(_SUFFIXES)}")
    return found


def _is_unit(path: str, format: str | None) -> bool:
    """Whether a file or folder that a glob found is data."""
    if os.path.basename(path.rstrip("/")).startswith("."):
        return False
    return os.path.isdir(path) == ((format or _format_of(path)) in _FOLDERS)


def _expand_url(url: str, format: str | None) -> list[str]:
    from zephon_jax.sources.remote import exists, split

    _, _, key = split(url)
    magic = _MAGIC.search(url)
    if magic is None and (format or _format_of(url)) in _FOLDERS:
        return [url.rstrip("/")]
    # A plain name is taken for an object's: if there is none, reading sizes says so, for all of a long list at once.
    if key and not key.endswith("/") and ((magic is None and _format_of(url) is not None) or exists(url)):
        return [url]
    return _in_prefix(url, format) if magic is None else _in_glob(url, magic.start(), format)


def _in_glob(url: str, at: int, format: str | None) -> list[str]:
    """The objects, and the folders that are units, whose names match the pattern that begins at this position."""
    from zephon_jax.sources.remote import keys_below

    prefix = url[:at].rpartition("/")[0] + "/"
    pattern = url[len(prefix) :].split("/")
    found: set[str] = set()
    for below in keys_below(prefix):
        parts = below[len(prefix) :].split("/")
        for n in range(1, len(parts) + 1):
            is_folder = n < len(parts)
            if is_folder == ((format or _format_of(parts[n - 1])) in _FOLDERS) and _matches(parts[:n], pattern):
                found.add(prefix + "/".join(parts[:n]))
    found = {u for u in found if not u.rpartition("/")[2].startswith(".")}
    if not found:
        raise ConfigurationError(f"the pattern {url} matches no object")
    return sorted(found)


def _in_prefix(url: str, format: str | None) -> list[str]:
    """The objects, and the folders that are units, directly below this prefix."""
    from zephon_jax.sources.remote import keys_below

    folder = url.rstrip("/") + "/"
    below = [u[len(folder) :].partition("/") for u in keys_below(folder)]
    if not below:
        raise ConfigurationError(f"no such object: {url}; nothing is there and nothing below it")
    kinds = {(name, bool(deeper)): format or _format_of(name) for name, deeper, _ in below if name and name[0] != "."}
    found = sorted(
        folder + name for (name, deeper), kind in kinds.items() if kind is not None and deeper == (kind in _FOLDERS)
    )
    if not found:
        raise ConfigurationError(f"folder {url} holds no object that ends in {sorted(_SUFFIXES)}")
    return found


def _matches(parts: list[str], pattern: list[str]) -> bool:
    """As a shell's glob: `*` stays within a part, `**` is any number of them, neither matches a hidden one."""
    if not pattern or not parts:
        return not parts and all(p == "**" for p in pattern)
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (not parts[0].startswith(".") and _matches(parts[1:], pattern))
    return _part_matches(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _part_matches(part: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(part, pattern) and (not part.startswith(".") or pattern.startswith("."))
