"""The standard work source: datasets mixed by fixed weights, dealt to lanes from one global sequence of draws.

Three closed forms in a row turn a lane's position into pointers, so that the state is one number and a resume costs the
same anywhere: the deal (which global draw is the lane's next), the quota (which dataset that draw takes, and which of
that dataset's draws it is) and the dataset's sample order.

Dealing one sequence, rather than giving every lane shards of its own, is what makes the promises hold for any number
of lanes: over all lanes each draw comes exactly once, so a pass has each sample once; shares are exact over all lanes
together; lanes differ by at most one draw at the end; and no sample is lost in a partial chunk.

This module knows nothing of files, fields or tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import Any, Literal, Self, SupportsIndex, TypeAlias, cast

import numpy as np

from zephon_jax.errors import CheckpointMismatch, ConfigurationError
from zephon_jax.types import Int64s, SourceState, WorkChunk
from zephon_jax.work.base import WorkDataset, WorkSource
from zephon_jax.work.cursor import BlockSize, SampleOrder, block_size_of
from zephon_jax.work.permutation import MAX_SIZE, mix_key, mix_key_each
from zephon_jax.work.quota import Quota

__all__ = ["ExhaustedPolicy", "StaticMixtureWorkSource"]

ExhaustedPolicy: TypeAlias = Literal["stop", "repeat"] | None

ORDER_VERSION = 1
"""Goes up whenever the same arguments come to mean another order, so that old checkpoints are refused, not misread."""

_DEAL = 2**32  # the domain of the deal's keys; components use their ids, which stay far below
_MAX_DRAWS = 2**62  # draws are int64, with room for the arithmetic on them
_BLOCKS_PER_PASS = 64  # per lane: the order within a block is the dataset's, so fewer blocks would cluster lanes


class StaticMixtureWorkSource(WorkSource):
    """Draws samples of one or several datasets by fixed weights, each dataset in a shuffled order of its own.

    `datasets` is a dataset or several with different names; ids in pointers are positions in it. `mixture` gives
    each of them a positive weight by name, in any scale; without it each weighs as many as its samples. The shares are
    exact: the first g draws hold each dataset's share to within two draws.

    The orders (`shuffle_shards`, `shuffle_within_shard`, `shuffle_block_size`, `reshuffle_on_repeat`) are those of
    `SampleOrder`, all keyed by `seed`. `shuffle_block_size=256` mixes blocks of 256 consecutive samples over the whole
    dataset, "auto" chooses a size, "global" mixes single samples.

    It ends, by `exhausted_policy`:

    - `None`: once every dataset has completed `stop_after_passes` (default 1) passes; smaller ones repeat meanwhile.
    - `"stop"`: before the first dataset would begin another pass than those.
    - `"repeat"`: never, or like `None` where `stop_after_passes` is given.

    The object itself stands for the only lane of one; `clone_for_lane` gives the lanes of more. A clone belongs to one
    thread at a time; what clones share may be used by many. Raises `ConfigurationError` on arguments that cannot work.
    """

    def __init__(
        self,
        datasets: WorkDataset | Sequence[WorkDataset],
        mixture: Mapping[str, float] | None = None,
        *,
        seed: int = 0,
        chunk_size: int = 512,
        shuffle_shards: bool = True,
        shuffle_within_shard: bool = False,
        shuffle_block_size: BlockSize = None,
        stop_after_passes: int | None = None,
        exhausted_policy: ExhaustedPolicy = None,
        reshuffle_on_repeat: bool = True,
    ):
        self._datasets = _checked_datasets(datasets)
        names = [dataset.name for dataset in self._datasets]
        sizes = [np.array([shard.num_samples for shard in d.shards], np.int64) for d in self._datasets]
        self._totals = _checked_totals(names, sizes)
        self._quota = Quota(self._totals if mixture is None else _checked_mixture(mixture, names))
        self._seed = _checked_int("seed", seed, least=0)
        self._chunk_size = _checked_int("chunk_size", chunk_size, least=1)
        if stop_after_passes is not None:
            stop_after_passes = _checked_int("stop_after_passes", stop_after_passes, least=1)
        self._end = _end_of_draws(self._quota, self._totals, stop_after_passes, exhausted_policy)
        block = block_size_of(shuffle_block_size)
        shards, inside, reshuffle = bool(shuffle_shards), bool(shuffle_within_shard), bool(reshuffle_on_repeat)
        self._orders: tuple[SampleOrder, ...] = tuple(
            SampleOrder(shard_sizes, mix_key(self._seed, component), shards, inside, block, reshuffle)
            for component, shard_sizes in enumerate(sizes)
        )
        self._identity: dict[str, Any] = {
            "class": "StaticMixtureWorkSource",
            "order_version": ORDER_VERSION,
            "datasets": names,
            "weights": list(self._quota.weights),
            "seed": self._seed,
            "chunk_size": self._chunk_size,
            "shuffle_shards": shards,
            "shuffle_within_shard": inside,
            "shuffle_block_size": block,
            "stop_after_passes": stop_after_passes,
            "exhausted_policy": exhausted_policy,
            "reshuffle_on_repeat": reshuffle,
        }
        self._start_lane(0, 1)

    def _start_lane(self, lane: int, lanes: int) -> None:
        block = _deal_block(sum(self._totals), lanes, self._chunk_size)
        key = mix_key(self._seed, _DEAL) if len(self._datasets) > 1 else None
        self._deal = _Deal(lane, lanes, block, self._end, key)
        self._position = 0

    @property
    def datasets_by_id(self) -> Mapping[int, Any]:
        """The datasets by their position in the arguments."""
        return dict(enumerate(self._datasets))

    @property
    def chunk_size_hint(self) -> int:
        """`chunk_size`: only a lane's last chunk may be smaller."""
        return self._chunk_size

    @property
    def num_draws(self) -> int | None:
        """The number of draws of all lanes together; `None` if endless."""
        return self._end

    @property
    def num_lane_draws(self) -> int | None:
        """The number of draws of this lane; `None` if endless."""
        return self._deal.num_draws

    def next_chunk(self) -> WorkChunk | None:
        """The lane's next `chunk_size` draws, or what is left of them; `None` after the last, each time."""
        stop = self._position + self._chunk_size
        if self._deal.num_draws is not None:
            stop = min(stop, self._deal.num_draws)
        if stop <= self._position:
            return None
        draws = self._deal.global_draws(np.arange(self._position, stop, dtype=np.int64))
        self._position = stop
        component, ordinal = self._quota.draws(draws)
        shard, sample = np.empty(len(draws), np.int32), np.empty(len(draws), np.int64)
        for dataset in np.unique(component):
            chosen = np.flatnonzero(component == dataset)
            shard[chosen], sample[chosen] = self._orders[int(dataset)].locate(ordinal[chosen])
        return WorkChunk(component, shard, sample)

    def clone_for_lane(self, lane_id: int, canonical_replicas: int) -> Self:
        """A source at the start of one lane; it shares datasets, quota and orders with this one."""
        self.check_lanes(canonical_replicas)
        if not 0 <= lane_id < canonical_replicas:
            raise ConfigurationError(
                f"there is no lane {lane_id} among canonical_replicas={canonical_replicas}: lanes count from 0."
            )
        clone = copy.copy(self)
        clone._start_lane(lane_id, canonical_replicas)
        return clone

    def check_lanes(self, canonical_replicas: int) -> None:
        """Raise `ConfigurationError` unless each of so many lanes gets at least one draw."""
        if canonical_replicas < 1:
            raise ConfigurationError(f"canonical_replicas={canonical_replicas}: at least one lane is needed.")
        if self._end is not None and canonical_replicas > self._end:
            raise ConfigurationError(
                f"canonical_replicas={canonical_replicas}, but the work source ends after {self._end:,} draws, so "
                f"{canonical_replicas - self._end:,} lanes would have no work. Use at most "
                f"canonical_replicas={self._end}, or a higher stop_after_passes."
            )

    def state_dict(self) -> SourceState:
        """`{"position": the lane's draws handed out so far}`."""
        return {"position": self._position}

    def load_state_dict(self, state: SourceState) -> None:
        """Continue after the draws that `state` counts; raises `CheckpointMismatch` if no chunk ends there."""
        as_given = cast(object, state)  # it comes from a file: its type is a claim
        position = state.get("position") if isinstance(as_given, Mapping) and set(state) == {"position"} else None
        if not isinstance(position, int) or isinstance(position, bool):
            raise CheckpointMismatch(
                f'the state of a StaticMixtureWorkSource is {{"position": int}}, got {repr(state)[:200]}. '
                "It belongs to another work source, or is damaged."
            )
        end = self._deal.num_draws
        beyond = position < 0 or (end is not None and position > end)
        if beyond or (position % self._chunk_size and position != end):
            length = "without end" if end is None else f"of {end:,} draws"
            raise CheckpointMismatch(
                f"lane {self._deal.lane} of {self._deal.lanes} cannot stand at draw {position}: it is a stream "
                f"{length} in chunks of {self._chunk_size}. The state belongs to another work source, or is damaged."
            )
        self._position = position

    def identity(self) -> Mapping[str, Any]:
        """Every argument that decides the order, as plain values; weights as the integers in use."""
        return dict(self._identity)

    def describe(self) -> str:
        """One line about what is drawn, in which order and for how long."""
        period = self._quota.period
        shares = [
            f"{dataset.name} {weight / period:.3%} of {samples:,} samples in {len(dataset.shards):,} shards"
            for dataset, weight, samples in zip(self._datasets, self._quota.weights, self._totals, strict=True)
        ]
        shown = shares[:4] + ([f"{len(shares) - 4} more"] if len(shares) > 4 else [])
        length = "endless" if self._end is None else f"{self._end:,} draws"
        return f"{'; '.join(shown)} | {self._order_text()}, seed {self._seed} | {length}, chunks of {self._chunk_size}"

    def _order_text(self) -> str:
        shuffles = ("shuffle_shards", "shuffle_within_shard", "shuffle_block_size")
        shards, inside, block = (self._identity[name] for name in shuffles)
        pieces = "samples" if block in (None, 1) else f"blocks of {block}"
        if block is not None and not inside:
            return f"{pieces} shuffled over each dataset"
        if inside:
            return f"{'shards shuffled, ' if shards else ''}{pieces} shuffled within each shard"
        return "shards shuffled" if shards else "file order"


@dataclass(frozen=True, slots=True)
class _Deal:
    """Which draws of the global sequence are a lane's.

    A round gives each lane one block of consecutive draws. What is left for the last round is cut into `lanes` equal
    parts instead, so that lanes end within one draw of each other. `key` turns each round's assignment by a keyed
    number of lanes: without that, a mixture whose period divides a round would bind datasets to lanes for ever.
    """

    lane: int
    lanes: int
    block: int
    end: int | None  # global draws; None: endless
    key: int | None

    @property
    def num_draws(self) -> int | None:
        """The number of the lane's draws; `None`: endless."""
        if self.end is None:
            return None
        rounds, left = divmod(self.end, self.block * self.lanes)
        place = int(self._places(np.array([rounds], np.int64))[0])
        return rounds * self.block + (place + 1) * left // self.lanes - place * left // self.lanes

    def global_draws(self, draw: Int64s) -> Int64s:
        """The global draw of each of the lane's draws, shape (m,)."""
        number = draw // self.block
        place = self._places(number)
        dealt = (number * (self.lanes - 1) + place) * self.block + draw
        if self.end is None:
            return dealt
        rounds, left = divmod(self.end, self.block * self.lanes)
        last = (rounds * (self.lanes - 1)) * self.block + place * left // self.lanes + draw
        return np.where(number < rounds, dealt, last)

    def _places(self, number: Int64s) -> Int64s:
        """Which of the blocks of each round is the lane's."""
        if self.key is None:
            return np.full(len(number), self.lane, np.int64)
        turned = mix_key_each(self.key, number) % np.uint64(self.lanes)
        return (turned.astype(np.int64) + self.lane) % self.lanes


def _deal_block(num_samples: int, lanes: int, chunk_size: int) -> int:
    """The draws in a block: a power of two up to `chunk_size` that leaves every lane at least 64 blocks a pass."""
    most = max(1, min(chunk_size, num_samples // (lanes * _BLOCKS_PER_PASS)))
    return 1 << (most.bit_length() - 1)


def _end_of_draws(quota: Quota, totals: Sequence[int], passes: int | None, policy: ExhaustedPolicy) -> int | None:
    """The number of global draws; `None`: endless."""
    if policy not in (None, "stop", "repeat"):
        raise ConfigurationError(f'exhausted_policy={policy!r}: give "stop", "repeat" or None.')
    if policy == "repeat" and passes is None:
        return None
    drawn = [(component, (passes or 1) * total) for component, total in enumerate(totals)]
    if policy == "stop":
        end = min(quota.rank(component, ordinal) for component, ordinal in drawn)
    else:
        end = max(quota.rank(component, ordinal - 1) for component, ordinal in drawn) + 1
    if end > _MAX_DRAWS:
        raise ConfigurationError(
            f"stop_after_passes={passes} with these weights takes {end} draws, more than 2**62. "
            'For a source without end, leave it out and give exhausted_policy="repeat".'
        )
    return end


def _checked_int(name: str, value: object, least: int) -> int:
    number = index(value) if isinstance(value, SupportsIndex) and not isinstance(value, bool) else least - 1
    if not least <= number < 2**63:
        raise ConfigurationError(f"{name}={value!r}: give an integer from {least} to 2**63 - 1.")
    return number


def _checked_datasets(datasets: WorkDataset | Sequence[WorkDataset]) -> tuple[WorkDataset, ...]:
    single = hasattr(datasets, "shards")  # asked first: a dataset may itself be a sequence, of samples
    found = (cast(WorkDataset, datasets),) if single else tuple(cast(Sequence[WorkDataset], datasets))
    if not found:
        raise ConfigurationError("a work source needs at least one dataset, got none.")
    names = [dataset.name for dataset in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"datasets need different names, but {', '.join(map(repr, twice))} came more than once. "
            "Rename one: dataset.rename(name)."
        )
    return found


def _checked_totals(names: Sequence[str], sizes: Sequence[Int64s]) -> list[int]:
    totals = [int(size.sum()) for size in sizes]
    empty = [name for name, total in zip(names, totals, strict=True) if not total]
    if empty:
        raise ConfigurationError(f"no samples in {', '.join(map(repr, empty))}. Leave it out, or check its path.")
    if sum(totals) > MAX_SIZE:
        raise ConfigurationError(f"{sum(totals):,} samples in all: up to 2**48 are possible. Use fewer.")
    return totals


def _checked_mixture(mixture: Mapping[str, float], names: Sequence[str]) -> list[float]:
    known = ", ".join(map(repr, names))
    unknown = [name for name in mixture if name not in names]
    if unknown:
        raise ConfigurationError(f"mixture names {', '.join(map(repr, unknown))}, but the datasets are {known}.")
    missing = [name for name in names if name not in mixture]
    if missing:
        raise ConfigurationError(
            f"mixture has no weight for {', '.join(map(repr, missing))}. Give one, or leave the dataset out."
        )
    for name, weight in mixture.items():
        if isinstance(weight, bool) or not isinstance(cast(object, weight), Real) or not 0 < weight < float("inf"):
            raise ConfigurationError(f"mixture[{name!r}] = {weight!r}: weights are positive, finite numbers.")
    return [mixture[name] for name in names]
