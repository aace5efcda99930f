"""What is done to records."""

from zephon_jax.ops.base import Accumulator, Operator, OpTraits, RecordOperator, RowOperator
from zephon_jax.ops.batch import Batch
from zephon_jax.ops.bucket import BucketByLength
from zephon_jax.ops.chat import Chat
from zephon_jax.ops.ensure import EnsureMixture
from zephon_jax.ops.fetch import Fetch, Reader
from zephon_jax.ops.pack.op import Pack
from zephon_jax.ops.padding import Pad, PadRows
from zephon_jax.ops.raw import DecodeRaw
from zephon_jax.ops.rows import Filter, FlatMap, Map, MapColumns, RandomMap
from zephon_jax.ops.shuffle import Shuffle
from zephon_jax.ops.split import Split
from zephon_jax.ops.stateful import MapBatch, StatefulTransform
from zephon_jax.ops.targets import LmTargets
from zephon_jax.ops.tokenize import Tokenize

__all__ = [
    "Accumulator",
    "Batch",
    "BucketByLength",
    "Chat",
    "DecodeRaw",
    "EnsureMixture",
    "Fetch",
    "Filter",
    "FlatMap",
    "LmTargets",
    "Map",
    "MapBatch",
    "MapColumns",
    "OpTraits",
    "Operator",
    "Pack",
    "Pad",
    "PadRows",
    "RandomMap",
    "Reader",
    "RecordOperator",
    "RowOperator",
    "Shuffle",
    "Split",
    "StatefulTransform",
    "Tokenize",
]
