"""Numbers with their nouns. Pure."""

from __future__ import annotations

__all__ = ["counted"]


def counted(n: int, noun: str, plural: str | None = None) -> str:
    """`1 chunk`, `1,200 chunks`; `plural` where it is not an s more."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"
