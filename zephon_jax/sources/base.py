"""A dataset: named samples in shards, read in batches as columns.

The room turns bytes at rest into columns. It knows nothing of lanes, chunks or operators: a `Source` reads samples of
its shards, and `Dataset` gives it a name, slices and the checks that all sources share.
"""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, overload, runtime_checkable

import numpy as np

from zephon_jax.columns import Columns, row_of
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.types import Int64s

__all__ = ["Dataset", "ReadResult", "Shard", "Source"]

ReadResult = tuple[Columns, dict[int, DataError]]
"""The samples' columns, and position → error of those whose content is broken; the rows of these are undefined."""


class Shard(NamedTuple):
    """A part of a dataset: usually a file. `fingerprint` is hexadecimal and changes when the content does."""

    name: str
    num_samples: int
    fingerprint: str


class Source(Protocol):
    """Reads samples by shard and index; any number of threads may call `read` at once.

    It may have a `block_hint` as well, see `Dataset.block_hint`.
    """

    @property
    def shards(self) -> Sequence[Shard]: ...

    def read(self, shard: int, samples: Int64s) -> ReadResult:
        """The samples at these indices of one shard, in this order. Storage errors are raised, content errors returned."""
        ...


@runtime_checkable
class RandomAccess(Protocol):
    """What `Dataset.from_source` takes; Grain's RandomAccessDataSource fits."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Span:
    """Samples start to start + count of the source's shard."""

    shard: int
    start: int
    count: int


class Dataset:
    """Named samples with random access. Make one with `Dataset.from_path` or `Dataset.from_source`.

    `len(ds)` samples; `ds[i]` is a dict of field → value; `ds[a:b]` is a dataset of just those samples, so that train
    and validation splits never mix; `ds.shards` lists name, number of samples and fingerprint of each shard.

    >>> ds = Dataset.from_source("digits", [3, 1, 4, 1, 5])
    >>> len(ds), int(ds[2]["value"]), len(ds[1:3])
    (5, 4, 2)
    """

    def __init__(self, name: str, source: Source, spans: Sequence[_Span] | None = None):
        if not isinstance(name, str) or not name:
            raise ConfigurationError("a dataset needs a name: it stands in mixtures, errors and checkpoints")
        self._name, self._source = name, source
        if spans is None:
            spans = [_Span(i, 0, shard.num_samples) for i, shard in enumerate(source.shards)]
        self._spans = tuple(spans)
        self._shards = tuple(self._shard(span) for span in self._spans)
        self._starts = np.cumsum([0, *(span.count for span in self._spans)], dtype=np.int64)

    # -- making one ------------------------------------------------------------------------------------------------
    @staticmethod
    def from_path(
        name: str,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        format: str | None = None,
        fields: Sequence[str] | None = None,
    ) -> Dataset:
        """Samples of files: a path, a folder, a glob, a URL of object storage, or a list of these.

        Args:
            name: The dataset's name in mixtures, errors and checkpoints.
            paths: Of one format: `.jsonl` (also `.gz`, `.zst`), `.parquet`, `.arrayrecord`, `.zarr`, or a folder of
                `datasets.save_to_disk`. Files of a folder or glob come in sorted order, without hidden ones.
            format: "jsonl", "parquet", "arrayrecord", "zarr" or "arrow", for files whose suffix does not tell.
            fields: Only these fields of each sample; only they are read where the format allows it.

        Raises:
            ConfigurationError: No file matches, a file is missing, the format is unknown, or no sample has a field.
            DataError: A file cannot be read.
        """
        from zephon_jax.sources.files import open_files

        return Dataset(name, open_files(paths, format, fields))

    @staticmethod
    def from_source(name: str, source: RandomAccess, *, fingerprint: str | None = None) -> Dataset:
        """Samples of anything with `__len__` and `__getitem__(int)`, read by several threads at once.

        If it has `__getitems__(list of int)` as well, it is asked for many samples at a time.

        `fingerprint` identifies the content in checkpoints. Left out, the length and 16 samples spread over the source
        are hashed, which misses changes elsewhere.
        """
        from zephon_jax.sources.memory import MemorySource

        if not isinstance(source, RandomAccess):
            raise ConfigurationError(
                f"Dataset.from_source({name!r}) needs __len__ and __getitem__(int), {type(source).__name__} lacks one"
            )
        return Dataset(name, MemorySource(name, source, fingerprint))

    def rename(self, name: str) -> Dataset:
        """The same samples under another name."""
        return Dataset(name, self._source, self._spans)

    # -- what it holds ---------------------------------------------------------------------------------------------
    @property
    def name(self) -> str:
        return self._name

    @property
    def shards(self) -> Sequence[Shard]:
        return self._shards

    @property
    def fingerprint(self) -> str:
        """Of all samples in order, not of names or paths: 32 hexadecimal digits."""
        digest = hashlib.blake2b(digest_size=16)
        for shard in self._shards:
            digest.update(f"{shard.num_samples} {shard.fingerprint}\n".encode())
        return digest.hexdigest()

    @property
    def reads_files(self) -> bool:
        """Whether samples come from files or object storage, not from an object in memory."""
        from zephon_jax.sources.memory import MemorySource

        return not isinstance(self._source, MemorySource)

    @property
    def block_hint(self) -> int | None:
        """How many consecutive samples are cheapest to read together: those of a row group, say. None if it does not matter."""
        return getattr(self._source, "block_hint", None)

    def _shard(self, span: _Span) -> Shard:
        whole = self._source.shards[span.shard]
        if span.count == whole.num_samples:
            return whole
        stop = span.start + span.count
        return Shard(f"{whole.name}[{span.start}:{stop}]", span.count, f"{whole.fingerprint}[{span.start}:{stop}]")

    def read(self, shard: int, samples: Int64s) -> ReadResult:
        """The samples at these indices of one shard, as columns; see `Source.read`."""
        span = self._spans[shard]
        outside = samples[(samples < 0) | (samples >= span.count)]
        if len(outside):
            name, sample = self._shards[shard].name, int(outside[0])
            raise DataError(
                f"dataset {self._name!r}: shard {name!r} has {span.count} samples, but sample {sample} was asked for; the "
                "work source hands out pointers of another dataset",
                path=name,
                shard=shard,
                record=sample,
            )
        return self._source.read(span.shard, samples + span.start)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Dataset: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Dataset:
        if isinstance(index, slice):
            return self._sliced(index)
        i = operator.index(index)
        if not -len(self) <= i < len(self):
            raise IndexError(f"dataset {self._name!r} has {len(self)} samples, index {i} is out of range")
        i %= len(self)
        shard = int(np.searchsorted(self._starts, i, "right")) - 1
        columns, bad = self.read(shard, np.array([i - self._starts[shard]]))
        if bad:
            raise bad[0]
        return row_of(columns, 0)

    def _sliced(self, index: slice) -> Dataset:
        start, stop, step = index.indices(len(self))
        if step != 1:
            raise ConfigurationError(f"dataset {self._name!r} can be sliced with step 1 only, got step {step}")
        spans: list[_Span] = []
        for span, at in zip(self._spans, self._starts.tolist(), strict=False):
            a, b = max(start, at), min(stop, at + span.count)
            if a < b:
                spans.append(_Span(span.shard, span.start + a - at, b - a))
        return Dataset(self._name, self._source, spans)

    def field_names(self, sample_up_to: int = 8) -> frozenset[str] | None:
        """Fields of the first samples, for early checks; None if one of them cannot be read."""
        names: set[str] = set()
        try:
            for i in range(min(len(self), sample_up_to)):
                names |= set(self[i])
        except DataError:
            return None
        return frozenset(names)

    def __repr__(self) -> str:
        return f"Dataset({self._name!r}, {len(self)} samples in {len(self._shards)} shards)"


def check_fields(fields: Sequence[str] | None, seen: Mapping[str, Any], where: str) -> None:
    """Refuse a projection onto a field that the first sample lacks."""
    if fields is not None and (missing := [f for f in fields if f not in seen]):
        raise ConfigurationError(f"{where}: no field {missing}; the first sample has {sorted(seen)}")


def fingerprint_with_fields(digest: str, fields: Sequence[str] | None) -> str:
    """A shard's fingerprint: other fields of a file are other samples."""
    if fields is None:
        return digest
    return hashlib.blake2b(f"{digest} {sorted(fields)}".encode(), digest_size=16).hexdigest()
