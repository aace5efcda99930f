"""lm_targets: rows of tokens → what a language model is trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.ops.base import Fields, RowOperator

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
    """Shifts rows of S + 1 tokens into inputs and targets of S.

    Reads `tokens` and `segment_ids` (0 is padding), and if they are there `positions` and `loss_mask`, all of shape
    (rows, S + 1); `pack` and `pad` give them. Gives int32 inputs, targets, positions and segment ids of shape (rows, S), and
    float32 loss weights. A weight is 1 where the target belongs to the input's segment, so that the last token of a
    document is not trained to predict the first of the next, and 0 for padding, times the target's own `loss_mask`. Where
    it is 0 the target is 0. Other fields pass unchanged. May change when a run is resumed: it is not part of a
    checkpoint's plan.

    Args:
        names: "plain", "maxtext" or "seqio": what the fields are called. MaxText has no weights; there
            `targets_segmentation` is 0 where the loss does not count.
        positions: "document", from 0 in each; or "row", from 0 in each row.
        across_documents: Also train the last token of a document to predict the first of the next one in the row.
        count: Also give `num_targets`, int32 (rows,): targets with a weight that is not 0.

    Rows in which no target counts are in `stats()` as `rows_without_loss`.
    """

    def __init__(
        self,
        names: str = "plain",
        *,
        positions: str = "document",
        across_documents: bool = False,
        count: bool = False,
    ):
        if not isinstance(names, str) or names not in TARGET_NAMES:
            raise ConfigurationError(f"lm_targets(names={names!r}): the conventions are {sorted(TARGET_NAMES)}")
        if positions not in ("document", "row"):
            raise ConfigurationError(f"lm_targets(positions={positions!r}) must be 'document' or 'row'")
        self._convention = names
        self._names = TARGET_NAMES[names]
        self._by_row, self._across, self._count = positions == "row", bool(across_documents), bool(count)
        self.name = f"lm_targets({names})"

    def identity(self) -> None:
        return None

    def fields(self, before: Fields | None) -> Fields | None:
        if before is None or "tokens" not in before or "segment_ids" not in before:
            return None
        (length,), integer = before["tokens"][0], np.dtype(np.int32)
        rest = {k: v for k, v in before.items() if k not in ("tokens", "segment_ids", "positions", "loss_mask")}
        weights = np.dtype(np.float32)
        made = {
            name: ((length - 1,), weights if key == "loss_weights" else integer) for key, name in self._names.items()
        }
        return {**rest, **made, **({"num_targets": ((), integer)} if self._count else {})}

    def process_rows(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        tokens, segments = self._checked(batch)
        counts = segments[:, 1:] > 0
        if not self._across:
            counts &= segments[:, 1:] == segments[:, :-1]
        weights = counts.astype(np.float32)
        if "loss_mask" in batch:
            weights *= batch["loss_mask"][:, 1:].astype(np.float32)
            counts = weights != 0
        positions = batch.get("positions")
        if positions is None or self._by_row:
            positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
        made = {
            "inputs": tokens[:, :-1].copy(),
            "targets": tokens[:, 1:] * counts,  # 0 where the loss does not count
            "positions": positions[:, :-1].copy(),
            "segment_ids": segments[:, :-1].copy(),
            "loss_weights": weights,
            "target_positions": positions[:, 1:] * counts,
            "target_segment_ids": segments[:, 1:] * counts,
        }
        rest = {k: v for k, v in batch.items() if k not in ("tokens", "segment_ids", "positions", "loss_mask")}
        named = {name: made[key] for key, name in self._names.items()}
        number = {"num_targets": np.count_nonzero(counts, axis=1).astype(np.int32)} if self._count else {}
        return {**rest, **named, **number}

    def figures(self, batch: Mapping[str, NDArray[Any]]) -> Mapping[str, int]:
        """Rows in which no target counts."""
        weights = batch[self._names.get("loss_weights", self._names.get("target_segment_ids", ""))]
        return {"rows_without_loss": int((~weights.any(axis=1)).sum())}

    def _checked(self, batch: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
        for field in ("tokens", "segment_ids"):
            if field not in batch or batch[field].ndim != 2 or batch[field].dtype.kind not in "iu":
                seen = {k: f"{v.dtype}{v.shape}" for k, v in batch.items()}
                raise DataError(
                    f"{self.name} needs integer rows (rows, length) in {field!r}, but the batch has {seen}; pack() or "
                    "pad() give them"
                )
        tokens, segments = batch["tokens"], batch["segment_ids"]
        mask = batch.get("loss_mask")
        if mask is not None and (mask.shape != tokens.shape or mask.dtype.kind not in "biuf"):
            raise DataError(
                f"{self.name} needs a number per token in 'loss_mask', got {mask.dtype}{mask.shape} for {tokens.shape}; "
                "pack(keep=['loss_mask']) gives it"
            )
        if tokens.shape[1] < 2:
            raise DataError(f"{self.name} needs rows of at least 2 tokens, got {tokens.shape[1]}")
        return tokens, segments
