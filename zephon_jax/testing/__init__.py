"""For people who write operators and pipelines of their own: the contract as executable checks."""

from zephon_jax.testing.operators import check_operator
from zephon_jax.testing.resume import check_resume

__all__ = ["check_operator", "check_resume"]
