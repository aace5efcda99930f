"""One of several ranks that take rounds of checkpoints until they are killed: `python -m tests.processes.ranks CONFIG`.

It says on a line of its own that it is ready, and then, for each round, how many rounds its lanes have delivered and the hash
of the state that it was given. States are kept in a folder, so that the next incarnation goes on from one.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import sys
from typing import Any

LANES = 4


def pipeline(**options):
    import zephon_jax as zj

    work = zj.StaticMixtureWorkSource(
        zj.Dataset.from_source("n", range(100)), chunk_size=8, seed=1, exhausted_policy="repeat"
    )
    return zj.Pipeline(work).shuffle(8).batch(2).options(canonical_replicas=LANES, executor="inline", **options)


def hash_of(state) -> str:
    from zephon_jax.checkpoint.codec import encode

    return hashlib.blake2b(encode(state), digest_size=12).hexdigest()


def main() -> None:
    from zephon_jax.checkpoint.codec import decode, encode
    from zephon_jax.errors import ZephonError

    config = json.loads(sys.argv[1])
    rank, size, folder = config["rank"], config["size"], pathlib.Path(config["folder"])
    if "port" in config:
        import jax

        jax.distributed.initialize(
            f"127.0.0.1:{config['port']}", size, rank,
            initialization_timeout=90, cluster_detection_method="deactivate",
        )  # fmt: skip
    it = iter(pipeline(dp_degree=2, dp_group_id=min(rank, 1), world_size=size, global_rank=rank, **config["options"]))
    if config["resume"]:
        it.restore(decode((folder / config["resume"]).read_bytes()))
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        for _ in range(config["rounds"]):
            for _ in range(LANES // 2):
                next(it)
            state = it.checkpoint()
            rounds = state["lanes"][0]["rounds"]
            temporary = folder / f"tmp-{os.getpid()}"
            temporary.write_bytes(encode(state))
            temporary.replace(folder / f"state-{rounds}")
            print(json.dumps([rounds, hash_of(state)]), flush=True)
        if "port" in config:  # rank 0 closes last, when the others have had what they need of its store
            from zephon_jax.coordinate.jaxkv import client

            service: Any = client()
            service.wait_at_barrier("all have what they need", 60_000)
        it.close()
    except ZephonError as error:
        print(json.dumps([-1, f"{type(error).__name__}: {error}"]), flush=True)
        sys.stdout.flush()
        os._exit(3)  # jax.distributed would wait for whoever is dead


if __name__ == "__main__":
    main()
