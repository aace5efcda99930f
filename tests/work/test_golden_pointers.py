"""What seeds, shuffles, policies, schedules and weights mean never changes unnoticed: a file holds the first pointers."""

import json

import pytest

from tests.work.golden import FILE, cases, first_pointers

GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "arguments"), cases().items(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_first_pointers_are_those_of_the_file(name, arguments):
    assert first_pointers(arguments) == GOLDEN[name], (
        f"{name}: the order changed. Old checkpoints would continue wrongly: raise ORDER_VERSION if that is meant."
    )


def test_the_file_holds_exactly_these_and_they_differ():
    assert sorted(GOLDEN) == sorted(cases())
    assert all(entry["first"].count(":") == 48 for entry in GOLDEN.values())
    shuffles = [entry["first"] for name, entry in GOLDEN.items() if "seed" in name and "one order" not in name]
    assert len(set(shuffles)) == len(shuffles)
