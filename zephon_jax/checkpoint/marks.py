"""What a checkpoint remembers of datasets, and which shards of one have changed since (rule C6). Pure.

A dataset's own fingerprint covers every shard. To name the shard that changed, a mark also keeps 4 bytes for each, or for
each group of neighbouring shards where there are more than 256: a kilobyte at most, for any number of shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

__all__ = ["DatasetMark", "changed_shards", "marks_of", "shard_digests"]

_GROUPS: Final = 256
_BYTES: Final = 4


class DatasetMark(NamedTuple):
    """What a checkpoint remembers of a dataset: enough to notice that its content changed, and where.

    `shards` (-1: not kept) and `digests`, of each shard or group of shards in order, do not decide whether it changed.
    """

    name: str
    num_samples: int
    fingerprint: str
    shards: int = -1
    digests: bytes = b""

    def same_content(self, other: DatasetMark) -> bool:
        """Whether both are of the same samples under the same name."""
        return self[:3] == other[:3]


def marks_of(datasets: Mapping[int, Any]) -> list[DatasetMark]:
    """The marks of datasets (`zephon_jax.Dataset` or alike), in the order of their ids."""
    marks: list[DatasetMark] = []
    for _, dataset in sorted(datasets.items()):
        shards, digests = shard_digests((s.num_samples, s.fingerprint) for s in dataset.shards)
        marks.append(DatasetMark(dataset.name, len(dataset), dataset.fingerprint, shards, digests))
    return marks


def shard_digests(shards: Iterable[tuple[int, str]]) -> tuple[int, bytes]:
    """The number of shards, and their digests, of (number of samples, fingerprint) of each; (-1, b"") for a single one."""
    texts = [f"{samples} {fingerprint}\n".encode() for samples, fingerprint in shards]
    if len(texts) == 1:  # the dataset's own fingerprint says all there is to say
        return -1, b""
    out = b"".join(hashlib.blake2b(b"".join(texts[a:b]), digest_size=_BYTES).digest() for a, b in _groups(len(texts)))
    return len(texts), out


def _groups(shards: int) -> list[tuple[int, int]]:
    size = max(1, -(-shards // _GROUPS))
    return [(at, min(at + size, shards)) for at in range(0, shards, size)]


def changed_shards(saved: DatasetMark, here: DatasetMark, names: Sequence[str]) -> str:
    """Which shards differ, in words; empty if the marks do not tell. `names`: of the shards as they are now."""
    if min(saved.shards, here.shards) < 0 or len(names) != here.shards:
        return ""
    if saved.shards != here.shards:
        return f"it had {saved.shards} shards, now {here.shards}"
    groups = _groups(here.shards)
    if not len(saved.digests) == len(here.digests) == _BYTES * len(groups):
        return ""
    before, now = (
        [mark.digests[at : at + _BYTES] for at in range(0, len(mark.digests), _BYTES)] for mark in (saved, here)
    )
    changed = [i for i, (a, b) in enumerate(zip(before, now, strict=True)) if a != b]
    if not changed:
        return ""
    if sorted(before) == sorted(now):
        return f"the order of its shards changed, from {names[groups[changed[0]][0]]!r} on"
    shown = [_named(names, *groups[i]) for i in changed[:3]]
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return f"changed: {', '.join(shown)}{more}"


def _named(names: Sequence[str], start: int, stop: int) -> str:
    first, last = names[start], names[stop - 1]
    return repr(first) if stop - start == 1 else f"one of {stop - start} shards from {first!r} to {last!r}"
