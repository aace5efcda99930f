"""The benchmarks run: in a small version, whose figures say nothing."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from tests.benchmarks import packing
from tests.benchmarks.speed import __main__ as speed
from tests.benchmarks.speed import corpus, growth
from tests.benchmarks.speed import profile as sampling
from tests.benchmarks.speed.pages import write_between
from tests.benchmarks.speed.rows import plan
from tests.benchmarks.speed.table import COLUMNS, cells


@pytest.mark.filterwarnings("ignore")
def test_the_packing_benchmark_prints_its_tables(capsys):
    packing.main(["--small"])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("| best_fit") for line in lines) == 6
    fill = {
        line.split("|")[1].strip(): line.split("|")[2].strip() for line in lines if "_fit" in line or "wrap" in line
    }
    assert 0.9 < float(fill["wrap"]) <= 1


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> str:
    """A small corpus."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("array_record")
    pytest.importorskip("tokenizers")
    where = str(tmp_path_factory.mktemp("corpus"))
    corpus.make(where, **corpus.SMALL)
    return where


def test_the_corpus_is_what_it_says_and_the_same_each_time(root, tmp_path) -> None:
    import pyarrow.parquet as pq

    told = corpus.meta(root)
    lengths = [len(x) for path in corpus.shards(root, "tok_parquet", "parquet") for x in pq.read_table(path)["tokens"]]
    assert (len(lengths), sum(lengths)) == (told["docs"], told["tokens"]) == (320, 186_467)
    assert told["pieces_2048"] == sum(-(-n // 2048) for n in lengths)
    corpus.make(str(tmp_path), **corpus.SMALL)
    for name in ("text_jsonl/part-03.jsonl", "rec.npy", "tok_parquet/part-15.parquet"):
        assert pathlib.Path(root, name).read_bytes() == (tmp_path / name).read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(400)  # three dozen interpreters, on a machine that others use as well
def test_every_row_of_the_table_is_there_and_contestants_delivered_the_same(capsys, tmp_path) -> None:
    out = tmp_path / "lines.json"
    results = speed.main(["--small", "--markdown", "--out", str(out)])
    rows = plan(small=True)
    assert list(results) == [row.key for row in rows]
    assert all(len(runs) == 1 for runs in results.values())
    units = {
        "pack": 186_467, "text": 31_151, "records": 1_600, "map": 400,
    }  # fmt: skip
    for (workload, contestant, configuration), (run,) in results.items():
        if workload in units:
            assert run["units"] == units[workload], (contestant, configuration)
        assert run["foreign"] >= 0
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(rows)
    assert {line.count("|") for line in table} == {len(COLUMNS) + 1}
    assert set(json.loads(out.read_text())) == {" | ".join(row.key) for row in rows}
    assert speed.main(["--show", str(out)]) == results


def test_the_table_puts_a_contestant_beside_limit_and_peer() -> None:
    """A tenth of the limit and twice the peer, whatever else is measured."""
    base = {"units": 1, "foreign": 0.0, "fill": 0.99, "memory_mb": 100.0, "first_batch_s": 0.1, "cpu_us_per_unit": 1.0}
    rates = {"ours": 100.0, "limit": 1000.0, "grain": 50.0}
    rows = [row for row in plan() if row.workload == "pack"]
    results = {row.key: [base | {"rate": rates[row.contestant]}] * 3 for row in rows}
    found = {(line[1], line[2]): line for line in cells(rows, results)}
    inline = dict(zip(COLUMNS, found["ours", "inline"], strict=True))
    assert inline["÷ limit"] == "0.10"
    if any(row.contestant == "grain" for row in rows):
        assert inline["÷ peer"] == "2.00"
        assert inline["met"] == "no; no; yes"  # 8 x 1.7 x the peer, fill, memory
    assert dict(zip(COLUMNS, found["ours", "threads, 1"], strict=True))["met"] == "no; yes"
    fast = dict(results) | {rows[1].key: [base | {"rate": 1_300.0}] * 3}
    threads = dict(zip(COLUMNS, list(cells(rows, fast))[1], strict=True))
    assert threads["met"] == "yes; yes"  # 1.3 x the bare loop


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_growth_draws_its_pictures(root, tmp_path, capsys) -> None:
    pytest.importorskip("matplotlib")
    growth.main(["--small", "--root", root, "--only", "corpus,workers,document", "--to", str(tmp_path)])
    assert sorted(os.listdir(tmp_path)) == [
        "growth.json",
        "growth_corpus.svg",
        "growth_document.svg",
        "growth_workers.svg",
    ]
    numbers = json.loads((tmp_path / "growth.json").read_text())
    assert [point["value"] for point in numbers["workers"]] == [0, 1]
    assert [point["documents"] for point in numbers["corpus"]] == [320, 960]
    assert [point["documents"] for point in numbers["document"]] == [2_000, 200]
    picture = (tmp_path / "growth_workers.svg").read_text()
    assert ">M tokens/s</text>" in picture
    growth.draw("workers", numbers["workers"], tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == picture


def test_a_profile_names_rooms(root) -> None:
    lines = sampling.profile("map", root, 400)
    rooms = {line.split("|")[1].strip() for line in lines if line.startswith("| ")}
    assert "ops.rows" in rooms or "too short" in lines[0]


def test_figures_are_written_between_marks(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- speed -->\nold\n<!-- /speed -->\nafter\n")
    write_between(str(page), "speed", "new")
    assert page.read_text() == "before\n<!-- speed -->\n\nnew\n\n<!-- /speed -->\nafter\n"
    with pytest.raises(SystemExit, match="no marks"):
        write_between(str(page), "other", "new")
