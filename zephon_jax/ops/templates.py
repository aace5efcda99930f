"""Chat templates in Jinja, rendered in a sandbox, and which characters of the result came from which message.

Jinja2 is imported here only. Templates are written for a few functions and settings that have become usual
(`raise_exception`, `tojson` that keeps characters, blocks that eat their line ends, `{% generation %}`); those are given.
`strftime_now` is not: what a pipeline delivers must not depend on the day.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from zephon_jax.errors import ConfigurationError, DataError

__all__ = ["ChatTemplate"]

# Around a generation block. From the private use area; messages that hold them are refused.
_OPEN: Final = "\uf8f0"
_CLOSE: Final = "\uf8f1"

Spans = list[tuple[int, int]]
"""Characters start to stop."""


class ChatTemplate:
    """Safe to share between threads; pickles as its text."""

    def __init__(self, text: str, names: Mapping[str, str]):
        self._text, self._names = text, dict(names)
        self._template, self._marked = _compiled(text)

    def __reduce__(self) -> Any:
        return ChatTemplate, (self._text, self._names)

    def render(
        self, messages: Sequence[Mapping[str, Any]], roles: frozenset[str], context: Mapping[str, Any]
    ) -> tuple[str, Spans]:
        """The conversation as text, and the spans that the loss counts."""
        whole = self._rendered(messages, context, prompt=False)
        if self._marked:
            return _unmarked(whole)
        spans: Spans = []
        for i, message in enumerate(messages):
            if message["role"] not in roles:
                continue
            asked = self._prefix(messages[:i], context, prompt=True) if i else ""
            if not whole.startswith(asked):  # the template asks for another role than this one, or does not ask
                asked = self._prefix(messages[:i], context, prompt=False) if i else ""
            done = whole if i + 1 == len(messages) else self._prefix(messages[: i + 1], context, prompt=False)
            if not whole.startswith(asked) or not done.startswith(asked) or not whole.startswith(done):
                raise DataError(
                    f"chat: the template writes message {i} differently when others follow it, so that its characters "
                    "cannot be told; mark what the loss counts with {% generation %} … {% endgeneration %}"
                )
            spans.append((len(asked), len(done)))
        return whole, spans

    def _prefix(self, messages: Sequence[Mapping[str, Any]], context: Mapping[str, Any], *, prompt: bool) -> str:
        return self._rendered(messages, context, prompt=prompt)

    def _rendered(self, messages: Sequence[Mapping[str, Any]], context: Mapping[str, Any], *, prompt: bool) -> str:
        if _holds_marks(list(messages)):
            raise DataError("chat: a message holds one of the characters U+F8F0 and U+F8F1, which are not allowed")
        try:
            return self._template(messages=messages, add_generation_prompt=prompt, **self._names, **context)
        except (DataError, ConfigurationError):
            raise
        except Exception as error:
            raise DataError(f"chat: the template failed: {type(error).__name__}: {error}") from error


def _holds_marks(value: Any) -> bool:
    if isinstance(value, str):
        return _OPEN in value or _CLOSE in value
    if isinstance(value, Mapping):
        return any(_holds_marks(v) for v in value.values())  # pyright: ignore[reportUnknownVariableType]
    return isinstance(value, (list, tuple)) and any(_holds_marks(v) for v in value)  # pyright: ignore[reportUnknownVariableType]


def _unmarked(marked: str) -> tuple[str, Spans]:
    """The text without marks, and the spans between them."""
    parts: list[str] = []
    spans: Spans = []
    at, start = 0, 0
    for piece in marked.replace(_CLOSE, _OPEN + _CLOSE).split(_OPEN):
        if piece.startswith(_CLOSE):
            spans.append((start, at))
            piece = piece[1:]
        start = at
        parts.append(piece)
        at += len(piece)
    return "".join(parts), spans


def _compiled(text: str) -> tuple[Callable[..., str], bool]:
    try:
        import jinja2
        from jinja2 import nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ConfigurationError('chat needs Jinja2: pip install "zephon-jax[chat]"') from error

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

        def _marked(self, caller: Callable[[], str]) -> str:
            return f"{_OPEN}{caller()}{_CLOSE}"

    def refuse(message: str) -> None:
        raise DataError(f"chat: the template refuses the conversation: {message}")

    def no_clock(*args: Any) -> None:
        raise ConfigurationError(
            "chat: the template asks for the time, and what a pipeline delivers must not depend on it; "
            "write the date into the template"
        )

    def tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, default=_plain, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    functions: dict[str, Any] = environment.globals  # pyright: ignore[reportAssignmentType] - typed as what is there now
    functions.update(raise_exception=refuse, strftime_now=no_clock)
    environment.filters["tojson"] = tojson
    try:
        parsed = environment.parse(text)
        compiled = environment.from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigurationError(f"chat(template=): line {error.lineno}: {error.message}") from error
    marked = any(
        isinstance(call.call.node, nodes.ExtensionAttribute) and call.call.node.name == "_marked"
        for call in parsed.find_all(nodes.CallBlock)
        if isinstance(call.call, nodes.Call)
    )
    return compiled.render, marked


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)
