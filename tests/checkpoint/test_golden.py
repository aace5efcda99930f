"""States that version 1 once wrote: they are read, they continue with the same rows, and they are written alike today."""

from __future__ import annotations

import msgpack
import pytest
import zstandard

from tests.checkpoint.golden import FOLDER, RUNS, at_the_cut, built, continued, path_of
from zephon_jax.checkpoint.codec import decode, encode, state_from_plain, state_to_plain

CONTINUED = {
    "monotone": "59760078a5c112cae2b77f1ec4bcd73b",
    "lengths": "bb6dee489aa0c1b0f245871f0cece080",
    "skipped": "829cd28e313038f02d6294a9f12d66c4",
    "end": "1f64555e1e0142013db5a475e76879a5",
    "wrapped": "51096c7bdd3f00a1ba22bbde5bf6290b",
}
"""What follows each state: `continued`, as it was when the file was written."""


def raw(data: bytes) -> bytes:
    """The msgpack bytes. Those of zstd are another matter: a later release may compress better."""
    return zstandard.ZstdDecompressor().decompress(data)


def test_every_file_has_its_run():
    assert sorted(FOLDER.glob("state_*")) == sorted(map(path_of, RUNS))
    assert set(CONTINUED) == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_a_golden_state_is_read_and_written_again(name):
    data = path_of(name).read_bytes()
    plain = decode(data)
    again = state_to_plain(state_from_plain(plain))
    assert again == plain
    assert list(again) == list(plain)
    assert msgpack.packb(again) == raw(data)


@pytest.mark.parametrize("name", RUNS)
def test_a_golden_state_continues_with_the_same_rows(name, tmp_path):
    state = decode(path_of(name).read_bytes())
    with iter(built(name, tmp_path)) as it:
        it.restore(state)
        assert it.checkpoint() == state
        assert continued(it) == CONTINUED[name]


@pytest.mark.parametrize("name", RUNS)
def test_the_same_run_gives_the_same_state_today(name, tmp_path):
    data = path_of(name).read_bytes()
    now, then = at_the_cut(name, tmp_path), decode(data)
    for field in then:
        if field != "lanes":
            assert now[field] == then[field], field
    for lane, (ours, theirs) in enumerate(zip(now["lanes"], then["lanes"], strict=True)):
        assert list(ours) == list(theirs), lane
        for field in theirs:
            assert ours[field] == theirs[field], (lane, field)
    assert raw(encode(now)) == raw(data)


def test_the_files_hold_what_a_state_can_hold():
    """Each kind of field is in use in one of them."""
    lanes = [s for name in RUNS for s in state_from_plain(decode(path_of(name).read_bytes())).lanes.values()]
    assert any(not s.chunks for s in lanes)
    assert any(s.skipped for s in lanes)
    assert any(s.passed_over for s in lanes)
    assert {len(s.boundaries) for s in lanes} == {0, 1, 2}
    assert any(s.known is None and s.chunks for s in lanes)
    known = [s.known for s in lanes if s.known is not None]
    assert any((table[1] > 0).any() for table in known)  # SIBLINGS: several children
    assert any((table[3] >= 0).all() for table in known)  # TOKENS: lengths are kept
    assert any((table[3] == -1).all() for table in known)
    assert any(len(set(c.dataset.tolist())) > 1 for s in lanes for c in s.chunks)
