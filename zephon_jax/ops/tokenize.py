"""tokenize: text → token ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from zephon_jax.columns import Ragged, row_values
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import RecordFailure, RecordOperator, callable_name, checked_field, function_identity
from zephon_jax.ops.fields import field_of
from zephon_jax.ops.interrupt import check_wanted

__all__ = ["Tokenize"]

Encode = Callable[[list[str]], list[NDArray[np.int32]]]


class Tokenize(RecordOperator):
    """Replace a text field by `tokens`, int32 ids of shape (length,).

    `tokenizer` is a `tokenizers.Tokenizer` (its content is part of the checkpoint's plan) or a function str → sequence
    of ids (identified by `name=` or its qualified name, and `version=`). Special tokens: only `add_bos` and `add_eos`,
    ids put before and behind each text; the tokenizer's own post-processor is not applied, nor its truncation and
    padding.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        field: str = "text",
        add_bos: int | None = None,
        add_eos: int | None = None,
        name: str | None = None,
        version: str | int | None = None,
    ):
        self._field = checked_field("tokenize", field)
        for option, value in (("add_bos", add_bos), ("add_eos", add_eos)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31):
                raise ConfigurationError(f"tokenize({option}=) takes a token id from 0 to 2**31 - 1, got {value!r}")
        self._before = [] if add_bos is None else [add_bos]
        self._after = [] if add_eos is None else [add_eos]
        if callable(getattr(tokenizer, "encode_batch", None)) and callable(getattr(tokenizer, "to_str", None)):
            self._encode, self._identity = _tokenizers_encode(tokenizer), {"content": _tokenizers_hash(tokenizer)}
            self.name = "tokenize"
        elif callable(tokenizer):
            self._encode = _callable_encode(cast(Any, tokenizer))
            self._identity = function_identity(callable_name(tokenizer, name), version)
            self.name = f"tokenize({self._identity['function']})"
        else:
            raise ConfigurationError(
                f"tokenize needs a tokenizers.Tokenizer or a function from str to token ids, got {type(tokenizer).__name__}"
            )

    def identity(self) -> Mapping[str, Any]:
        return {"op": "tokenize", "field": self._field, "bos": self._before, "eos": self._after, **self._identity}

    def process(self, batch: MicroBatch) -> MicroBatch:
        if not len(batch):
            return batch
        texts = row_values(field_of(batch, self._field, self.name))
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                error = DataError(f"{self.name} needs text in {self._field!r}, got {type(text).__name__}")
                raise RecordFailure(i) from error
        ids = self._encode(texts)
        before, after = np.array(self._before, np.int32), np.array(self._after, np.int32)
        if self._before or self._after:
            ids = [np.concatenate([before, one, after]) for one in ids]
        splits = np.zeros(len(ids) + 1, np.int64)
        np.cumsum([len(one) for one in ids], out=splits[1:])
        columns = {name: column for name, column in batch.columns.items() if name not in (self._field, "tokens")}
        tokens = Ragged(np.concatenate(ids), splits)
        return batch.with_columns({**columns, "tokens": tokens}).spanned(tokens.lengths)


def _tokenizers_encode(tokenizer: Any) -> Encode:
    # A copy, since truncation and padding are settings of the object that its owner may change at any time.
    own = type(tokenizer).from_str(tokenizer.to_str())
    own.no_truncation()
    own.no_padding()
    encode_batch = getattr(own, "encode_batch_fast", own.encode_batch)  # no offsets: 1.1 to 1.4 times as fast

    def encode(texts: list[str]) -> list[NDArray[np.int32]]:
        # encode_batch, also for one text: it releases the GIL, encode does not.
        try:
            encoded = encode_batch(texts, add_special_tokens=False)
        except Exception as error:  # of one text: which one?
            index, cause = _which(encode_batch, texts, error)
            raise RecordFailure(index) from cause
        return [np.array(e.ids, np.int32) for e in encoded]

    return encode


def _which(encode_batch: Callable[..., Any], texts: list[str], error: Exception) -> tuple[int, Exception]:
    """The text that cannot be encoded, and why; the batch's own error if each can be alone."""
    for i, text in enumerate(texts):
        try:
            encode_batch([text], add_special_tokens=False)
        except Exception as own:
            return i, own
    return 0, error


def _tokenizers_hash(tokenizer: Any) -> str:
    """Of what decides ids: the file without its settings, merges as pairs (older versions wrote them as strings)."""
    content = json.loads(tokenizer.to_str())
    for setting in ("truncation", "padding", "version"):
        content.pop(setting, None)
    model = content.get("model") or {}
    if merges := model.get("merges"):
        model["merges"] = [m.split(" ") if isinstance(m, str) else list(m) for m in merges]
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def _callable_encode(fn: Callable[[str], Sequence[int]]) -> Encode:
    def encode(texts: list[str]) -> list[NDArray[np.int32]]:
        out: list[NDArray[np.int32]] = []
        for i, text in enumerate(texts):
            check_wanted()
            try:
                ids = np.asarray(fn(text))
                if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
                    raise TypeError(
                        f"a tokenizer must return a 1-D sequence of integers, got {ids.dtype} of shape {ids.shape}"
                    )
                if len(ids) and (ids.min() < -(2**31) or ids.max() >= 2**31):
                    raise ValueError(f"token id {int(ids.max())} does not fit in int32")
            except Exception as error:
                raise RecordFailure(i) from error
            out.append(ids.astype(np.int32))
        return out

    return encode
