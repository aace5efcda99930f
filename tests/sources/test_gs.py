"""Google's object storage: an emulator on loopback, in a process of its own, since its address is read once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("gcp_storage_emulator", reason="gcp-storage-emulator is in the extra [test]")

PROGRAM = """
import gzip, os, socket, sys
from gcp_storage_emulator.server import create_server
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
server = create_server("127.0.0.1", port, in_memory=True, default_bucket="data")
server.start()
os.environ["TENSORSTORE_GCS_HTTP_URL"] = f"http://127.0.0.1:{port}"
try:
    import numpy as np
    from zephon_jax.errors import DataError
    from zephon_jax.sources import remote, storage
    from zephon_jax.sources.base import Dataset
    from zephon_jax.sources.index import ahead

    lines = b"".join(b'{"v": %d}\\n' % i for i in range(100))
    remote.write_object("gs://data/d/a.jsonl", lines)
    remote.write_object("gs://data/d/b.jsonl.gz", gzip.compress(lines))
    remote.write_object("gs://data/d/._a.jsonl", b"no data")
    assert storage.stat("gs://data/d/a.jsonl").size == len(lines)
    assert storage.read_ranges(storage.stat("gs://data/d/a.jsonl"), [(3, 9), (0, 4)]) == [lines[3:9], lines[:4]]
    with ahead(beside=True) as kept:
        ds = Dataset.from_path("d", "gs://data/d")
    assert kept[0].path.startswith("gs://data/d/.zephon_jax/jsonl-")
    assert [shard.name for shard in ds.shards] == ["gs://data/d/a.jsonl", "gs://data/d/b.jsonl.gz"]
    assert [int(ds[i]["v"]) for i in range(200)] == list(range(100)) * 2
    assert len(Dataset.from_path("d", "gs://data/*/*.gz")) == 100
    try:
        storage.stat("gs://data/none")
    except DataError as error:
        assert "there is no object 'none' in bucket 'data'" in str(error)
    else:
        raise AssertionError("missing was found")
    print("all right")
finally:
    server.stop()
"""


@pytest.mark.slow
def test_a_dataset_in_google_s_storage(tmp_path):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GOOGLE_", "AWS_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path,
        env=clean | {"ZEPHON_JAX_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("all right\n")
