"""For people who write operators, sources and pipelines of their own: the contracts as executable checks."""

from zephon_jax.testing.operators import check_operator
from zephon_jax.testing.resume import check_resume
from zephon_jax.testing.sources import check_source
from zephon_jax.testing.work_sources import check_work_source

__all__ = ["check_operator", "check_resume", "check_source", "check_work_source"]
