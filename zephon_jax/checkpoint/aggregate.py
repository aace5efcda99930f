"""`checkpoint()` where several processes share the lanes: one round, after which every process has the state of all lanes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zephon_jax.checkpoint.merge import joined, mapping_digest, owners_of, plan_digest, shares_of
from zephon_jax.coordinate import jaxkv
from zephon_jax.coordinate.protocol import Ranks
from zephon_jax.coordinate.round import Contribution, Seat, next_ordinal, open_store
from zephon_jax.errors import ConfigurationError, ZephonError
from zephon_jax.options import Options

__all__ = ["Aggregation", "tried"]


class Aggregation:
    """An iterator's part in the rounds of all processes. The storage is opened at the first of them.

    `process` of `processes`, `producers`: as in `zephon_jax.emit.topology.Topology`. `lanes`: those produced here; `total`: of
    the pipeline.
    """

    def __init__(
        self,
        options: Options,
        *,
        process: int,
        processes: int,
        lanes: Sequence[int],
        total: int,
        producers: Mapping[int, Sequence[int]] | None,
    ):
        self._options, self._lanes, self._total = options, tuple(lanes), total
        self._producers = producers if processes > 1 else None
        self._given = (process, processes)
        self._seat: Seat | None = None
        self._ordinal = self._counted() if self.together() else None

    def together(self) -> bool:
        """Whether a checkpoint takes other processes: there are some, and not one that has all lanes to itself."""
        return self._place()[1] > 1

    def _place(self) -> tuple[int, int]:
        if self._given[1] > 1:
            return self._given
        if self._options.world_size is not None and self._options.global_rank is not None:
            return self._options.global_rank, self._options.world_size
        return jaxkv.processes() if len(self._lanes) < self._total else (0, 1)

    def checkpoint(self, capture: Callable[[], dict[str, Any]], step: int) -> dict[str, Any]:
        """The state of all lanes, the same on every process. `capture` gives that of the lanes produced here.

        Raises:
            AggregationTimeout: Ranks were missing when the time was up.
            AggregationFailed: A rank failed, or ranks disagree; all raise the same text.
            ConfigurationError: There is no storage to meet over.
        """
        seat = self._seat = self._seat or self._seated()
        plain, failure, mine = self.contribution(capture, step, self._place()[1], states=True)
        try:
            merged = seat.agree(mine, self.timeout_s)
        except ZephonError as outcome:
            raise outcome from failure
        assert plain is not None
        return joined(plain, [(lane, state) for lane, _, state in merged.lanes])

    def digests(self, own: Mapping[int, int], step: int) -> dict[int, int]:
        """The fingerprints of all lanes, of those of the lanes produced here; a round like `checkpoint`."""
        seat = self._seat = self._seat or self._seated()
        shares = [(lane, f"fingerprint {digest:032x}", digest.to_bytes(16, "little")) for lane, digest in own.items()]
        mapping = self._mapping(self._place()[1])
        merged = seat.agree(Contribution("fingerprint()", mapping, step, self._lanes, shares), self.timeout_s)
        return {lane: int.from_bytes(state, "little") for lane, _, state in merged.lanes}

    def contribution(
        self, capture: Callable[[], Mapping[str, Any]], step: int, processes: int, *, states: bool
    ) -> tuple[Mapping[str, Any] | None, ZephonError | None, Contribution]:
        """The state of the lanes produced here, or why there is none, and what a round is told of it."""
        plain, failure = tried(capture)
        shares = [] if plain is None else shares_of(plain)
        if not states:
            shares = [(lane, mark, b"") for lane, mark, _ in shares]
        digest = "" if plain is None else plan_digest(plain)
        error = "" if failure is None else f"{type(failure).__name__}: {failure}"
        return plain, failure, Contribution(digest, self._mapping(processes), step, self._lanes, shares, error)

    def ranks(self, processes: int) -> Ranks:
        """Who takes part in a round of so many processes, with their lanes where these are known beforehand."""
        known = self._producers is not None and processes == self._given[1]
        return Ranks(self._total, self._owners() if known else (None,) * processes)

    def _owners(self) -> tuple[tuple[int, ...], ...]:
        assert self._producers is not None
        return owners_of(self._producers, self._given[1])

    def _mapping(self, processes: int) -> str:
        if self._producers is None:  # data-parallel groups have equally many lanes each
            return f"{len(self._lanes)} of {self._total} lanes on each of {processes} ranks"
        return mapping_digest(self._owners())

    def _seated(self) -> Seat:
        rank, processes = self._place()
        store = open_store(self._options.aggregate_dir, self._options.aggregate_store)
        ordinal = self._counted() if self._ordinal is None else self._ordinal
        return Seat.of_run(store, rank, self.ranks(processes), self._options.run_id, ordinal, self.timeout_s)

    def _counted(self) -> int:
        place = os.fspath(self._options.aggregate_dir or "jax://")
        return next_ordinal(place, self._options.run_id, *self._place())

    @property
    def timeout_s(self) -> float:
        """The budget of a round."""
        return float(self._options.aggregate_timeout_s)

    def close(self) -> None:
        """After an orderly end: nothing of this iterator stays in the storage, if everyone has read it."""
        if self._seat is not None:
            self._seat.close()

    def require_alone(self, what: str) -> None:
        """Raise ConfigurationError unless all lanes are produced here."""
        if len(self._lanes) < self._total:
            raise ConfigurationError(
                f"{what} must cover all {self._total} lanes, but this process produces {list(self._lanes)}; pass "
                "options(world_size=, global_rank=) for the ranks to put theirs together, or use get_state(), which gives the "
                "state of these alone"
            )


def tried(capture: Callable[[], Mapping[str, Any]]) -> tuple[Mapping[str, Any] | None, ZephonError | None]:
    """What it gives, or the error that it ends with."""
    try:
        return capture(), None
    except ZephonError as error:  # told to the others first, who would wait for this process
        return None, error
