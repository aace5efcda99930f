"""Tokenizers of several libraries behind one interface: texts → ids, with the content that decides them.

Libraries are told apart by the methods of the object that is given, so none of them is imported here. Each call takes
many texts, since the batch calls release the interpreter's lock where single ones do not. An encoder has no settings
that its owner could change behind its back, and no randomness.
"""

from __future__ import annotations

import abc
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NoReturn, cast

import numpy as np

from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.ops.base import RecordFailure, callable_name, function_identity
from zephon_jax.ops.interrupt import check_wanted
from zephon_jax.types import Int32s

__all__ = ["Encoder", "encoder_of"]

_KINDS: Final = (
    "a tokenizers.Tokenizer, a tokenizer of transformers, a tiktoken.Encoding, a SentencePieceProcessor, or a function "
    "from str to token ids"
)


class Encoder(abc.ABC):
    """`identity`: plain values that a checkpoint compares; `bos`, `eos`: the ids that the tokenizer names, if it does."""

    identity: dict[str, Any]
    bos: int | None = None
    eos: int | None = None

    @abc.abstractmethod
    def encode(self, texts: list[str]) -> list[Int32s]:
        """The ids of each text, without special tokens at its ends. A failure names the text: `RecordFailure`."""

    def encode_with_offsets(self, texts: list[str]) -> tuple[list[Int32s], list[Int32s]]:
        """Ids, and where each comes from: (length, 2), first character and the one behind the last."""
        raise ConfigurationError(f"{type(self).__name__} does not tell where in the text a token comes from")

    @property
    def has_offsets(self) -> bool:
        """Whether `encode_with_offsets` works."""
        return type(self).encode_with_offsets is not Encoder.encode_with_offsets


def encoder_of(tokenizer: Any, name: str | None, version: str | int | None) -> Encoder:
    """The encoder of a tokenizer; ConfigurationError if it is none that is known."""

    def has(*methods: str) -> bool:
        return all(callable(getattr(tokenizer, method, None)) for method in methods)

    if has("encode_batch", "to_str"):
        return _Tokenizers(tokenizer)
    if hasattr(tokenizer, "backend_tokenizer"):
        return _Tokenizers(tokenizer.backend_tokenizer, *_named_ids(tokenizer))
    if has("get_vocab", "encode", "convert_tokens_to_ids"):
        return _SlowTransformers(tokenizer)
    if has("encode_ordinary", "decode_with_offsets"):
        return _Tiktoken(tokenizer)
    if has("serialized_model_proto", "encode"):
        return _SentencePiece(tokenizer)
    if callable(tokenizer):
        return _Function(cast(Callable[[str], Sequence[int]], tokenizer), name, version)
    raise ConfigurationError(f"tokenize needs {_KINDS}, got {type(tokenizer).__name__}")


def _digest(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _one_by_one(texts: list[str], encode: Callable[[str], Any]) -> Iterator[Any]:
    for i, text in enumerate(texts):
        check_wanted()
        try:
            yield encode(text)
        except Exception as error:
            raise RecordFailure(i) from error


def _raise_for_one(texts: list[str], encode: Callable[[list[str]], Any], error: Exception) -> NoReturn:
    """A batch failed: which text was it? The batch's own error if each can be encoded alone."""
    for i, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as lone:
            raise RecordFailure(i) from DataError(
                f"the text holds a lone surrogate ({text[lone.start]!r} at character {lone.start}), which no UTF-8 can hold; "
                "replace it in a map"
            )
        try:
            encode([text])
        except Exception as own:
            raise RecordFailure(i) from own
    raise RecordFailure(0) from error


class _Tokenizers(Encoder):
    """`tokenizers`, also inside of a fast tokenizer of `transformers`."""

    def __init__(self, tokenizer: Any, bos: int | None = None, eos: int | None = None):
        # A copy, since truncation and padding are settings of the object that its owner may change at any time.
        self._own = type(tokenizer).from_str(tokenizer.to_str())
        self._own.no_truncation()
        self._own.no_padding()
        self._fast = getattr(self._own, "encode_batch_fast", self._own.encode_batch)  # no offsets: 1.1 to 1.4x as fast
        self.identity = {"content": _tokenizers_hash(tokenizer)}
        self.bos, self.eos = bos, eos

    def encode(self, texts: list[str]) -> list[Int32s]:
        return [np.array(e.ids, np.int32) for e in self._batch(self._fast, texts)]

    def encode_with_offsets(self, texts: list[str]) -> tuple[list[Int32s], list[Int32s]]:
        encoded = self._batch(self._own.encode_batch, texts)
        offsets = [np.array(e.offsets, np.int32).reshape(-1, 2) for e in encoded]
        return [np.array(e.ids, np.int32) for e in encoded], offsets

    @staticmethod
    def _batch(call: Any, texts: list[str]) -> Any:
        # The batch call also for one text: it releases the interpreter's lock, `encode` does not.
        try:
            return call(texts, add_special_tokens=False)
        except Exception as error:
            _raise_for_one(texts, lambda some: call(some, add_special_tokens=False), error)


def _tokenizers_hash(tokenizer: Any) -> str:
    """Of what decides ids: the file without its settings, merges as pairs (older versions wrote them as strings)."""
    content = json.loads(tokenizer.to_str())
    for setting in ("truncation", "padding", "version"):
        content.pop(setting, None)
    model = content.get("model") or {}
    if merges := model.get("merges"):
        model["merges"] = [m.split(" ") if isinstance(m, str) else list(m) for m in merges]
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def _named_ids(tokenizer: Any) -> tuple[int | None, int | None]:
    found = (getattr(tokenizer, f"{which}_token_id", None) for which in ("bos", "eos"))
    bos, eos = (one if isinstance(one, int) else None for one in found)
    return bos, eos


class _SlowTransformers(Encoder):
    """A tokenizer of `transformers` that is written in Python."""

    def __init__(self, tokenizer: Any):
        self._own = tokenizer
        vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
        special = json.dumps(getattr(tokenizer, "special_tokens_map", {}), sort_keys=True, default=str)
        self.identity = {
            "content": _digest(type(tokenizer).__qualname__.encode(), vocabulary.encode(), special.encode())
        }
        self.bos, self.eos = _named_ids(tokenizer)

    def encode(self, texts: list[str]) -> list[Int32s]:
        ids = _one_by_one(texts, lambda text: self._own.encode(text, add_special_tokens=False))
        return [np.array(one, np.int32) for one in ids]


class _Tiktoken(Encoder):
    """`tiktoken`; special tokens in a text are text."""

    def __init__(self, encoding: Any):
        self._own = encoding
        ranks = sorted((rank, token) for token, rank in encoding._mergeable_ranks.items())
        special = json.dumps(sorted(encoding._special_tokens.items()))
        table = (b"%d %s" % (rank, token.hex().encode()) for rank, token in ranks)
        self.identity = {"content": _digest(encoding._pat_str.encode(), special.encode(), b"\n".join(table))}
        self.eos = encoding._special_tokens.get("<|endoftext|>")

    def encode(self, texts: list[str]) -> list[Int32s]:
        return list(_one_by_one(texts, self._ids))

    def _ids(self, text: str) -> Int32s:
        try:  # into an array at once, which costs a twentieth of a list
            return self._own.encode_to_numpy(text, disallowed_special=()).astype(np.int32)
        except UnicodeEncodeError:  # a lone surrogate, which the library replaces elsewhere
            return np.array(self._own.encode_ordinary(text), np.int32)

    def encode_with_offsets(self, texts: list[str]) -> tuple[list[Int32s], list[Int32s]]:
        found = list(_one_by_one(texts, self._offsets))
        return [ids for ids, _ in found], [offsets for _, offsets in found]

    def _offsets(self, text: str) -> tuple[Int32s, Int32s]:
        ids = self._ids(text)
        _, starts = self._own.decode_with_offsets(ids.tolist())
        stops = [b if b > a else a + 1 for a, b in pairwise([*starts, len(text)])]  # a character of several tokens
        return ids, np.array([starts, stops], np.int32).T.reshape(-1, 2)


class _SentencePiece(Encoder):
    """`sentencepiece`, without its sampling."""

    def __init__(self, processor: Any):
        self._own = processor
        self._plain = {"add_bos": False, "add_eos": False, "enable_sampling": False, "reverse": False}
        self.identity = {"content": _digest(processor.serialized_model_proto())}
        bos, eos = processor.bos_id(), processor.eos_id()
        self.bos, self.eos = (bos if bos >= 0 else None), (eos if eos >= 0 else None)

    def encode(self, texts: list[str]) -> list[Int32s]:
        def call(some: list[str]) -> Any:
            return self._own.encode(some, out_type=int, num_threads=1, **self._plain)

        try:
            return [np.array(ids, np.int32) for ids in call(texts)]
        except Exception as error:
            _raise_for_one(texts, call, error)

    @property
    def has_offsets(self) -> bool:
        return hasattr(self._own, "encode_as_offset_mapping")  # from version 0.2.3 on

    def encode_with_offsets(self, texts: list[str]) -> tuple[list[Int32s], list[Int32s]]:
        def call(some: list[str]) -> Any:
            return self._own.encode(some, return_type="offset_mapping", num_threads=1, **self._plain)

        try:
            found = call(texts)
        except Exception as error:
            _raise_for_one(texts, call, error)
        offsets = [np.array(one["offsets"], np.int32).reshape(-1, 2) for one in found]
        return [np.array(one["ids"], np.int32) for one in found], offsets


class _Function(Encoder):
    """Any function from text to ids."""

    def __init__(self, fn: Callable[[str], Sequence[int]], name: str | None, version: str | int | None):
        self._fn = fn
        self.identity = function_identity(callable_name(fn, name), version)

    def encode(self, texts: list[str]) -> list[Int32s]:
        return list(_one_by_one(texts, self._ids))

    def _ids(self, text: str) -> Int32s:
        ids = np.asarray(self._fn(text))
        if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
            raise TypeError(f"a tokenizer must return a 1-D sequence of integers, got {ids.dtype} of shape {ids.shape}")
        if len(ids) and (ids.min() < -(2**31) or ids.max() >= 2**31):
            raise ValueError(f"token id {int(ids.max())} does not fit in int32")
        return ids.astype(np.int32)
