"""Which samples each lane is given, and in which order."""

from zephon_jax.work.base import WorkDataset, WorkShard, WorkSource
from zephon_jax.work.cursor import BlockSize, SampleOrder
from zephon_jax.work.mixture import ExhaustedPolicy, StaticMixtureWorkSource
from zephon_jax.work.permutation import Permutation
from zephon_jax.work.quota import Quota
from zephon_jax.work.schedule import MixtureSchedule

__all__ = [
    "BlockSize",
    "ExhaustedPolicy",
    "MixtureSchedule",
    "Permutation",
    "Quota",
    "SampleOrder",
    "StaticMixtureWorkSource",
    "WorkDataset",
    "WorkShard",
    "WorkSource",
]
