"""Rows on the host → global `jax.Array`s, and which rows a process needs. The only room of emission that imports jax.

Which lanes a process produces follows from the sharding's device map, without communication: those whose rows its
addressable shards hold. Arrays are made from views of a fresh host buffer with `jax.make_array_from_callback`, which
handles every layout and was the fastest of the ways measured; nothing here runs a collective.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from zephon_jax.emit.rows import HostRound
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.lanes import divisors, lanes_of_rows, nearest_multiples
from zephon_jax.plan.compile import Plan

__all__ = ["Shardings", "check_topology", "device_batch", "leaf_sharding", "local_batch", "owned_lanes"]

Shardings = NamedSharding | Mapping[str, NamedSharding]

_NARROW = {
    np.dtype(np.int64): np.dtype(np.int32),
    np.dtype(np.uint64): np.dtype(np.uint32),
    np.dtype(np.float64): np.dtype(np.float32),
}


def batch_sharding(shardings: Shardings) -> NamedSharding:
    """The sharding that decides about rows: any leaf's, since all must split the batch axis alike."""
    if isinstance(shardings, NamedSharding):
        return shardings
    if (
        not isinstance(shardings, Mapping)
        or not shardings
        or not all(isinstance(s, NamedSharding) for s in shardings.values())
    ):
        raise ConfigurationError(
            f"sharding must be a jax.sharding.NamedSharding or a non-empty dict of field → NamedSharding, got {shardings!r}"
        )
    first = next(iter(shardings.values()))
    for name, sharding in shardings.items():
        if sharding.mesh != first.mesh or _axis(sharding, 0) != _axis(first, 0):
            raise ConfigurationError(
                f"sharding[{name!r}] = {sharding.spec} splits the batch axis otherwise than {first.spec}; all leaves must agree"
            )
    return first


def _axis(sharding: NamedSharding, axis: int) -> Any:
    return sharding.spec[axis] if len(sharding.spec) > axis else None


def _parts(sharding: NamedSharding, axis: int) -> int:
    names = _axis(sharding, axis)
    names = () if names is None else (names,) if isinstance(names, str) else names
    return int(np.prod([sharding.mesh.shape[n] for n in names], dtype=np.int64))


def check_topology(plan: Plan, shardings: Shardings) -> int:
    """The rows of a global batch, after every check that needs no data."""
    if plan.batch is None or plan.rows_per_lane is None:
        raise ConfigurationError("to_local and to_global need a batch() in the pipeline")
    if not plan.batch.drop_last:
        raise ConfigurationError(
            "batch(drop_last=False) gives a last step of another shape; to_local and to_global need drop_last=True"
        )
    if plan.options.dp_degree is not None:
        raise ConfigurationError(
            "options(dp_degree=, dp_group_id=) contradict a sharding, from which lanes follow; leave them out"
        )
    if jax.process_count() > 1:
        raise ConfigurationError(f"this version feeds one process; jax.process_count() is {jax.process_count()}")
    sharding = batch_sharding(shardings)
    rows, parts = plan.lanes * plan.rows_per_lane, _parts(sharding, 0)
    if rows % parts:
        near = nearest_multiples(rows, parts)
        raise ConfigurationError(
            f"a global batch of {rows} rows cannot be split over the {parts} shards of batch axis {_axis(sharding, 0)!r} of mesh "
            f"{dict(sharding.mesh.shape)}; the nearest sizes that work are {near}, or use a batch axis of {divisors(rows)} shards"
        )
    return rows


def owned_lanes(plan: Plan, shardings: Shardings) -> list[int]:
    """The lanes whose rows this process's devices need."""
    rows = check_topology(plan, shardings)
    assert plan.rows_per_lane is not None
    sharding = batch_sharding(shardings)
    rows_only = NamedSharding(sharding.mesh, PartitionSpec(_axis(sharding, 0)))
    index = rows_only.addressable_devices_indices_map((rows,))
    spans = {(s[0].start or 0, rows if s[0].stop is None else s[0].stop) for s in index.values() if s is not None}
    return lanes_of_rows(spans, plan.rows_per_lane)


def leaf_sharding(shardings: Shardings, name: str, rank: int) -> NamedSharding:
    """A leaf's sharding, with the spec cut to the leaf's rank."""
    if isinstance(shardings, NamedSharding):
        sharding = shardings
    elif name in shardings:
        sharding = shardings[name]
    else:
        raise ConfigurationError(
            f"no sharding for the field {name!r}; the dict has {sorted(shardings)}. Add it, or pass one NamedSharding for all"
        )
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:rank]))


def cast(name: str, values: NDArray[Any], dtypes: Mapping[str, Any]) -> NDArray[Any]:
    """Host casts: what `dtypes` says; else 64-bit types to 32 bits, integers after a range check on this batch."""
    wanted = np.dtype(dtypes[name]) if name in dtypes else _NARROW.get(values.dtype, values.dtype)
    if wanted == values.dtype:
        return values
    if wanted.kind in "iu" and values.dtype.kind in "iu" and values.size:
        info = np.iinfo(wanted.name)
        low, high = int(values.min()), int(values.max())
        if low < info.min or high > info.max:
            seen = low if low < info.min else high
            raise DataError(f"the field {name!r} holds {seen}, which does not fit in {wanted}; pass dtypes= or map it")
    return values.astype(wanted)


def local_batch(dtypes: Mapping[str, Any]) -> Callable[[HostRound], Any]:
    """Finishes a round for `to_local`: NumPy arrays of this process's rows."""

    def finish(joined: HostRound) -> Any:
        arrays, host = joined
        return {name: cast(name, values, dtypes) for name, values in arrays.items()}, host

    return finish


def device_batch(shardings: Shardings, dtypes: Mapping[str, Any]) -> Callable[[HostRound], Any]:
    """Finishes a round for `to_global`: a dict of global arrays."""

    def finish(joined: HostRound) -> Any:
        arrays, host = joined
        return {name: _to_device(name, cast(name, values, dtypes), shardings) for name, values in arrays.items()}, host

    return finish


def _to_device(name: str, values: NDArray[Any], shardings: Shardings) -> jax.Array:
    sharding = leaf_sharding(shardings, name, values.ndim)
    for axis in range(1, values.ndim):
        if values.shape[axis] % (parts := _parts(sharding, axis)):
            raise ConfigurationError(
                f"the field {name!r} of shape {values.shape} cannot be split over the {parts} shards of axis {axis} "
                f"({_axis(sharding, axis)!r}); the nearest lengths that work are {nearest_multiples(values.shape[axis], parts)}"
            )
    return jax.make_array_from_callback(values.shape, sharding, values.__getitem__)
