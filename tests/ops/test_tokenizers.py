"""Tokenizers of other libraries: the ids that each gives itself, on any text, with offsets, ends and a content hash."""

from __future__ import annotations

import inspect
import io
import json
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zephon_jax as zj
from tests.ops import PROPERTY, batch_of, cut, processed, sizes
from tests.ops.test_tokenize import ODD, trained
from zephon_jax.ops import Tokenize
from zephon_jax.ops.base import RecordFailure
from zephon_jax.ops.encoders import encoder_of
from zephon_jax.testing import check_operator

tiktoken = pytest.importorskip("tiktoken")
sentencepiece = pytest.importorskip("sentencepiece")

SPECIAL = "<|endoftext|>"
HARD = [
    *ODD,
    "a" * 50_000,
    SPECIAL,
    f"x{SPECIAL}y",
    "<s> </s> <unk>",
    "\n" * 3000,
    "\U0001d518\U0001d52b \ufdfd",
    "\ufeffabc",
    "\u202eabc",
]
texts = st.one_of(st.text(max_size=12), st.sampled_from(HARD))


def tiktoken_model() -> Any:
    """Bytes, then the merges of a small BPE on text that is at hand."""
    merges = json.loads(trained(400).to_str())["model"]["merges"]
    from tokenizers.pre_tokenizers import ByteLevel

    ByteLevel.alphabet()
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    char_of = {chr(b): b for b in printable}
    char_of |= {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in printable)}
    ranks = {bytes([b]): b for b in range(256)}
    for pair in merges:
        left, right = pair.split(" ") if isinstance(pair, str) else pair
        token = bytes(char_of[c] for c in left + right)
        ranks.setdefault(token, len(ranks))
    return tiktoken.Encoding(
        "own", pat_str=r"\w+|[^\w\s]+|\s+", mergeable_ranks=ranks, special_tokens={SPECIAL: len(ranks)}
    )


def sentencepiece_model(**options) -> Any:
    model = io.BytesIO()
    lines = [line for line in inspect.getsource(inspect).splitlines() if line.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=400, minloglevel=2, **options
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def transformers_tokenizer() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=trained(400), bos_token="<bos>", eos_token="<eos>")


@pytest.fixture(scope="module")
def tik():
    return tiktoken_model()


@pytest.fixture(scope="module")
def piece():
    return sentencepiece_model()


@pytest.fixture(scope="module")
def fast():
    return transformers_tokenizer()


def own_ids(tokenizer, text: str) -> list[int]:
    """What a user of the library calls."""
    if hasattr(tokenizer, "encode_ordinary"):
        return tokenizer.encode_ordinary(text)
    if hasattr(tokenizer, "serialized_model_proto"):
        return tokenizer.encode(text, out_type=int)
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("which", ["tik", "piece", "fast"])
@PROPERTY
@given(given_texts=st.lists(texts, max_size=6), parts=sizes)
def test_ids_are_the_librarys_own(which, given_texts, parts):
    tokenizer = MODELS[which]()
    rows, _, _ = processed(Tokenize(tokenizer), cut([{"text": t} for t in given_texts], parts))
    assert [row["tokens"].tolist() for row in rows] == [own_ids(tokenizer, t) for t in given_texts]
    assert all(row["tokens"].dtype == np.int32 for row in rows)


_made: dict[str, Any] = {}


def _once(name, make):
    if name not in _made:
        _made[name] = make()
    return _made[name]


MODELS = {
    "tik": lambda: _once("tik", tiktoken_model),
    "piece": lambda: _once("piece", sentencepiece_model),
    "fast": lambda: _once("fast", transformers_tokenizer),
}


@pytest.mark.parametrize("which", ["tik", "piece", "fast"])
def test_offsets_say_where_a_token_comes_from(which):
    tokenizer = MODELS[which]()
    text = "def naïve(x): return '日本' + \"👩\"  # x"
    op = Tokenize(tokenizer, keep_offsets=True, add_eos=5)
    (row,) = op.process(batch_of([{"text": text}])).rows()
    offsets = row["offsets"]
    assert (offsets.dtype, offsets.shape) == (np.int32, (len(row["tokens"]), 2))
    assert offsets[-1].tolist() == [len(text)] * 2
    assert (offsets[:-1, 0] <= offsets[:-1, 1]).all()
    assert (np.diff(offsets[:, 0]) >= 0).all()
    covered = {c for a, b in offsets[:-1].tolist() for c in range(a, b)}
    assert covered >= {i for i, c in enumerate(text) if not c.isspace()}
    word = text.index("return")
    of_word = [i for i, (a, b) in enumerate(offsets.tolist()) if a < word + 6 and b > word]
    if which == "tik":
        assert tokenizer.decode(row["tokens"][of_word].tolist()).strip() == "return"
    assert row["tokens"][:-1].tolist() == own_ids(tokenizer, text)


def test_a_function_has_no_offsets():
    with pytest.raises(zj.ConfigurationError, match="does not tell where in the text a token comes from"):
        Tokenize(lambda text: [1], keep_offsets=True)


def test_ends_are_those_that_the_tokenizer_names(tik, piece, fast):
    def ids(tokenizer, **options):
        return Tokenize(tokenizer, **options).process(batch_of([{"text": "abc"}])).rows()[0]["tokens"].tolist()

    assert ids(piece, add_bos=True, add_eos=True) == [piece.bos_id(), *own_ids(piece, "abc"), piece.eos_id()]
    assert ids(fast, add_bos=True, add_eos=True) == [fast.bos_token_id, *own_ids(fast, "abc"), fast.eos_token_id]
    assert ids(tik, add_eos=True) == [*own_ids(tik, "abc"), tik.eot_token]
    assert ids(tik, add_bos=False, add_eos=None) == own_ids(tik, "abc")
    with pytest.raises(zj.ConfigurationError, match=r"tokenize\(add_bos=True\): the tokenizer names no such token"):
        Tokenize(tik, add_bos=True)
    without = sentencepiece_model(bos_id=-1)
    with pytest.raises(zj.ConfigurationError, match="names no such token; pass its id"):
        Tokenize(without, add_bos=True)


@pytest.mark.parametrize("length", [3, 4, 100])
def test_max_length_counts_what_is_added(length):
    op = Tokenize(lambda text: [ord(c) for c in text], name="letters", add_bos=1, add_eos=2, max_length=length)
    (row,) = op.process(batch_of([{"text": "abcdef"}])).rows()
    assert row["tokens"].tolist() == [1, *[ord(c) for c in "abcdef"][: length - 2], 2]


def test_max_length_must_leave_room():
    with pytest.raises(zj.ConfigurationError, match=r"tokenize\(max_length=2\) must be at least 3"):
        Tokenize(lambda text: [1], name="one", add_bos=1, add_eos=2, max_length=2)


@pytest.mark.parametrize("which", ["tik", "piece", "fast"])
def test_each_keeps_the_operator_contract(which):
    rows = [{"text": t, "n": i} for i, t in enumerate(HARD[:12])]
    check_operator(Tokenize(MODELS[which](), keep_offsets=True, max_length=40), rows)


@pytest.mark.parametrize("which", ["piece", "fast"])
def test_a_lone_surrogate_names_the_record(which):
    with pytest.raises(RecordFailure) as caught:
        Tokenize(MODELS[which]()).process(batch_of([{"text": "a"}, {"text": "\ud800"}]))
    assert caught.value.index == 1


def test_a_lone_surrogate_is_what_tiktoken_makes_of_it(tik):
    (row,) = Tokenize(tik).process(batch_of([{"text": "a\ud800"}])).rows()
    assert row["tokens"].tolist() == tik.encode_ordinary("a\ud800")


# -- content ------------------------------------------------------------------------------------------------------------------
def test_another_content_is_another_identity(tik, piece, fast):
    def content(tokenizer):
        return Tokenize(tokenizer).identity()["content"]

    other = tiktoken.Encoding(
        "own", pat_str=tik._pat_str, mergeable_ranks=dict(tik._mergeable_ranks), special_tokens={SPECIAL: 99_999}
    )
    another_pattern = tiktoken.Encoding(
        "own", pat_str=r"\w+|\W+", mergeable_ranks=dict(tik._mergeable_ranks), special_tokens=tik._special_tokens
    )
    assert len({content(tik), content(other), content(another_pattern)}) == 3
    assert content(piece) != content(sentencepiece_model(character_coverage=0.99))
    assert content(fast) == content(trained(400)), "the same tokenizer, wrapped or not"
    assert content(fast) != content(trained(401))


def test_contents_are_the_same_in_another_process(tik, piece, tmp_path):
    for number, tokenizer in enumerate((tik, piece)):
        (tmp_path / f"{number}").write_bytes(pickle.dumps(tokenizer))
    script = (
        "import pickle, sys; from zephon_jax.ops import Tokenize\n"
        "for path in sys.argv[1:]: print(Tokenize(pickle.load(open(path, 'rb'))).identity()['content'])"
    )
    paths = [str(tmp_path / "0"), str(tmp_path / "1")]
    out = subprocess.run(
        [sys.executable, "-c", script, *paths], capture_output=True, text=True, check=True, timeout=100
    ).stdout.split()
    assert out == [Tokenize(t).identity()["content"] for t in (tik, piece)]


def test_a_tokenizer_written_in_python():
    """Of transformers' slow kind: known by its methods."""

    class Slow:
        bos_token_id, eos_token_id = 1, None

        def __init__(self, shift=0):
            self.shift, self.special_tokens_map = shift, {"bos_token": "<s>"}

        def get_vocab(self):
            return {"a": self.shift, "b": 1 + self.shift}

        def convert_tokens_to_ids(self, tokens):
            return [self.get_vocab()[t] for t in tokens]

        def encode(self, text, add_special_tokens=True):
            return [1] * add_special_tokens + self.convert_tokens_to_ids(list(text))

    op = Tokenize(Slow(), add_bos=True)
    assert op.process(batch_of([{"text": "aba"}])).rows()[0]["tokens"].tolist() == [1, 0, 1, 0]
    assert op.identity()["content"] != Tokenize(Slow(3)).identity()["content"]
    with pytest.raises(RecordFailure) as caught:
        op.process(batch_of([{"text": "a"}, {"text": "c"}]))
    assert caught.value.index == 1
    assert not encoder_of(Slow(), None, None).has_offsets
