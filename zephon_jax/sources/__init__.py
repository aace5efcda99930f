"""Bytes at rest → columns."""

from zephon_jax.sources.base import Dataset, Shard, Source

__all__ = ["Dataset", "Shard", "Source"]
