"""What the user reads at the end: a table with one line per run, and the facts below it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from zephon_jax.demo.settings import Settings, mesh_shape
from zephon_jax.demo.steplog import Comparison, Differences, RunLog, compare
from zephon_jax.demo.trainers import ending

__all__ = ["Outcome", "render"]


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The three logs, how the interrupted trainer ended, and what its newest checkpoint weighed at that moment."""

    reference: RunLog
    interrupted: RunLog
    resumed: RunLog
    kill_returncode: int
    data_state_bytes: int
    checkpoint_bytes: int
    seconds: float

    @property
    def resumed_from(self) -> int:
        """Step of the checkpoint from which the resumed run started."""
        return self.resumed.start.done if self.resumed.start else 0

    def compare(self, settings: Settings) -> Comparison:
        """Every step of the interrupted and of the resumed run against the reference."""
        return compare(
            self.reference,
            self.interrupted,
            self.resumed,
            steps=settings.steps,
            loss_tolerance=settings.loss_tolerance,
        )


def render(outcome: Outcome, comparison: Comparison, settings: Settings) -> str:
    """The table and the facts, as printed."""
    return f"{_table(outcome, comparison, settings)}\n\n{_facts(outcome, comparison, settings)}"


def _table(outcome: Outcome, comparison: Comparison, settings: Settings) -> str:
    rows = [("run", "devices", "mesh", "steps", "batches that differ", "largest difference in loss")]
    named = (
        ("reference", settings.devices, outcome.reference, None),
        ("interrupted", settings.devices, outcome.interrupted, comparison.interrupted),
        ("resumed", settings.resume_devices, outcome.resumed, comparison.resumed),
    )
    for name, devices, log, differences in named:
        rows.append((name, str(devices), _mesh(devices), _span(log), *_differences(differences)))
    return _aligned(rows)


def _differences(differences: Differences | None) -> tuple[str, str]:
    if differences is None:
        return "-", "-"
    return f"{len(differences.batches)} of {len(differences.steps)}", f"{differences.loss:.2g}"


def _facts(outcome: Outcome, comparison: Comparison, settings: Settings) -> str:
    last = outcome.resumed.steps.get(settings.steps)
    rows = [
        ("killed", f"{ending(outcome.kill_returncode)} after step {outcome.interrupted.last_step}"),
        ("resumed from", f"checkpoint of step {outcome.resumed_from}; {comparison.redone} steps done again"),
        ("devices", f"{settings.devices} -> {settings.resume_devices}"),
        ("steps compared", str(comparison.steps_compared)),
        ("batches that differ", str(comparison.batches_that_differ)),
        (
            "loss",
            f"largest difference {comparison.largest_loss_difference:.2g}, allowed {settings.loss_tolerance:g}"
            + (f"; loss of the last step {last.loss:.3f}" if last else ""),
        ),
        ("data state at the end", "equal in every lane" if comparison.fingerprints_equal else "DIFFERENT"),
        ("data state on disk", f"{outcome.data_state_bytes:,} bytes of a checkpoint of {outcome.checkpoint_bytes:,}"),
        ("time taken", f"{outcome.seconds:.0f} s"),
    ]
    return _aligned(rows)


def _mesh(devices: int) -> str:
    data, model = mesh_shape(devices)
    return f"{data} data x {model} model"


def _span(log: RunLog) -> str:
    return f"{min(log.steps)} to {log.last_step}" if log.steps else "none"


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(f"  {line}" for line in lines)
