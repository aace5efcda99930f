"""tokenize: the ids that the library itself gives, whatever the micro-batch and the tokenizer's other settings."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import zephon_jax as zj
from tests.ops import PROPERTY, batch_of, cut, processed, same, sample, sizes
from zephon_jax.ops import Tokenize
from zephon_jax.ops.base import RecordFailure
from zephon_jax.origin import START, TOKENS

ODD = [
    "",
    " ",
    "\x00",
    "a\x00b",
    "\n\n",
    "é",
    "e\u0301",
    "\u200b",
    "👩‍👩‍👧‍👦",
    "日本語",
    "\U0010ffff",
    "def f(x):\n    return x\n",
]
texts = st.one_of(st.text(max_size=12), st.sampled_from(ODD))


def trained(vocabulary: int) -> Tokenizer:
    """Byte-level BPE on sources of the standard library, with a post-processor that adds special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([pathlib.Path(json.__file__).read_text(encoding="utf-8")], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 0), ("<eos>", 1)]
    )
    return tokenizer


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return trained(400)


def letters(text: str) -> list[int]:
    return [ord(c) for c in text]


def own(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def ids_of(op: Tokenize, given_texts: list[str]) -> list[list[int]]:
    return [row["tokens"].tolist() for row in op.process(batch_of([{"text": t} for t in given_texts])).rows()]


@PROPERTY
@given(st.lists(texts, max_size=12), sizes, st.sampled_from([None, 7]), st.sampled_from([None, 0]))
def test_ids_are_those_of_the_function(given_texts, parts, bos, eos):
    op = Tokenize(letters, add_bos=bos, add_eos=eos)
    rows, of, closed = processed(op, cut([{"text": t, "n": i} for i, t in enumerate(given_texts)], parts))
    before, after = [] if bos is None else [bos], [] if eos is None else [eos]
    for i, (row, text) in enumerate(zip(rows, given_texts, strict=True)):
        assert list(row) == ["n", "tokens"]
        assert row["n"] == i
        assert same(row["tokens"], np.array([*before, *map(ord, text), *after], np.int32))
    assert of == [[sample(i, 0)] for i in range(len(given_texts))]
    assert closed == []


@PROPERTY
@given(st.lists(texts, max_size=8), sizes)
def test_ids_are_those_of_the_library(bpe, given_texts, parts):
    rows, _, _ = processed(Tokenize(bpe), cut([{"text": t} for t in given_texts], parts))
    assert [row["tokens"].tolist() for row in rows] == [own(bpe, t) for t in given_texts]
    assert all(row["tokens"].dtype == np.int32 for row in rows)


def test_odd_and_huge_texts_are_those_of_the_library(bpe):
    huge = pathlib.Path(json.__file__).read_text(encoding="utf-8") * 20
    given_texts = [*ODD, huge, "x" * 50_000]
    assert ids_of(Tokenize(bpe), given_texts) == [own(bpe, t) for t in given_texts]
    assert bpe.decode(ids_of(Tokenize(bpe), [huge])[0]) == huge


def test_a_record_knows_how_many_tokens_it_has():
    batch = Tokenize(letters, add_bos=1).process(batch_of([{"text": t} for t in ("", "abc")]))
    assert (batch.origin.table[START].tolist(), batch.origin.table[TOKENS].tolist()) == ([0, 0], [1, 4])


def test_special_tokens_are_those_asked_for_and_no_others(bpe):
    assert bpe.encode("a").ids == [0, *own(bpe, "a"), 1]
    assert ids_of(Tokenize(bpe), ["a", ""]) == [own(bpe, "a"), []]
    assert ids_of(Tokenize(bpe, add_bos=0, add_eos=1), ["a", ""]) == [[0, *own(bpe, "a"), 1], [0, 1]]


def test_settings_of_the_tokenizer_neither_leak_in_nor_change():
    tokenizer = trained(300)
    want = own(tokenizer, "import json as j")
    identity = Tokenize(tokenizer).identity()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=20, pad_id=1, pad_token="<eos>")
    settings = tokenizer.truncation, tokenizer.padding
    op = Tokenize(tokenizer)
    assert ids_of(op, ["import json as j", "a"])[0] == want
    assert len(want) > 3
    assert (tokenizer.truncation, tokenizer.padding) == settings  # the owner's object is as it was
    assert op.identity() == identity
    tokenizer.enable_truncation(2)  # and changing it later changes nothing
    assert ids_of(op, ["import json as j"]) == [want]


def test_identity_changes_with_content(bpe):
    identities = [
        dict(op.identity())
        for op in (
            Tokenize(bpe),
            Tokenize(trained(401)),
            Tokenize(bpe, add_bos=0),
            Tokenize(bpe, add_eos=0),
            Tokenize(bpe, field="body"),
            Tokenize(letters),
            Tokenize(letters, version=1),
            Tokenize(letters, name="chars"),
        )
    ]
    assert all(a != b for i, a in enumerate(identities) for b in identities[:i])
    assert dict(Tokenize(trained(400)).identity()) == identities[0]
    added = Tokenizer.from_str(bpe.to_str())
    added.add_tokens(["import json"])
    assert Tokenize(added).identity() != identities[0]
    assert ids_of(Tokenize(added), ["import json"]) != ids_of(Tokenize(bpe), ["import json"])


def test_merges_written_as_strings_are_the_same_merges(bpe):
    older = json.loads(bpe.to_str())
    older["model"]["merges"] = [" ".join(pair) for pair in older["model"]["merges"]]

    class Older:
        """A tokenizer as written by an older version of the library."""

        def to_str(self):
            return json.dumps(older)

        @staticmethod
        def from_str(text):
            return Tokenizer.from_str(text)

        def encode_batch(self, given_texts):
            raise AssertionError("its copy is used")

    assert Tokenize(Older()).identity() == Tokenize(bpe).identity()


def test_tokens_that_were_there_are_replaced():
    rows = Tokenize(letters, field="body").process(batch_of([{"tokens": [5], "body": "a", "text": "kept"}])).rows()
    assert rows[0]["tokens"].tolist() == [97]
    assert sorted(rows[0]) == ["text", "tokens"]


@pytest.mark.parametrize("ids", [(1, 2), np.array([1, 2], np.uint16), np.array([1, 2]), [np.int64(1), 2], range(1, 3)])
def test_any_sequence_of_integers_will_do(ids):
    assert ids_of(Tokenize(lambda text: ids, name="f"), ["a"]) == [[1, 2]]


def failure(op: Tokenize, *records: dict) -> RecordFailure:
    with pytest.raises(RecordFailure) as caught:
        op.process(batch_of(list(records)))
    return caught.value


@pytest.mark.parametrize("value", [1, 0.5, b"a", [1, 2], ["a"], {"a": 1}])
def test_what_is_no_text_is_refused(bpe, value):
    for op in (Tokenize(bpe), Tokenize(letters)):
        failed = failure(op, {"text": "a"}, {"text": value})
        assert failed.index == 1
        assert isinstance(failed.__cause__, zj.DataError)
        assert str(failed.__cause__).startswith(f"{op.name} needs text in 'text', got ")


def test_a_field_that_some_records_lack_names_the_record():
    failed = failure(Tokenize(letters), {"text": "a"}, {"body": "b"})
    assert failed.index == 1
    assert str(failed.__cause__) == "tokenize(letters) needs the field 'text', but the record has no field 'text'"
    failed = failure(Tokenize(letters), {"text": "a"}, {"text": None})
    assert "holds null in the field 'text'" in str(failed.__cause__)


def test_a_field_that_all_records_lack_lists_those_there_are():
    with pytest.raises(zj.DataError, match=r"needs the field 'text', but the records have \['body', 'n'\]"):
        Tokenize(letters).process(batch_of([{"n": 1, "body": "a"}]))


@pytest.mark.parametrize(
    ("ids", "error", "text"),
    [
        (["a"], TypeError, "a 1-D sequence of integers"),
        ([0.5], TypeError, "a 1-D sequence of integers, got float64"),
        ([True], TypeError, "a 1-D sequence of integers, got bool"),
        ([[1], [2]], TypeError, "of shape (2, 1)"),
        (None, TypeError, "a 1-D sequence of integers"),
        (5, TypeError, "a 1-D sequence of integers"),
        ([2**31], ValueError, "token id 2147483648 does not fit in int32"),
        ([2**70], TypeError, "a 1-D sequence of integers"),
    ],
    ids=str,
)
def test_what_a_function_may_not_return(ids, error, text):
    failed = failure(Tokenize(lambda t: ids if t else [], name="f"), {"text": ""}, {"text": "a"})
    assert failed.index == 1
    assert isinstance(failed.__cause__, error)
    assert text in str(failed.__cause__)


def test_a_function_that_raises_names_the_record():
    failed = failure(Tokenize(lambda text: [1 // len(text)], name="f"), {"text": "a"}, {"text": ""})
    assert failed.index == 1
    assert isinstance(failed.__cause__, ZeroDivisionError)


def test_half_a_surrogate_pair_names_the_record(bpe):
    """JSON may hold one, as '\\ud83d' where a text was cut within an emoji."""
    assert failure(Tokenize(bpe), {"text": "a"}, {"text": "b\ud83d"}).index == 1


@pytest.mark.parametrize("tokenizer", [None, 3, "gpt2", object()], ids=lambda v: type(v).__name__)
def test_what_is_no_tokenizer_is_refused_at_once(tokenizer):
    with pytest.raises(zj.ConfigurationError, match=f"got {type(tokenizer).__name__}$"):
        Tokenize(tokenizer)


@pytest.mark.parametrize("option", ["add_bos", "add_eos"])
def test_a_function_names_no_special_tokens(option):
    with pytest.raises(zj.ConfigurationError, match=rf"tokenize\({option}=True\): the tokenizer names no such token"):
        Tokenize(letters, **{option: True})


@pytest.mark.parametrize("option", ["add_bos", "add_eos"])
@pytest.mark.parametrize("value", [-1, 2**31, 0.0, "<s>"])
def test_special_tokens_are_ids(option, value):
    with pytest.raises(zj.ConfigurationError, match=rf"tokenize\({option}=\) takes True or a token id"):
        Tokenize(letters, **{option: value})


def test_a_misspelt_field_is_refused_while_building():
    work = zj.StaticMixtureWorkSource(zj.Dataset.from_source("docs", [{"body": "a"}]))
    with pytest.raises(zj.ConfigurationError, match=r"tokenize needs the field 'text'; the samples have \['body'\]"):
        zj.Pipeline(work).tokenize(letters)
    assert zj.Pipeline(work).map(lambda r: {"text": r["body"]}, name="t").tokenize(letters)  # a map may have made it
