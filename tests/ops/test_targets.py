"""lm_targets: inputs, targets and weights, position by position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ops import PROPERTY, same
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.ops import LmTargets

INPUTS = ("inputs", "targets", "positions", "segment_ids", "loss_weights")
NAMES = {
    "plain": dict(zip(INPUTS, INPUTS, strict=True)),
    "maxtext": {
        "inputs": "inputs",
        "targets": "targets",
        "positions": "inputs_position",
        "segment_ids": "inputs_segmentation",
        "target_positions": "targets_position",
        "target_segment_ids": "targets_segmentation",
    },
    "seqio": {
        "inputs": "decoder_input_tokens",
        "targets": "decoder_target_tokens",
        "positions": "decoder_positions",
        "segment_ids": "decoder_segment_ids",
        "loss_weights": "decoder_loss_weights",
    },
}


@st.composite
def packed(draw):
    """Rows of S + 1 tokens, cut into segments, the last of which may be padding."""
    length = draw(st.integers(2, 9))
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        lengths = draw(st.lists(st.integers(1, 4), max_size=9))
        tokens, segments, positions = [], [], []
        for segment, n in enumerate(lengths, 1):
            tokens += draw(st.lists(st.integers(1, 99), min_size=n, max_size=n))
            segments += [segment] * n
            positions += range(n)
        padding = [0] * length
        rows.append([(column + padding)[:length] for column in (tokens, segments, positions)])
    names = ("tokens", "segment_ids", "positions")
    return {name: np.array([row[i] for row in rows], np.int32) for i, name in enumerate(names)}


def by_position(batch):
    tokens, segments, positions = (batch[name].tolist() for name in ("tokens", "segment_ids", "positions"))
    rows, width = len(tokens), len(tokens[0]) - 1
    kinds = ("inputs", "targets", "positions", "segment_ids", "target_positions", "target_segment_ids")
    out = {name: np.zeros((rows, width), np.int32) for name in kinds}
    out["loss_weights"] = np.zeros((rows, width), np.float32)
    for r in range(rows):
        for i in range(width):
            out["inputs"][r, i] = tokens[r][i]
            out["positions"][r, i] = positions[r][i]
            out["segment_ids"][r, i] = segments[r][i]
            if segments[r][i] == segments[r][i + 1] and segments[r][i] > 0:
                out["targets"][r, i] = tokens[r][i + 1]
                out["target_positions"][r, i] = positions[r][i + 1]
                out["target_segment_ids"][r, i] = segments[r][i + 1]
                out["loss_weights"][r, i] = 1
    return out


@PROPERTY
@given(packed(), st.sampled_from(sorted(NAMES)))
def test_every_position(batch, convention):
    before = {name: array.copy() for name, array in batch.items()}
    got = LmTargets(convention).process_rows(dict(batch))
    want = by_position(batch)
    assert sorted(got) == sorted(NAMES[convention].values())
    for key, name in NAMES[convention].items():
        assert same(got[name], want[key]), (convention, name)
        assert not any(np.shares_memory(got[name], array) for array in batch.values())
    assert all(same(batch[name], before[name]) for name in before)


def test_a_row_by_hand():
    batch = {
        "tokens": np.array([[11, 12, 21, 22, 23, 0]], np.int32),
        "segment_ids": np.array([[1, 1, 2, 2, 2, 0]], np.int32),
        "positions": np.array([[0, 1, 0, 1, 2, 0]], np.int32),
    }
    got = {name: array[0].tolist() for name, array in LmTargets().process_rows(batch).items()}
    assert got == {
        "inputs": [11, 12, 21, 22, 23],
        "targets": [12, 0, 22, 23, 0],
        "positions": [0, 1, 0, 1, 2],
        "segment_ids": [1, 1, 2, 2, 2],
        "loss_weights": [1, 0, 1, 1, 0],
    }


def test_without_positions_they_count_along_the_row():
    batch = {"tokens": np.array([[1, 2, 3]], np.int32), "segment_ids": np.array([[1, 1, 1]], np.int32)}
    got = LmTargets("maxtext").process_rows(batch)
    assert got["inputs_position"].tolist() == [[0, 1]]
    assert got["targets_position"].tolist() == [[1, 2]]
    got["inputs_position"] += 1  # an array of its own that may be written to


def test_other_fields_pass():
    ones = np.ones((1, 2), np.int32)
    note = np.array(["a"], object)
    got = LmTargets().process_rows({"tokens": ones, "segment_ids": ones, "note": note})
    assert got["note"] is note
    assert set(got) == {*INPUTS, "note"}


@pytest.mark.parametrize("missing", ["tokens", "segment_ids"])
def test_a_missing_field_is_named_with_those_there_are(missing):
    batch = {"tokens": np.ones((1, 4), np.int32), "segment_ids": np.ones((1, 4), np.int32)}
    del batch[missing]
    with pytest.raises(DataError, match=rf"lm_targets\(plain\) needs integer rows .* in '{missing}'.*int32\(1, 4\)"):
        LmTargets().process_rows(batch)


@pytest.mark.parametrize(
    "tokens",
    [
        np.ones(4, np.int32),
        np.ones((1, 4), np.float32),
        np.ones((1, 2, 2), np.int32),
        np.array([[1, 2], [3]], dtype=object),
    ],
    ids=["1-D", "float", "3-D", "object"],
)
def test_what_are_no_rows_of_tokens_is_refused(tokens):
    with pytest.raises(DataError, match=r"lm_targets\(plain\) needs integer rows \(rows, length\) in 'tokens'"):
        LmTargets().process_rows({"tokens": tokens, "segment_ids": np.ones((1, 4), np.int32)})


def test_rows_of_one_token_have_no_target():
    one = np.ones((2, 1), np.int32)
    with pytest.raises(DataError, match="rows of at least 2 tokens, got 1"):
        LmTargets().process_rows({"tokens": one, "segment_ids": one})


@pytest.mark.parametrize("names", ["", "t5x", "Plain", None])
def test_an_unknown_convention_lists_those_there_are(names):
    with pytest.raises(ConfigurationError, match=r"the conventions are \['maxtext', 'plain', 'seqio'\]"):
        LmTargets(names)


def test_it_is_no_part_of_a_plan():
    assert LmTargets("maxtext").identity() is None
