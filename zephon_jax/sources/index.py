"""What is known of each file of a dataset (offsets, counts), built once and kept.

One index file holds the entries of all files of a dataset, so that 100,000 shards are one file to open. It stands in the
cache folder, or beside the data, where all machines share it (`zephon-jax index --beside`); both places are looked at. An
entry counts only while its file has the stamp with which it was built; the others are built anew, in parallel, and the
rest is copied. Files that are not there yet, or no longer, do not matter: entries are found by path, also in the index
of another list of files of the same folder.

What is damaged is built again, with a warning, and never trusted (`indexfile` notices). Files are written under another
name, synced and renamed: processes that write at once each write a whole one.

Data of less than 1 MiB in all keeps no index unless told to, as long as the entries are as small: reading one is as fast
as reading the other.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import hashlib
import itertools
import os
import pathlib
import time
import uuid
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.sources.cache import cache_folder
from zephon_jax.sources.indexfile import Damaged, Entry, IndexFile, write_index
from zephon_jax.sources.progress import progress
from zephon_jax.sources.storage import StoredFile, is_remote, settled

__all__ = ["Entry", "Kept", "ahead", "indexed"]

_SMALL_BYTES = 1 << 20
_UNUSED_S = 90 * 86_400.0
_WORKERS = min(16, 2 * (os.cpu_count() or 4))
_REMOTE_WORKERS = 16  # most of the time of small objects is the way there and back
BESIDE = ".zephon_jax"  # the hidden folder beside the data


@dataclass(frozen=True, slots=True)
class Kept:
    """What `ahead` tells of one index: where it is, of how many files, how many of them were built now, their bytes."""

    path: str
    files: int
    built: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Ahead:
    beside: bool
    kept: list[Kept]


_ahead: contextvars.ContextVar[_Ahead | None] = contextvars.ContextVar("zephon_jax_index_ahead", default=None)


@contextlib.contextmanager
def ahead(*, beside: bool) -> Generator[list[Kept], None, None]:
    """Datasets made in this block keep an index whatever their size, beside the data if so wished; it lists them."""
    told = _Ahead(beside, [])
    token = _ahead.set(told)
    try:
        yield told.kept
    finally:
        _ahead.reset(token)


def indexed(
    kind: str, version: int, files: Sequence[StoredFile], build: Callable[[StoredFile], Entry]
) -> Sequence[Entry]:
    """The entry of each file, in order: from a kept index where the file's stamp is still the same, else built.

    `kind` and `version` name what `build` makes: another version is built anew. `build` is called from several threads;
    the first error in the order of the files is raised. Entries of a kept index are read when they are asked for, their
    arrays are read-only and mapped into memory.
    """
    if not files:
        return []
    told, began_ns = _ahead.get(), time.time_ns()
    place = _Place.of(kind, version, [file.path for file in files])
    found = _find(place, files)
    missing = [i for i, at in enumerate(found) if at is None]
    beside = told is not None and told.beside
    kept_in = {at[0].path for at in found if at is not None}
    where = "".join(kept_in)
    if beside and place.beside is not None and not missing and _read(place.beside) == _read(where):
        beside, where = False, place.beside  # it is there already
    if not missing and not beside:
        entries: Sequence[Entry] = _Entries(found, files, build)
    else:
        entries, where = _together(files, found, [files[i] for i in missing], build), "memory"
        if told is not None or not _small(files, entries):
            entries, where = _write(place, files, entries, build, began_ns, beside=beside)
    if told is not None:
        told.kept.append(Kept(where, len(files), len(missing), sum(file.size for file in files)))
    return entries


def _together(
    files: Sequence[StoredFile],
    found: Sequence[_At | None],
    missing: Sequence[StoredFile],
    build: Callable[[StoredFile], Entry],
) -> list[Entry]:
    old = _Entries(found, files, build)
    with contextlib.closing(_built(missing, build)) as fresh:
        return [next(fresh) if at is None else old[i] for i, at in enumerate(found)]


def _small(files: Sequence[StoredFile], entries: Sequence[Entry]) -> bool:
    kept = sum(array.nbytes for entry in entries for array in entry.arrays.values())
    return max(kept, sum(file.size for file in files)) < _SMALL_BYTES


def _built(files: Sequence[StoredFile], build: Callable[[StoredFile], Entry]) -> Generator[Entry, None, None]:
    if len(files) < 2 or (sum(file.size for file in files) < _SMALL_BYTES and not is_remote(files[0].path)):
        yield from map(build, files)
        return
    workers = _REMOTE_WORKERS if is_remote(files[0].path) else _WORKERS
    pool = concurrent.futures.ThreadPoolExecutor(workers, "zephon_jax-index")
    try:
        with progress(len(files), sum(file.size for file in files), "indexing") as advance:
            for file, entry in zip(files, pool.map(build, files), strict=True):
                advance(file.size)
                yield entry
    finally:
        pool.shutdown(cancel_futures=True)


# -- where ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Place:
    """Where an index of these files belongs. `folder`: what their paths have in common; `names`: the rest of each."""

    folder: str
    names: list[str]
    stem: str  # of kind, version and what the names hang from
    name: str  # of the files too

    @staticmethod
    def of(kind: str, version: int, paths: Sequence[str]) -> _Place:
        full = [path if is_remote(path) else os.path.abspath(path) for path in paths]
        folder = _common_folder([path.rpartition("/")[0] for path in full])
        names = [path[len(folder) + 1 :] for path in full]
        stem = f"{kind.replace('/', '_')}-{version}-"
        digest = hashlib.blake2b("\0".join(names).encode("utf-8", "surrogateescape"), digest_size=12)
        return _Place(folder, names, stem, f"{digest.hexdigest()}.index")

    @property
    def cached(self) -> pathlib.Path:
        folder = hashlib.blake2b(self.folder.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
        return cache_folder() / "indexes" / folder / (self.stem + self.name)

    @property
    def beside(self) -> str | None:
        """None if the files have no folder in common: they are in several buckets, or some on disk."""
        if not self.folder.startswith("/") and (not is_remote(self.folder) or not self.folder.partition("://")[2]):
            return None
        return f"{self.folder}/{BESIDE}/{self.stem}{self.name}"


def _common_folder(folders: Sequence[str]) -> str:
    """The longest path that all begin with; what is common to the first and the last in order is common to all."""
    pairs = zip(min(folders).split("/"), max(folders).split("/"), strict=False)
    return "/".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


_At = tuple["IndexFile", int]


def _find(place: _Place, files: Sequence[StoredFile]) -> list[_At | None]:
    """For each file the index and the position of an entry that was built of its content."""
    best: list[_At | None] = [None] * len(files)
    for open_next in (_open_cached, _open_beside, _open_others):
        for index in open_next(place):
            rows = range(len(files)) if index.names == place.names else map(index.row.get, place.names)
            here: list[_At | None] = [
                None if row is None or index.stamps[row] != file.stamp else (index, row)
                for row, file in zip(rows, files, strict=True)
            ]
            if sum(at is not None for at in here) > sum(at is not None for at in best):
                best = here
            if None not in best:
                return best
    return best


def _open_cached(place: _Place) -> Iterator[IndexFile]:
    yield from _opened(str(place.cached))


def _open_beside(place: _Place) -> Iterator[IndexFile]:
    """A copy, since another host may replace the file, and what is mapped over a network then fails with a signal."""
    if place.beside is None or (content := _read(place.beside)) is None:
        return
    for index in _opened(place.beside, content):
        if _put(place.cached, lambda file: file.write(content)):
            yield from _opened(str(place.cached))
        else:
            yield index


def _read(path: str) -> bytes | None:
    if is_remote(path):
        from zephon_jax.sources.remote import read_object

        return read_object(path)
    try:
        return pathlib.Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        warnings.warn(f"the index {path} cannot be read ({error}); another one is built", stacklevel=2)
        return None


def _open_others(place: _Place) -> Iterator[IndexFile]:
    """Indexes of other lists of files of this folder, the newest first."""
    folder = place.cached.parent
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob(f"{place.stem}*.index"), key=os.path.getmtime, reverse=True)[:4]:
            yield from _opened(str(path))


# -- reading -------------------------------------------------------------------------------------------------------
def _opened(path: str, content: bytes | None = None) -> Iterator[IndexFile]:
    """The index at this path, if there is one and it is whole."""
    try:
        found = IndexFile(path, content)
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, Damaged) as error:
        _warn_damaged(path, error)
    else:
        yield found


def _warn_damaged(path: str, error: object) -> None:
    warnings.warn(f"the index {path} is damaged ({error}) and is built again", stacklevel=2)
    with contextlib.suppress(OSError):
        os.unlink(path)


class _Entries(Sequence[Entry]):
    """Entries of index files, read when asked for."""

    def __init__(self, found: Sequence[_At | None], files: Sequence[StoredFile], build: Callable[[StoredFile], Entry]):
        self._found, self._files, self._build = found, files, build
        self._again: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        at = self._found[i]
        assert at is not None
        index, row = at
        if i in self._again:
            return self._again[i]
        arrays = index.arrays(row)
        if arrays is None:
            return self._rebuilt(i, index, row)
        return Entry(int(index.counts[row]), index.digests[row], arrays, index.facts[row] or {})

    def _rebuilt(self, i: int, index: IndexFile, row: int) -> Entry:
        _warn_damaged(index.path, f"the entry of {self._files[i].path} has another checksum")
        entry = self._build(self._files[i])
        if (entry.num_samples, entry.digest) != (int(index.counts[row]), index.digests[row]):
            raise DataError(
                f"{self._files[i].path}: neither its index nor its content is what it was; make the Dataset again",
                path=self._files[i].path,
            )
        self._again[i] = entry
        return entry

    def summaries(self) -> Iterator[tuple[int, str]]:
        """Number of samples and digest of each, without reading arrays."""
        for at in self._found:
            assert at is not None
            yield int(at[0].counts[at[1]]), at[0].digests[at[1]]


def summaries(entries: Sequence[Entry]) -> Iterator[tuple[int, str]]:
    """Number of samples and digest of each entry: what a shard's listing needs, without reading any array."""
    if isinstance(entries, _Entries):
        return entries.summaries()
    return ((entry.num_samples, entry.digest) for entry in entries)


# -- writing -------------------------------------------------------------------------------------------------------
def _write(
    place: _Place,
    files: Sequence[StoredFile],
    entries: Sequence[Entry],
    build: Callable[[StoredFile], Entry],
    began_ns: int,
    *,
    beside: bool,
) -> tuple[Sequence[Entry], str]:
    """Keep the entries; they as they are kept, and where (as they were, in memory, if that is impossible)."""
    stamps = [file.stamp if settled(file, began_ns) else "" for file in files]
    local, remote = place.cached, None
    if beside:
        if place.beside is None:
            raise ConfigurationError(
                "the files have no folder in common, so there is no place beside them for an index"
            )
        local, remote = (local, place.beside) if is_remote(place.beside) else (pathlib.Path(place.beside), None)
    if not _put(local, lambda file: write_index(file, place.names, stamps, entries), refuse=beside):
        return entries, "memory"
    if remote is not None:
        from zephon_jax.sources.remote import write_object

        write_object(remote, local.read_bytes())
    for index in _opened(str(local)):
        if index.names == place.names:  # another process may have replaced it meanwhile, by one for the same files
            return _Entries([(index, i) for i in range(len(files))], files, build), remote or str(local)
    return entries, "memory"


def _put(path: pathlib.Path, write: Callable[[BinaryIO], object], *, refuse: bool = False) -> bool:
    """Write a file, whole or not at all; a warning and False where that is impossible."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent.name != BESIDE:
            _remove_unused(path.parent.parent)
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        return True
    except OSError as error:
        if refuse:
            raise DataError(f"{path}: the index cannot be written: {error}", path=str(path)) from error
        warnings.warn(
            f"the index {path} cannot be written ({error}); it is kept in memory and built again next time. Set "
            "ZEPHON_JAX_CACHE_DIR to a folder that can be written and has room",
            stacklevel=2,
        )
        return False
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _remove_unused(folder: pathlib.Path) -> None:
    """Leftovers of processes that were killed, and indexes that nobody has opened for months, of all datasets."""
    for path in folder.glob("*/*"):
        with contextlib.suppress(OSError):
            age_s = time.time() - path.stat().st_mtime
            if age_s > (_UNUSED_S if path.suffix == ".index" else 86_400):
                path.unlink()
