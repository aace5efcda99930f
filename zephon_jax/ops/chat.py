"""chat: conversations → token ids, with the loss on chosen roles only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from zephon_jax.columns import Column, Ragged, row_values
from zephon_jax.errors import ConfigurationError, DataError
from zephon_jax.microbatch import MicroBatch
from zephon_jax.ops.base import OpTraits, RecordFailure, RecordOperator, checked_field, checked_int
from zephon_jax.ops.encoders import encoder_of
from zephon_jax.ops.fields import field_of
from zephon_jax.ops.interrupt import check_wanted
from zephon_jax.ops.templates import ChatTemplate
from zephon_jax.ops.tokenize import token_column
from zephon_jax.types import Int32s

__all__ = ["LOSS_MASK", "Chat"]

LOSS_MASK: Final = "loss_mask"


class Chat(RecordOperator):
    """Replaces a list of messages by `tokens` (int32) and `loss_mask` (bool), both of shape (length,).

    Args:
        tokenizer: As for `tokenize`, of a kind that tells where a token comes from (not a function).
        template: A Jinja chat template, as text. Left out: the tokenizer's own (`chat_template`, as transformers has).
            It is given `messages`, `bos_token`, `eos_token`, `add_generation_prompt=False`, and the record's other fields
            that `context` names. It may not ask for the time.
        field: The messages: a list of mappings with `role` and `content`.
        train_on: Roles whose messages the loss counts: what the template makes of a message, from behind what it would
            write to ask for it up to the end. Where a template marks `{% generation %}` blocks, these count instead.
        context: Other fields that the template may use, for example `tools`; they are kept.
        max_length: At most so many ids; the end is cut.
        bos_token, eos_token: The texts that a template means by these names; left out, the tokenizer's own.

    `pack(keep=["loss_mask"])` carries the mask along, and `lm_targets` multiplies the loss weights by it. No id is added
    that the template does not write.
    """

    traits = OpTraits(keeps_count=True)

    def __init__(
        self,
        tokenizer: Any,
        template: str | None = None,
        *,
        field: str = "messages",
        train_on: Iterable[str] = ("assistant",),
        context: Iterable[str] = (),
        max_length: int | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
    ):
        self._field = checked_field("chat", field)
        self._encoder = encoder_of(tokenizer, None, None)
        if not self._encoder.has_offsets:
            raise ConfigurationError("chat needs a tokenizer that tells where in the text a token comes from")
        text = template if template is not None else getattr(tokenizer, "chat_template", None)
        if not isinstance(text, str) or not text:
            raise ConfigurationError("chat needs a template: the tokenizer has no chat_template, pass template=")
        names = {
            name: given if given is not None else str(getattr(tokenizer, name, None) or "")
            for name, given in (("bos_token", bos_token), ("eos_token", eos_token))
        }
        self._context = tuple(checked_field("chat", name) for name in _names("context", context))
        self._roles = frozenset(_names("train_on", train_on))
        self._template = ChatTemplate(text, names)
        self._max = None if max_length is None else checked_int("chat", "max_length", max_length, 1)
        self._identity = {
            "op": "chat", "field": field, "train_on": sorted(self._roles), "context": sorted(self._context),
            "max_length": self._max, "template": hashlib.blake2b(text.encode(), digest_size=16).hexdigest(), **names,
            **self._encoder.identity,
        }  # fmt: skip
        self.name = "chat"

    def identity(self) -> Mapping[str, Any]:
        return self._identity

    def process(self, batch: MicroBatch) -> MicroBatch:
        if not len(batch):
            return batch
        texts: list[str] = []
        spans: list[Sequence[tuple[int, int]]] = []
        others = [row_values(field_of(batch, name, self.name)) for name in self._context]
        for i, messages in enumerate(row_values(field_of(batch, self._field, self.name))):
            check_wanted()
            try:
                given = {name: values[i] for name, values in zip(self._context, others, strict=True)}
                text, own = self._template.render(_messages(messages, self._field), self._roles, given)
            except Exception as error:
                raise RecordFailure(i) from error
            texts.append(text)
            spans.append(own)
        ids, offsets = self._encoder.encode_with_offsets(texts)
        masks = [_mask(at, own)[: self._max] for at, own in zip(offsets, spans, strict=True)]
        ids = [one[: self._max] for one in ids]
        tokens = token_column(ids)
        made: dict[str, Column] = {"tokens": tokens, LOSS_MASK: Ragged(np.concatenate(masks), tokens.splits)}
        kept = {name: column for name, column in batch.columns.items() if name != self._field and name not in made}
        return batch.with_columns({**kept, **made}).spanned(tokens.lengths)


def _names(option: str, given: Iterable[str]) -> list[str]:
    if isinstance(given, str):
        raise ConfigurationError(f"chat({option}={given!r}) must be a list of names: [{given!r}]")
    return list(given)


def _messages(value: Any, field: str) -> list[Mapping[str, Any]]:
    messages = list(value) if isinstance(value, (list, tuple, np.ndarray)) else None
    if not messages or not all(isinstance(m, Mapping) and isinstance(m.get("role"), str) for m in messages):
        raise DataError(f"chat needs a list of messages, each with a role, in {field!r}, got {value!r:.200}")
    return messages


def _mask(offsets: Int32s, spans: Sequence[tuple[int, int]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which tokens begin within one of the spans of characters."""
    mask = np.zeros(len(offsets), np.bool_)
    for start, stop in spans:
        mask |= (offsets[:, 0] >= start) & (offsets[:, 0] < stop)
    return mask
