"""The exception tree.

Every error that a user can meet derives from `ZephonError` and says four things: what was seen, what is needed, where
(file, record, operator, lane, key or parameter) and what to do. Nothing else in the package raises on bad input.
"""

from __future__ import annotations

__all__ = [
    "AggregationFailed",
    "AggregationTimeout",
    "CheckpointMismatch",
    "ConfigurationError",
    "ContractViolation",
    "DataError",
    "WorkerError",
    "ZephonError",
    "text_of",
]


class ZephonError(Exception):
    """Base of all errors raised by zephon_jax."""


def text_of(error: BaseException | None) -> str:
    """The error's text; what is said instead if its `__str__`, which is the user's, fails itself."""
    try:
        return str(error)
    except Exception as broken:
        return f"(its text could not be made: {type(broken).__name__})"


class ConfigurationError(ZephonError, ValueError):
    """A pipeline, an option or a sharding cannot work as given. Raised while building, before any data is read."""


class DataError(ZephonError):
    """A sample cannot be read or decoded.

    `path`, `shard` and `record` say which one; `record` counts from 0 within the shard. `None` where unknown.
    """

    def __init__(self, message: str, *, path: str | None = None, shard: int | None = None, record: int | None = None):
        super().__init__(message)
        self.path, self.shard, self.record = path, shard, record

    def __reduce__(self):
        return _rebuild_data_error, (self.args[0], self.path, self.shard, self.record)


def _rebuild_data_error(message: str, path: str | None, shard: int | None, record: int | None) -> DataError:
    return DataError(message, path=path, shard=shard, record=record)


class ContractViolation(ZephonError):
    """An operator broke its contract: it lost, duplicated or reordered records although its traits exclude that.

    `operator` names it; `None` when only the lane's books show that some operator did.
    """

    def __init__(self, message: str, *, operator: str | None = None):
        super().__init__(message)
        self.operator = operator

    def __reduce__(self):
        return _rebuild_violation, (self.args[0], self.operator)


def _rebuild_violation(message: str, operator: str | None) -> ContractViolation:
    return ContractViolation(message, operator=operator)


class CheckpointMismatch(ZephonError):
    """A state does not belong to this pipeline, or is not a state at all. The message names each difference."""


class AggregationTimeout(ZephonError):
    """Not every process took part in time, in a checkpoint or at the end of the data; the message names ranks and lanes."""


class AggregationFailed(ZephonError):
    """A checkpoint round was decided as failed, or another process failed; every rank raises this, with the same text."""


class WorkerError(ZephonError):
    """An operator raised. `__cause__` is the original exception; `operator` and `pointer` say where.

    `pointer` is `(dataset, shard, sample_idx)`, or `None` if the failure belongs to no single record.
    """

    def __init__(self, message: str, *, operator: str | None = None, pointer: tuple[str, str, int] | None = None):
        super().__init__(message)
        self.operator, self.pointer = operator, pointer
