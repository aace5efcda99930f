"""How fast a pipeline of one's own is, and what holds it back: `benchmark(pipeline)`, and `zephon-jax bench FILE.py`.

The room looks at pipelines from outside, as a user does: it makes iterators, reads their `stats()`, and knows the plan. It
changes nothing in them, and nothing below imports it.
"""

from zephon_jax.bench.measure import Run, SourceRun
from zephon_jax.bench.report import Report, benchmark
from zephon_jax.bench.verdict import Verdict

__all__ = ["Report", "Run", "SourceRun", "Verdict", "benchmark"]
