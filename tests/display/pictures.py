"""The pictures of the documentation: `python -m tests.display.pictures` draws those in docs/pictures/ again.

Each is what the code draws of a real pipeline; only times are made up, since a clock gives others in every run.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from dataclasses import replace

import zephon_jax as zj
from zephon_jax.display.figures import figures_svg
from zephon_jax.display.flow import flow_svg
from zephon_jax.metrics.counters import OperatorCounts
from zephon_jax.metrics.stats import figures_of
from zephon_jax.plan.flow import flow_of

FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "pictures"


def codes(text: str) -> list[int]:
    return [ord(c) for c in text]


def long_enough(record):
    return len(record["tokens"]) > 3


def datasets() -> list[zj.Dataset]:
    sizes = (("web", 400, 23), ("code", 160, 37))
    return [zj.Dataset.from_source(n, [{"text": n * (i * i % k + 1)} for i in range(size)]) for n, size, k in sizes]


def pipeline(**options) -> zj.Pipeline:
    """Two lanes of chunks of 8 documents, and a flush every 4 chunks."""
    work = zj.StaticMixtureWorkSource(
        datasets(), {"web": 0.7, "code": 0.3}, chunk_size=8, exhausted_policy="repeat", shuffle_block_size=1
    )
    p = zj.Pipeline(work).tokenize(codes).filter(long_enough).split(96).pack(128, num_bins=3).shuffle(6)
    given = {"canonical_replicas": 2, "flush_every_k_chunks": 4, "executor": "inline", **options}
    return p.batch(global_batch_size=4).lm_targets().options(**given)


def drawn_pipeline() -> str:
    p = pipeline(executor="processes", executors={"filter": "threads"})
    return flow_svg(flow_of(p._plan(), workers=4))


STATS = zj.Stats(
    step=1200, rows={0: 2400, 1: 2400}, rounds={0: 1200, 1: 1200}, chunks_in_flight={0: 3, 1: 2}, skipped={0: 0, 1: 0},
    operators={
        "fetch": OperatorCounts(24_096, 24_096, busy_s=2.1), "tokenize(codes)": OperatorCounts(24_096, 24_096, busy_s=31.4),
        "filter(long_enough)": OperatorCounts(24_096, 23_551, 545, busy_s=0.9),
        "split(96)": OperatorCounts(23_551, 25_180, busy_s=1.2), "pack(128)": OperatorCounts(25_180, 4_812, busy_s=6.3),
        "shuffle(6)": OperatorCounts(4_812, 4_806, busy_s=0.4),
    },
    batches_ready=0, chunks_drawn=3_014, chunks_replayed=0, rows_replayed=0, samples_loaded=0, prefetch=2,
    first_wait_s=0.4, elapsed_s=40.0, steps_taken=1200, wait_s=14.8, workers_wait_s=30.2,
    limit="starved by tokenize(codes): 88 % of the workers' time",
)  # fmt: skip


def drawn_stats() -> str:
    return figures_svg(figures_of(STATS))


def drawn_batch() -> str:
    with pipeline().steps() as it:
        it.skip(5)
        batch = next(it)
        return zj.explain_batch(batch, row=None, provenance=it.provenance()).svg()


CUT, LATER = 13, 1


def recovery() -> tuple[zj.Timeline, zj.Timeline, zj.Timeline]:
    """A run at its cut; what its checkpoint holds; and the run that resumed from it, a few steps later."""
    with pipeline().steps() as it:
        for _ in range(CUT):
            next(it)
        run, state = replace(it.timeline(), title=f"The run, after step {CUT}"), it.checkpoint()
    saved = replace(zj.inspect(state).timeline(), title="The checkpoint, taken after this step")
    with pipeline().steps() as it:
        it.restore(state)
        for _ in range(LATER):
            next(it)
        resumed = replace(it.timeline(), title=f"Resumed from it, after step {CUT + LATER}")
    return run, saved, resumed


PICTURES: dict[str, Callable[[], str]] = {
    "pipeline": drawn_pipeline,
    "stats": drawn_stats,
    "batch": drawn_batch,
    "recovery_run": lambda: recovery()[0].svg(),
    "recovery_checkpoint": lambda: recovery()[1].svg(),
    "recovery_resumed": lambda: recovery()[2].svg(),
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
