"""Fuzzes the decoder of states: damaged, junk and hostile ones are refused by `CheckpointMismatch`, or are sound.

    python -m tests.checkpoint.fuzz --inputs 5000000 [--seed N] [--seconds S]

Half of the inputs are real states changed in their compressed bytes (with and without the checksum, and stored without
compression, so that damage is not found by zstd at once). The other half are changed within: in the msgpack bytes, at
its type and length bytes above all, or as values, and then put into a sound frame. Each input is decoded, checked and
compared with the pipeline that it came from. That must return or raise CheckpointMismatch, within `SLOW_S` of CPU time
and without an allocation beyond `SPARE_BYTES`; a sample of the inputs is held to a multiple of the sizes they declare,
and whatever is taken for a state must give the same bytes when it is saved and read again.

An input is a function of the seed and its number, and `--first` continues from a number. The exit status is 1 after a
violation; it is printed as hexadecimal bytes for `decode`, made smaller first.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import json
import random
import re
import resource
import sys
import tempfile
import time
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np
import zstandard

import zephon_jax as zj
from tests.oracle import tokenize
from tests.pipelines import Case, random_case
from zephon_jax.checkpoint.agree import require_same_pipeline
from zephon_jax.checkpoint.codec import decode, encode, state_from_plain, state_to_plain
from zephon_jax.checkpoint.pointers import _unpack_ints
from zephon_jax.errors import CheckpointMismatch
from zephon_jax.plan.identity import plan_differences

SLOW_S = 1.0  # CPU time of one input; a common one takes 20 to 300 µs
SPARE_BYTES = 3 << 30  # address space beyond what the process has at the start; a frame may declare 1 GiB
BLOCK = 256  # inputs that share a generator of random numbers and a look at the clock
SAMPLED = 1009  # every so many inputs are measured by tracemalloc
BYTES_PER_BYTE, BYTES_PER_POINTER, BYTES_AT_LEAST = 100, 120, 1 << 20


class Seed(NamedTuple):
    """A real state: as values, as msgpack, in its frames; and what its pipeline says of it."""

    name: str
    plain: dict[str, Any]
    raw: bytes
    frames: tuple[bytes, ...]
    tokens: tuple[int, ...]
    paths: tuple[tuple[Any, ...], ...]
    agree: Callable[[Any], None]


@dataclass
class Report:
    """What became of the inputs, by the check that refused them, with an example of each."""

    inputs: int = 0
    accepted: int = 0
    seconds: float = 0.0
    refusals: Counter[str] = field(default_factory=Counter[str])
    examples: dict[str, str] = field(default_factory=dict[str, str])
    most_bytes: int = 0
    most_share: float = 0.0


class Violation(NamedTuple):
    """An input that did what none may do."""

    number: int
    what: str
    data: bytes


# -- real states ---------------------------------------------------------------------------------------------------


def torn(folder: Path) -> zj.Dataset:
    """A file some of whose lines are no JSON; under `on_data_error="skip"` they are skipped."""
    lines = [json.dumps({"text": "abcdefghi"[: 1 + i % 9], "n": i}) for i in range(120)]
    path = folder / "torn.jsonl"
    path.write_text("\n".join("{" if i % 7 == 3 else line for i, line in enumerate(lines)) + "\n")
    return zj.Dataset.from_path("torn", path)


def skipping(folder: Path) -> Iterator[tuple[str, Any]]:
    """States with samples that were skipped as unreadable, and with rows that the consumer passed over."""
    start = zj.Pipeline(zj.StaticMixtureWorkSource(torn(folder), chunk_size=12))
    pipelines = {
        "skipped, monotone": start.batch(3).options(canonical_replicas=2),
        "skipped, epochs": start.tokenize(tokenize)
        .split(4)
        .pack(12)
        .shuffle(4)
        .batch(1)
        .options(flush_every_k_chunks=4),
    }
    for name, pipeline in pipelines.items():
        it = iter(pipeline.options(executor="inline", on_data_error="skip"))
        for _ in range(3):
            next(it)
        it.skip(2)
        next(it)
        it.skip(1)
        yield name, it


def from_cases() -> Iterator[tuple[str, Any]]:
    for number in (*range(14), 201, 301, 801):
        case: Case = random_case(number)
        for cut in (0, 3, 11):
            it = iter(case.pipeline())
            for _ in range(cut):
                if next(it, None) is None:
                    break
            yield f"case {number} after {cut}", it


def seeds() -> list[Seed]:
    """The real states that are changed: of many kinds of pipelines, and small, so that many can be tried."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.filterwarnings("ignore", message="pack.* drops the fields")
        found = [_seed(name, it) for name, it in (*skipping(Path(folder)), *from_cases())]
    return [s for n, s in enumerate(found) if len(s.raw) < (3000 if n % 5 == 0 else 1400)]


def _seed(name: str, it: Any) -> Seed:
    plain = decode(encode(it.checkpoint()))
    plan = it._plan
    facts: dict[str, Any] = {
        "lanes_total": plan.lanes,
        "datasets": it._datasets,
        "lanes": it._lanes,
        "every": plan.every,
        "depth": plan.depth,
        "known": plan.replays_on_lengths,
    }
    it.close()
    agree = functools.partial(_agree, facts, plain["plan"])
    raw = msgpack.packb(plain) or b""
    frames = (
        encode(plain),
        zstandard.ZstdCompressor(level=19, write_checksum=True).compress(raw),
        zstandard.ZstdCompressor(level=3).compress(raw),
        zstandard.ZstdCompressor(level=-50).compress(raw),
        stored(raw),
    )
    return Seed(name, plain, raw, frames, tuple(_tokens(raw)), tuple(p for p in _paths(plain) if p), agree)


def _agree(facts: dict[str, Any], plan: Any, state: Any) -> None:
    require_same_pipeline(state, differences=plan_differences(state.plan, plan), **facts)


def stored(raw: bytes) -> bytes:
    """A frame without checksum whose blocks are stored as they are: whatever is changed in it reaches msgpack."""
    out = bytearray(b"\x28\xb5\x2f\xfd\xa0" + len(raw).to_bytes(4, "little"))
    blocks = [raw[at : at + (1 << 17)] for at in range(0, len(raw), 1 << 17)] or [b""]
    for n, block in enumerate(blocks):
        out += (len(block) << 3 | (n == len(blocks) - 1)).to_bytes(3, "little") + block
    return bytes(out)


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    if isinstance(value, dict):
        for key in value:
            yield from _paths(value[key], (*at, key))
    elif isinstance(value, list):
        for i in range(len(value)):
            yield from _paths(value[i], (*at, i))


def _tokens(raw: bytes) -> Iterator[int]:
    """Where the type bytes of these msgpack values stand."""
    at, left = 0, 1
    while left:
        yield at
        kind, at, left = raw[at], at + 1, left - 1
        if kind <= 0x7F or kind >= 0xE0 or kind in (0xC0, 0xC2, 0xC3):
            continue
        if kind <= 0x8F:
            left += 2 * (kind & 15)
        elif kind <= 0x9F:
            left += kind & 15
        elif kind <= 0xBF:
            at += kind & 31
        elif kind in (0xCA, 0xCB):
            at += 4 << (kind - 0xCA)
        elif 0xCC <= kind <= 0xD3:
            at += 1 << (kind - 0xCC) % 4
        else:
            width = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}[kind]
            n = int.from_bytes(raw[at : at + width], "big")
            at += width
            if kind < 0xDC:
                at += n
            else:
                left += n if kind < 0xDE else 2 * n
    assert at == len(raw)


# -- changes -------------------------------------------------------------------------------------------------------

EDGES = bytes.fromhex("00 01 02 7f 80 8f 90 a0 bf c0 c1 c4 c6 c7 cb d4 db dd df fe ff")


def changed_bytes(out: bytearray, rng: random.Random, other: bytes, low: int = 0, high: int | None = None) -> None:
    """One change, at a place from `low` to below `high`."""
    size = len(out)
    at = low + int(rng.random() * ((size if high is None else min(high, size)) - low)) if size > low else size
    kind = int(rng.random() * 10)
    if kind < 4 and at < size:
        out[at] ^= 1 << int(rng.random() * 8)
    elif kind < 6 and at < size:
        out[at] = EDGES[int(rng.random() * len(EDGES))] if rng.random() < 0.7 else int(rng.random() * 256)
    elif kind == 6:
        del out[at : at + _length(rng)]
    elif kind == 7:
        n = _length(rng)
        start = int(rng.random() * len(other))
        out[at : at + n * (rng.random() < 0.5)] = other[start : start + n]
    elif kind == 8:
        out[at:at] = out[at : at + _length(rng)] if rng.random() < 0.5 else rng.randbytes(_length(rng))
    else:
        end = at + 8 if rng.random() < 0.5 else at + 4
        out[at:end] = rng.choice(NUMBERS)[: end - at]


def _length(rng: random.Random) -> int:
    return 1 << int(rng.random() * 8) if rng.random() < 0.3 else 1 + int(rng.random() * 8)


NUMBERS = [
    value.to_bytes(8, order, signed=value < 0)
    for value in (0, 1, -1, 255, 2**15, 2**16, 2**24, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63), 2**64 - 1)
    for order in ("little", "big")
]
_TIMES = (1, 1, 1, 1, 2, 2, 3, 5, 9)


def outside(seed: Seed, rng: random.Random, pool: list[Seed]) -> bytes:
    """A state whose compressed bytes were changed."""
    out = bytearray(seed.frames[int(rng.random() * len(seed.frames))])
    other = pool[int(rng.random() * len(pool))].frames[0]
    where = rng.random()
    low, high = (0, 18) if where < 0.15 else (len(out) - 4, None) if where < 0.2 else (0, None)
    if rng.random() < 0.06:
        del out[int(rng.random() * (len(out) + 1)) :]
    elif rng.random() < 0.03:
        out[int(rng.random() * len(out)) :] = other[int(rng.random() * len(other)) :]
    else:
        for _ in range(_TIMES[int(rng.random() * 9)]):
            changed_bytes(out, rng, other, low, high)
    return bytes(out)


_COMPRESSORS = [zstandard.ZstdCompressor(level=1, write_checksum=True), zstandard.ZstdCompressor(level=-20)]


def framed(raw: bytes, rng: random.Random) -> bytes:
    """In a sound frame, compressed or not."""
    kind = int(rng.random() * 4)
    return stored(raw) if kind > 1 else _COMPRESSORS[kind].compress(raw)


def inside(seed: Seed, rng: random.Random, pool: list[Seed]) -> bytes:
    """A state whose msgpack bytes were changed."""
    out = bytearray(seed.raw)
    other = pool[int(rng.random() * len(pool))]
    for _ in range(_TIMES[int(rng.random() * 9)]):
        if rng.random() < 0.5:
            changed_bytes(out, rng, other.raw)
            continue
        at = seed.tokens[int(rng.random() * len(seed.tokens))]
        if at >= len(out):
            continue
        kind = rng.random()
        if kind < 0.4:  # another type or, for the short ones, another length
            out[at] = EDGES[int(rng.random() * len(EDGES))] if rng.random() < 0.5 else int(rng.random() * 256)
        elif kind < 0.6:  # a little more or less
            out[at] = (out[at] + rng.choice((-2, -1, 1, 2))) & 255
        elif kind < 0.75 and at + 1 < len(out):  # a length or number behind a type
            out[at + 1] = (out[at + 1] + rng.choice((-8, -1, 1, 8, 128))) & 255
        else:  # a value of another place, whole
            start = other.tokens[int(rng.random() * len(other.tokens))]
            out[at : at + (1 if kind < 0.9 else 3)] = other.raw[start : start + _length(rng)]
    return framed(bytes(out), rng)


def ints(*values: int, code: int = 3) -> list[Any]:
    table = np.array(values, np.int64).astype(f"<i{1 << code}").view(np.uint8).reshape(len(values), 1 << code)
    return [code, table.T.tobytes()]


JUNK: list[Any] = [
    None, True, False, 0, 1, -1, 2, 127, 128, 255, 2**15, 2**16, 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**53 + 1,
    2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63), 0.0, 1.5, -1.0, float("nan"), float("inf"), "", "x", "é" * 99,
    "zephon_jax.pipeline_state", b"", b"x", b"x" * 16, b"\xff" * 16, [], [1], [[]], [[1, 2]], [1, 2], [0, 0, 0, 0],
    [[0, b""]] * 4, {}, {"a": 1}, {"op": "split"}, {b"a": 1}, {"a": {b"b": []}}, [[[[[[[[]]]]]]]], msgpack.ExtType(5, b"x"),
    msgpack.Timestamp(1, 2), [None] * 70, [0] * 1000, ["x", 1, "y"],
]  # fmt: skip
COLUMNS: list[Any] = [
    ints(), ints(0), ints(1), ints(-1), ints(0, 0), ints(1, 1, 1), ints(5, code=0), ints(300, code=1), ints(2**24, code=2),
    ints(2**24 + 1), ints(2**31), ints(2**62, 2**62), ints(2**63 - 1), ints(-(2**63)), ints(2**63 - 1, 1), ints(*[1] * 300, code=0),
    ints(*[0] * 64, code=0), [0, b"\x00" * 2000], [3, b"\xff" * 64], [3, b"\x00" * 7], [4, b""], [-1, b""], [True, b"\x01"],
    [0, "x"], [1.0, b""], [0], [0, b"\x01", 0],
]  # fmt: skip


def _is_column(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[1], bytes)


def _column(value: list[Any], rng: random.Random) -> Any:
    """Another column of integers: mostly of the same length, with some values changed."""
    if rng.random() < 0.25:
        return COLUMNS[int(rng.random() * len(COLUMNS))]
    if rng.random() < 0.15:
        return [rng.choice((0, 1, 2, 3)), value[1]]
    code, data = value
    if type(code) is not int or not 0 <= code < 4:
        return COLUMNS[0]
    values = np.frombuffer(data, np.uint8).reshape(1 << code, -1).T.copy().view(f"<i{1 << code}").reshape(-1)
    out = values.astype(np.int64).tolist()
    for _ in range(1 + int(rng.random() * 3)):
        at, kind = int(rng.random() * len(out)), rng.random()
        if kind < 0.2 or not out:
            out.insert(at, rng.choice((0, 1, -1)))
        elif kind < 0.3:
            del out[at]
        elif kind < 0.75:
            out[at] += rng.choice((-2, -1, 1, 2))
        else:
            out[at] = rng.choice((-(2**63), -(2**31), -1, 0, 1, 2**24, 2**31 - 1, 2**31, 2**62, 2**63 - 1))
    return ints(*(max(-(2**63), min(v, 2**63 - 1)) for v in out))


def _claim(rng: random.Random) -> Any:
    """Chunks that hold many pointers in a few bytes, mostly consistently."""
    n = 1 << int(rng.random() * 17)
    counts = [n] if rng.random() < 0.5 else [n - n // 2, n // 2 + (rng.random() < 0.3)]
    zeros = [0] * len(counts)
    return [ints(n), [0], None, [[ints(*zeros), ints(*zeros), ints(*counts)]]]


def values(seed: Seed, rng: random.Random, pool: list[Seed]) -> bytes:
    """A state some of whose values were replaced, dropped, doubled or exchanged."""
    root: Any = dict(seed.plain)
    for _ in range(_TIMES[int(rng.random() * 7)]):
        path = seed.paths[int(rng.random() * len(seed.paths))]
        if rng.random() < 0.3 and path[0] in ("plan", "datasets"):  # long, and soon told
            path = seed.paths[int(rng.random() * len(seed.paths))]
        where = root
        try:
            for key in path[:-1]:  # a copy of what is on the way
                inner = where[key]
                where[key] = inner = dict(inner) if isinstance(inner, dict) else list(inner)
                where = inner
            _replace(where, path, rng, pool)
        except (KeyError, IndexError, TypeError, ValueError):  # gone, or something else, since an earlier change
            continue
    return framed(msgpack.packb(root) or b"", rng)


def _replace(where: Any, path: tuple[Any, ...], rng: random.Random, pool: list[Seed]) -> None:
    key, kind = path[-1], rng.random()
    before = where[key]
    if _is_column(before) and kind < 0.7:
        where[key] = _column(before, rng)
    elif key == "chunks" and kind < 0.05:
        where[key] = _claim(rng)
    elif isinstance(before, int) and kind < 0.5:
        near = before + rng.choice((-2, -1, 1, 2, 8, 256))
        where[key] = near if rng.random() < 0.6 and -(2**63) <= near < 2**64 else JUNK[int(rng.random() * 23)]
    elif kind < 0.7:
        where[key] = JUNK[int(rng.random() * len(JUNK))]
    elif kind < 0.85:  # what another state has there
        other: Any = pool[int(rng.random() * len(pool))].plain
        for k in path:
            other = other[k]
        where[key] = other
    elif kind < 0.93:
        del where[key]
    elif isinstance(where, list):
        where.insert(int(rng.random() * (len(where) + 1)), before)
    else:
        other_key = rng.choice(list(where))
        where[key], where[other_key] = where[other_key], before


# -- what must hold ------------------------------------------------------------------------------------------------


def settle(data: bytes, agree: Callable[[Any], None], report: Report) -> str | None:
    """What became of an input, in the report; what is wrong with that, if anything."""
    try:
        state = state_from_plain(decode(data))
        agree(state)
    except CheckpointMismatch as error:
        check = _check_of(error)
        report.refusals[check] += 1
        if check not in report.examples:
            report.examples[check] = str(error)
        return None
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    report.accepted += 1
    return _lasting(state, agree)


def _check_of(error: BaseException) -> str:
    """Which line of the package said no: the innermost, also if it said so by an error that was named afterwards."""
    cause = error.__cause__ or error
    trace = cause.__traceback__
    assert trace is not None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return _named(trace.tb_frame.f_code, trace.tb_lineno, type(cause).__name__)


@functools.cache
def _named(code: Any, line: int, error: str) -> str:
    return f"{Path(code.co_filename).stem}.{code.co_name}:{line} {error}"


def _lasting(state: Any, agree: Callable[[Any], None]) -> str | None:
    """What is taken for a state gives the same bytes however often it is saved and read."""
    try:
        once = encode(state_to_plain(state))
        other = state_from_plain(decode(once))
        agree(other)
        if encode(state_to_plain(other)) != once:
            return "saved and read again it gives other bytes"
    except Exception as error:
        return f"taken for a state, then refused: {type(error).__name__}: {error}"
    return None


def allowed_bytes(data: bytes) -> int:
    """What decoding may take: multiples of the bytes that the frame declares and the pointers that the chunks do."""
    try:
        declared = zstandard.get_frame_parameters(data).content_size
        declared = declared if declared <= 1 << 30 else 0
    except zstandard.ZstdError:
        declared = 0
    pointers = 0
    try:
        for lane in decode(data)["lanes"]:
            pointers += int(np.clip(_unpack_ints(lane["chunks"][0]), 0, 1 << 24).sum())
    except Exception:
        pass  # no claim that could be read
    return BYTES_AT_LEAST + BYTES_PER_BYTE * (declared + len(data)) + BYTES_PER_POINTER * pointers


def measured(data: bytes, agree: Callable[[Any], None], report: Report) -> str | None:
    """`settle`, with what it allocated held against what is allowed."""
    allowed = allowed_bytes(data)
    tracemalloc.start()
    try:
        wrong = settle(data, agree, report)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    report.most_bytes, report.most_share = max(report.most_bytes, peak), max(report.most_share, peak / allowed)
    return wrong or (f"{peak:,} bytes allocated, {allowed:,} allowed" if peak > allowed else None)


KINDS = (outside, inside, outside, values, outside, inside, outside, inside)


def made(number: int, rng: random.Random, pool: list[Seed]) -> tuple[Seed, bytes]:
    seed = pool[int(rng.random() * len(pool))]
    return seed, KINDS[number % len(KINDS)](seed, rng, pool)


def fuzz(
    inputs: int,
    *,
    seed: int = 0,
    seconds: float = float("inf"),
    first: int = 0,
    pool: list[Seed] | None = None,
    progress: Callable[[Report], None] | None = None,
) -> tuple[Report, Violation | None]:
    """That many inputs from number `first` on, or as many as there is time for."""
    pool, report, began = pool or seeds(), Report(), time.monotonic()
    told = began
    for start in range(first, first + inputs, BLOCK):
        rng = random.Random(f"{seed} {start}")
        block = [(n, *made(n, rng, pool)) for n in range(start, min(start + BLOCK, first + inputs))]
        before = time.process_time()
        for number, origin, data in block:
            check = measured if number % SAMPLED == 0 else settle
            if wrong := check(data, origin.agree, report):
                return report, Violation(number, f"{origin.name}: {wrong}", _smaller(data, origin, wrong))
            report.inputs += 1
        if time.process_time() - before > SLOW_S and (slow := _slowest(block)) is not None:
            return report, slow
        now = time.monotonic()
        report.seconds = now - began
        if report.seconds > seconds:
            break
        if progress is not None and now - told > 30:
            told = now
            progress(report)
    return report, None


def _slowest(block: list[tuple[int, Seed, bytes]]) -> Violation | None:
    for number, origin, data in block:
        before = time.process_time()
        settle(data, origin.agree, Report())
        if (taken := time.process_time() - before) > SLOW_S:
            return Violation(number, f"{origin.name}: {taken:.2f} s", data)
    return None


def _smaller(data: bytes, origin: Seed, wrong: str) -> bytes:
    """Fewer bytes that go wrong in the same way: of the msgpack where there is some, else of the frame."""
    name = re.split(r"[:\d]", wrong)[0]

    def same(candidate: bytes) -> bool:
        return (settle(candidate, origin.agree, Report()) or "").startswith(name)

    if not name or not same(data):  # too much memory, say
        return data
    try:
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=1 << 24)
    except zstandard.ZstdError:
        return _without_parts(data, same)
    if same(stored(raw)):
        return stored(_without_parts(raw, lambda r: same(stored(r))))
    return _without_parts(data, same)


def _without_parts(data: bytes, same: Callable[[bytes], bool]) -> bytes:
    until, size = time.monotonic() + 20, len(data) // 2
    while size:
        at = 0
        while at < len(data) and time.monotonic() < until:
            if same(candidate := data[:at] + data[at + size :]):
                data = candidate
            else:
                at += size
        size //= 2
    return data


# -- the command ---------------------------------------------------------------------------------------------------


def limit_memory(spare: int = SPARE_BYTES) -> None:
    """No more address space than there is now, and `spare`: an allocation beyond fails, and so does the run."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + spare
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def shown(report: Report) -> str:
    """The report as a table, the most frequent refusal first."""
    total = max(1, report.inputs)
    lines = [
        f"{report.inputs:,} inputs in {report.seconds:,.1f} s, {report.inputs / max(report.seconds, 1e-9):,.0f} a second",
        f"most memory of a sampled input: {report.most_bytes:,} bytes; at most {report.most_share:.1%} of what is allowed",
        f"{report.accepted:>12,}  {report.accepted / total:6.2%}  taken for a state of the pipeline",
    ]
    for check, n in report.refusals.most_common():
        example = " ".join(report.examples[check].split())
        lines.append(f"{n:>12,}  {n / total:6.2%}  {check}: {example[:100]}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 1 after a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.checkpoint.fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--inputs", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--first", type=int, default=0, help="number of the first input, a multiple of 256")
    given = parser.parse_args(arguments)
    faulthandler.enable()
    pool = seeds()
    limit_memory()
    print(f"{len(pool)} states, seed {given.seed}, from input {given.first}", flush=True)
    report, violation = fuzz(
        given.inputs,
        seed=given.seed,
        seconds=given.seconds,
        first=given.first // BLOCK * BLOCK,
        pool=pool,
        progress=lambda r: print(f"{r.inputs:,} inputs, {r.seconds:,.0f} s, {r.accepted:,} accepted", flush=True),
    )
    print(shown(report))
    if violation is None:
        print("no violation")
        return 0
    print(f"VIOLATION by input {violation.number}: {violation.what}\n{violation.data.hex()}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
