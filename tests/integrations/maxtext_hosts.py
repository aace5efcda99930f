"""One of several jax.distributed processes behind MaxText's loader: `python -m tests.integrations.maxtext_hosts CONFIG.json`.

MaxText itself is not installed. What it does with an iterator is written here in a few lines from its public source, as facts:
it takes `iter(dataloader)`, asks for local batches, cuts each array into one piece per local device of the mesh, in the mesh's
order, and says that the pieces make up a global array whose batch axis is split over all axes of the mesh. It saves with a
subclass of Grain's handler; the handler here is the installed Grain's own.
"""

from __future__ import annotations

import json
import pathlib
import pickle
import sys
from typing import Any

from tests.processes.hosts import join, mesh_of, tokenize

LANES, ROWS = 8, 16


def pipeline(**options: Any):
    """filter → tokenize → pack → shuffle, with fields of MaxText's names."""
    import zephon_jax as zj

    data = zj.Dataset.from_source("web", [{"text": "abcdefgh" * (1 + n % 5)} for n in range(3000)], fingerprint="web")
    work = zj.StaticMixtureWorkSource(data, chunk_size=8, shuffle_block_size=4, seed=3, exhausted_policy="repeat")
    p = zj.Pipeline(work).tokenize(tokenize).pack(33, num_bins=4).shuffle(6).batch(global_batch_size=ROWS)
    return p.lm_targets("maxtext").options(canonical_replicas=LANES, **options)


def formed(local, mesh):
    """The global arrays that MaxText makes of a process's batch."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    out = {}
    for name, array in local.items():
        pieces = np.split(array, len(mesh.local_devices))
        placed = [jax.device_put(piece, device) for piece, device in zip(pieces, mesh.local_devices, strict=True)]
        shape = (jax.process_count() * len(array), *array.shape[1:])
        out[name] = jax.make_array_from_single_device_arrays(shape, sharding, placed)
    return out


def manager(folder):
    import orbax.checkpoint as ocp

    return ocp.CheckpointManager(pathlib.Path(folder).absolute())


def saving(iterator):
    """A step's items as MaxText names them."""
    import grain
    import numpy as np
    import orbax.checkpoint as ocp

    return ocp.args.Composite(
        items=ocp.args.StandardSave({"w": np.zeros(8)}), iter=grain.checkpoint.CheckpointSave(item=iterator)
    )


def restoring(iterator):
    import grain
    import orbax.checkpoint as ocp

    return ocp.args.Composite(iter=grain.checkpoint.CheckpointRestore(item=iterator))


def taken(iterator, mesh, steps: int) -> list[Any]:
    import numpy as np

    out = []
    for _ in range(steps):
        out.append(
            {
                name: (
                    array.shape,
                    array.dtype.str,
                    [([(s.start, s.stop) for s in sh.index], np.asarray(sh.data)) for sh in array.addressable_shards],
                )
                for name, array in formed(next(iterator), mesh).items()
            }
        )
    return out


def run(job) -> dict[str, Any]:
    import jax

    from zephon_jax.integrations.maxtext import Loader

    mesh = mesh_of((len(jax.devices()) // 2, 2), ("data", "tensor"), job.get("order", "plain"))
    iterator = iter(Loader(pipeline(), mesh))
    error, steps = "", []
    with manager(job["folder"]) as saved:
        if "restore" in job:
            try:
                saved.restore(job["restore"], args=restoring(iterator))
            except Exception as raised:
                error = f"{type(raised).__name__}: {raised}"
        if not error:
            steps = taken(iterator, mesh, job["steps"])
            if "save" in job:
                assert iterator.step == job["save"]
                saved.save(job["save"], args=saving(iterator))
                saved.wait_until_finished()
                steps += taken(iterator, mesh, 1)
        result = {"steps": steps, "error": error, "step": iterator.step}
    iterator.close()
    return result


def mixed_steps(job) -> dict[str, Any]:
    """Process 1 is given its state of another step than process 0."""
    import jax

    from zephon_jax.integrations.maxtext import Loader

    mesh = mesh_of((len(jax.devices()),), ("data",), "plain")
    loader, states = Loader(pipeline(), mesh), []
    first = iter(loader)
    for _ in range(2):
        next(first)
        states.append(first.get_state())
    first.close()
    again = iter(loader)
    try:
        again.set_state(states[jax.process_index()])
    except Exception as raised:
        return {"error": f"{type(raised).__name__}: {raised}"}
    finally:
        again.close()
    return {"error": ""}


def main(path: str) -> None:
    config = json.loads(pathlib.Path(path).read_text())
    join(config)
    results = [(mixed_steps if job.get("job") == "mixed_steps" else run)(job) for job in config["jobs"]]
    pathlib.Path(config["out"]).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
