"""batch: rows per step. What `batch` is, not how: the lane's chain makes batches, since only there is the cut known."""

from __future__ import annotations

from zephon_jax.errors import ConfigurationError
from zephon_jax.ops.base import Operator, checked_int

__all__ = ["Batch"]


class Batch(Operator):
    """`batch_size` rows per lane and round, or `global_batch_size` rows of the whole step, over all lanes.

    A sentinel never flushes it: it holds the sentinel back behind the older rows. `drop_last=False` delivers a lane's
    final rows although they are fewer. It may change when a run is resumed: it is not part of a checkpoint's plan.
    """

    def __init__(self, batch_size: int | None = None, *, global_batch_size: int | None = None, drop_last: bool = True):
        if (batch_size is None) == (global_batch_size is None):
            raise ConfigurationError(
                "batch needs either batch_size (rows per lane) or global_batch_size (rows of the step)"
            )
        size = batch_size if batch_size is not None else global_batch_size
        name = "batch_size" if batch_size is not None else "global_batch_size"
        size = checked_int("batch", name, size, 1)
        self.batch_size = None if batch_size is None else size
        self.global_batch_size = None if global_batch_size is None else size
        self.drop_last = drop_last
        self.name = f"batch({size}{'' if batch_size is not None else ' global'})"

    def identity(self) -> None:
        return None

    def rows_per_lane(self, lanes: int) -> int:
        """R, the rows that each of `lanes` lanes contributes to a step."""
        if self.batch_size is not None:
            return self.batch_size
        assert self.global_batch_size is not None
        return self.global_batch_size // lanes
