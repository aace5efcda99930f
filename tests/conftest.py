"""Settings that must stand before jax is imported: CPU only, eight forced devices."""

from __future__ import annotations

import os
import threading

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")


@pytest.fixture(autouse=True)
def no_threads_left():
    """A test that leaves one of our threads running has found a leak."""
    yield
    left = [t.name for t in threading.enumerate() if t.name.startswith("zephon_jax")]
    assert not left, f"threads left running: {left}"
