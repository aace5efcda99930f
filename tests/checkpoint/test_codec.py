"""States as bytes: what is encoded comes back, and whatever is not a state is refused by one error, quickly."""

from __future__ import annotations

import copy
import random
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any
from unittest import mock

import msgpack
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_jax import CheckpointMismatch, ConfigurationError
from zephon_jax.checkpoint import codec
from zephon_jax.checkpoint.codec import MAX_STATE_BYTES, decode, encode, plain_values, state_from_plain, state_to_plain
from zephon_jax.checkpoint.schema import FORMAT, VERSION, DatasetMark, LaneSnapshot, PipelineState
from zephon_jax.origin import Origin
from zephon_jax.types import WorkChunk

naturals = st.one_of(st.integers(0, 300), st.sampled_from([2**31, 2**53 + 1, 2**63 - 1]))
values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), st.text(max_size=4)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=6,
)
mappings = st.dictionaries(st.text(max_size=4), values, max_size=3)
works = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300), st.integers(0, 2**40)), min_size=1, max_size=9)


@st.composite
def knowns(draw, first: int, chunks):
    """What a filter left of these chunks."""
    parts = [Origin.of_chunk(first + c, np.arange(len(work)), 1) for c, work in enumerate(chunks)]
    origin = Origin.concat([Origin.of_chunk(0, np.arange(0), 1), *parts])
    n = len(origin)
    origin = origin.spanned(np.array(draw(st.lists(st.integers(-1, 2**20), min_size=n, max_size=n)), np.int64))
    return origin.keep(np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), np.bool_))[0].table


@st.composite
def snapshots(draw, lane: int) -> LaneSnapshot:
    first = draw(st.integers(0, 2**31 - 10))
    chunks = tuple(WorkChunk.from_pointers(p) for p in draw(st.lists(works, max_size=4)))
    cursor, delivered = None, 0
    if chunks:
        parts = draw(st.lists(naturals, max_size=3))
        cursor = (draw(st.integers(first, first + len(chunks) - 1)), draw(st.integers(0, 8)), *parts)
        delivered = draw(st.integers(1, 2**40))
    return LaneSnapshot(
        lane=lane,
        first=first,
        chunks=chunks,
        skipped=tuple(draw(st.lists(st.tuples(naturals, naturals), max_size=3))),
        boundaries=tuple(draw(st.lists(naturals, max_size=2))),
        source=draw(mappings),
        delivered=delivered,
        cursor=cursor,
        high_offset=draw(st.integers(-1, len(chunks[-1]) - 1 if chunks else -1)),
        rounds=draw(naturals),
        rows=delivered + draw(st.integers(0, 9)),
        digest=draw(st.integers(0, 2**128 - 1)),
        skipped_total=draw(naturals),
        known=draw(st.one_of(st.none(), knowns(first, chunks))),
    )


@st.composite
def states(draw) -> PipelineState:
    total = draw(st.integers(1, 5))
    lanes = draw(st.permutations(range(total)))[: draw(st.integers(0, total))]
    bare = st.builds(DatasetMark, st.text(max_size=4), naturals, st.text(max_size=4), st.just(-1), st.just(b""))
    kept = st.builds(DatasetMark, st.text(max_size=4), naturals, st.text(max_size=4), naturals, st.binary(max_size=9))
    marks = st.one_of(bare, kept)
    return PipelineState(
        total, draw(mappings), tuple(draw(st.lists(marks, max_size=2))), {lane: draw(snapshots(lane)) for lane in lanes}
    )


PLAIN_FIELDS = [f for f in LaneSnapshot.__dataclass_fields__ if f not in ("chunks", "known")]


def pointers(chunks) -> list[list[list[int]]]:
    return [[c.dataset.tolist(), c.shard.tolist(), c.sample.tolist()] for c in chunks]


@settings(deadline=None, database=None, max_examples=60)
@given(states())
def test_a_state_comes_back_and_gives_the_same_bytes(state):
    data = encode(state_to_plain(state))
    back = state_from_plain(decode(data))
    assert encode(state_to_plain(back)) == data
    assert (back.lanes_total, back.plan, back.datasets) == (state.lanes_total, state.plan, state.datasets)
    assert sorted(back.lanes) == sorted(state.lanes)
    for lane, snapshot in state.lanes.items():
        other = back.lanes[lane]
        assert {f: getattr(other, f) for f in PLAIN_FIELDS} == {f: getattr(snapshot, f) for f in PLAIN_FIELDS}
        assert pointers(other.chunks) == pointers(snapshot.chunks)
        assert (other.known is None) == (snapshot.known is None)
        assert np.array_equal(np.asarray(other.known), np.asarray(snapshot.known))
        assert other.next_chunk == snapshot.first + len(snapshot.chunks)


@settings(deadline=None, database=None, max_examples=30)
@given(states())
def test_the_plain_dict_is_what_its_bytes_hold(state):
    plain = state_to_plain(state)
    assert decode(encode(plain)) == plain
    assert (plain["format"], plain["version"]) == ("zephon_jax.pipeline_state", 1)


def test_equal_states_give_equal_bytes_in_whatever_order_their_lanes_stand():
    one, other = (sample_state(order) for order in ((0, 1, 2), (2, 0, 1)))
    assert encode(state_to_plain(one)) == encode(state_to_plain(other))
    assert encode(state_to_plain(one)) == encode(state_to_plain(one))


def test_plain_values_are_what_is_read_back():
    given_values = {
        "t": (1, (2,)),
        "3": np.int64(4),
        "f": np.float32(0.5),
        "b": b"x",
        "s": "y",
        "n": None,
        "o": np.bool_(True),
    }
    plain = plain_values(given_values)
    assert plain == {"t": [1, [2]], "3": 4, "f": 0.5, "b": b"x", "s": "y", "n": None, "o": True}
    assert [type(v) for v in plain.values()] == [list, int, float, bytes, str, type(None), bool]
    assert decode(encode({"v": plain}))["v"] == plain
    with pytest.raises(TypeError, match="the key 3 is no str"):
        plain_values({3: 4})


# -- what is no state ----------------------------------------------------------------------------------------------


def sample_state(order=(0, 1, 2)) -> PipelineState:
    """Three lanes: one fresh, one in the middle, one with all fields in use. Three chunks in flight."""
    rng = random.Random(5)

    def work(n: int) -> WorkChunk:
        return WorkChunk.from_pointers([(rng.randint(0, 1), rng.randint(0, 3), rng.randint(0, 999)) for _ in range(n)])

    origin, _ = Origin.concat([Origin.of_chunk(3 + c, np.arange(4), 2) for c in range(3)]).repeat(np.arange(12) % 3, 1)
    known = origin.spanned(np.arange(300, 300 + len(origin))).table
    lanes = {
        0: LaneSnapshot(0, 0, (), (), (), {"position": 0}, 0, None, -1, 0, 0, 0, 0),
        1: LaneSnapshot(
            1, 6, (work(5), work(7), work(3)), (), (6,), {"position": 15}, 4, (8, 1, 0, 2), 2, 3, 9, 2**127, 0
        ),
        2: LaneSnapshot(
            2,
            3,
            (work(4),) * 3,
            ((3, 1), (4, 0)),
            (3, 6),
            {"a": [1, {"b": None}]},
            2,
            (4, 0, 1, 0),
            1,
            2,
            5,
            77,
            9,
            known,
        ),
    }
    plan = {"work": {"class": "W", "seed": 0, "weights": [7, 3]}, "operators": [{"op": "split", "max_length": 4}]}
    marks = (DatasetMark("web", 1000, "ab12"), DatasetMark("code", 50, "cd34"))
    return PipelineState(3, plan, marks, {lane: lanes[lane] for lane in order})


PLAIN = state_to_plain(sample_state())
DATA = encode(PLAIN)
RAW: bytes = msgpack.packb(PLAIN) or b""


def settled(read, *arguments: Any) -> bool:
    """Whether it was taken for a state. Any error but CheckpointMismatch fails the test, and so does a slow answer."""
    start = time.process_time()
    try:
        read(*arguments)
        return True
    except CheckpointMismatch:
        return False
    finally:
        assert time.process_time() - start < 2


def parse(data: bytes) -> PipelineState:
    return state_from_plain(decode(data))


def compressed(raw: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(raw)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, dropped, doubled, put in or put elsewhere."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(6):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(out):
                out[at] = rng.choice([0, 1, 0x7F, 0x80, 0xC0, 0xC1, 0xC7, 0xD9, 0xDD, 0xDF, 0xFF, rng.randrange(256)])
            case 2:
                del out[at : at + rng.randint(1, 9)]
            case 3:
                out[at:at] = out[at : at + rng.randint(1, 9)]
            case 4:
                out[at:at] = rng.randbytes(rng.randint(1, 9))
            case 5:
                del out[at:]
            case _:
                pass
    return bytes(out)


def test_the_sound_one_of_what_follows():
    assert settled(parse, DATA)
    assert settled(parse, compressed(RAW))
    assert settled(state_from_plain, PLAIN)


@pytest.mark.parametrize("part", range(4))
def test_mutated_bytes_are_refused_or_sound(part):
    rng = random.Random(part)
    assert sum(settled(parse, mutated(DATA, rng)) for _ in range(1000)) < 100


@pytest.mark.parametrize("part", range(4))
def test_mutated_contents_are_refused_or_sound(part):
    rng = random.Random(100 + part)
    taken = sum(settled(parse, compressed(mutated(RAW, rng))) for _ in range(1000))
    assert 0 < taken < 700  # a flipped digit of a digest is as good as another


JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**62, 2**63 - 1, 2**63, -(2**63), 10**40, 1.5, float("nan"), float("inf"),
    "", "x", b"", b"x" * 16, bytearray(16), [], [1], [[]], [[1, 2]], (), (1, 2), {}, {"a": 1}, {1: 2}, [None], {1, 2},
    object(), np.int64(3), np.arange(3), np.zeros(0), np.array("x"), Ellipsis, range(3), iter([1]), "zephon_jax",
]  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything in there."""
    yield at
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*at, key))
    elif isinstance(value, list):
        for i in range(len(value)):
            yield from places(value[i], (*at, i))


def changed(at: tuple[Any, ...], change) -> Any:
    """The plain state with `change(container, key)` applied at this place."""
    root = copy.deepcopy(PLAIN)
    where, key = container(root, at)
    change(where, key)
    return root


def container(root: Any, at: tuple[Any, ...]) -> tuple[Any, Any]:
    for key in at[:-1]:
        root = root[key]
    return root, at[-1]


PLACES = [at for at in places(PLAIN) if at]


def test_junk_of_every_type_in_every_place_is_refused_or_sound():
    taken, root = 0, copy.deepcopy(PLAIN)
    for at in PLACES:
        where, key = container(root, at)
        before = where[key]
        for junk in JUNK:
            where[key] = junk
            taken += settled(state_from_plain, root)
        where[key] = before
    assert root == PLAIN
    assert 0 < taken < len(PLACES) * len(JUNK) / 2


@pytest.mark.parametrize("junk", [np.arange(3), np.zeros(0)], ids=len)
def test_an_array_instead_of_a_format_is_refused(junk):
    assert not settled(state_from_plain, {**PLAIN, "format": junk})


def test_an_array_instead_of_a_dataset_is_refused():
    for junk in (np.array("x"), np.arange(3), np.zeros(0)):
        assert not settled(state_from_plain, {**PLAIN, "datasets": [junk]})


@pytest.mark.parametrize("junk", JUNK, ids=lambda j: type(j).__name__)
def test_junk_instead_of_a_state_is_refused(junk):
    assert not settled(state_from_plain, junk)
    if not isinstance(junk, (bytes, bytearray)):
        assert not settled(decode, junk)


def test_fields_dropped_doubled_and_swapped_are_refused_or_sound():
    rng = random.Random(3)
    for at in PLACES:
        settled(state_from_plain, changed(at, lambda where, key: where.__delitem__(key)))
        other = rng.choice(PLACES)
        where, key = container(PLAIN, other)
        value = where[key]
        settled(state_from_plain, changed(at, lambda where, key, v=value: where.__setitem__(key, copy.deepcopy(v))))


@pytest.mark.parametrize(
    "at", [at for at in PLACES if len(at) == 1 or (len(at) == 3 and at[:2] == ("lanes", 1))], ids=str
)
def test_a_missing_field_is_named(at):
    with pytest.raises(CheckpointMismatch) as caught:
        state_from_plain(changed(at, lambda where, key: where.__delitem__(key)))
    if at != ("format",):
        assert f"the field {at[-1]!r} is missing" in str(caught.value)
        assert at in [("lanes", 1, "lane")] or str(caught.value).startswith("lane 1: " if len(at) == 3 else "state: ")


def test_more_fields_than_there_are_do_no_harm():
    assert settled(state_from_plain, {**PLAIN, "more": 1})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"format": "other"}, "this is no pipeline state: restore takes what checkpoint"),
        (
            {"version": VERSION + 1},
            "the state has format version 2, this zephon_jax reads version 1; upgrade zephon_jax",
        ),
        ({"version": 0}, "format version 0, this zephon_jax reads version 1; save it again"),
        ({"lanes_total": 2}, "the state lists lane 2 twice, or beyond its 2 lanes"),
        ({"lanes_total": 0}, "the field 'lanes_total' is 0, an integer of at least 1 was expected"),
        ({"lanes": [PLAIN["lanes"][1]] * 2}, "the state lists lane 1 twice"),
        ({"lanes": {}}, "the field 'lanes' is no list"),
        ({"plan": []}, "the field 'plan' is no mapping"),
        ({"datasets": [["web", 1]]}, "the state's list of datasets is broken"),
        ({"datasets": [["web", "1", "ab"]]}, "the state's list of datasets is broken"),
        ({"datasets": [["web", 1, "ab", -1, b""]]}, "the state's list of datasets is broken"),
        ({"datasets": [["web", 1, "ab", 1, "ab"]]}, "the state's list of datasets is broken"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_state_is_said(change, text):
    with pytest.raises(CheckpointMismatch) as caught:
        state_from_plain({**PLAIN, **change})
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"cursor": None}, "lane 1: cursor None does not fit chunks 6 to 8"),
        ({"cursor": [5, 0, 0, 0]}, "does not fit chunks 6 to 8"),
        ({"cursor": [9, 0, 0, 0]}, "does not fit chunks 6 to 8"),
        ({"cursor": [6]}, "the field 'cursor' is broken: a cursor has a chunk and an offset"),
        ({"cursor": [6, -1]}, "the field 'cursor' is broken: -1 is not a natural number"),
        ({"delivered": 0}, "does not fit chunks 6 to 8"),
        ({"delivered": 10}, "does not fit chunks 6 to 8"),
        ({"chunks": PLAIN["lanes"][0]["chunks"]}, "does not fit chunks 6 to 5"),
        ({"high_offset": -2}, "the field 'high_offset' is -2, an integer of at least -1 was expected"),
        ({"high_offset": 3}, "lane 1: offset 3 was delivered of a last chunk of 3 samples"),
        ({"rounds": True}, "the field 'rounds' is True, an integer"),
        ({"digest": b"x"}, "the field 'digest' is broken: a digest has 16 bytes"),
        ({"skipped": [[1]]}, "the field 'skipped' is broken"),
        ({"boundaries": [-1]}, "the field 'boundaries' is broken: -1 is not a natural number"),
        ({"source": None}, "the field 'source' is no mapping"),
        ({"known": []}, "the field 'known' is broken: the parts of identity do not match"),
        (
            {"known": PLAIN["lanes"][2]["known"]},
            "the field 'known' is broken: a record lies outside the chunks in flight",
        ),
        ({"lane": -1}, "the field 'lane' is -1"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_lane_is_said(change, text):
    lanes = [PLAIN["lanes"][0], {**PLAIN["lanes"][1], **change}, PLAIN["lanes"][2]]
    with pytest.raises(CheckpointMismatch) as caught:
        state_from_plain({**PLAIN, "lanes": lanes})
    assert text in str(caught.value)


def without_size(raw: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(raw)


def claiming(size: int) -> bytes:
    """A frame that declares so many bytes and holds none: magic, descriptor (8-byte size, one segment), size, block."""
    return b"\x28\xb5\x2f\xfd" + b"\xe0" + size.to_bytes(8, "little") + b"\x01\x00\x00"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        RAW,
        DATA[:-1],
        DATA + b"\x00",
        DATA + DATA,
        without_size(RAW),
        claiming(0),
        claiming(1000),
        claiming(MAX_STATE_BYTES + 1),
        claiming(2**63),
        claiming(2**64 - 1),
        b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd",  # a frame to be skipped
        compressed(b""),
        compressed(b"\xc1"),
        compressed(RAW + b"\x00"),
        compressed(RAW[:-1]),
        compressed(msgpack.packb([PLAIN])),
        compressed(b"\xdd\xff\xff\xff\xff"),  # a list of 2**32 - 1 values
        compressed(b"\xdf\xff\xff\xff\xff"),
        compressed(b"\xc6\xff\xff\xff\xff"),
        compressed(b"\x91" * 100_000 + b"\x00"),
        compressed(b"\x81\xa1a" * 100_000 + b"\x00"),
        compressed(b"\x81\x01\x02"),
        compressed(b"\x81\xa1\xff\x02"),
        compressed(b"\xd6\xff\x00\x00\x00\x00"),
        compressed(b"\xc7\x05\xff\x00\x00\x00\x00\x00"),
        compressed(b"\x81\xa6format\xd4\x01\x00"),
    ],
    ids=range(28),
)
def test_bytes_that_are_no_state_are_refused(data):
    assert not settled(parse, data)


@pytest.mark.parametrize("start", [b"\xdd", b"\xdf"], ids=["lists", "mappings"])
def test_lists_that_claim_more_than_there_is_cost_nothing(start):
    """Four hundred lists, one in the other, of as many values as there are bytes: 2.5 GB for 1 MB with some msgpacks."""
    size = 1 << 20
    key = b"\xa1k" if start == b"\xdf" else b""
    data = compressed(((start + (size // 2).to_bytes(4, "big") + key) * 400).ljust(size, b"\x00"))
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointMismatch, match="cut off"):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_many_lanes_cannot_claim_more_pointers_than_one_state_may_hold():
    def zeros(n: int) -> list[Any]:
        return [0, bytes(n)]

    n = 1 << 16
    chunks = [[2, n.to_bytes(4, "little")], [0], None, [[zeros(1), zeros(1), [2, n.to_bytes(4, "little")]]]]
    lane = {**PLAIN["lanes"][1], "chunks": chunks, "cursor": [6, 1]}
    state = {**PLAIN, "lanes": [{**lane, "lane": i} for i in range(3)]}
    with mock.patch.object(codec, "MAX_POINTERS", 3 * n):
        assert [len(c) for s in state_from_plain(state).lanes.values() for c in s.chunks] == [n] * 3
    with mock.patch.object(codec, "MAX_POINTERS", 3 * n - 1):
        with pytest.raises(
            CheckpointMismatch, match="lane 2: the field 'chunks' is broken: chunk sizes .* out of bounds"
        ):
            state_from_plain(state)


@pytest.mark.parametrize(("name", "most"), [("MAX_POINTERS", 26), ("MAX_LANE_POINTERS", 14)])
def test_a_state_that_could_not_be_read_back_is_not_written(name, most):
    with mock.patch.object(codec, name, most + 1):
        assert state_to_plain(sample_state()) == PLAIN
    with mock.patch.object(codec, name, most):
        with pytest.raises(ConfigurationError, match="27 samples are in flight, up to 15 in a lane; a state holds "):
            state_to_plain(sample_state())


def test_bytes_that_could_not_be_read_back_are_not_written():
    with mock.patch.object(codec, "MAX_STATE_BYTES", len(RAW)):
        assert decode(encode(PLAIN)) == PLAIN
    with mock.patch.object(codec, "MAX_STATE_BYTES", len(RAW) - 1):
        with pytest.raises(ConfigurationError, match=f"the state has {len(RAW):,} bytes, more than the "):
            encode(PLAIN)


def test_what_cannot_be_saved_again_is_refused():
    """Keys of bytes are msgpack, but nothing that `checkpoint()` returns."""
    for name, where in (("plan", PLAIN), ("source", PLAIN["lanes"][0])):
        before = where[name]
        for junk in ({b"a": 1}, {"a": [{b"b": 2}]}):
            where[name] = junk
            try:
                with pytest.raises(CheckpointMismatch, match=f"the field '{name}' is broken: the key b'.' is no str"):
                    parse(compressed(msgpack.packb(PLAIN)))
            finally:
                where[name] = before


@pytest.mark.parametrize("junk", [b"\x06", {}, {"6": 1}, ""], ids=str)
@pytest.mark.parametrize("name", ["skipped", "boundaries", "passed_over", "cursor"])
def test_what_is_no_list_is_not_taken_for_one(name, junk):
    lanes = [PLAIN["lanes"][0], {**PLAIN["lanes"][1], name: junk}, PLAIN["lanes"][2]]
    with pytest.raises(CheckpointMismatch, match=f"lane 1: the field '{name}' is broken: a list was expected, got "):
        state_from_plain({**PLAIN, "lanes": lanes})


def test_a_damaged_byte_is_noticed_by_the_checksum():
    at = len(DATA) // 2
    for bit in range(8):
        wrong = bytearray(DATA)
        wrong[at] ^= 1 << bit
        with pytest.raises(CheckpointMismatch, match="this is no pipeline state: "):
            parse(bytes(wrong))


def test_the_format_is_named_in_the_state():
    assert FORMAT == "zephon_jax.pipeline_state"
    assert VERSION == 1
