"""What every store must do; run against each of them, also by processes of `tests/processes`."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from zephon_jax.coordinate.store import Store, Within


def check_store(store: Store) -> None:
    assert store.get("a/x") is None
    assert store.create("a/x", b"1")
    assert not store.create("a/x", b"2")
    assert store.get("a/x") == b"1"
    store.put("a/x", b"3")
    assert store.get("a/x") == b"3"
    store.put("a/y-1", b"")
    assert store.get("a/y-1") == b""
    large = bytes(range(256)) * 1024
    store.put("a/y-2", large)
    assert store.get_each(["a/y-2", "a/none", "a/x"]) == [large, None, b"3"]
    store.put("b", b"other")
    assert store.list("a/") == ["a/x", "a/y-1", "a/y-2"]
    assert store.list("a/y") == ["a/y-1", "a/y-2"]
    assert store.list("c") == []
    assert store.get_each([]) == []
    store.delete("a/x")
    store.delete("a/x")
    assert store.get("a/x") is None
    assert store.create("a/x", b"4")
    store.delete_each(["a/x", "a/y-1", "a/none"])
    assert store.list("a/") == ["a/y-2"]

    assert store.wait("a/late", 0.05) is None
    assert store.wait("b", 5.0) == b"other"
    assert store.wait("b", 0.05, b"other") == b"other"
    later = threading.Timer(0.05, lambda: (store.put("b", b"new"), store.put("a/late", b"here")))
    later.start()
    assert store.wait("b", 20.0, b"other") == b"new"
    assert store.wait("a/late", 20.0) == b"here"
    later.join()

    with ThreadPoolExecutor(8) as pool:  # of several that create, one is told that it did
        told = list(pool.map(lambda n: store.create("a/race", b"%d" % n), range(8)))
    assert sum(told) == 1
    assert store.get("a/race") == b"%d" % told.index(True)

    within = Within(store, "a/")
    within.put("z", b"9")
    assert within.get_each(["z", "race"]) == [b"9", store.get("a/race")]
    assert within.list("") == ["late", "race", "y-2", "z"]
    within.delete_each(within.list(""))
    store.delete("b")
    assert store.list("a") == []
