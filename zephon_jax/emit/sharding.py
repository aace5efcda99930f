"""Rows on the host → global `jax.Array`s, and which rows a process needs. The only room of emission that imports jax.

Which lanes a process produces follows from the sharding's device map, without communication: those whose rows its
addressable shards hold. Arrays are made from views of a fresh host buffer with `jax.make_array_from_callback`, which
handles every layout and was the fastest of the ways measured; nothing here runs a collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from zephon_jax.emit.rows import ROW_VALID, HostRound, converted
from zephon_jax.emit.topology import Topology
from zephon_jax.errors import ConfigurationError
from zephon_jax.lanes import divisors, lanes_of_rows, nearest_multiples
from zephon_jax.ops.base import Fields
from zephon_jax.plan.compile import Plan

__all__ = [
    "Placement",
    "Shardings",
    "check_batch",
    "checked_leaf",
    "device_batch",
    "leaf_sharding",
    "local_batch",
    "placement_of",
    "step_spec",
]

Shardings = NamedSharding | Mapping[str, NamedSharding]

_NARROW: dict[np.dtype[Any], np.dtype[Any]] = {
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


def check_batch(plan: Plan, shardings: Shardings, end: str) -> int:
    """The rows of a global batch, after every check that needs no data."""
    if plan.batch is None or plan.rows_per_lane is None:
        raise ConfigurationError("to_local and to_global need a batch() in the pipeline")
    if end not in ("drop", "pad"):
        raise ConfigurationError(f"end={end!r} must be 'drop' or 'pad'")
    if not plan.batch.drop_last and end == "drop":
        raise ConfigurationError(
            "batch(drop_last=False) gives a last step of another shape; to_local and to_global need drop_last=True, or "
            "end='pad', which fills it"
        )
    if plan.options.dp_degree is not None:
        raise ConfigurationError(
            "options(dp_degree=, dp_group_id=) contradict a sharding, from which lanes follow; leave them out"
        )
    for option, here in (("world_size", jax.process_count()), ("global_rank", jax.process_index())):
        given = getattr(plan.options, option, None)
        if given not in (None, here):
            raise ConfigurationError(f"options({option}={given}) contradicts jax, which says {here}; leave it out")
    sharding = batch_sharding(shardings)
    rows, parts = plan.lanes * plan.rows_per_lane, _parts(sharding, 0)
    if rows % parts:
        near = nearest_multiples(rows, parts)
        raise ConfigurationError(
            f"a global batch of {rows} rows cannot be split over the {parts} shards of batch axis {_axis(sharding, 0)!r} of mesh "
            f"{dict(sharding.mesh.shape)}; the nearest sizes that work are {near}, or use a batch axis of {divisors(rows)} shards"
        )
    return rows


@dataclass(frozen=True, slots=True)
class Placement:
    """Which rows of the global batch are where.

    `rows`: of the global batch. `topology`: who produces which lanes, which follows from who holds which rows. `spans`:
    the rows [start, stop) that this process's devices hold, merged, ascending. `rows_per_lane`: R.
    """

    rows: int
    rows_per_lane: int
    topology: Topology
    spans: tuple[tuple[int, int], ...]

    def local(self, start: int, stop: int) -> slice:
        """Where rows of the global batch that this process holds stand among those of its lanes."""
        lane, within = divmod(start, self.rows_per_lane)
        first = self.topology.lanes.index(lane) * self.rows_per_lane + within
        return slice(first, first + stop - start)


def placement_of(plan: Plan, shardings: Shardings, end: str = "drop") -> Placement:
    """From the sharding's device map, without communication."""
    rows = check_batch(plan, shardings, end)
    assert plan.rows_per_lane is not None
    sharding = batch_sharding(shardings)
    rows_only = NamedSharding(sharding.mesh, PartitionSpec(_axis(sharding, 0)))
    held: dict[int, set[tuple[int, int]]] = {}
    for device, index in rows_only.devices_indices_map((rows,)).items():
        span = (index[0].start or 0, rows if index[0].stop is None else index[0].stop)
        held.setdefault(device.process_index, set()).add(span)
    here, processes = jax.process_index(), jax.process_count()
    alone = set(held) == {here}  # a mesh of this process's own devices concerns no other
    if len(held) < processes and not alone:
        raise ConfigurationError(
            f"processes {sorted(set(range(processes)) - set(held))} have no device in the mesh {dict(sharding.mesh.shape)}, so "
            "they have no rows to produce; make the mesh of devices of all processes, or of this one's alone"
        )
    lanes = {process: lanes_of_rows(spans, plan.rows_per_lane) for process, spans in held.items()}
    producers: Mapping[int, tuple[int, ...]] = {
        lane: tuple(sorted(p for p, own in lanes.items() if lane in own)) for lane in range(plan.lanes)
    }
    if alone:
        held, here, processes = {0: held[here]}, 0, 1
        lanes, producers = {0: lanes[jax.process_index()]}, dict.fromkeys(producers, (0,))
    topology = Topology(here, processes, tuple(lanes[here]), producers)
    return Placement(rows, plan.rows_per_lane, topology, _merged(held[here]))


def _merged(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    out: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(stop, out[-1][1]))
        else:
            out.append((start, stop))
    return tuple(out)


def step_spec(
    plan: Plan,
    fields: Fields,
    shardings: Shardings | None,
    *,
    accumulate: int | None,
    end: str,
    dtypes: Mapping[str, Any],
) -> dict[str, jax.ShapeDtypeStruct]:
    """What `to_global` gives of rows that look like this; without shardings, shapes and dtypes alone."""
    assert plan.rows_per_lane is not None
    rows = plan.lanes * plan.rows_per_lane if shardings is None else check_batch(plan, shardings, end)
    if end == "pad":
        fields = {**fields, ROW_VALID: ((), np.dtype(np.bool_))}
    leading = () if accumulate is None else (accumulate,)
    out: dict[str, jax.ShapeDtypeStruct] = {}
    for name, (shape, dtype) in fields.items():
        kind = np.dtype(dtypes[name]) if name in dtypes else _NARROW.get(dtype, dtype)
        sharding = None if shardings is None else checked_leaf(shardings, name, (rows, *shape))
        if sharding is not None and leading:
            sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
        out[name] = jax.ShapeDtypeStruct((*leading, rows, *shape), kind, sharding=sharding)
    return out


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
    """Host casts: what `dtypes` says; else 64-bit types to 32 bits, after a check of this batch."""
    return converted(
        name, values, np.dtype(dtypes[name]) if name in dtypes else _NARROW.get(values.dtype, values.dtype)
    )


def local_batch(dtypes: Mapping[str, Any], placement: Placement) -> Callable[[HostRound], Any]:
    """Finishes a round for `to_local`: NumPy arrays of the rows that this process's devices hold, ascending."""
    index = np.concatenate([np.r_[placement.local(a, b)] for a, b in placement.spans])
    everything = len(index) == len(placement.topology.lanes) * placement.rows_per_lane

    def finish(joined: HostRound) -> Any:
        arrays, host = joined
        made = {name: cast(name, values, dtypes) for name, values in arrays.items()}
        return (made if everything else {name: values[index] for name, values in made.items()}), host

    return finish


def device_batch(
    shardings: Shardings, dtypes: Mapping[str, Any], placement: Placement, accumulate: int | None = None
) -> Callable[[HostRound], Any]:
    """Finishes a round for `to_global`: a dict of global arrays, with an axis of `accumulate` rounds in front if given."""
    leading = 0 if accumulate is None else 1

    def finish(joined: HostRound) -> Any:
        arrays, host = joined
        made = {name: cast(name, values, dtypes) for name, values in arrays.items()}
        return {name: _to_device(name, v, shardings, placement, leading) for name, v in made.items()}, host

    return finish


def _to_device(name: str, values: NDArray[Any], shardings: Shardings, placement: Placement, leading: int) -> jax.Array:
    sharding = checked_leaf(shardings, name, values.shape[leading:])
    if leading:
        sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
    shape = (*values.shape[:leading], placement.rows, *values.shape[leading + 1 :])

    def local(index: Any) -> NDArray[Any]:  # a slice per axis
        rows = index[leading]
        start, stop = rows.start or 0, placement.rows if rows.stop is None else rows.stop
        return values[(*index[:leading], placement.local(start, stop), *index[leading + 1 :])]

    return jax.make_array_from_callback(shape, sharding, local)


def checked_leaf(shardings: Shardings, name: str, shape: tuple[int, ...]) -> NamedSharding:
    """The sharding of a leaf whose rows have this shape behind the batch axis; all its axes must divide."""
    sharding = leaf_sharding(shardings, name, len(shape))
    for axis in range(1, len(shape)):
        if shape[axis] % (parts := _parts(sharding, axis)):
            raise ConfigurationError(
                f"the field {name!r} of shape {shape} cannot be split over the {parts} shards of axis {axis} "
                f"({_axis(sharding, axis)!r}); the nearest lengths that work are {nearest_multiples(shape[axis], parts)}"
            )
    return sharding
