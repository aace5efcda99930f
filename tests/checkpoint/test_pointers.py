"""Pointers as few bytes: what is packed comes back, within the budgets of rule C2, and nothing else is taken."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tracemalloc
from dataclasses import dataclass
from itertools import chain

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_jax.checkpoint.codec import encode
from zephon_jax.checkpoint.pointers import pack_chunks, pack_known, unpack_chunks, unpack_known
from zephon_jax.origin import CHUNK, LAST, LINEAGE, OFFSET, SIBLINGS, START, TOKENS, Origin
from zephon_jax.types import WorkChunk
from zephon_jax.work import StaticMixtureWorkSource


def pointers(chunk: WorkChunk) -> list[tuple[int, int, int]]:
    return list(zip(chunk.dataset.tolist(), chunk.shard.tolist(), chunk.sample.tolist(), strict=True))


def require_round_trip(chunks) -> None:
    packed = pack_chunks(chunks)
    assert msgpack.unpackb(msgpack.packb(packed)) == packed  # plain values
    back = unpack_chunks(packed)
    assert [pointers(c) for c in back] == [pointers(c) for c in chunks]
    for chunk in back:
        assert (chunk.dataset.dtype, chunk.shard.dtype, chunk.sample.dtype) == (np.int32, np.int32, np.int64)
    assert pack_chunks(back) == packed


wild = st.tuples(
    st.sampled_from([0, 1, 5, 2**31 - 1]),
    st.one_of(st.integers(0, 3), st.sampled_from([127, 128, 255, 32767, 2**31 - 1])),
    st.one_of(st.integers(0, 9), st.sampled_from([127, 128, 32768, 2**31, 2**40, 2**62])),
)
runs = st.builds(
    lambda d, s, start, n: [(d, s, start + i) for i in range(n)],
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 20),
    st.integers(1, 6),
)
chunk_lists = st.lists(
    st.one_of(
        st.lists(wild, max_size=6), st.lists(runs, max_size=4).map(lambda parts: list(chain.from_iterable(parts)))
    ),
    max_size=5,
)


@settings(deadline=None, database=None, max_examples=80)
@given(chunk_lists)
def test_any_chunks_come_back(chunks):
    require_round_trip([WorkChunk.from_pointers(c) for c in chunks])


@dataclass(frozen=True)
class Shard:
    num_samples: int


@dataclass(frozen=True)
class Data:
    name: str
    shards: tuple[Shard, ...]


def data(name: str, *shards: int) -> Data:
    return Data(name, tuple(map(Shard, shards)))


@pytest.mark.parametrize("lane", [0, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle_within_shard": True},
        {"shuffle_block_size": 4},
        {"shuffle_block_size": "global"},
        {"stop_after_passes": 2},
    ],
    ids=str,
)
def test_chunks_of_mixtures_come_back(options, lane):
    datasets = [data("web", 40, 0, 300), data("code", 90), data("books", 5, 5)]
    source = StaticMixtureWorkSource(datasets, {"web": 5, "code": 3, "books": 1}, chunk_size=37, **options)
    clone = source.clone_for_lane(lane, 3)
    chunks = []
    while (chunk := clone.next_chunk()) is not None:
        chunks.append(chunk)
    assert len(chunks) > 3
    require_round_trip(chunks)
    require_round_trip(chunks[1:3])


MILLION = data("million", *[10_000] * 100)
PAIR = [data("million", *[10_000] * 100), data("other", *[5_000] * 40)]


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("chunks", [1, 8, 32])
@pytest.mark.parametrize(
    ("options", "budget"),
    [
        ({"shuffle_block_size": 8}, 4),
        ({"shuffle_block_size": 8, "shuffle_within_shard": True}, 4),
        ({"shuffle_block_size": "global"}, 4),
        ({"shuffle_within_shard": True}, 4),
        ({}, 0.1),
        ({"shuffle_shards": False}, 0.1),
    ],
    ids=str,
)
def test_bytes_per_pointer_stay_within_the_budget(options, budget, chunks, lanes):
    clone = StaticMixtureWorkSource(MILLION, chunk_size=512, **options).clone_for_lane(lanes // 2, lanes)
    works = [clone.next_chunk() for _ in range(chunks)]
    n = sum(len(w) for w in works if w is not None)
    assert n == 512 * chunks
    size = len(encode({"chunks": pack_chunks([w for w in works if w is not None])}))
    # 64 bytes for the frame and the names, once per lane.
    assert size <= budget * n + 64, f"{size / n:.3f} bytes per pointer"


@pytest.mark.parametrize("options", [{"shuffle_block_size": 8}, {"shuffle_block_size": "global"}], ids=str)
def test_the_order_of_components_fits_into_the_budget(options):
    clone = StaticMixtureWorkSource(PAIR, {"million": 0.7, "other": 0.3}, chunk_size=512, **options)
    works = [w for _ in range(8) if (w := clone.next_chunk()) is not None]
    assert len(encode({"chunks": pack_chunks(works)})) <= 4 * 8 * 512


def ints(*values: int, code: int = 3) -> list:
    """Byte planes: the lowest byte of every value, then the next."""
    column = np.array(values, ("<i1", "<i2", "<i4", "<i8")[code])
    return [code, column.view(np.uint8).reshape(len(values), column.itemsize).T.tobytes()]


GOOD = [ints(2, 1), [4], None, [[ints(1, 1), ints(5, 0), ints(2, 1)]]]


def test_the_sound_one_of_what_follows():
    assert [pointers(c) for c in unpack_chunks(GOOD)] == [[(4, 1, 5), (4, 1, 6)], [(4, 2, 7)]]
    assert unpack_chunks([ints(), [], None, []]) == ()


@pytest.mark.parametrize(
    "packed",
    [
        None,
        5,
        "abcd",
        b"abcd",
        {},
        [],
        GOOD[:3],
        [*GOOD, None],
        [ints(2, 2), *GOOD[1:]],
        [ints(2, -1, 2), *GOOD[1:]],
        [ints(2**62, 2**62, 2**62, 2**62), *GOOD[1:]],
        [ints(2**29), *GOOD[1:]],
        [[3, b"1234567"], *GOOD[1:]],
        [[4, b"12345678"], *GOOD[1:]],
        [[-1, b"12345678"], *GOOD[1:]],
        [[True, b"12"], *GOOD[1:]],
        [[0, "12"], *GOOD[1:]],
        [[0], *GOOD[1:]],
        [GOOD[0], [4, 5], *GOOD[2:]],
        [GOOD[0], [], None, []],
        [GOOD[0], [-1], *GOOD[2:]],
        [GOOD[0], [2**31], *GOOD[2:]],
        [GOOD[0], ["4"], *GOOD[2:]],
        [GOOD[0], [4.0], *GOOD[2:]],
        [*GOOD[:2], ints(0, 0), GOOD[3]],
        [*GOOD[:2], ints(0, 0, 1), GOOD[3]],
        [*GOOD[:2], ints(0, 0, -1), GOOD[3]],
        [*GOOD[:2], 7, GOOD[3]],
        [*GOOD[:3], None],
        [*GOOD[:3], [None]],
        [*GOOD[:3], [[ints(1, 1), ints(5, 0)]]],
        [*GOOD[:3], [[ints(1), ints(5, 0), ints(2, 1)]]],
        [*GOOD[:3], [[ints(1, 1), ints(5, 0), ints(3, 0)]]],
        [*GOOD[:3], [[ints(1, 1), ints(5, 0), ints(4, -1)]]],
        [*GOOD[:3], [[ints(1, 1), ints(5, 0), ints(1, 1)]]],
        [*GOOD[:3], [[ints(1, 1), ints(-1, 0), ints(2, 1)]]],
        [*GOOD[:3], [[ints(1, 1), ints(5, -9), ints(2, 1)]]],
        [*GOOD[:3], [[ints(1, 1), ints(2**63 - 5, 0), ints(2, 1)]]],
        [GOOD[0], [4, 5], ints(0, 0, 1), [[ints(1), ints(5), ints(1)], [ints(1), ints(5), ints(2)]]],
        [GOOD[0], [4, 5], None, [[ints(1), ints(5), ints(1)], [ints(1), ints(5), ints(2)]]],
        [*GOOD[:3], [[ints(-1, 1), ints(5, 0), ints(2, 1)]]],
        [*GOOD[:3], [[ints(1, 2**31), ints(5, 0), ints(2, 1)]]],
    ],
    ids=range(42),
)
def test_what_cannot_have_been_packed_is_a_value_error(packed):
    with pytest.raises(ValueError):
        unpack_chunks(packed)


# -- what became of samples --------------------------------------------------------------------------------------


@st.composite
def knowns(draw):
    """What a filter and two expansions leave of some chunks; what a checkpoint keeps of it."""
    first = draw(st.integers(0, 2**30))
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    origin = Origin.concat([Origin.of_chunk(first + c, np.arange(n), 2) for c, n in enumerate(sizes)])
    for level in range(draw(st.integers(0, 2))):
        counts = draw(st.lists(st.integers(0, 3), min_size=len(origin), max_size=len(origin)))
        origin, _ = origin.repeat(np.array(counts, np.int64), level)
    if draw(st.booleans()):
        lengths = draw(st.lists(st.integers(0, 40_000), min_size=len(origin), max_size=len(origin)))
        origin = origin.spanned(np.array(lengths, np.int64))
    return origin.table, first, [WorkChunk.from_pointers([(0, 0, i) for i in range(n)]) for n in sizes]


@settings(deadline=None, database=None, max_examples=80)
@given(knowns())
def test_what_became_of_samples_comes_back(given_known):
    known, first, works = given_known
    packed = pack_known(known)
    back = unpack_known(msgpack.unpackb(msgpack.packb(packed) or b""), first, works)
    assert back.dtype == np.int32
    assert back.tolist() == known.tolist()
    assert pack_known(back) == packed


@pytest.mark.parametrize("drop", [0, 0.5])
@pytest.mark.parametrize("pieces", [1, 4])
def test_lengths_take_two_bytes_a_record(drop, pieces):
    rng = np.random.default_rng(0)
    parts = [Origin.of_chunk(c, np.arange(512), 1).keep(rng.random(512) >= drop)[0] for c in range(8)]
    origin, _ = Origin.concat(parts).repeat(rng.integers(1, pieces + 1, sum(map(len, parts))), 0)
    lengths = np.minimum(rng.lognormal(6, 1, len(origin)), 4096).astype(np.int64)
    without, whole = (len(encode({"k": pack_known(o.table)})) for o in (origin, origin.spanned(lengths)))
    assert whole - without <= 2 * len(origin) + 16
    # An identity is a few bits: whether a neighbour was dropped, and how many children there are.
    assert without <= 1.25 * len(origin) + 64


# Chunks 6 and 7 of three and two samples: the second of the first is gone, the third has two children.
WORKS = [WorkChunk.from_pointers([(0, 0, i) for i in range(n)]) for n in (3, 2)]
KNOWN = {
    LAST: (1, 0, 1, 1), SIBLINGS: (0, 0, 1, 0), START: (0, 0, 0, 0), TOKENS: (5, 0, 7, 300), CHUNK: (6, 0, 0, 1),
    OFFSET: (0, 2, 0, -2), LINEAGE: (0, 0, 1, -1),
}  # fmt: skip


def columns(changes: dict[int, tuple[int, ...]]) -> list:
    """The columns of KNOWN, with changes."""
    return [ints(*values) for _, values in sorted({**KNOWN, **changes}.items())]


def test_the_sound_known_of_what_follows():
    table = unpack_known(columns({}), 6, WORKS)
    assert table[CHUNK].tolist() == [6, 6, 6, 7]
    assert table[OFFSET].tolist() == [0, 2, 2, 0]
    assert table[LINEAGE].tolist() == [0, 0, 1, 0]
    for row in (LAST, SIBLINGS, START, TOKENS):
        assert table[row].tolist() == list(KNOWN[row])
    assert unpack_known([ints()] * LINEAGE, 6, []).shape == (LINEAGE, 0)


@pytest.mark.parametrize(
    "packed",
    [
        None,
        5,
        [],
        columns({})[: LINEAGE - 1],
        [ints()] * 1000,
        [None] * (LINEAGE + 1),
        columns({LINEAGE: (0, 0, 1)}),
        columns({LAST: (1, 0, 2, 1)}),
        columns({LAST: (1, -1, 1, 1)}),
        columns({SIBLINGS: (0, 0, 2**31, 0)}),
        columns({SIBLINGS: (0, 0, -(2**31) - 1, 0)}),
        columns({SIBLINGS: (0, 0, -(2**63), 0)}),
        columns({START: (0, 0, 2**31, 0)}),
        columns({TOKENS: (0, 0, 2**31, 0)}),
        columns({TOKENS: (0, 0, -2, 0)}),
        columns({CHUNK: (5, 1, 0, 1)}),
        columns({CHUNK: (6, 0, 0, 2)}),
        columns({CHUNK: (7, 0, 0, -1)}),
        columns({CHUNK: (2**63 - 1, 1, 0, 1)}),
        columns({OFFSET: (-1, 3, 0, -2)}),
        columns({OFFSET: (0, 3, 0, -3)}),
        columns({OFFSET: (2, -2, 2, -2)}),
        columns({LINEAGE: (0, 0, -1, 0)}),
        columns({LINEAGE: (0, 0, 2**31, 0)}),
    ],
    ids=range(24),
)
def test_what_cannot_have_become_of_samples_is_a_value_error(packed):
    with pytest.raises(ValueError):
        unpack_known(packed, 6, WORKS)


# -- claims of a hostile state -----------------------------------------------------------------------------------


WRAPS = """
from zephon_jax.checkpoint.pointers import unpack_chunks

def ints(*values):
    each = [v.to_bytes(8, "little", signed=True) for v in values]
    return [3, bytes(b for plane in zip(*each) for b in plane)]

most = 2**63 - 1
try:
    unpack_chunks([ints(5), [0], None, [[ints(0, 0, 0), ints(0, -most, -most), ints(most, most, 7)]]])
except ValueError:
    print("refused")
"""


def test_counts_whose_sum_wraps_are_refused():
    """2 * (2**63 - 1) + 7 is 5 modulo 2**64. In a process of its own, since it dies by a segmentation fault."""
    root = pathlib.Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", WRAPS], capture_output=True, text=True, timeout=60, cwd=root)
    assert (done.returncode, done.stdout) == (0, "refused\n")


@pytest.mark.parametrize(
    "runs",
    [[[ints(), ints(), ints()]], [[ints(0), ints(0), ints(2)]], []],
    ids=["no runs", "a short run", "no dataset"],
)
def test_a_false_claim_costs_nothing(runs):
    """Up to 2**28 pointers may be claimed: 8 GiB and 10 s for a state of a hundred bytes."""
    claim = [ints(1 << 18), [0] * len(runs), None, runs]
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            unpack_chunks(claim)
        assert tracemalloc.get_traced_memory()[1] < 1 << 18
    finally:
        tracemalloc.stop()
