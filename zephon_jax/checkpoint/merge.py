"""States taken apart by lane, and put together again. Pure.

A lane's part of a state depends on nothing but what was delivered of the lane (rule C9), so the state of all lanes is made of
the parts that different processes hold, without looking into them: whoever puts them together gets the bytes that a single
process would have written at the same cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgpack

from zephon_jax.checkpoint.codec import encode, state_from_plain
from zephon_jax.errors import CheckpointMismatch

__all__ = [
    "joined",
    "lacking_lanes",
    "lane_mark",
    "mapping_digest",
    "owners_of",
    "plan_digest",
    "shares_of",
    "state_digest",
]

LanePart = tuple[int, str, bytes]
"""A lane, what was delivered of it in words, and its part of the state."""


def plan_digest(plain: Mapping[str, Any]) -> str:
    """Of all of a state but the lanes: plan, datasets and format. 16 hexadecimal digits."""
    return _digest(encode({name: value for name, value in plain.items() if name != "lanes"}))


def state_digest(plain: Mapping[str, Any]) -> str:
    """Of a whole state. 16 hexadecimal digits."""
    return _digest(encode(plain))


def lacking_lanes(*parts: Mapping[str, Any]) -> list[int]:
    """Lanes of the pipeline that are in none of these states."""
    there = {lane["lane"] for plain in parts for lane in plain["lanes"]}
    return sorted(set(range(parts[0]["lanes_total"])) - there)


def owners_of(producers: Mapping[int, Sequence[int]], processes: int) -> tuple[tuple[int, ...], ...]:
    """Lanes per process, ascending, of the processes per lane."""
    owners: list[list[int]] = [[] for _ in range(processes)]
    for lane in sorted(producers):
        for process in producers[lane]:
            owners[process].append(lane)
    return tuple(map(tuple, owners))


def mapping_digest(owners: Sequence[Sequence[int]]) -> str:
    """Of which lanes each process owns. 16 hexadecimal digits."""
    return _digest(repr([list(owned) for owned in owners]).encode())


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def lane_mark(lane: Mapping[str, Any]) -> str:
    """What was delivered of a lane: equal on all processes that produce it, if they are at the same step."""
    digest = int.from_bytes(lane["digest"], "little")
    return f"{lane['rows']} rows (fingerprint {digest:032x}, cursor {lane['cursor']})"


def shares_of(plain: Mapping[str, Any]) -> list[LanePart]:
    """Each lane of the state by itself, ascending."""
    out: list[LanePart] = []
    for lane in plain["lanes"]:
        packed = msgpack.packb(lane)
        assert packed is not None
        out.append((lane["lane"], lane_mark(lane), packed))
    return out


def joined(plain: Mapping[str, Any], lanes: Iterable[tuple[int, bytes]]) -> dict[str, Any]:
    """The state of these lanes, of the pipeline that `plain` is of; equal to what one process with all of them would hold.

    Raises:
        CheckpointMismatch: A lane's part is broken.
    """
    parts: list[Any] = []
    for lane, packed in sorted(lanes):
        try:
            parts.append(msgpack.unpackb(packed, strict_map_key=True))
        except (msgpack.UnpackException, ValueError, TypeError) as error:
            raise CheckpointMismatch(f"lane {lane}: its part of the state is broken: {error}") from error
    whole = {**plain, "lanes": parts}
    state_from_plain(whole)
    return whole
