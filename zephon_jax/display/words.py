"""Numbers with their nouns. Pure."""

from __future__ import annotations

__all__ = ["counted"]


def counted(n: int, noun: str) -> str:
    """`1 chunk`, `1,200 chunks`: of nouns whose plural is an s."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
