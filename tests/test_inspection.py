"""`zephon-jax inspect`: what a state holds, how two differ, which documents come next."""

from __future__ import annotations

import numpy as np
import orbax.checkpoint as ocp
import pytest

import zephon_jax as zj
from zephon_jax.checkpoint.codec import encode
from zephon_jax.cli import main


def codes(text):
    return [ord(c) for c in text]


def pipeline():
    datasets = [
        zj.Dataset.from_source(n, [{"text": n * (i % 9 + 1)} for i in range(k)]) for n, k in (("web", 80), ("code", 40))
    ]
    work = zj.StaticMixtureWorkSource(datasets, {"web": 0.75, "code": 0.25}, chunk_size=4, exhausted_policy="repeat")
    return zj.Pipeline(work).tokenize(codes).pack(24, num_bins=2).batch(global_batch_size=4).options(executor="inline")


@pytest.fixture
def states(tmp_path):
    """One as a bare file after step 3, one in an Orbax step after step 5."""
    with pipeline().steps() as it:
        for _ in range(3):
            next(it)
        (tmp_path / "three.zst").write_bytes(encode(it.checkpoint()))
        it.skip(2)
        with ocp.CheckpointManager(tmp_path / "run") as mgr:
            mgr.save(5, args=ocp.args.Composite(data=zj.PipelineSave(it)))
    return tmp_path


def test_what_a_state_holds(states, capsys):
    assert main(["inspect", str(states / "run" / "5")]) == 0
    out = capsys.readouterr().out
    assert "lanes: 4 of 4" in out
    assert "operators: tokenize -> pack" in out
    assert "web: 80 samples" in out
    assert "passes" in out
    for lane in range(4):
        assert f"lane {lane}: 5 rows in 5 rounds" in out
    assert out.count("rows passed over on request: 3 to 4") == 4
    assert "in flight" in out
    assert main(["inspect", str(states / "run" / "5" / "data")]) == 0
    assert capsys.readouterr().out == out


def test_how_two_differ(states, capsys):
    a, b = str(states / "three.zst"), str(states / "run" / "5")
    assert main(["inspect", a, "--diff", a]) == 0
    assert capsys.readouterr().out == "the states are equal, byte for byte\n"
    assert main(["inspect", a, "--diff", b]) == 1
    out = capsys.readouterr().out
    assert "lane 0: rows 3 against 5; rounds 3 against 5" in out
    assert "rows passed over [] against [(3, 5)]" in out
    assert "plan:" not in out


def test_which_documents_come_next(states, capsys, monkeypatch):
    """Recomputed offline, they are those that the run delivers."""
    assert main(["inspect", str(states / "run" / "5"), "--next", "2", "tests.test_inspection:pipeline"]) == 0
    lines = capsys.readouterr().out.splitlines()
    with pipeline().steps() as it:
        it.skip(5)
        expected = []
        for step in (6, 7):
            arrays, _ = next(it), it.host()
            expected.append(f"step {step}")
            for row, pieces in it.provenance().items():
                tokens = np.concatenate([codes(d * (i % 9 + 1))[a:b] for d, _, i, a, b in pieces])
                assert arrays["tokens"][row][: len(tokens)].tolist() == tokens.tolist()
                text = ", ".join(f"{d}/{s}[{i}] tokens {a} to {b}" for d, s, i, a, b in pieces)
                expected.append(f"  row {row}: {text}")
    assert lines == expected


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere"], "no such file or folder"),
        (["run"], "holds no pipeline state; name a step's folder, there are ['5']"),
        (["three.zst", "--next", "x", "a:b"], "must be an integer"),
        (["three.zst", "--next", "1", ":name"], "MODULE:NAME"),
        (["three.zst", "--next", "1", "no.such:thing"], "cannot be imported"),
        (
            ["three.zst", "--next", "1", "tests.test_inspection:codes"],
            "was called without arguments and failed: TypeError",
        ),
        (["junk"], "no pipeline state"),
    ],
)
def test_what_cannot_be_read_is_named(states, capsys, monkeypatch, arguments, text):
    monkeypatch.chdir(states)
    (states / "junk").write_bytes(b"junk")
    assert main(["inspect", *arguments]) == 2
    assert text in capsys.readouterr().err
