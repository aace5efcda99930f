"""The picture: both loss curves, and below them how far they are apart."""

# pyright: reportUnknownMemberType=false
# matplotlib is only partly typed

from __future__ import annotations

import math
import pathlib

from zephon_jax.demo.report import Outcome
from zephon_jax.demo.settings import Settings
from zephon_jax.demo.steplog import Comparison, RunLog
from zephon_jax.demo.trainers import ending

__all__ = ["draw"]

LINE, ORANGE, GREEN, RED, GREY = "#3b5b92", "#e07b39", "#2a9d55", "#b3262e", "#666666"


def draw(outcome: Outcome, comparison: Comparison, settings: Settings, path: pathlib.Path) -> None:
    """Write the picture: the reference as a line, the two other runs as marks on it, the kill as a vertical line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (curves, gaps) = pyplot.subplots(
        2, 1, figsize=(9, 6), sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    losses = _losses(outcome.reference)
    expected = dict(losses)
    curves.plot(
        *zip(*losses, strict=True),
        color=LINE,
        linewidth=1.5,
        label=f"reference, uninterrupted, {settings.devices} devices",
    )
    for name, log, devices, color, mark in (
        ("interrupted", outcome.interrupted, settings.devices, ORANGE, "o"),
        ("resumed", outcome.resumed, settings.resume_devices, GREEN, "x"),
    ):
        own = _losses(log)
        label = f"{name}, {devices} devices"
        curves.plot(*zip(*own, strict=True), mark, color=color, fillstyle="none", markersize=5, label=label)
        difference = [(step, loss - expected.get(step, math.nan)) for step, loss in own]
        gaps.plot(*zip(*difference, strict=True), mark, color=color, fillstyle="none", markersize=4)
    done, killed = outcome.resumed_from, outcome.interrupted.last_step
    for axes in (curves, gaps):
        axes.axvline(killed, color=RED, linestyle="--", linewidth=1.2)
        axes.axvspan(done, killed, color=GREY, alpha=0.12, linewidth=0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    curves.plot([], [], "--", color=RED, label=f"killed after step {killed}: {ending(outcome.kill_returncode)}")
    curves.fill_between([], [], [], color=GREY, alpha=0.2, label=f"done again from the checkpoint of step {done}")
    same = comparison.steps_compared - comparison.batches_that_differ
    curves.set_title(f"{same} of {comparison.steps_compared} global batches equal bit for bit", loc="left")
    curves.set_ylabel("loss (nats per token)")
    curves.legend(frameon=False)
    gaps.set_ylabel("difference")
    gaps.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    gaps.set_xlabel("step")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _losses(log: RunLog) -> list[tuple[int, float]]:
    return [(step, record.loss) for step, record in sorted(log.steps.items())]
