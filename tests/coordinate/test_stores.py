"""Real directories, real files of tensorstore and a real S3 server on loopback. JAX's store: `tests/processes`."""

from __future__ import annotations

import errno
import os
import re
import types

import pytest

from tests.coordinate.contract import check_store
from tests.sources.objectstore import Answer, proxied
from zephon_jax.coordinate import jaxkv, round
from zephon_jax.coordinate.directory import DirectoryStore
from zephon_jax.coordinate.jaxkv import JaxStore
from zephon_jax.coordinate.objects import ObjectStore
from zephon_jax.coordinate.round import open_store
from zephon_jax.coordinate.store import sealed, unsealed
from zephon_jax.errors import AggregationFailed, ConfigurationError
from zephon_jax.sources import remote


def test_a_directory(tmp_path):
    check_store(DirectoryStore(tmp_path / "new" / "folder"))
    assert os.listdir(tmp_path / "new" / "folder") == []


def test_files_of_tensorstore(tmp_path):
    check_store(ObjectStore(f"file://{tmp_path}"))


@pytest.fixture(scope="module")
def upstream():
    moto_server = pytest.importorskip("moto.server", reason="moto is in the extra [test]")
    server = moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture
def s3(upstream, monkeypatch, request):
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setattr(remote, "_RETRIES", {"max_retries": 2, "initial_delay": "10ms", "max_delay": "20ms"})
    with proxied(upstream) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        store.make_bucket(bucket := re.sub(r"\W+", "-", request.node.name).replace("_", "-").strip("-"))
        store.prefix = bucket
        yield store


def test_s3(s3):
    check_store(ObjectStore(f"s3://{s3.prefix}/some/prefix"))


def test_s3_that_refuses_is_an_error_that_names_the_key(s3):
    store = open_store(f"s3://{s3.prefix}/p", None)
    s3.fault = lambda request: Answer(403)
    with pytest.raises(AggregationFailed, match=rf"s3://{s3.prefix}/p/k: ValueError: PERMISSION_DENIED"):
        store.get("k")


def test_a_value_that_was_cut_off_or_changed_is_refused(tmp_path):
    store = DirectoryStore(tmp_path)
    store.put("k", b"whole value")
    (file,) = tmp_path.iterdir()
    good = file.read_bytes()
    for bad in (b"", good[:-1], good[:7], good[:-1] + b"?", b"not of ours, and long enough"):
        file.write_bytes(bad)
        with pytest.raises(AggregationFailed, match=r"/k is damaged: \d+ bytes"):
            store.get("k")
    file.write_bytes(good + b"the tail of an older value")
    assert store.get("k") == b"whole value"
    assert unsealed(sealed(b""), "x") == b""


def test_a_killed_writer_leaves_a_file_that_nobody_reads_and_that_goes_after_a_day(tmp_path):
    store = DirectoryStore(tmp_path)
    store.put("k", b"v")
    (tmp_path / ".tmp-dead").write_bytes(b"half")
    assert store.list("") == ["k"]
    DirectoryStore(tmp_path)
    assert (tmp_path / ".tmp-dead").exists()
    os.utime(tmp_path / ".tmp-dead", (1, 1))
    DirectoryStore(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["k"]


def test_keys_are_flat_file_names(tmp_path):
    store = DirectoryStore(tmp_path)
    keys = ["a/b", "a%2Fb", ".hidden", "..", "%.x", "ü/💡", "a b"]
    for n, key in enumerate(keys):
        store.put(key, b"%d" % n)
    assert store.get_each(keys) == [b"%d" % n for n in range(len(keys))]
    assert store.list("") == sorted(keys)
    assert all((tmp_path / name).is_file() for name in os.listdir(tmp_path))


def test_a_directory_that_cannot_be_used_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"aggregate_dir='.*/file/x'\) cannot be used"):
        DirectoryStore(tmp_path / "file" / "x")


def test_a_directory_that_goes_away_is_a_declared_error(tmp_path):
    store = DirectoryStore(tmp_path / "d")
    os.rmdir(tmp_path / "d")
    with pytest.raises(AggregationFailed, match="every process must be able to read and write this directory"):
        store.put("k", b"v")


def test_a_file_system_that_cannot_link_is_told(tmp_path, monkeypatch):
    def cannot(source, target):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    store = DirectoryStore(tmp_path)
    monkeypatch.setattr(os, "link", cannot)
    with pytest.raises(AggregationFailed, match="cannot link files .* use another directory"):
        store.create("k", b"v")
    assert os.listdir(tmp_path) == []


def test_without_storage_the_error_says_what_to_pass():
    with pytest.raises(ConfigurationError, match=r"options\(aggregate_dir=\) a directory or a gs:// or s3:// URL"):
        open_store(None, None)
    with pytest.raises(ConfigurationError, match=r"needs jax.distributed.initialize\(\) before"):
        open_store(None, "jax://")


def test_a_file_url_is_a_directory_of_our_own_files(tmp_path):
    assert isinstance(open_store(f"file://{tmp_path}", None), DirectoryStore)


class OldClient:
    def key_value_set_bytes(self): ...


def test_a_jax_without_what_is_needed_is_told(monkeypatch):
    with pytest.raises(ConfigurationError, match=r"needs \['key_value_try_get_bytes', .* pass aggregate_dir="):
        JaxStore(of=OldClient())


def test_without_jax_distributed_there_is_no_client_and_no_launch():
    assert jaxkv.client() is None
    assert jaxkv.processes() == (0, 1)
    assert jaxkv.launch_nonce(1.0) == ""
    assert round.DEFAULT_RUN


def test_ranks_are_known_without_starting_devices(monkeypatch):
    """Starting them is a collective without a time-out, in which a process that died would leave the others waiting."""
    service = types.SimpleNamespace(client=object(), process_id=2, num_processes=5)
    monkeypatch.setattr(jaxkv, "_service", lambda: service)
    assert jaxkv.processes() == (2, 5)
    service.client = None
    assert jaxkv.processes() == (0, 1)
