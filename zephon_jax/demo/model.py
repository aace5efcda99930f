"""A small decoder-only transformer, its loss and its optimizer, in plain jax.

Parameters are a flat dict by name; the optimizer's moments have the same names, so one table of shardings serves all
three. Weights are split over the mesh axis `model`, batches over `data`; the compiler inserts the communication.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from zephon_jax.demo.settings import Settings

__all__ = ["Batch", "Parameters", "State", "abstract_state", "initial_state", "train_step"]

Parameters = dict[str, jax.Array]
Batch = Mapping[str, jax.Array]


class State(TypedDict):
    """What a checkpoint holds of the model: parameters, Adam's two moments, and the number of updates."""

    parameters: Parameters
    mean: Parameters
    square: Parameters
    updates: jax.Array


# On several CPU devices of one process, jaxlib 0.7.2 computes some steps wrongly: 25 such steps on fixed arrays, with
# donated buffers and the vocabulary cut over `model`, ended in other losses in every one of 11 repetitions, by up to
# 0.28. Without donation and with the embedding cut along its width it was 4 in 100, by at most 1e-5, on two cores with
# a load of 14. 0.10.2 with donation: none in 100. The versions between have not been tried.
_DONATED = (0,) if jax.__version_info__ >= (0, 10) else ()

_SPECS = {  # by the last part of a parameter's name
    "embedding": PartitionSpec(None, "model"),
    "qkv": PartitionSpec(None, None, "model"),
    "out": PartitionSpec("model", None),
    "up": PartitionSpec(None, "model"),
    "down": PartitionSpec("model", None),
    "scale": PartitionSpec(),
}


def _shapes(settings: Settings) -> dict[str, tuple[int, ...]]:
    width = settings.width
    shapes: dict[str, tuple[int, ...]] = {"embedding": (settings.vocabulary_size, width), "final.scale": (width,)}
    for layer in range(settings.layers):
        shapes[f"{layer}.attention.scale"] = (width,)
        shapes[f"{layer}.attention.qkv"] = (3, width, width)
        shapes[f"{layer}.attention.out"] = (width, width)
        shapes[f"{layer}.feedforward.scale"] = (width,)
        shapes[f"{layer}.feedforward.up"] = (width, 4 * width)
        shapes[f"{layer}.feedforward.down"] = (4 * width, width)
    return shapes


def _sharding(mesh: Mesh, name: str) -> NamedSharding:
    return NamedSharding(mesh, _SPECS[name.rpartition(".")[2]])


def abstract_state(settings: Settings, mesh: Mesh) -> State:
    """Shapes, dtypes and shardings of the state on `mesh`, without values: what Orbax restores into."""

    def parameters() -> dict[str, jax.ShapeDtypeStruct]:
        return {
            name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=_sharding(mesh, name))
            for name, shape in _shapes(settings).items()
        }

    replicated = NamedSharding(mesh, PartitionSpec())
    updates = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated)
    return State(parameters=parameters(), mean=parameters(), square=parameters(), updates=updates)  # pyright: ignore[reportArgumentType]


def initial_state(settings: Settings, mesh: Mesh) -> State:
    """The state before the first step; drawn on the host, so the same on every mesh."""
    rng = np.random.default_rng(0)

    def draw(name: str, shape: tuple[int, ...]) -> jax.Array:
        if name.endswith("scale"):
            value = np.ones(shape, np.float32)
        else:
            deviation = 0.02 if name == "embedding" else 1 / math.sqrt(shape[-2])
            value = rng.normal(0.0, deviation, shape).astype(np.float32)
        return jax.device_put(value, _sharding(mesh, name))

    def zeros() -> Parameters:
        return {
            name: jax.device_put(np.zeros(shape, np.float32), _sharding(mesh, name))
            for name, shape in _shapes(settings).items()
        }

    parameters = {name: draw(name, shape) for name, shape in _shapes(settings).items()}
    updates = jax.device_put(np.int32(0), NamedSharding(mesh, PartitionSpec()))
    return State(parameters=parameters, mean=zeros(), square=zeros(), updates=updates)


def train_step(settings: Settings, mesh: Mesh) -> Callable[[State, Batch], tuple[State, jax.Array]]:
    """The compiled step: `(state, batch) -> (state, loss)`; it takes over the buffers of the state it is given."""

    def step(state: State, batch: Batch) -> tuple[State, jax.Array]:
        def loss_of(parameters: Parameters) -> jax.Array:
            return _loss(settings, parameters, batch)

        loss, gradients = jax.value_and_grad(loss_of)(state["parameters"])
        return _adam(state, gradients, settings.learning_rate), loss

    of_parameters = {name: _sharding(mesh, name) for name in _shapes(settings)}
    replicated = NamedSharding(mesh, PartitionSpec())
    of_state = {"parameters": of_parameters, "mean": of_parameters, "square": of_parameters, "updates": replicated}
    return jax.jit(step, donate_argnums=_DONATED, out_shardings=(of_state, replicated))


def _adam(state: State, gradients: Parameters, rate: float) -> State:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980), its rate raised linearly over the first ten updates."""
    updates = state["updates"] + 1
    t = updates.astype(jnp.float32)
    mean = {name: 0.9 * state["mean"][name] + 0.1 * g for name, g in gradients.items()}
    square = {name: 0.99 * state["square"][name] + 0.01 * g * g for name, g in gradients.items()}
    size, correction = rate * jnp.minimum(1.0, t / 10) / (1 - 0.9**t), 1 / (1 - 0.99**t)
    parameters = {
        name: p - size * mean[name] / (jnp.sqrt(square[name] * correction) + 1e-6)
        for name, p in state["parameters"].items()
    }
    return State(parameters=parameters, mean=mean, square=square, updates=updates)


def _loss(settings: Settings, parameters: Parameters, batch: Batch) -> jax.Array:
    """Cross entropy per target, in nats, over the targets that `loss_weights` counts."""
    logits = _logits(settings, parameters, batch)
    picked = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - picked
    weights = batch["loss_weights"]
    return jnp.sum(losses * weights) / jnp.maximum(jnp.sum(weights), 1.0)


def _logits(settings: Settings, parameters: Parameters, batch: Batch) -> jax.Array:
    """(rows, length, vocabulary); a token sees only earlier tokens of its own document."""
    length = batch["inputs"].shape[1]
    segments = batch["segment_ids"]
    mask = jnp.tril(jnp.ones((length, length), bool)) & (segments[:, :, None] == segments[:, None, :])
    x = parameters["embedding"][batch["inputs"]] * math.sqrt(settings.width)
    for layer in range(settings.layers):
        own = {name.partition(".")[2]: value for name, value in parameters.items() if name.startswith(f"{layer}.")}
        x = x + _attention(own, _normalise(x, own["attention.scale"]), batch["positions"], mask, settings.heads)
        hidden = jax.nn.gelu(_normalise(x, own["feedforward.scale"]) @ own["feedforward.up"])
        x = x + hidden @ own["feedforward.down"]
    return _normalise(x, parameters["final.scale"]) @ parameters["embedding"].T


def _normalise(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def _attention(own: Parameters, x: jax.Array, positions: jax.Array, mask: jax.Array, heads: int) -> jax.Array:
    rows, length, width = x.shape
    q, k, v = (
        t.reshape(rows, length, heads, width // heads) for t in jnp.einsum("bld,sde->sble", x, own["attention.qkv"])
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", _rotate(q, positions), _rotate(k, positions)) / math.sqrt(width // heads)
    weights = jax.nn.softmax(jnp.where(mask[:, None], scores, -1e9), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(rows, length, width) @ own["attention.out"]


def _rotate(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864), counted from each document's start."""
    half = x.shape[-1] // 2
    angles = positions[:, :, None, None] * (10_000.0 ** (-jnp.arange(half) / half))
    low, high = x[..., :half], x[..., half:]
    return jnp.concatenate(
        [low * jnp.cos(angles) - high * jnp.sin(angles), high * jnp.cos(angles) + low * jnp.sin(angles)], axis=-1
    )
