"""The few shapes that the pictures are made of. Every text that is drawn goes through `escaped`. Pure.

Coordinates are pixels of a picture that is as wide as it says and scales down no further than can be read: on a narrow
screen it scrolls inside its own box. There are no ids and no styles by class: several pictures on one page share both.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable
from typing import Final, Literal

__all__ = ["GREY", "INK", "PALETTE", "Drawing", "bounded", "escaped", "fitted", "number", "wrapped"]

# From Okabe and Ito's palette, which people who see few colours can tell apart; black or white text is readable on each.
PALETTE: Final = ("#56b4e9", "#e69f00", "#3cb697", "#f0e442", "#cc79a7", "#d98c5f", "#8fa8e8", "#b9b36a")
GREY: Final = "#8b949e"
INK: Final = "#111111"
"""Text on a colour of the palette."""

_MOST: Final = 300
_SANS: Final = "system-ui,-apple-system,'Segoe UI',sans-serif"
# What XML cannot carry: control characters, and the lone surrogates that file names of unknown encoding become.
_UNPRINTABLE: Final = re.compile(
    "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


def wrapped(text: str, room: float, size: float = 12, most: int = 3) -> list[str]:
    """The text in lines of so many pixels, broken between words; what `most` lines do not hold is cut."""
    lines: list[str] = []
    words = text.split()
    while words and len(lines) < most:
        n = len(words)
        if len(lines) < most - 1:
            while n > 1 and fitted(" ".join(words[:n]), room, size) != " ".join(words[:n]):
                n -= 1
        lines.append(fitted(" ".join(words[:n]), room, size))
        words = words[n:]
    return lines


Anchor = Literal["start", "middle", "end"]


def escaped(text: object) -> str:
    """`str(text)`, harmless in HTML and in SVG, as text and within quotes."""
    return html.escape(_UNPRINTABLE.sub("\ufffd", str(text)), quote=True)


def bounded(text: object) -> str:
    """At most 300 characters: a name may be a path, and a parameter a list, of any length."""
    line = str(text)
    return line if len(line) <= _MOST else f"{line[: _MOST - 1]}…"


def number(value: float) -> str:
    """A coordinate: at most two decimals, and none that say nothing."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"


def _width(character: str) -> float:
    if unicodedata.east_asian_width(character) in "WF":
        return 1.05
    if character in "mwMW@%":
        return 0.95
    return 0.33 if character in " .,:;'|!ijlIt()[]" else 0.62


def fitted(text: object, room: float, size: float = 12) -> str:
    """As much of the text as fits into so many pixels, with an ellipsis if it is not all."""
    line = str(text)
    used = 0.0
    for i, character in enumerate(line):
        used += _width(character) * size
        if used > room:
            kept = line[: max(0, i - 1)].rstrip()
            return f"{kept}…" if room > size else ""
    return line


class Drawing:
    """Collects shapes; `embedded` gives an element for a page, `standalone` a file of its own."""

    def __init__(self, width: float):
        self.width = width
        self._parts: list[str] = []

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = "none",
        stroke: str = "",
        thick: float = 1,
        opacity: float = 1,
        radius: float = 0,
        dashed: bool = False,
        tip: str = "",
    ) -> None:
        """A box; `tip` is shown while the mouse is over it, and read aloud. `opacity` is the filling's."""
        more = f' stroke="{stroke}" stroke-width="{number(thick)}"' if stroke else ""
        more += ' stroke-dasharray="4 3"' if dashed else ""
        more += f' fill-opacity="{number(opacity)}"' if opacity != 1 else ""
        more += f' rx="{number(radius)}"' if radius else ""
        self._add(
            "rect",
            f'x="{number(x)}" y="{number(y)}" width="{number(max(width, 0))}" height="{number(height)}" fill="{fill}"{more}',
            tip,
        )

    def text(
        self,
        x: float,
        y: float,
        text: object,
        *,
        size: float = 12,
        anchor: Anchor = "start",
        bold: bool = False,
        fill: str = "currentColor",
        faint: bool = False,
        room: float | None = None,
        tip: str = "",
    ) -> None:
        """One line of text with its baseline at `y`. With `room` it is cut to so many pixels, and is whole in its tip."""
        shown = str(text) if room is None else fitted(text, room, size * (1.06 if bold else 1))
        tip = tip or ("" if shown == str(text) else str(text))
        if not shown:
            return
        more = f' text-anchor="{anchor}"' if anchor != "start" else ""
        more += ' font-weight="600"' if bold else ""
        more += ' fill-opacity="0.72"' if faint else ""
        inside = escaped(shown) + (f"<title>{escaped(bounded(tip))}</title>" if tip else "")
        self._parts.append(
            f'<text x="{number(x)}" y="{number(y)}" font-size="{number(size)}" fill="{fill}"{more}>{inside}</text>'
        )

    def path(
        self, d: str, *, stroke: str = "currentColor", thick: float = 1, fill: str = "none", dashed: bool = False,
        tip: str = "", faint: bool = False,
    ) -> None:  # fmt: skip
        """A path in SVG's own words."""
        more = ' stroke-dasharray="4 3"' if dashed else ""
        more += ' stroke-opacity="0.5"' if faint else ""
        line = f' stroke="{stroke}" stroke-width="{number(thick)}"' if stroke else ""
        self._add("path", f'd="{d}" fill="{fill}"{line}{more}', tip)

    def line(
        self, x: float, y: float, to_x: float, to_y: float, *, thick: float = 1, dashed: bool = False, faint: bool = False
    ) -> None:  # fmt: skip
        """A straight line in the colour of the text."""
        self.path(f"M{number(x)} {number(y)}L{number(to_x)} {number(to_y)}", thick=thick, dashed=dashed, faint=faint)

    def arrow(self, x: float, y: float, to_y: float) -> None:
        """Down to `to_y`."""
        self.line(x, y, x, to_y - 5, thick=1.5)
        self.path(
            f"M{number(x - 4)} {number(to_y - 7)}L{number(x + 4)} {number(to_y - 7)}L{number(x)} {number(to_y)}Z",
            stroke="",
            fill="currentColor",
        )

    def hatch(self, x: float, y: float, width: float, height: float, *, stroke: str = GREY, step: float = 6) -> None:
        """Diagonal lines, cut at the box: a pattern would need an id, and ids of pictures on one page collide."""
        lines: list[str] = []
        start = x - height + step / 2
        while start < x + width:
            left, right = max(start, x), min(start + height, x + width)
            if right - left > 0.5:
                lines.append(
                    f"M{number(left)} {number(y + height - (left - start))}L{number(right)} {number(y + height - (right - start))}"
                )
            start += step
        if lines:
            self.path("".join(lines), stroke=stroke)

    def _add(self, tag: str, attributes: str, tip: str) -> None:
        inside = f"<title>{escaped(bounded(tip))}</title>" if tip else ""
        self._parts.append(f"<{tag} {attributes}>{inside}</{tag}>" if inside else f"<{tag} {attributes}/>")

    def embedded(self, height: float, label: str, *, least: float = 520) -> str:
        """For a page: as wide as the page lets it be, never narrower than `least` pixels, in the colour of its text."""
        w, h = number(self.width), number(height)
        return (
            f'<div style="overflow-x:auto;max-width:100%"><svg viewBox="0 0 {w} {h}" role="img" aria-label="{escaped(label)}" '
            f'style="display:block;width:100%;min-width:{number(min(least, self.width))}px;max-width:{w}px;height:auto" '
            f'font-family="{_SANS}">{"".join(self._parts)}</svg></div>'
        )

    def standalone(self, height: float, label: str) -> str:
        """For a file: on a white card, since an image cannot know what it will lie on."""
        w, h = number(self.width + 24), number(height + 24)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 -12 {w} {h}" width="{w}" height="{h}" role="img" '
            f'aria-label="{escaped(label)}" font-family="{_SANS}" color="#1f2328">\n'
            f'<rect x="-12" y="-12" width="{w}" height="{h}" rx="8" fill="#ffffff"/>\n'
            + "\n".join(_lines(self._parts))
            + "\n</svg>\n"
        )


def _lines(parts: Iterable[str]) -> Iterable[str]:
    """One shape a line, so that a change of a picture can be read in a diff."""
    return (part.replace("\n", " ") for part in parts)
