"""Settings that must stand before jax is imported: CPU only, eight forced devices. And no test writes to the real home."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import uuid

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

# For fixtures that outlive a test; each test then gets a folder of its own.
_CACHES = tempfile.mkdtemp(prefix="zephon-caches-")
os.environ["ZEPHON_JAX_CACHE_DIR"] = _CACHES


def pytest_sessionfinish():
    shutil.rmtree(_CACHES, ignore_errors=True)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch):
    """A cache folder that no other test knows; it is made when something is kept."""
    monkeypatch.setenv("ZEPHON_JAX_CACHE_DIR", os.path.join(_CACHES, uuid.uuid4().hex))


@pytest.fixture(autouse=True)
def no_threads_left():
    """A test that leaves one of our threads running has found a leak."""
    yield
    left = [t.name for t in threading.enumerate() if t.name.startswith("zephon_jax")]
    assert not left, f"threads left running: {left}"
