"""What a task is doing at this moment, and how long each operator took: observed from outside, operators know nothing of it."""

from __future__ import annotations

import time

__all__ = ["Watch"]


class Watch:
    """Of one task: the operator it is in, since when, and the seconds of those that are done.

    Written by the thread that runs the task, read by the one that waits for it.
    """

    __slots__ = ("at", "elsewhere", "held", "operator", "seconds", "since")

    def __init__(self) -> None:
        self.operator: int | None = None  # its index in the pipeline (fetch: -1)
        self.since = 0.0
        self.at = 0  # which micro-batch of the task it is in
        self.held = 0  # bytes of all its micro-batches at their largest
        self.elsewhere = False  # whoever waits there looks after the time
        self.seconds: dict[int, float] = {}

    def entering(self, operator: int | None) -> None:
        """The task goes on with this operator; None: it has left the last one."""
        now, before = time.monotonic(), self.operator
        if before is not None:
            self.seconds[before] = self.seconds.get(before, 0.0) + now - self.since
        self.since, self.operator = now, operator

    def add(self, seconds: dict[int, float]) -> None:
        """What was measured elsewhere, in a worker process."""
        for operator, value in seconds.items():
            self.seconds[operator] = self.seconds.get(operator, 0.0) + value

    def seconds_left(self, timeout_s: float) -> float:
        """Of the operator that it is in; all of them if it has not begun."""
        if self.operator is None:
            return timeout_s
        return self.since + timeout_s - time.monotonic()
