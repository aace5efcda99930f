"""check_source finds each of these wrong sources, and passes their right twins and the sources of the package."""

from __future__ import annotations

import json
import random
import threading
from typing import Any

import numpy as np
import pytest

import zephon_jax as zj
from zephon_jax.columns import Objects, columns_from_rows
from zephon_jax.sources.base import Shard
from zephon_jax.testing.sources import check_source

SIZES = (7, 0, 1, 12)


class Right:
    """Rows of four shards, made anew at each read."""

    shards: Any = tuple(Shard(f"s{i}", n, f"{i:04x}") for i, n in enumerate(SIZES))

    def row(self, shard, sample) -> dict[str, Any]:
        return {"n": sample, "text": "ab" * sample, "x": np.full(2, shard, np.float32), "ids": list(range(sample % 4))}

    def read(self, shard, samples):
        if (samples >= SIZES[shard]).any() or (samples < 0).any():
            raise zj.DataError("beyond the end")
        return columns_from_rows([self.row(shard, sample) for sample in samples.tolist()]), {}


class RightWithBroken(Right):
    """Every fifth sample has no readable content, which is not an error of the source."""

    def read(self, shard, samples):
        columns, _ = super().read(shard, samples)
        return columns, {i: zj.DataError("torn") for i, s in enumerate(samples.tolist()) if s % 5 == 3}


class NoShards(Right):
    shards = ()


class AllEmpty(Right):
    shards = (Shard("a", 0, "00"),)


class NoFingerprint(Right):
    shards = (Shard("s0", 7, ""),)


class HalfASample(Right):
    shards = (Shard("s0", 7.5, "00"),)


class NegativeSize(Right):
    shards = (Shard("s0", -1, "00"),)


class ReturnsColumnsOnly(Right):
    def read(self, shard, samples):
        return super().read(shard, samples)[0]


class SortsWhatItReads(Right):
    def read(self, shard, samples):
        return super().read(shard, np.sort(samples))


class SortsTheIndicesInPlace(Right):
    def read(self, shard, samples):
        samples.sort()
        return super().read(shard, samples)


class DropsDuplicates(Right):
    def read(self, shard, samples):
        return super().read(shard, np.unique(samples))


class ReadsARun(Right):
    """From the first to the last that was asked for, as if nobody left one out."""

    def read(self, shard, samples):
        return super().read(shard, int(samples[0]) + np.arange(len(samples)) if len(samples) else samples)


class PadsToTheLongest(Right):
    """A value that depends on what it is read with."""

    def read(self, shard, samples):
        rows = [self.row(shard, sample) for sample in samples.tolist()]
        longest = max((len(r["text"]) for r in rows), default=0)
        super().read(shard, samples)
        return columns_from_rows([{**r, "text": r["text"].ljust(longest)} for r in rows]), {}


class FillsMissingFields(Right):
    """A field that some samples lack comes as 0 as soon as one of its neighbours has it."""

    def read(self, shard, samples):
        super().read(shard, samples)
        rows = [{"n": s, **({"even": 1} if s % 2 == 0 else {})} for s in samples.tolist()]
        if any("even" in r for r in rows):
            rows = [{"even": 0, **r} for r in rows]
        return columns_from_rows(rows), {}


class NothingAskedFor(Right):
    def read(self, shard, samples):
        samples[0]
        return super().read(shard, samples)


class Unseeded(Right):
    def row(self, shard, sample):
        return {"x": random.random()}


class CountsReads(Right):
    def __init__(self):
        self.reads = 0

    def row(self, shard, sample):
        self.reads += 1
        return {"n": sample, "reads": self.reads}


class OneBuffer(Right):
    """What it returned is overwritten by the next read."""

    def __init__(self):
        self.buffer = np.zeros((64, 2), np.int64)

    def read(self, shard, samples):
        super().read(shard, samples)
        self.buffer[: len(samples), 0] = samples
        return {"n": zj.Dense(self.buffer[: len(samples)])}, {}


class SharedPosition(Right):
    """Seeks and reads in two steps; in the first read of each thread the others come in between, always."""

    def __init__(self):
        self.main, self.met = threading.get_ident(), threading.Barrier(4)
        self.own = threading.local()

    def row(self, shard, sample):
        self.at = sample
        if threading.get_ident() != self.main and not hasattr(self.own, "begun"):
            self.own.begun = True
            self.met.wait()
        return {"n": self.at}


class NotForThreads(Right):
    def __init__(self):
        self.owner = threading.get_ident()

    def row(self, shard, sample):
        if threading.get_ident() != self.owner:
            raise RuntimeError("another thread")
        return {"n": sample}


class GoesOnBeyondTheEnd(Right):
    def read(self, shard, samples):
        return columns_from_rows([self.row(shard, sample) for sample in samples.tolist()]), {}


class TooFewRows(Right):
    def read(self, shard, samples):
        columns, bad = super().read(shard, samples)
        return {**columns, "n": Objects([0])}, bad


class ErrorsBySample(Right):
    """Reports an error under the sample's index instead of its position."""

    def read(self, shard, samples):
        columns, _ = super().read(shard, samples)
        return columns, {s: zj.DataError("torn") for s in samples.tolist() if s == 6}


class ErrorsThatAreNone(Right):
    def read(self, shard, samples):
        columns, _ = super().read(shard, samples)
        return columns, {i: "torn" for i, s in enumerate(samples.tolist()) if s == 6}


class OtherFingerprintEachTime(Right):
    @property
    def shards(self):
        return [Shard(f"s{i}", n, f"{random.random()}") for i, n in enumerate(SIZES)]


class HoldsALock(Right):
    def __init__(self):
        self.lock = threading.Lock()


class ForgetsWhenPickled(Right):
    def __init__(self, factor=3):
        self.factor = factor

    def __reduce__(self):
        return ForgetsWhenPickled, ()

    def row(self, shard, sample):
        return {"n": sample * self.factor}


class FingerprintOfTheObject(Right):
    @property
    def shards(self):
        return [Shard(f"s{i}", n, f"{id(self):x}") for i, n in enumerate(SIZES)]


WRONG = {
    NoShards: "has no shards",
    AllEmpty: "all shards are empty",
    NoFingerprint: "the fingerprint ''",
    HalfASample: "num_samples=7.5",
    NegativeSize: "num_samples=-1",
    ReturnsColumnsOnly: "must return a pair",
    SortsWhatItReads: "is another when read backwards",
    SortsTheIndicesInPlace: "writes to the indices",
    DropsDuplicates: "is another when read backwards",
    ReadsARun: r"read raised DataError for samples \[6, 5",
    PadsToTheLongest: "is another when read all at once",
    FillsMissingFields: "is another when read all at once.*fields",
    NothingAskedFor: r"read raised IndexError for samples \[\] of shard 0",
    Unseeded: "is another when read again",
    CountsReads: "is another when read again.*'reads'",
    OneBuffer: "kept while others were read",
    SharedPosition: "is another when read by 4 threads at once",
    NotForThreads: r"read raised RuntimeError for samples .* by 4 threads at once: another thread",
    GoesOnBeyondTheEnd: r"shard 3 \('s3'\) has 12 samples, but read gave a sample 12",
    TooFewRows: "field 'n' of shard",
    ErrorsBySample: "at position 6 of 1",
    ErrorsThatAreNone: "reports 'torn' at position",
    OtherFingerprintEachTime: "changed between two looks",
    HoldsALock: "cannot be pickled .*__setstate__",
    FingerprintOfTheObject: "a pickled copy has other shards",
}


@pytest.mark.parametrize(("wrong", "message"), WRONG.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_each_wrong_source_is_found(wrong, message):
    with pytest.raises(zj.ContractViolation, match=message) as caught:
        check_source(wrong())
    assert caught.value.operator == wrong.__name__


def test_a_copy_that_reads_otherwise_is_found():
    with pytest.raises(zj.ContractViolation, match="is another when read by a pickled copy"):
        check_source(ForgetsWhenPickled(factor=4))
    check_source(ForgetsWhenPickled())


@pytest.mark.parametrize("right", [Right(), RightWithBroken()], ids=lambda v: type(v).__name__)
def test_right_sources_pass(right):
    check_source(right)
    check_source(zj.Dataset("d", right))
    check_source(zj.Dataset("d", right)[3:15])
    check_source(right, samples=3)


def test_a_source_that_is_never_pickled_may_hold_what_cannot_be():
    check_source(HoldsALock(), pickles=False)


def test_the_sources_of_the_package_pass(tmp_path):
    for number, count in enumerate((5, 40)):
        lines = [json.dumps({"text": "x" * i, "ids": list(range(i % 3)), "n": i}) for i in range(count)]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    check_source(zj.Dataset.from_path("files", tmp_path))
    check_source(zj.Dataset.from_source("numbers", range(30), fingerprint="numbers"))
    check_source([{"a": i, "b": "x" * i} for i in range(20)])


def test_an_error_of_storage_is_no_violation():
    class Gone(Right):
        def read(self, shard, samples):
            raise zj.DataError("no such file")

    with pytest.raises(zj.DataError, match="no such file"):
        check_source(Gone())


def test_what_is_no_source_is_refused():
    with pytest.raises(zj.ConfigurationError, match="needs a Dataset, an object with shards"):
        check_source(5)
    with pytest.raises(zj.ConfigurationError, match="samples"):
        check_source(Right(), samples=0)
