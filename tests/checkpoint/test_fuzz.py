"""A small run of the fuzzer, and that it finds what it is for: mistakes put into the decoder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tests.checkpoint import fuzz
from zephon_jax.checkpoint import codec
from zephon_jax.errors import CheckpointMismatch


@pytest.fixture(scope="module")
def pool() -> list[fuzz.Seed]:
    return fuzz.seeds()


def test_real_states_are_taken_in_every_frame(pool):
    report = fuzz.Report()
    for seed in pool:
        for frame in (*seed.frames, fuzz.stored(seed.raw)):
            assert fuzz.measured(frame, seed.agree, report) is None
    assert (report.accepted, len(report.refusals)) == (len(pool) * 6, 0)
    assert len(pool) > 20


def test_twenty_thousand_inputs_are_refused_or_sound(pool):
    report, violation = fuzz.fuzz(20_000, seed=12, pool=pool)
    assert violation is None
    assert report.inputs == 20_000
    assert 100 < report.accepted < 4_000
    assert len(report.refusals) > 35  # most checks of the package were met


def test_an_input_is_a_function_of_its_number(pool):
    def inputs(first: int) -> list[bytes]:
        seen: list[bytes] = []
        with mock.patch.object(fuzz, "settle", lambda data, *_: seen.append(data)):
            fuzz.fuzz(512, seed=4, first=first, pool=pool)
        return seen

    assert inputs(0)[256:] == inputs(256)[:256]
    assert inputs(0)[:256] != inputs(0)[256:]


def parsed_without_types(self, name, parse):
    try:
        return parse(self.get(name))
    except ValueError as error:
        raise CheckpointMismatch(f"{name}: {error}") from error


def wasteful(data: bytes):
    np.zeros(1 << 23)
    return codec.decode(data)


def lossy(state):
    plain = codec.state_to_plain(state)
    return {**plain, "lanes": [{**lane, "rows": lane["rows"] + 1} for lane in plain["lanes"]]}


@pytest.mark.parametrize(
    ("where", "name", "broken", "text"),
    [
        (codec._Fields, "parsed", parsed_without_types, "TypeError: "),
        (codec, "_require_whole", lambda raw: raw[9999], "IndexError: "),
        (fuzz, "decode", wasteful, "bytes allocated"),
        (fuzz, "state_to_plain", lossy, "saved and read again it gives other bytes"),
        (fuzz, "SLOW_S", 0, " s"),
    ],
    ids=["types unchecked", "another error", "memory", "not as it was", "time"],
)
def test_a_mistake_is_found(pool, where, name, broken, text):
    with mock.patch.object(where, name, broken):
        _, violation = fuzz.fuzz(4000, seed=3, pool=pool)
    assert violation is not None
    assert text in violation.what
    assert 0 < len(violation.data) < 4000


def test_the_command_limits_memory_and_reports():
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.checkpoint.fuzz", "--inputs", "600", "--seed", "9", "--first", "512"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=root)
    assert done.returncode == 0, done.stderr
    assert "seed 9, from input 512" in done.stdout
    assert "600 inputs in" in done.stdout
    assert done.stdout.endswith("no violation\n")
