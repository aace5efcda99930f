"""ensure_mixture: records in an order in which each dataset has its share, by tokens or by samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm
from typing import Any

from zephon_jax.errors import ConfigurationError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import Accumulator, Fields, OpTraits, checked_int
from zephon_jax.ops.fields import token_lengths
from zephon_jax.ops.holding import Held
from zephon_jax.origin import CHUNK, OFFSET
from zephon_jax.types import LaneContext

__all__ = ["EnsureMixture", "checked_shares"]


def checked_shares(
    given: Mapping[str, float] | None, own: Mapping[str, float] | None, names: Mapping[int, str]
) -> dict[int, float]:
    """The weights of `ensure_mixture` by dataset id: those given by name, or the work source's own."""
    wanted = given if given is not None else own
    if wanted is None:
        raise ConfigurationError("ensure_mixture(mixture=) is needed: the work source has no fixed mixture of its own")
    unknown = sorted(set(wanted) - set(names.values()))
    if unknown or not wanted:
        raise ConfigurationError(
            f"ensure_mixture(mixture=) names {unknown or 'no dataset'}, but the datasets are {sorted(names.values())}"
        )
    for name, weight in wanted.items():
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
            raise ConfigurationError(f"ensure_mixture(mixture={{{name!r}: {weight!r}}}): weights are positive numbers")
    return {i: wanted[name] for i, name in names.items() if name in wanted}


@dataclass(slots=True)
class _State:
    ctx: LaneContext
    waiting: dict[int, deque[int]]  # per dataset the numbers of its records held, in order of arrival
    sizes: list[int] = field(default_factory=list[int])  # of each record held: its tokens, or 1
    given: dict[int, int] = field(default_factory=dict[int, int])  # per dataset what has left
    held: Held = field(default_factory=Held)
    held_at_half: int | None = None  # records held when the second half of the flush epoch began
    figures: dict[str, int] = field(default_factory=dict[str, int])


class EnsureMixture(Accumulator[_State]):
    """Reorders records so that what has left keeps to the shares, as far as a buffer allows.

    The record that leaves is the oldest of the dataset that lags furthest behind its share. If none of it is held, others
    wait for it, until `max_buffer_size` records are held; then the dataset that lags furthest of those at hand goes. Records of one
    dataset keep their order. At a flush everything leaves, and shares are counted anew; so that a lasting surplus of one
    dataset does not come out there in one piece, fewer and fewer records are held in the second half of a flush epoch.

    It evens out what a mixture's estimates leave (see `weight_by="tokens"`); it cannot make up for a source that keeps
    bringing other shares. `stats()` has what left of each dataset (`tokens_of_NAME` or `samples_of_NAME`), and
    `out_of_turn`: records that went although another dataset was due.

    Args:
        shares: Dataset id → weight in any scale, above 0; datasets that are not named go in the order of arrival, at once.
        names: Dataset id → name, for `stats()`.
        weight_by: "tokens", the lengths of `tokens`; or "samples", records.
        max_buffer_size: Records held per lane at most.
    """

    def __init__(
        self,
        shares: Mapping[int, float],
        names: Mapping[int, str],
        *,
        weight_by: str = "tokens",
        max_buffer_size: int = 1000,
    ):
        if weight_by not in ("tokens", "samples"):
            raise ConfigurationError(f"ensure_mixture(weight_by={weight_by!r}) must be 'tokens' or 'samples'")
        self._size = checked_int("ensure_mixture", "max_buffer_size", max_buffer_size, 1)
        total = sum(Fraction(str(share)) for share in shares.values())
        self._shares = {dataset: Fraction(str(share)) / total for dataset, share in shares.items()}
        self._names, self._by_tokens = dict(names), weight_by == "tokens"
        self.traits = OpTraits(
            preserves_cursor_order=False,
            buffer_records=self._size,
            keeps_count=True,
            replays_on_lengths=True,
            uses_lengths=self._by_tokens,
        )
        # One integer per dataset, so that lagging behind is compared exactly and costs no fractions.
        self._scale = lcm(*(share.denominator for share in self._shares.values()))
        self._parts = {dataset: int(share * self._scale) for dataset, share in self._shares.items()}
        self.name = f"ensure_mixture({weight_by})"

    def identity(self) -> Mapping[str, Any]:
        shares = {self._names[dataset]: str(share) for dataset, share in self._shares.items()}
        return {
            "op": "ensure_mixture", "shares": shares, "weight_by": "tokens" if self._by_tokens else "samples",
            "max_buffer_size": self._size,
        }  # fmt: skip

    def fields(self, before: Fields | None) -> Fields | None:
        return before

    def init_state(self, ctx: LaneContext) -> _State:
        return _State(ctx, {dataset: deque() for dataset in self._parts}, given=dict.fromkeys(self._parts, 0))

    def push(self, state: _State, batch: MicroBatch) -> MicroBatch:
        if not len(batch):
            return batch
        firsts = batch.origin.table[:, batch.origin.firsts]
        datasets = state.ctx.datasets_of(firsts[CHUNK], firsts[OFFSET]).tolist()
        sizes = token_lengths(batch, self.name).tolist() if self._by_tokens else [1] * len(batch)
        first = len(state.sizes)
        state.sizes += sizes
        leaving: list[int] = []
        held = first
        for number, (dataset, chunk) in enumerate(zip(datasets, firsts[CHUNK].tolist(), strict=True), first):
            if dataset not in self._parts:
                leaving.append(number)
                continue
            state.waiting[dataset].append(number)
            held += 1
            most = self._most(state, chunk, held)
            while held and (number := self._due(state, full=held >= most)) is not None:
                leaving.append(number)
                held -= 1
        return self._let_go(state, batch, leaving)

    def _most(self, state: _State, chunk: int, held: int) -> int:
        """How many records may be held while those of this chunk come: from half time on fewer and fewer than then."""
        whole = state.ctx.epoch_chunks
        left = state.ctx.epoch + whole - chunk  # chunks of the epoch, this one included
        if not 0 < 2 * left <= whole:
            return self._size
        if state.held_at_half is None:
            state.held_at_half = held
        return max(1, min(self._size, state.held_at_half * 2 * left // (whole + 2)))

    def _let_go(self, state: _State, batch: MicroBatch, leaving: list[int]) -> MicroBatch:
        staying = sorted(number for waiting in state.waiting.values() for number in waiting)
        renamed = {number: i for i, number in enumerate(staying)}
        state.sizes = [state.sizes[number] for number in staying]
        for dataset, waiting in state.waiting.items():
            state.waiting[dataset] = deque(renamed[number] for number in waiting)
        return state.held.exchange(batch, leaving, staying)

    def _due(self, state: _State, *, full: bool) -> int | None:
        """The record that leaves next; None if the dataset that is due has to be waited for."""
        total = sum(state.given.values())

        def lag(dataset: int) -> tuple[int, int]:
            return total * self._parts[dataset] - self._scale * state.given[dataset], -dataset

        due = max(self._parts, key=lag)
        if not state.waiting[due]:
            if not full:
                return None
            due = max((dataset for dataset, waiting in state.waiting.items() if waiting), key=lag)
            self._count(state, "out_of_turn", 1)
        number = state.waiting[due].popleft()
        state.given[due] += state.sizes[number]
        self._count(state, f"{'tokens' if self._by_tokens else 'samples'}_of_{self._names[due]}", state.sizes[number])
        return number

    def flush(self, state: _State) -> MicroBatch | None:
        order: list[int] = []
        while any(state.waiting.values()):
            number = self._due(state, full=True)
            assert number is not None
            order.append(number)
        return state.held.release(order)

    @staticmethod
    def _count(state: _State, name: str, n: int) -> None:
        state.figures[name] = state.figures.get(name, 0) + n

    def figures(self, state: _State) -> Mapping[str, int]:
        return state.figures
