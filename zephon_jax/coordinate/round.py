"""One process's seat in aggregation rounds: which store, under which keys, and what a failed round raises.

A seat belongs to one iterator. Keys stand below `run_id/launch/ordinal/`: the launch is a text that the processes of one
`jax.distributed` share, so that a dead launch's leftovers are not even seen; without one, the protocol tells leftovers apart
by itself. The ordinal counts iterators of the run, which every process makes in the same order, so that two of them may be in a
round at once. (Counted by their first rounds, a single round that a rank missed would part it from the others for good.) The
plan's digest is in the part, not in the key: were it there, ranks with different plans would wait for
each other until the time is up, and nobody would learn why.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from zephon_jax.coordinate import jaxkv
from zephon_jax.coordinate.directory import DirectoryStore
from zephon_jax.coordinate.drive import drive
from zephon_jax.coordinate.objects import ObjectStore
from zephon_jax.coordinate.protocol import (
    Failed,
    Merged,
    Part,
    Ranks,
    Share,
    Stamp,
    describe,
    follow,
    lead,
    shut_down,
)
from zephon_jax.coordinate.store import Store, Within
from zephon_jax.errors import AggregationFailed, AggregationTimeout, ConfigurationError

__all__ = ["DEFAULT_RUN", "Contribution", "Seat", "next_ordinal", "open_store"]

DEFAULT_RUN: Final = "run"
_ROOT: Final = "zephon_jax/round"


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a process brings to a round; see `zephon_jax.coordinate.protocol.Part`."""

    plan: str
    mapping: str
    step: int
    owned: tuple[int, ...]
    shares: Sequence[tuple[int, str, bytes]]
    error: str = ""


def open_store(directory: str | os.PathLike[str] | None, url: str | None) -> Store:
    """The store of `options(aggregate_dir=)` or `options(aggregate_store=)`; by default JAX's, where it is initialised.

    Raises:
        ConfigurationError: There is none.
    """
    if directory is not None:
        text = os.fspath(directory)
        if text.startswith(("gs://", "s3://")):
            return ObjectStore(text)
        return DirectoryStore(text.removeprefix("file://"))
    if url is None and jaxkv.client() is None:
        raise ConfigurationError(
            "checkpoint() puts the states of several ranks together and needs storage that all of them share: pass "
            "options(aggregate_dir=) a directory or a gs:// or s3:// URL, or call jax.distributed.initialize() before, "
            "whose key-value store is then used. get_state() gives the state of this rank's lanes alone"
        )
    return jaxkv.JaxStore()


class Seat:
    """Takes part in rounds with every other rank, as `rank`. Use it from one thread at a time."""

    def __init__(self, store: Store, rank: int, ranks: Ranks, prefix: str):
        self._whole, self._store, self._rank, self._ranks = store, Within(store, prefix), rank, ranks
        self._round: str | None = None

    @classmethod
    def of_run(cls, store: Store, rank: int, ranks: Ranks, run_id: str | None, ordinal: int, timeout_s: float) -> Seat:
        """The seat of an iterator of this run, by its ordinal."""
        run = f"{_ROOT}/{run_id or DEFAULT_RUN}/"
        launch = jaxkv.launch_nonce(timeout_s) or "-"
        seat = cls(store, rank, ranks, f"{run}{launch}/{ordinal}/")
        if rank == 0 and launch != "-":
            _forget_other_launches(store, run, launch)
        return seat

    def agree(self, mine: Contribution, timeout_s: float, check: Callable[[Merged], str] | None = None) -> Merged:
        """One round; every rank must call it. `check`: asked by rank 0 before the merge is published.

        Raises:
            AggregationTimeout: Ranks were missing when the time was up; they are named, with their lanes.
            AggregationFailed: Some rank reported an error, or ranks disagree. Each rank of the round gets the same text.
        """
        rank, ranks, deadline = self._rank, self._ranks, time.monotonic() + timeout_s
        stamp = Stamp(mine.plan, mine.mapping, mine.step)
        shares = tuple(Share(*share) for share in mine.shares)
        part = Part(rank, uuid.uuid4().hex[:12], stamp, mine.owned, shares, mine.error)
        steps = lead(part, ranks, deadline, check is not None) if rank == 0 else follow(part, ranks, deadline)
        left = drive(steps, self._store, check or (lambda merged: ""))
        assert left is not None
        if isinstance(left.outcome, Merged):
            self._round = left.round
            return left.outcome
        raise _error(left.outcome)

    def close(self) -> None:
        """After the last round: rank 0 removes what is left of it, if everyone has read it."""
        gone = isinstance(self._whole, jaxkv.JaxStore) and self._whole.gone
        if self._round is not None and self._rank == 0 and not gone:
            drive(shut_down(self._round, tuple(range(1, len(self._ranks.owners)))), self._store)
        self._round = None


_counting = threading.Lock()
_ordinals: defaultdict[tuple[str, str, int, int], itertools.count[int]] = defaultdict(itertools.count)


def next_ordinal(place: str, run_id: str | None, rank: int, ranks: int) -> int:
    """How many iterators of this run there were before, in this process. `place`: which storage they meet over."""
    with _counting:
        return next(_ordinals[place, run_id or DEFAULT_RUN, rank, ranks])


def _forget_other_launches(store: Store, run: str, launch: str) -> None:
    """Keys of launches of this run that are over: jax.distributed ends all processes when one dies."""
    store.delete_each([key for key in store.list(run) if not key.startswith((f"{run}{launch}/", f"{run}-/"))])


def _error(failed: Failed) -> AggregationFailed | AggregationTimeout:
    return (AggregationTimeout if failed.kind == "timeout" else AggregationFailed)(describe(failed))
