"""pad and pad_rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zephon_jax as zj
from tests.ops import PROPERTY, batch_of, cut, processed, sizes
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.ops import Pad, PadRows
from zephon_jax.ops.base import RecordFailure
from zephon_jax.testing import check_operator

lists = st.lists(st.lists(st.integers(1, 9), max_size=8), max_size=12)


@PROPERTY
@given(lists, sizes, st.sampled_from(["truncate", "drop"]))
def test_one_document_per_row(tokens, parts, on_overlong):
    records: list[dict[str, Any]] = [{"tokens": t, "w": [0.5] * len(t), "i": i} for i, t in enumerate(tokens)]
    got, _, closed = processed(Pad(5, on_overlong=on_overlong, keep=["w"]), cut(records, parts))
    kept = [r for r in records if on_overlong == "truncate" or len(r["tokens"]) <= 5]
    assert len(closed) == len(records) - len(kept)
    for row, record in zip(got, kept, strict=True):
        t = record["tokens"][:5]
        room = 5 - len(t)
        assert row["tokens"].tolist() == t + [0] * room
        assert row["segment_ids"].tolist() == [1] * len(t) + [0] * room
        assert row["positions"].tolist() == [*range(len(t)), *[0] * room]
        assert row["w"].tolist() == [0.5] * len(t) + [0] * room
        assert int(row["i"]) == record["i"]
        assert {row[f].dtype for f in ("tokens", "segment_ids", "positions")} == {np.dtype(np.int32)}


def test_the_contract():
    check_operator(Pad(4, on_overlong="truncate", keep=["m"]), [{"tokens": [1] * n, "m": [True] * n} for n in range(9)])


def test_an_overlong_record_is_named():
    with pytest.raises(RecordFailure) as caught:
        Pad(2).process(batch_of([{"tokens": [1]}, {"tokens": [1, 2, 3]}]))
    assert (caught.value.index, str(caught.value.__cause__)) == (
        1,
        "pad(2): a record has 3 tokens; split it, or pass on_overlong='truncate' or 'drop'",
    )


def objects(*rows):
    out = np.empty(len(rows), object)
    out[:] = rows
    return out


def test_rows_of_a_batch_become_as_long_as_the_longest():
    batch = {
        "tokens": objects(np.array([1, 2], np.int32), np.array([3], np.int32)),
        "mel": objects(np.ones((3, 2), np.float32), np.ones((1, 2), np.float32)),
        "label": np.array([0, 1]),
        "text": objects("a", "b"),
    }
    out = PadRows().process_rows(batch)
    assert out["tokens"].tolist() == [[1, 2], [3, 0]]
    assert out["segment_ids"].tolist() == [[1, 1], [1, 0]]
    assert out["positions"].tolist() == [[0, 1], [0, 0]]
    assert (out["mel"].shape, out["mel"].dtype, out["mel"][1].sum()) == ((2, 3, 2), np.float32, 2)
    assert out["label"] is batch["label"]
    assert out["text"] is batch["text"]
    wide = PadRows([4, 8]).process_rows(batch)
    assert (wide["tokens"].shape, wide["mel"].shape) == ((2, 4), (2, 4, 2))
    assert PadRows(8, fields=["mel"]).process_rows(batch)["tokens"] is batch["tokens"]


def test_a_batch_of_equal_rows_is_padded_to_its_boundary_too():
    out = PadRows([4]).process_rows({"tokens": np.ones((2, 3), np.int32)})
    assert out["tokens"].tolist() == [[1, 1, 1, 0]] * 2
    assert out["segment_ids"].tolist() == [[1, 1, 1, 0]] * 2


@pytest.mark.parametrize(
    ("op", "batch", "text"),
    [
        (
            PadRows([2]),
            {"tokens": np.ones((1, 3), np.int32)},
            "a row has 3 values in 'tokens', more than the last boundary 2",
        ),
        (PadRows(), {"x": objects(np.ones((1, 2)), np.ones((2, 3)))}, "the rows of 'x' differ beyond their length"),
        (PadRows(fields=["x"]), {"x": objects("a", "b")}, "rows that are no lists of numbers"),
    ],
    ids=lambda v: str(v)[:30],
)
def test_rows_that_cannot_be_padded(op, batch, text):
    with pytest.raises(DataError, match=text):
        op.process_rows(batch)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Pad(0),
        lambda: Pad(3, on_overlong="split"),
        lambda: Pad(3, keep="w"),
        lambda: PadRows([]),
        lambda: PadRows([3, 2]),
        lambda: PadRows(0),
        lambda: PadRows(fields="x"),
    ],
)
def test_parameters_that_cannot_work(make):
    with pytest.raises(ConfigurationError):
        make()


def test_without_packing_segment_ids_are_the_padding_mask():
    work = zj.StaticMixtureWorkSource(
        zj.Dataset.from_source("d", [{"tokens": [1] * n} for n in (1, 2, 5)]), shuffle_shards=False
    )
    (batch,) = zj.Pipeline(work).pad(5).batch(3).lm_targets(count=True)
    assert batch["segment_ids"].tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch["loss_weights"].tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
    assert batch["num_targets"].tolist() == [0, 1, 4]


def test_rows_without_loss_are_counted():
    docs = [{"tokens": [1]}] * 6 + [{"tokens": [1, 2]}] * 2
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("d", docs), shuffle_shards=False)
    with iter(zj.Pipeline(work).pad(2).batch(4).lm_targets().options(executor="inline")) as batches:
        list(batches)
        assert batches.stats().operators["lm_targets(plain)"].figures == {"rows_without_loss": 6}
