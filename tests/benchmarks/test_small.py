"""The benchmarks run: in a small version, whose figures say nothing."""

from __future__ import annotations

import pytest

from tests.benchmarks import packing


@pytest.mark.filterwarnings("ignore")
def test_the_packing_benchmark_prints_its_tables(capsys):
    packing.main(["--small"])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("| best_fit") for line in lines) == 6
    fill = {
        line.split("|")[1].strip(): line.split("|")[2].strip() for line in lines if "_fit" in line or "wrap" in line
    }
    assert 0.9 < float(fill["wrap"]) <= 1
