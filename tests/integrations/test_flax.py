"""A training loop with Flax NNX and Optax: saved with its pipeline, resumed on other meshes, with the same losses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import zephon_jax as zj

nnx = pytest.importorskip("flax.nnx")
optax = pytest.importorskip("optax")

pytestmark = pytest.mark.slow
SAVED, LAST = 3, 7


def to_bytes(text: str) -> list[int]:
    return list(text.encode())


def pipeline():
    docs = zj.Dataset.from_source("docs", [{"text": f"document {n} " * (1 + n % 5)} for n in range(600)])
    work = zj.StaticMixtureWorkSource(docs, seed=0, exhausted_policy="repeat")
    p = zj.Pipeline(work).tokenize(to_bytes).pack(33).shuffle(32)
    return p.batch(global_batch_size=16).lm_targets()


class Model(nnx.Module):
    def __init__(self, rngs, width=16):
        self.tokens = nnx.Embed(256, width, rngs=rngs)
        self.layer = nnx.Linear(width, 256, rngs=rngs)

    def __call__(self, batch):
        return self.layer(self.tokens(batch["inputs"]))


def loss_of(model, batch):
    nats = optax.softmax_cross_entropy_with_integer_labels(model(batch), batch["targets"])
    return jnp.sum(nats * batch["loss_weights"]) / jnp.maximum(jnp.sum(batch["loss_weights"]), 1)


@nnx.jit
def train_step(model, optimizer, batch):
    loss, gradients = nnx.value_and_grad(loss_of)(model, batch)
    optimizer.update(model, gradients)
    return loss


def mesh_of(data: int, model: int):
    return Mesh(np.array(jax.devices()[: data * model]).reshape(data, model), ("data", "model"))


def trained(mesh, folder, *, steps, restore=None, save=False, data=True):
    """Losses by step. `data=False`: resumes the model and forgets the pipeline."""

    def where(array):
        return NamedSharding(mesh, PartitionSpec(None, "model") if array.ndim == 2 else PartitionSpec())

    @nnx.jit
    def fresh():
        model = Model(nnx.Rngs(0))
        both = model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        state = nnx.state(both)
        nnx.update(both, jax.lax.with_sharding_constraint(state, jax.tree.map(where, state)))
        return both

    both = model, optimizer = fresh()
    losses = []
    spec = PartitionSpec("data", None)
    with ocp.CheckpointManager(folder) as mgr, pipeline().to_global(NamedSharding(mesh, spec)) as batches:
        if restore is not None:
            items = {"state": ocp.args.StandardRestore(nnx.state(both))}
            if data:
                items["data"] = zj.PipelineRestore(batches)
            nnx.update(both, mgr.restore(restore, args=ocp.args.Composite(**items))["state"])
            kernel = nnx.state(model)["layer"]["kernel"][...]
            assert kernel.sharding.is_equivalent_to(where(kernel), 2)  # not where it was saved from
        for _ in range(steps):
            losses.append(float(train_step(model, optimizer, next(batches))))
            if save and batches.step == SAVED:
                items = {"state": ocp.args.StandardSave(nnx.state(both)), "data": zj.PipelineSave(batches)}
                mgr.save(SAVED, args=ocp.args.Composite(**items))
    return losses


def test_losses_go_on_after_a_resume_on_another_mesh(tmp_path):
    whole = trained(mesh_of(4, 2), tmp_path, steps=LAST, save=True)
    assert whole[-1] < whole[0] - 0.1  # it learns: a loss that stands still would compare equal to anything
    rest = LAST - SAVED
    for data, model in ((4, 2), (2, 2), (1, 1)):
        resumed = trained(mesh_of(data, model), tmp_path, steps=rest, restore=SAVED)
        np.testing.assert_allclose(resumed, whole[SAVED:], rtol=1e-5)  # another mesh sums in another order
    forgot = trained(mesh_of(2, 2), tmp_path, steps=rest, restore=SAVED, data=False)
    assert not np.allclose(forgot, whole[SAVED:], rtol=1e-3)
