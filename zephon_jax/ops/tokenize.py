"""tokenize: text → token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zephon_jax.columns import Column, Objects, Ragged, row_values
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import OpTraits, RecordFailure, RecordOperator, checked_field, checked_int, used
from zephon_jax.ops.encoders import encoder_of
from zephon_jax.ops.fields import field_of
from zephon_jax.types import Int32s

__all__ = ["Tokenize", "token_column"]


class Tokenize(RecordOperator):
    """Replaces a text field by `tokens`, int32 ids of shape (length,).

    Args:
        tokenizer: A `tokenizers.Tokenizer`, a tokenizer of `transformers`, a `tiktoken.Encoding` or a
            `SentencePieceProcessor`, whose content becomes part of the checkpoint's plan; or a function from str to a
            sequence of ids, identified by `name=` or its qualified name, and `version=`. Its own post-processor,
            truncation and padding are not applied.
        field: The text.
        add_bos, add_eos: Put an id before or behind each text: True for the one that the tokenizer names, or the id.
        max_length: At most so many ids are kept of each text, those added included; a text is cut at its end.
        keep_offsets: Also give `offsets`, int32 of shape (length, 2): the characters that each id comes from, first and
            one behind the last; both alike for an id that was added.

    Special tokens that stand in a text are what the library makes of them: `tokenizers` and `transformers` recognize
    them, `tiktoken` and `sentencepiece` take them as text.
    """

    traits = OpTraits(keeps_count=True)

    def __init__(
        self,
        tokenizer: Any,
        *,
        field: str = "text",
        add_bos: bool | int | None = None,
        add_eos: bool | int | None = None,
        max_length: int | None = None,
        keep_offsets: bool = False,
        name: str | None = None,
        version: str | int | None = None,
    ):
        self._field = checked_field("tokenize", field)
        self._encoder = encoder = encoder_of(tokenizer, name, version)
        self._before = _added("add_bos", add_bos, encoder.bos)
        self._after = _added("add_eos", add_eos, encoder.eos)
        added = len(self._before) + len(self._after)
        self._max = None if max_length is None else checked_int("tokenize", "max_length", max_length, added + 1)
        self._offsets = bool(keep_offsets)
        if self._offsets and not encoder.has_offsets:
            raise ConfigurationError(
                "tokenize(keep_offsets=True): this tokenizer does not tell where in the text a token comes from"
            )
        function = encoder.identity.get("function")
        self.name = f"tokenize({function})" if function else "tokenize"

    def identity(self) -> Mapping[str, Any]:
        own = {"op": "tokenize", "field": self._field, "bos": self._before, "eos": self._after}
        options = used({"max_length": self._max, "offsets": self._offsets})
        return {**own, **options, **self._encoder.identity}

    def process(self, batch: MicroBatch) -> MicroBatch:
        if not len(batch):
            return batch
        texts = row_values(field_of(batch, self._field, self.name))
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                error = DataError(f"{self.name} needs text in {self._field!r}, got {type(text).__name__}")
                raise RecordFailure(i) from error
        offsets: list[Int32s] | None = None
        if self._offsets:
            ids, offsets = self._encoder.encode_with_offsets(texts)
        else:
            ids = self._encoder.encode(texts)
        ids = self._finished(ids)
        made: dict[str, Column] = {"tokens": token_column(ids)}
        if offsets is not None:
            made["offsets"] = Objects(
                [self._finished_offsets(own, text) for own, text in zip(offsets, texts, strict=True)]
            )
        columns = {name: column for name, column in batch.columns.items() if name != self._field and name not in made}
        return batch.with_columns({**columns, **made}).spanned(np.array([len(one) for one in ids], np.int64))

    def _finished(self, ids: list[Int32s]) -> list[Int32s]:
        room = self._room()
        if room is not None:
            ids = [one[:room] for one in ids]
        if not self._before and not self._after:
            return ids
        before, after = np.array(self._before, np.int32), np.array(self._after, np.int32)
        return [np.concatenate([before, one, after]) for one in ids]

    def _finished_offsets(self, offsets: Int32s, text: str) -> Int32s:
        first, last = [[0, 0]] * len(self._before), [[len(text)] * 2] * len(self._after)
        kept = offsets[: self._room()]
        return np.concatenate([np.array(rows, np.int32).reshape(-1, 2) for rows in (first, kept, last)])

    def _room(self) -> int | None:
        return None if self._max is None else self._max - len(self._before) - len(self._after)


def token_column(ids: list[Int32s]) -> Ragged:
    """Lists of ids as one column."""
    splits = np.zeros(len(ids) + 1, np.int64)
    np.cumsum([len(one) for one in ids], out=splits[1:])
    return Ragged(np.concatenate(ids), splits)


def _added(option: str, value: bool | int | None, own: int | None) -> list[int]:
    if value is None or value is False:
        return []
    if value is True:
        if own is None:
            raise ConfigurationError(f"tokenize({option}=True): the tokenizer names no such token; pass its id")
        return [own]
    if not isinstance(value, (int, np.integer)) or not 0 <= value < 2**31:
        raise ConfigurationError(f"tokenize({option}=) takes True or a token id from 0 to 2**31 - 1, got {value!r}")
    return [int(value)]
