"""Tables, headings and whole pages in HTML. Pure.

A table marks what changed by a sign and a bar beside the cell, not by colour alone. Styles stand in the elements: a
notebook may drop a style sheet, and one of ours must not reach what others have on the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from zephon_jax.display.svg import bounded, escaped

__all__ = ["Cell", "Markup", "box", "heading", "listed", "page", "table", "told"]

_LINE: Final = "border-bottom:1px solid rgba(139,148,158,.45)"


class Cell:
    """A cell: text, whether it differs from what stands beside it, and a bar of 0 to 1 behind it."""

    def __init__(self, text: object, *, changed: bool = False, share: float | None = None, left: bool = False):
        self.text, self.changed, self.share, self.left = str(text), changed, share, left

    def html(self) -> str:
        """As a `td`. What is usual has no style of its own: a table may have thousands of cells."""
        style = "text-align:left;" if self.left else ""
        if len(self.text) > 24:  # or a narrow screen would leave no word whole
            style += "white-space:normal;min-width:12em;max-width:40em;overflow-wrap:break-word;"
        if self.share is not None:
            end = f"{100 * min(max(self.share, 0.0), 1.0):.1f}%"
            style += f"background:linear-gradient(to right,rgba(86,180,233,.45) {end},transparent {end});"
        if self.changed:
            style += "border-left:4px solid #d55e00;font-weight:600;background:rgba(213,94,0,.14);"
        mark = '<span title="differs">≠ </span>' if self.changed else ""
        return f"<td{f' style={chr(34)}{style}{chr(34)}' if style else ''}>{mark}{escaped(bounded(self.text))}</td>"


class Markup(Cell):
    """A cell of HTML of our own: whoever makes it has escaped what is in it."""

    def html(self) -> str:
        return f'<td style="text-align:left">{self.text}</td>'


def heading(text: str) -> str:
    """A line in bold that says what follows."""
    return f'<div style="font-weight:600;margin:10px 0 4px">{escaped(text)}</div>'


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell | object]], *, more: str = "") -> str:
    """Rows of cells; plain values become cells, texts to the left and numbers to the right. `more`: what was left out."""
    head = "".join(
        f'<th scope="col" style="text-align:left;font-weight:600;background:transparent">{escaped(name)}</th>'
        for name in columns
    )
    body = "".join(f'<tr style="{_LINE}">{"".join(_as_cell(cell).html() for cell in row)}</tr>' for row in rows)
    note = f'<div style="opacity:.75;margin:2px 0 6px">{escaped(more)}</div>' if more else ""
    return (
        '<div style="overflow-x:auto;max-width:100%"><table cellpadding="4" style="border-collapse:collapse;'
        'font-size:13px;text-align:right;white-space:nowrap;margin:2px 0">'
        f"<thead><tr style='{_LINE}'>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"
    )


def _as_cell(value: Cell | object) -> Cell:
    if isinstance(value, Cell):
        return value
    if isinstance(value, float):
        return Cell(f"{value:.3g}")
    return Cell(f"{value:,}") if isinstance(value, int) else Cell(value, left=True)


def listed(pairs: Iterable[tuple[str, object]]) -> str:
    """Names with their values, one a line."""
    lines = "".join(
        f'<div style="margin:1px 0"><span style="opacity:.75">{escaped(name)}: </span>{escaped(bounded(value))}</div>'
        for name, value in pairs
    )
    return f'<div style="font-size:13px;overflow-wrap:anywhere">{lines}</div>'


def told(text: str) -> str:
    """A sentence."""
    return f'<div style="font-size:13px;margin:0 0 8px">{escaped(text)}</div>'


def box(*parts: str) -> str:
    """One display, as an element of a notebook or a page."""
    return f'<div style="font-family:system-ui,sans-serif;line-height:1.45;max-width:960px">{"".join(parts)}</div>'


def page(title: str, body: str) -> str:
    """A whole page, alone in its file, light or dark as the reader's system is."""
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{escaped(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<style>body{margin:24px auto;padding:0 16px;max-width:1000px;color:#1f2328;background:#fff;"
        "font-family:system-ui,sans-serif;line-height:1.5}"
        "@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}}</style></head>\n"
        f"<body><h1>{escaped(title)}</h1>\n{body}\n</body></html>\n"
    )
