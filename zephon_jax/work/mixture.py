"""The standard work source: datasets mixed by weights, dealt to lanes from one global sequence of draws.

Three closed forms in a row turn a lane's position into pointers, so that the state is a few numbers and a resume costs
the same anywhere: the deal (which global draw is the lane's next), the sequence of draws (which dataset that draw
takes, and which of that dataset's draws it is) and the dataset's sample order.

Dealing one sequence, rather than giving every lane shards of its own, is what makes the promises hold for any number
of lanes: over all lanes each draw comes exactly once, so a pass has each sample once; shares are exact over all lanes
together; lanes differ by at most one draw at the end; and no sample is lost in a partial chunk.

This module knows nothing of files, fields or tokenizers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, Self, cast

import numpy as np

from zephon_jax.errors import CheckpointMismatch, ConfigurationError
from zephon_jax.types import Int64s, SourceState, WorkChunk
from zephon_jax.work.arguments import (
    ExhaustedPolicy,
    checked_blocks,
    checked_choice,
    checked_datasets,
    checked_int,
    checked_named_weights,
    checked_names,
    checked_passes,
    checked_totals,
    one_or_named,
)
from zephon_jax.work.base import WorkDataset, WorkSource
from zephon_jax.work.cursor import BlockSize, SampleOrder
from zephon_jax.work.deal import Deal, deal_block
from zephon_jax.work.permutation import mix_key
from zephon_jax.work.quota import integer_weights
from zephon_jax.work.schedule import MixtureSchedule
from zephon_jax.work.segments import DrawSequence, Phase
from zephon_jax.work.tokens import TokenMeans, given_means, samples_to_measure

__all__ = ["ExhaustedPolicy", "StaticMixtureWorkSource"]

ORDER_VERSION = 1
"""Goes up whenever the same arguments come to mean another order, so that old checkpoints are refused, not misread."""

_DEAL = 2**32  # the domain of the deal's keys; components use their ids, which stay far below


_MOST_CHUNK = 2**22


class StaticMixtureWorkSource(WorkSource):
    """Draws samples of one or several datasets by weights, each dataset in a shuffled order of its own.

    `datasets` is a dataset or several with different names; ids in pointers are positions in it. `mixture` gives
    each of them a positive weight by name, in any scale, or is a `MixtureSchedule` of weights that change at given
    draws; without it each weighs as many as its samples. The shares are exact: the first g draws hold each dataset's
    share to within two draws, and so do those behind each change of weights.

    With `weight_by="tokens"` the weights are shares of tokens as the operators in front of the first packer, shuffle or
    batch give them. What a sample has of them is measured once, on 256 samples of each dataset, when a pipeline begins
    with this source, and kept in the state; or it is given: `tokens_per_sample={"web": 612.5, "code": 907}`.

    The orders (`shuffle_shards`, `shuffle_within_shard`, `shuffle_block_size`, `reshuffle_on_repeat`) are those of
    `SampleOrder`, all keyed by `seed`. `shuffle_block_size=256` mixes blocks of 256 consecutive samples over the whole
    dataset, "global" mixes single samples, "auto" takes blocks that the dataset says are cheap to read, of 64 to 1024
    samples, or 256; a dictionary gives each dataset its own.

    `stop_after_passes`, `exhausted_policy` and `max_repeats` are each one value, or a dictionary by dataset name, where
    those that are left out have none. By `exhausted_policy`, a dataset with n = `stop_after_passes` (default 1)

    - `None`: is required to complete n passes, and repeats if it runs out before the others;
    - `"stop"`: ends the source before it would begin pass n + 1;
    - `"repeat"`: repeats and decides nothing, unless `stop_after_passes` is given for it: then as `None`.

    After 1 + `max_repeats` passes a dataset drops out, and the others go on in the ratio of their weights; one that stops
    the source never does. The source ends at the first of these: a dataset stops it; the last of those that are
    required completes its passes (there must be one); all have dropped out. Else it never ends.

    The object itself stands for the only lane of one; `clone_for_lane` gives the lanes of more. A clone belongs to one
    thread at a time; what clones share may be used by many. Raises `ConfigurationError` on arguments that cannot work.
    """

    def __init__(
        self,
        datasets: WorkDataset | Sequence[WorkDataset],
        mixture: Mapping[str, float] | MixtureSchedule | None = None,
        *,
        seed: int = 0,
        chunk_size: int = 512,
        shuffle_shards: bool = True,
        shuffle_within_shard: bool = False,
        shuffle_block_size: BlockSize | Mapping[str, BlockSize] = None,
        stop_after_passes: int | Mapping[str, int] | None = None,
        exhausted_policy: ExhaustedPolicy | Mapping[str, ExhaustedPolicy] = None,
        max_repeats: int | Mapping[str, int] | None = None,
        reshuffle_on_repeat: bool = True,
        weight_by: Literal["samples", "tokens"] = "samples",
        tokens_per_sample: Mapping[str, float] | None = None,
    ):
        self._datasets = checked_datasets(datasets)
        self._names = names = [dataset.name for dataset in self._datasets]
        self._sizes = [np.array([shard.num_samples for shard in d.shards], np.int64) for d in self._datasets]
        self._totals = checked_totals(names, self._sizes)
        self._weights = _checked_mixture(mixture, names, self._totals)
        self._seed = checked_int("seed", seed, least=0)
        self._chunk_size = checked_int("chunk_size", chunk_size, least=1)
        if self._chunk_size > _MOST_CHUNK:
            raise ConfigurationError(
                f"chunk_size={chunk_size}: a chunk is held in memory and in checkpoints; give at most {_MOST_CHUNK:,}."
            )
        self._passes, passes = checked_passes(names, self._totals, stop_after_passes, exhausted_policy, max_repeats)
        blocks = checked_blocks(self._datasets, shuffle_block_size)
        shards, inside, reshuffle = bool(shuffle_shards), bool(shuffle_within_shard), bool(reshuffle_on_repeat)
        self._orders: tuple[SampleOrder, ...] = tuple(
            SampleOrder(shard_sizes, mix_key(self._seed, component), shards, inside, blocks[component], reshuffle)
            for component, shard_sizes in enumerate(self._sizes)
        )
        self._by_tokens = _checked_weight_by(weight_by, mixture, tokens_per_sample, names)
        self._measures = self._by_tokens and tokens_per_sample is None
        self._means: TokenMeans | None = None
        self._identity: dict[str, Any] = {
            "class": "StaticMixtureWorkSource",
            "order_version": ORDER_VERSION,
            "datasets": names,
            **self._weights_identity(),
            "seed": self._seed,
            "chunk_size": self._chunk_size,
            "shuffle_shards": shards,
            "shuffle_within_shard": inside,
            "shuffle_block_size": one_or_named(names, blocks),
            "stop_after_passes": passes["stop_after_passes"],
            "exhausted_policy": passes["exhausted_policy"],
            "reshuffle_on_repeat": reshuffle,
        }
        # What is not used is left out, so that the plans of earlier versions stay equal to those of this one.
        if passes["max_repeats"] is not None:
            self._identity["max_repeats"] = passes["max_repeats"]
        if tokens_per_sample is not None:
            self._identity["tokens_per_sample"] = [float(tokens_per_sample[name]) for name in names]
        self._sequence: DrawSequence | None = None
        if not self._measures:
            given = None if tokens_per_sample is None else given_means(tokens_per_sample, names)
            self._sequence = self._draw_sequence(given)
        self._start_lane(0, 1)

    def _weights_identity(self) -> dict[str, Any]:
        by_tokens = {"weight_by": "tokens"} if self._by_tokens else {}
        if isinstance(self._weights, MixtureSchedule):
            return {**by_tokens, "schedule": self._weights.identity(self._names)}
        # Another name for shares of tokens: whoever reads "weights" may count on shares of samples.
        name = "token_weights" if self._by_tokens else "weights"
        return {**by_tokens, name: list(integer_weights(self._weights))}

    def _draw_sequence(self, cost: Sequence[Fraction] | None) -> DrawSequence:
        if isinstance(self._weights, MixtureSchedule):
            return DrawSequence(self._weights.phases(self._names, cost), self._passes)
        weights: tuple[float | Fraction, ...] = self._weights
        if cost is not None:
            weights = tuple(Fraction(str(w)) / c for w, c in zip(weights, cost, strict=True))
        return DrawSequence([Phase(0, weights)], self._passes)

    def _start_lane(self, lane: int, lanes: int) -> None:
        block = deal_block(sum(self._totals), lanes, self._chunk_size)
        key = mix_key(self._seed, _DEAL) if len(self._datasets) > 1 else None
        self._deal = Deal(lane, lanes, block, self.num_draws, key)
        self._position = 0

    @property
    def datasets_by_id(self) -> Mapping[int, Any]:
        """The datasets by their position in the arguments."""
        return dict(enumerate(self._datasets))

    @property
    def draws_per_pass(self) -> int | None:
        """The draws until each dataset has completed a pass, if that is what the source ends with, or there is only one."""
        if len(self._totals) == 1:
            return self._totals[0]
        once = all(self._identity[name] in (None, 1) for name in ("stop_after_passes", "exhausted_policy"))
        return self.num_draws if once and "max_repeats" not in self._identity else None

    @property
    def endless(self) -> bool:
        """Whether the draws never end; `False` while the means that decide about it are not known."""
        return self._sequence is not None and self.num_draws is None

    @property
    def mixture(self) -> Mapping[str, float] | None:
        """The weights by name; `None` for a schedule, whose weights change."""
        return (
            None if isinstance(self._weights, MixtureSchedule) else dict(zip(self._names, self._weights, strict=True))
        )

    @property
    def chunk_size_hint(self) -> int:
        """`chunk_size`: only a lane's last chunk may be smaller."""
        return self._chunk_size

    @property
    def num_draws(self) -> int | None:
        """The number of draws of all lanes together; `None` if endless, or not known before tokens are measured."""
        return None if self._sequence is None else self._sequence.end

    @property
    def num_lane_draws(self) -> int | None:
        """The number of draws of this lane; `None` if endless, or not known before tokens are measured."""
        return self._deal.num_draws

    def draws_per_round(self, canonical_replicas: int) -> int:
        """The draws after which so many lanes have had equally many, that is a block each.

        Where rows are samples, a point of a schedule at a multiple of it (and of the global batch size) falls exactly
        between two steps.
        """
        lanes = checked_int("canonical_replicas", canonical_replicas, least=1)
        return lanes * deal_block(sum(self._totals), lanes, self._chunk_size)

    def next_chunk(self) -> WorkChunk | None:
        """The lane's next `chunk_size` draws, or what is left of them; `None` after the last, each time."""
        if self._sequence is None:
            raise ConfigurationError(
                'weight_by="tokens": the mean tokens of a sample are not measured yet. A pipeline does that when it begins; '
                "to draw without one, give tokens_per_sample."
            )
        stop = self._position + self._chunk_size
        if self._deal.num_draws is not None:
            stop = min(stop, self._deal.num_draws)
        if stop <= self._position:
            return None
        draws = self._deal.global_draws(np.arange(self._position, stop, dtype=np.int64))
        self._position = stop
        component, ordinal = self._sequence.draws(draws)
        shard, sample = np.empty(len(draws), np.int32), np.empty(len(draws), np.int64)
        for dataset in np.unique(component):
            chosen = np.flatnonzero(component == dataset)
            shard[chosen], sample[chosen] = self._orders[int(dataset)].locate(ordinal[chosen])
        return WorkChunk(component, shard, sample)

    def clone_for_lane(self, lane_id: int, canonical_replicas: int) -> Self:
        """A source at the start of one lane; it shares datasets, draws and orders with this one."""
        self.check_lanes(canonical_replicas)
        if not 0 <= lane_id < canonical_replicas:
            raise ConfigurationError(
                f"there is no lane {lane_id} among canonical_replicas={canonical_replicas}: lanes count from 0."
            )
        clone = copy.copy(self)
        clone._start_lane(lane_id, canonical_replicas)
        return clone

    def check_lanes(self, canonical_replicas: int) -> None:
        """Raise `ConfigurationError` unless each of so many lanes gets at least one draw (where that is known yet)."""
        if canonical_replicas < 1:
            raise ConfigurationError(f"canonical_replicas={canonical_replicas}: at least one lane is needed.")
        end = self.num_draws
        if end is not None and canonical_replicas > end:
            raise ConfigurationError(
                f"canonical_replicas={canonical_replicas}, but the work source ends after {end:,} draws, so "
                f"{canonical_replicas - end:,} lanes would have no work. Use at most "
                f"canonical_replicas={end}, or a higher stop_after_passes."
            )

    def samples_to_measure(self) -> WorkChunk | None:
        """With measured token means, before they are known: up to 256 samples of each dataset, evenly spread."""
        return samples_to_measure(self._sizes) if self._measures and self._means is None else None

    def with_measured(self, tokens: Int64s) -> Self:
        """This lane from its start, with the tokens (n,) that came out of each of `samples_to_measure()`."""
        return self._with_means(TokenMeans.of_counts(self._names, samples_to_measure(self._sizes).dataset, tokens))

    def for_states(self, states: Mapping[int, SourceState]) -> Self:
        """With the token means that these lanes' states hold; a lane that has given no draw yet holds none."""
        found = {lane: self._means_of(state) for lane, state in states.items()}
        known = {lane: means for lane, means in found.items() if means is not None}
        if not known:
            return self
        first = min(known)
        if other := [lane for lane in sorted(known) if known[lane] != known[first]]:
            raise CheckpointMismatch(
                f"lanes {first} and {other[0]} of the checkpoint disagree on the token means: {known[first]} and "
                f"{known[other[0]]}. Their parts belong to different runs."
            )
        return self._with_means(known[first])

    def _means_of(self, state: object) -> TokenMeans | None:
        if not self._measures or not isinstance(state, Mapping) or "tokens" not in state:
            return None
        return TokenMeans.from_state(cast(SourceState, state), len(self._names))

    def _with_means(self, means: TokenMeans) -> Self:
        clone = copy.copy(self)
        clone._means = means
        clone._sequence = self._draw_sequence(means.cost())
        clone._start_lane(self._deal.lane, self._deal.lanes)
        return clone

    def state_dict(self) -> SourceState:
        """`{"position": the lane's draws handed out so far}`, and once there are some, token means that were measured."""
        measured = {} if self._means is None or not self._position else self._means.state()
        return {"position": self._position, **measured}

    def load_state_dict(self, state: SourceState) -> None:
        """Continue after the draws that `state` counts; raises `CheckpointMismatch` if no chunk ends there."""
        as_given = cast(object, state)  # it comes from a file: its type is a claim
        position = state.get("position") if isinstance(as_given, Mapping) else None
        if not isinstance(position, int) or isinstance(position, bool) or set(state) != self._state_keys(position):
            raise CheckpointMismatch(
                "the state of a StaticMixtureWorkSource is "
                f"{{{', '.join(f'{key!r}: …' for key in sorted(self._state_keys(position)))}}}, got {repr(state)[:200]}. "
                "It belongs to another work source, or is damaged."
            )
        lane, means = self, self._means_of(state)
        if means is not None and means != self._means:
            if self._means is not None:
                raise CheckpointMismatch(f"the state has {means}, but the source goes by {self._means}.")
            lane = self._with_means(means)
        end = lane._deal.num_draws
        beyond = position < 0 or (end is not None and position > end)
        if beyond or (position % self._chunk_size and position != end):
            length = "without end" if end is None else f"of {end:,} draws"
            raise CheckpointMismatch(
                f"lane {self._deal.lane} of {self._deal.lanes} cannot stand at draw {position}: it is a stream "
                f"{length} in chunks of {self._chunk_size}. The state belongs to another work source, or is damaged."
            )
        self._means, self._sequence, self._deal = lane._means, lane._sequence, lane._deal
        self._position = position

    def _state_keys(self, position: object) -> set[str]:
        return {"position", "tokens", "samples"} if self._measures and position != 0 else {"position"}

    def identity(self) -> Mapping[str, Any]:
        """Every argument that decides the order, as plain values; weights as the integers in use."""
        return dict(self._identity)

    def describe(self) -> str:
        """One line about what is drawn, in which order and for how long."""
        shares = [
            f"{dataset.name} {share} of {'tokens, ' if self._by_tokens else ''}{samples:,} samples in "
            f"{len(dataset.shards):,} shards"
            for dataset, share, samples in zip(self._datasets, self._share_texts(), self._totals, strict=True)
        ]
        shown = shares[:4] + ([f"{len(shares) - 4} more"] if len(shares) > 4 else [])
        length = "endless" if self.num_draws is None else f"{self.num_draws:,} draws"
        if self._sequence is None:
            length = "as long as the tokens make it, which are measured at the start"
        return f"{'; '.join(shown)} | {self._order_text()}, seed {self._seed} | {length}, chunks of {self._chunk_size}"

    def _share_texts(self) -> list[str]:
        if not isinstance(self._weights, MixtureSchedule):
            weights = integer_weights(self._weights)
            return [f"{weight / sum(weights):.3%}" for weight in weights]
        points = [weights for _, weights in self._weights.points]
        between = " then " if self._weights.interpolation == "step" else " to "
        each = [[f"{w[name] / sum(w.values()):.3%}" for w in points[:4]] for name in self._names]
        return [between.join(texts) + (" …" if len(points) > 4 else "") for texts in each]

    def _order_text(self) -> str:
        shuffles = ("shuffle_shards", "shuffle_within_shard", "shuffle_block_size")
        shards, inside, block = (self._identity[name] for name in shuffles)
        pieces = "samples" if block in (None, 1) else f"blocks of {block}"
        if isinstance(block, dict):
            pieces = "blocks of " + ", ".join(f"{size} ({name})" for name, size in block.items())
        if block is not None and not inside:
            return f"{pieces} shuffled over each dataset"
        if inside:
            return f"{'shards shuffled, ' if shards else ''}{pieces} shuffled within each shard"
        return "shards shuffled" if shards else "file order"


def _checked_mixture(
    mixture: Mapping[str, float] | MixtureSchedule | None, names: Sequence[str], totals: Sequence[int]
) -> MixtureSchedule | tuple[float, ...]:
    if mixture is None:
        return tuple(totals)
    if isinstance(mixture, MixtureSchedule):
        checked_names("the MixtureSchedule", mixture.names, names, all_of="weight")
        return mixture
    if not isinstance(cast(object, mixture), Mapping):
        raise ConfigurationError(
            f"mixture={mixture!r:.100}: give weights by name, such as {{{names[0]!r}: 1.0}}, or a MixtureSchedule."
        )
    return tuple(checked_named_weights("mixture", mixture, names, "weight"))


def _checked_weight_by(
    weight_by: object, mixture: object, tokens_per_sample: Mapping[str, float] | None, names: Sequence[str]
) -> bool:
    """Whether weights are shares of tokens."""
    checked_choice("weight_by", weight_by, ("samples", "tokens"))
    if weight_by == "samples":
        if tokens_per_sample is not None:
            raise ConfigurationError('tokens_per_sample has a meaning with weight_by="tokens" only.')
        return False
    if mixture is None:
        raise ConfigurationError(
            'weight_by="tokens" needs a mixture: without one each dataset is drawn as often as it has samples, whatever '
            "their tokens."
        )
    if tokens_per_sample is not None:
        checked_named_weights("tokens_per_sample", tokens_per_sample, names, "mean")
    return True
