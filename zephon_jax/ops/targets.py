"""lm_targets: rows of tokens → what a language model is trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.ops.base import RowOperator

__all__ = ["TARGET_NAMES", "LmTargets", "Names"]

Names = Literal["plain", "maxtext", "seqio"]

# What each convention calls the six arrays; both segment fields of MaxText are given.
TARGET_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "plain": {
        "inputs": "inputs", "targets": "targets", "positions": "positions",
        "segment_ids": "segment_ids", "loss_weights": "loss_weights",
    },
    "maxtext": {
        "inputs": "inputs", "targets": "targets", "positions": "inputs_position", "segment_ids": "inputs_segmentation",
        "target_positions": "targets_position", "target_segment_ids": "targets_segmentation",
    },
    "seqio": {
        "inputs": "decoder_input_tokens", "targets": "decoder_target_tokens", "positions": "decoder_positions",
        "segment_ids": "decoder_segment_ids", "loss_weights": "decoder_loss_weights",
    },
}  # fmt: skip


class LmTargets(RowOperator):
    """Shift packed rows of S + 1 tokens into inputs and targets of S.

    Reads `tokens` and `segment_ids` (0 is padding), optionally `positions`, all (rows, S + 1) int32. Gives int32
    inputs, targets, positions and segment ids of shape (rows, S), and float32 loss weights: 1 where the target belongs
    to the input's segment, so the last token of a document is not trained to predict the first of the next. Under
    `names="maxtext"` the weights are carried by `targets_segmentation`, which is 0 where the loss does not count.
    Other fields pass unchanged. May change when a run is resumed: it is not part of a checkpoint's plan.
    """

    def __init__(self, names: str = "plain"):
        if not isinstance(names, str) or names not in TARGET_NAMES:
            raise ConfigurationError(f"lm_targets(names={names!r}): the conventions are {sorted(TARGET_NAMES)}")
        self._convention = names
        self._names = TARGET_NAMES[names]
        self.name = f"lm_targets({names})"

    def identity(self) -> None:
        return None

    def process_rows(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        for field in ("tokens", "segment_ids"):
            if field not in batch or batch[field].ndim != 2 or batch[field].dtype.kind not in "iu":
                seen = {k: f"{v.dtype}{v.shape}" for k, v in batch.items()}
                raise DataError(
                    f"{self.name} needs integer rows (rows, length) in {field!r}, but the batch has {seen}; pack() gives them"
                )
        tokens, segments = batch["tokens"], batch["segment_ids"]
        if tokens.shape[1] < 2:
            raise DataError(f"{self.name} needs rows of at least 2 tokens, got {tokens.shape[1]}")
        counts = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
        positions = (
            batch["positions"]
            if "positions" in batch
            else np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
        )
        made = {
            "inputs": tokens[:, :-1].copy(),
            "targets": tokens[:, 1:] * counts,  # 0 where the loss does not count
            "positions": positions[:, :-1].copy(),
            "segment_ids": segments[:, :-1].copy(),
            "loss_weights": counts.astype(np.float32),
            "target_positions": positions[:, 1:] * counts,
            "target_segment_ids": segments[:, 1:] * counts,
        }
        rest = {k: v for k, v in batch.items() if k not in ("tokens", "segment_ids", "positions")}
        return {**rest, **{name: made[key] for key, name in self._names.items()}}
