"""What a sample of each dataset costs in tokens: measured once on fixed samples, then never again.

A mixture by tokens is one by samples whose weights are divided by the mean tokens of a sample. The means must never
change while the stream lasts, or a resumed run would draw other samples than an uninterrupted one. So they are sums of
whole numbers over samples that depend on the sizes of shards alone: every process, lane and topology finds the same
ones, and what was found travels in the state.

This module says which samples, and what follows from their counts; who runs them through the operators is the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

import numpy as np

from zephon_jax.errors import CheckpointMismatch, ConfigurationError
from zephon_jax.types import Int32s, Int64s, WorkChunk

__all__ = ["MEASURED_SAMPLES", "TokenMeans", "given_means", "samples_to_measure"]

MEASURED_SAMPLES = 256
"""Samples of each dataset that are measured (all of a smaller one). Part of the order: never change it."""


@dataclass(frozen=True, slots=True)
class TokenMeans:
    """Tokens that came out of so many samples, per dataset."""

    tokens: tuple[int, ...]
    samples: tuple[int, ...]

    def cost(self) -> list[Fraction]:
        """Mean tokens of a sample, exactly."""
        return [Fraction(t, n) for t, n in zip(self.tokens, self.samples, strict=True)]

    def state(self) -> dict[str, Any]:
        """Plain values that `from_state` turns back."""
        return {"tokens": list(self.tokens), "samples": list(self.samples)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], datasets: int) -> TokenMeans:
        """What a checkpoint holds; raises `CheckpointMismatch` if it can be none of so many datasets."""
        columns = [state.get("tokens"), state.get("samples")]
        for column in columns:
            if not isinstance(column, (list, tuple)) or len(cast(Sequence[Any], column)) != datasets:
                raise CheckpointMismatch(
                    f"the state's token means are not those of {datasets} datasets: {columns!r:.200}"
                )
            if not all(type(n) is int and 0 < n < 2**62 for n in cast(Sequence[Any], column)):
                raise CheckpointMismatch(f"the state's token means must be positive whole numbers: {columns!r:.200}")
        tokens, samples = (tuple(cast(Sequence[int], column)) for column in columns)
        return cls(tokens, samples)

    @classmethod
    def of_counts(cls, names: Sequence[str], dataset: Int32s, tokens: Int64s) -> TokenMeans:
        """From the tokens (n,) that came out of samples of these datasets (n,)."""
        each = len(names)
        sums = np.zeros(each, np.int64)
        np.add.at(sums, dataset, tokens)
        samples = np.bincount(dataset, minlength=each)
        without = [f"{names[i]!r} ({int(samples[i])} samples)" for i in np.flatnonzero(sums == 0).tolist()]
        if without:
            raise ConfigurationError(
                f'weight_by="tokens": no tokens came out of the measured samples of {", ".join(without)}. Is there a '
                "tokenize in front of the first packer, shuffle or batch, and does a filter drop everything? Leave the "
                "dataset out, or give tokens_per_sample={name: mean tokens of a sample}."
            )
        return cls(tuple(sums.tolist()), tuple(samples.tolist()))


def samples_to_measure(sizes: Sequence[Int64s]) -> WorkChunk:
    """Pointers to the samples to measure: evenly spread over each dataset, whose shards have these sizes."""
    datasets: list[Int32s] = []
    shards: list[Int64s] = []
    samples: list[Int64s] = []
    for number, shard_sizes in enumerate(sizes):
        total = int(shard_sizes.sum())
        wanted = min(MEASURED_SAMPLES, total)
        halves = 2 * np.arange(wanted, dtype=np.int64) + 1  # in the middle of each of `wanted` equal parts
        place = halves * (total // (2 * wanted)) + halves * (total % (2 * wanted)) // (2 * wanted)
        ends = np.cumsum(shard_sizes)
        shard = np.searchsorted(ends, place, "right")
        datasets.append(np.full(wanted, number, np.int32))
        shards.append(shard)
        samples.append(place - (ends - shard_sizes)[shard])
    return WorkChunk(np.concatenate(datasets), np.concatenate(shards).astype(np.int32), np.concatenate(samples))


def given_means(tokens_per_sample: Mapping[str, float], names: Sequence[str]) -> list[Fraction]:
    """The means that a user gives, as the decimals that they print as; the names and numbers are checked already."""
    return [Fraction(str(tokens_per_sample[name])) for name in names]
