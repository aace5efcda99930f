"""check_source: the contract of a source of one's own, as checks.

What the pipeline takes from a source must not depend on how it asks: in which order, together with what, from how many
threads, for the first time or again. Each check asks in another way that must not matter, and compares.
"""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from zephon_jax.columns import column_length, rows_of
from zephon_jax.errors import ConfigurationError, ContractViolation, DataError
from zephon_jax.ops.base import checked_int
from zephon_jax.sources.base import Dataset, Source
from zephon_jax.testing.same import difference

__all__ = ["check_source"]

_BROKEN = "its content is broken"
_THREADS = 4


class _Place(NamedTuple):
    shard: int
    sample: int


def check_source(source: Dataset | Source | Any, *, samples: int = 64, pickles: bool = True) -> None:
    """Run the contract of a source on up to `samples` samples, spread over its shards (the first and last of them too).

    `source` is a `Dataset`, anything with the methods of `zephon_jax.sources.Source`, or what `Dataset.from_source`
    takes. Pass `pickles=False` for a source that is never to be read by another process.

    Raises:
        ContractViolation: Saying which part is broken: the list of shards, reading one by one or in another order,
            together with others or again, from several threads, beyond the end, or after pickling.
    """
    name = type(source).__qualname__
    if not hasattr(source, "read") and hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        source = Dataset.from_source(name, cast(Any, source))
    if not callable(getattr(source, "read", None)) or not hasattr(source, "shards"):
        raise ConfigurationError(
            f"check_source needs a Dataset, an object with shards and read(shard, samples), or one with __len__ and "
            f"__getitem__(int); got {name}"
        )
    checked_int("check_source", "samples", samples, 2)
    check = _SourceCheck(cast(Source, source), name, samples)
    check.shards()
    check.rows()
    check.threads()
    check.beyond_the_end()
    check.stable()
    if pickles:
        check.pickled()


class _SourceCheck:
    def __init__(self, source: Source, name: str, samples: int):
        self.source, self.name = source, name
        self.alone: dict[_Place, Any] = {}  # what each sample is when it is read alone
        self.seen = self._listed()
        self.places = list(self._spread(samples))

    def _listed(self) -> list[tuple[Any, Any, Any]]:
        return [(shard.name, shard.num_samples, shard.fingerprint) for shard in self.source.shards]

    def _spread(self, samples: int) -> Iterable[_Place]:
        """Places in feed order: shard by shard, ascending."""
        filled = [i for i, (_, n, _) in enumerate(self.seen) if isinstance(n, (int, np.integer)) and n > 0]
        chosen = {filled[k] for k in np.linspace(0, len(filled) - 1, min(8, len(filled))).astype(int)} if filled else ()
        each = max(2, samples // max(1, len(chosen)))
        for shard in sorted(chosen):
            size = int(self.seen[shard][1])
            for sample in np.unique(np.linspace(0, size - 1, min(each, size)).astype(np.int64)).tolist():
                yield _Place(shard, sample)

    def fail(self, text: str) -> ContractViolation:
        return ContractViolation(f"{self.name}: {text}", operator=self.name)

    def where(self, place: _Place) -> str:
        return f"sample {place.sample} of shard {place.shard} ({self.seen[place.shard][0]!r})"

    # -- reading ---------------------------------------------------------------------------------------------------
    def read(self, shard: int, samples: Sequence[int], source: Source | None = None, how: str = "") -> list[Any]:
        """Row values of these samples, `_BROKEN` where the content is."""
        asked = np.array(samples, np.int64)
        try:
            result = (source or self.source).read(shard, asked)
        except Exception as error:
            if isinstance(error, DataError) and not self.alone:
                raise  # a file that is not there is no fault of the source
            raise self.fail(
                f"read raised {type(error).__name__} for samples {list(samples)[:8]} of shard {shard}{how}: {error}"
            ) from error
        if not isinstance(result, tuple) or len(result) != 2:
            raise self.fail("read must return a pair: columns, and a dict from position to DataError")
        columns, bad = result
        if asked.tolist() != list(samples):
            raise self.fail("read writes to the indices that it is given")
        for field, column in columns.items():
            if column_length(column) != len(samples):
                raise self.fail(
                    f"field {field!r} of shard {shard} came with {column_length(column)} values for {len(samples)} samples"
                )
        for position, error in bad.items():
            if not 0 <= position < len(samples) or not isinstance(error, DataError):
                raise self.fail(
                    f"read reports {error!r} at position {position} of {len(samples)}: errors of content are DataErrors by "
                    "the position in what was asked for"
                )
        rows = rows_of(columns, len(samples))
        return [_BROKEN if i in bad else copy.deepcopy(rows[i]) for i in range(len(samples))]

    def shards(self) -> None:
        if not self.seen:
            raise self.fail("it has no shards")
        for i, (name, size, fingerprint) in enumerate(self.seen):
            if not isinstance(name, str) or not isinstance(fingerprint, str) or not fingerprint:
                raise self.fail(
                    f"shard {i} has the name {name!r} and the fingerprint {fingerprint!r}; both must be texts, and the "
                    "fingerprint must change when the content does"
                )
            if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 0:
                raise self.fail(f"shard {i} ({name!r}) has num_samples={size!r}; a number from 0 is needed")
        if not self.places:
            raise self.fail("all shards are empty; check it on some samples")

    def rows(self) -> None:
        for place in self.places:
            self.alone[place] = self.read(place.shard, [place.sample])[0]
        by_shard: dict[int, list[int]] = {}
        for shard, sample in self.places:
            by_shard.setdefault(shard, []).append(sample)
        for shard, samples in by_shard.items():
            rng = np.random.Generator(np.random.Philox(key=shard))
            mixed = [samples[i] for i in rng.permutation(len(samples))]
            ways = {
                "read again, one by one": [[sample] for sample in samples],
                "read all at once": [samples],
                "read backwards": [samples[::-1]],
                "read in another order": [mixed],
                "read in threes": [mixed[i : i + 3] for i in range(0, len(mixed), 3)],
                "read twice in one call": [[*samples, *samples]],
                "read after nothing was asked for": [[], samples],
            }
            for way, calls in ways.items():
                for call in calls:
                    self.compare(shard, call, self.read(shard, call), way)
            self._kept(shard, samples)

    def _kept(self, shard: int, samples: list[int]) -> None:
        """What was returned must stay as it is while others are read."""
        columns, _ = self.source.read(shard, np.array(samples, np.int64))
        self.source.read(shard, np.array(samples[::-1], np.int64))
        rows = rows_of(columns, len(samples))
        got = [_BROKEN if self.alone[_Place(shard, s)] == _BROKEN else r for s, r in zip(samples, rows, strict=True)]
        self.compare(shard, samples, got, "kept while others were read (a buffer is used again)")

    def compare(self, shard: int, samples: Sequence[int], got: list[Any], way: str) -> None:
        for sample, row in zip(samples, got, strict=True):
            place = _Place(shard, sample)
            if (text := difference(row, self.alone[place])) is not None:
                raise self.fail(f"{self.where(place)} is another when {way} than when it was read alone: {text}")

    def threads(self) -> None:
        failed: list[BaseException] = []
        way = f"by {_THREADS} threads at once"
        start = threading.Barrier(_THREADS)

        def reads(number: int) -> None:
            rng = np.random.Generator(np.random.Philox(key=number))
            try:
                start.wait()
                for i in np.concatenate([rng.permutation(len(self.places)) for _ in range(3)]).tolist():
                    shard, sample = self.places[i]
                    self.compare(shard, [sample], self.read(shard, [sample], how=f" {way}"), f"read {way}")
            except BaseException as error:
                failed.append(error)

        workers = [threading.Thread(target=reads, args=(number,)) for number in range(_THREADS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if failed:
            raise failed[0]

    def beyond_the_end(self) -> None:
        shard = self.places[-1].shard
        size = int(self.seen[shard][1])
        try:
            _, bad = self.source.read(shard, np.array([size], np.int64))
        except Exception:
            return
        if not bad:
            raise self.fail(
                f"shard {shard} ({self.seen[shard][0]!r}) has {size} samples, but read gave a sample {size}: beyond the end "
                "an error must be raised"
            )

    def stable(self) -> None:
        if self._listed() != self.seen:
            raise self.fail(
                "names, sizes or fingerprints of its shards changed between two looks at an unchanged source"
            )

    def pickled(self) -> None:
        try:
            other = cast(Source, pickle.loads(pickle.dumps(self.source)))
        except Exception as error:
            raise self.fail(
                f"it cannot be pickled ({type(error).__name__}: {error}), so no other process can read it. Open files and "
                "locks anew in __setstate__, or pass pickles=False"
            ) from error
        if [(shard.name, shard.num_samples, shard.fingerprint) for shard in other.shards] != self.seen:
            raise self.fail("a pickled copy has other shards")
        for place in self.places:
            self.compare(
                place.shard, [place.sample], self.read(place.shard, [place.sample], other), "read by a pickled copy"
            )
