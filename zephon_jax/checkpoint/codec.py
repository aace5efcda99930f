"""State ↔ plain values ↔ bytes. Pure.

`state_to_plain` gives the dict that `checkpoint()` returns; `encode` packs such a dict with msgpack and zstd. Decoding
executes nothing, allocates no more than the frame declares (and at most `MAX_STATE_BYTES`), checks every field, and
fails with `CheckpointMismatch` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgpack
import zstandard

from zephon_jax.checkpoint.pointers import MAX_LANE_POINTERS, pack_chunks, pack_known, unpack_chunks, unpack_known
from zephon_jax.checkpoint.schema import FORMAT, VERSION, DatasetMark, LaneSnapshot, PipelineState
from zephon_jax.errors import CheckpointMismatch, ConfigurationError

__all__ = [
    "MAX_POINTERS",
    "MAX_STATE_BYTES",
    "decode",
    "encode",
    "plain_values",
    "require_plain",
    "state_from_plain",
    "state_to_plain",
]

MAX_STATE_BYTES: Final = 1 << 30
MAX_POINTERS: Final = 1 << 28  # of all lanes together, 16 bytes each: a few bytes can claim millions
_LEVEL: Final = 3
_INT64: Final = 1 << 63
_PLAIN: Final = "None, bool, int of 64 bits, float, str, bytes, and lists and dicts of these"
Value = TypeVar("Value")


def state_to_plain(state: PipelineState) -> dict[str, Any]:
    """Plain values, msgpack-able, with lanes in ascending order.

    Raises:
        ConfigurationError: More samples are in flight than are read back.
    """
    held = [sum(map(len, s.chunks)) for s in state.lanes.values()]
    if sum(held) > MAX_POINTERS or max(held, default=0) > MAX_LANE_POINTERS:
        raise ConfigurationError(
            f"{sum(held):,} samples are in flight, up to {max(held):,} in a lane; a state holds {MAX_POINTERS:,}, "
            f"and {MAX_LANE_POINTERS:,} in a lane. Lower chunk_size or flush_every_k_chunks"
        )
    return {
        "format": FORMAT,
        "version": VERSION,
        "lanes_total": state.lanes_total,
        "plan": plain_values(state.plan),
        "datasets": [list(d if d.shards >= 0 else d[:3]) for d in state.datasets],
        "lanes": [_lane_to_plain(state.lanes[lane]) for lane in sorted(state.lanes)],
    }


def _lane_to_plain(s: LaneSnapshot) -> dict[str, Any]:
    return {
        "lane": s.lane,
        "first": s.first,
        "chunks": pack_chunks(s.chunks),
        "skipped": [list(at) for at in s.skipped],
        "boundaries": list(s.boundaries),
        "source": plain_values(s.source),
        "delivered": s.delivered,
        "cursor": None if s.cursor is None else list(s.cursor),
        "high_offset": s.high_offset,
        "rounds": s.rounds,
        "rows": s.rows,
        "digest": s.digest.to_bytes(16, "little"),
        "skipped_total": s.skipped_total,
        "passed_over": [list(span) for span in s.passed_over],
        "known": None if s.known is None else pack_known(s.known),
    }


def plain_values(value: Any) -> Any:
    """Tuples as lists and NumPy scalars as numbers, so that what is saved equals what is read back."""
    if isinstance(value, Mapping):
        if wrong := [k for k in value if not isinstance(k, str)]:
            raise TypeError(f"the key {wrong[0]!r} is no str")
        return {k: plain_values(v) for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, (list, tuple)):
        return [plain_values(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
    return value.item() if hasattr(value, "item") and not isinstance(value, (str, bytes)) else value


def require_plain(value: Any, what: str) -> None:
    """Raise ConfigurationError unless a checkpoint can carry `value` and gives back the same."""
    try:
        same = msgpack.unpackb(_packed(plain_values(value)), strict_map_key=True) == plain_values(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"{what} cannot be saved: {type(error).__name__}: {error}; use {_PLAIN}") from error
    if not same:
        raise ConfigurationError(f"{what} comes back otherwise than it was saved; use {_PLAIN}")


def encode(plain: Mapping[str, Any]) -> bytes:
    """The bytes of a state; equal states give equal bytes.

    Raises:
        ConfigurationError: They are more than `decode` takes.
    """
    packed = _packed(plain)
    if len(packed) > MAX_STATE_BYTES:
        raise ConfigurationError(
            f"the state has {len(packed):,} bytes, more than the {MAX_STATE_BYTES:,} that are read back. "
            "Lower chunk_size or flush_every_k_chunks"
        )
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(packed)


def _packed(plain: Mapping[str, Any]) -> bytes:
    packed = msgpack.packb(plain)
    assert packed is not None
    return packed


def decode(data: bytes) -> dict[str, Any]:
    """The dict that was encoded; its fields are checked by `state_from_plain`."""
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size > MAX_STATE_BYTES:  # an undeclared size reads as a huge one
            raise CheckpointMismatch(
                f"the state declares {size} bytes, more than the {MAX_STATE_BYTES} that are allowed"
            )
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=size, allow_extra_data=False)
        _require_whole(raw)
        plain = msgpack.unpackb(raw, strict_map_key=True, ext_hook=_no_extension)
    except CheckpointMismatch:
        raise
    except (zstandard.ZstdError, msgpack.UnpackException, ValueError, TypeError, RecursionError) as error:
        raise CheckpointMismatch(f"this is no pipeline state: {type(error).__name__}: {error}") from error
    if not isinstance(plain, dict):
        raise CheckpointMismatch(f"this is no pipeline state: it holds a {type(plain).__name__}")
    return plain  # pyright: ignore[reportUnknownVariableType]


def _require_whole(raw: bytes) -> None:
    """Every list and mapping has the values that it claims.

    Before `unpackb`, which reserves a list for each claim, 512 of them one in the other: 2.5 GB for a state of 1 MB.
    Passing over values reserves nothing.
    """
    reader = msgpack.Unpacker(max_buffer_size=max(1, len(raw)))
    reader.feed(raw)
    try:
        reader.skip()
    except msgpack.OutOfData:
        raise ValueError("a list, mapping or text is cut off") from None


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"an extension of type {code}")


def state_from_plain(plain: Any) -> PipelineState:
    """The state of a dict that `state_to_plain` made; every field is checked."""
    name: Any = plain.get("format") if isinstance(plain, Mapping) else None
    if not isinstance(name, str) or name != FORMAT:
        raise CheckpointMismatch("this is no pipeline state: restore takes what checkpoint() or get_state() returned")
    root = _Fields(plain, "state")  # pyright: ignore[reportUnknownArgumentType]
    version = root.integer("version", 0)
    if version != VERSION:
        raise CheckpointMismatch(
            f"the state has format version {version}, this zephon_jax reads version {VERSION}; "
            + ("upgrade zephon_jax" if version > VERSION else "save it again with the version that wrote it")
        )
    total = root.integer("lanes_total", 1)
    datasets = tuple(_dataset(entry) for entry in root.listed("datasets"))
    lanes: dict[int, LaneSnapshot] = {}
    pointers = 0
    for entry in root.listed("lanes"):
        snapshot = _lane(entry, MAX_POINTERS - pointers)
        pointers += sum(len(chunk) for chunk in snapshot.chunks)
        if snapshot.lane in lanes or snapshot.lane >= total:
            raise CheckpointMismatch(f"the state lists lane {snapshot.lane} twice, or beyond its {total} lanes")
        lanes[snapshot.lane] = snapshot
    return PipelineState(total, root.mapping("plan"), datasets, lanes)


def _dataset(entry: Any) -> DatasetMark:
    match entry:
        case [str() as name, int() as samples, str() as fingerprint]:
            return DatasetMark(name, samples, fingerprint)
        case [str() as name, int() as samples, str() as fingerprint, int() as shards, bytes() as digests] if (
            shards >= 0
        ):
            return DatasetMark(name, samples, fingerprint, shards, digests)
        case _:
            raise CheckpointMismatch("the state's list of datasets is broken")


def _lane(entry: Any, most_pointers: int) -> LaneSnapshot:
    f = _Fields(entry, "lane")
    f = _Fields(entry, f"lane {f.integer('lane', 0)}")
    first, cursor = f.integer("first", 0), f.get("cursor")
    chunks = f.parsed("chunks", lambda v: unpack_chunks(v, most_pointers))
    snapshot = LaneSnapshot(
        lane=f.integer("lane", 0),
        first=first,
        chunks=chunks,
        skipped=tuple(f.parsed("skipped", lambda v: [_pair(p) for p in _items(v)])),
        boundaries=tuple(f.parsed("boundaries", lambda v: [_natural(b) for b in _items(v)])),
        source=f.mapping("source"),
        delivered=f.integer("delivered", 0),
        cursor=None if cursor is None else f.parsed("cursor", _cursor),
        high_offset=f.integer("high_offset", -1),
        rounds=f.integer("rounds", 0),
        rows=f.integer("rows", 0),
        digest=f.parsed("digest", _digest),
        skipped_total=f.integer("skipped_total", 0),
        passed_over=tuple(f.parsed("passed_over", lambda v: [_pair(p) for p in _items(v)])),
        known=None if f.get("known") is None else f.parsed("known", lambda v: unpack_known(v, first, chunks)),
    )
    last = first + len(chunks) - 1
    fits = (
        snapshot.cursor is None if not chunks else snapshot.cursor is not None and first <= snapshot.cursor[0] <= last
    )
    spans = [0, *(at for span in snapshot.passed_over for at in span), snapshot.rows]
    if spans != sorted(spans):
        raise CheckpointMismatch(f"lane {snapshot.lane}: the rows passed over {snapshot.passed_over} are out of order")
    if not fits or snapshot.delivered > snapshot.rows or (snapshot.delivered > 0) != bool(chunks):
        raise CheckpointMismatch(
            f"lane {snapshot.lane}: cursor {snapshot.cursor} does not fit chunks {first} to {last}"
        )
    within = len(chunks[-1]) if chunks else 0
    if snapshot.high_offset >= within:  # a replay makes an array of so many offsets
        raise CheckpointMismatch(
            f"lane {snapshot.lane}: offset {snapshot.high_offset} was delivered of a last chunk of {within} samples"
        )
    return snapshot


def _natural(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _INT64:
        raise ValueError(f"{value!r} is not a natural number")
    return value


def _items(value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"a list was expected, got {type(value).__name__}")
    return list(value)  # pyright: ignore[reportUnknownArgumentType]


def _pair(value: Any) -> tuple[int, int]:
    chunk, offset = _items(value)
    return _natural(chunk), _natural(offset)


def _cursor(value: Any) -> tuple[int, ...]:
    parts = _items(value)
    if len(parts) < 2:
        raise ValueError("a cursor has a chunk and an offset")
    return tuple(_natural(part) for part in parts)


def _digest(value: Any) -> int:
    if not isinstance(value, bytes) or len(value) != 16:
        raise ValueError("a digest has 16 bytes")
    return int.from_bytes(value, "little")


class _Fields:
    """Reads fields with errors that name them."""

    def __init__(self, plain: Any, where: str):
        if not isinstance(plain, Mapping):
            raise CheckpointMismatch(f"{where}: a mapping was expected, got {type(plain).__name__}")
        self._plain: Mapping[str, Any] = plain  # pyright: ignore[reportUnknownMemberType]
        self._where = where

    def get(self, name: str) -> Any:
        if name not in self._plain:
            raise CheckpointMismatch(f"{self._where}: the field {name!r} is missing")
        return self._plain[name]

    def parsed(self, name: str, parse: Callable[[Any], Value]) -> Value:
        try:
            return parse(self.get(name))
        except (ValueError, TypeError, OverflowError, IndexError, RecursionError) as error:
            raise CheckpointMismatch(f"{self._where}: the field {name!r} is broken: {error}") from error

    def integer(self, name: str, least: int) -> int:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < _INT64:
            raise CheckpointMismatch(
                f"{self._where}: the field {name!r} is {value!r}, an integer of at least {least} was expected"
            )
        return value

    def listed(self, name: str) -> list[Any]:
        value = self.get(name)
        if not isinstance(value, (list, tuple)):
            raise CheckpointMismatch(f"{self._where}: the field {name!r} is no list")
        return list(value)  # pyright: ignore[reportUnknownArgumentType]

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.get(name)
        if not isinstance(value, Mapping):
            raise CheckpointMismatch(f"{self._where}: the field {name!r} is no mapping")
        return self.parsed(name, plain_values)  # what cannot be saved again is no field of a state
