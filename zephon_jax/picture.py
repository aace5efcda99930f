"""explain_batch: one row of a batch, in words and in a notebook as HTML.

It reads a batch as `pack`, `pad` or `lm_targets` (under any of its names) gives it, NumPy or device arrays, and says which
stretches of the row are one document, where it came from, which positions it has, where the loss counts and, with a
tokenizer, what it says. It looks at values only and knows nothing of how they were made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from zephon_jax.display.page import Cell, Markup, box, table
from zephon_jax.display.strip import Stretch, Strip, strips_html, strips_svg, swatch
from zephon_jax.display.svg import escaped
from zephon_jax.display.words import counted
from zephon_jax.errors import ConfigurationError, text_of

__all__ = ["BatchPicture", "RowPicture", "Segment", "explain_batch"]

Contribution = tuple[str, str, int, int, int | None]

# What each convention calls its fields; the first that the batch has is taken.
_FIELDS: Final[Mapping[str, Sequence[str]]] = {
    "tokens": ("tokens", "inputs", "decoder_input_tokens"),
    "segment_ids": ("segment_ids", "inputs_segmentation", "decoder_segment_ids"),
    "positions": ("positions", "inputs_position", "decoder_positions"),
    "targets": ("targets", "decoder_target_tokens"),
    "loss": ("loss_weights", "targets_segmentation", "decoder_loss_weights", "loss_mask"),
}
_MOST_ROWS: Final = 32
_MOST_SEGMENTS: Final = 100


@dataclass(frozen=True, slots=True)
class Segment:
    """Columns `start` to `stop` of a row. `segment` 0 is padding.

    `positions`: first and last, None if the batch has none. `trained`: of its tokens, how many the loss counts as a target
    or None. `source`: dataset, shard, sample, and tokens start to stop of it. `text`: as decoded, or the first ids.
    """

    segment: int
    start: int
    stop: int
    positions: tuple[int, int] | None
    trained: int | None
    source: Contribution | None
    text: str

    def describe(self) -> str:
        """One line."""
        if not self.segment:
            return f"[{self.start:>5}:{self.stop:<5}] padding, {counted(self.stop - self.start, 'token')}"
        parts = [f"[{self.start:>5}:{self.stop:<5}] segment {self.segment}"]
        if self.positions is not None:
            parts.append(f"positions {self.positions[0]} to {self.positions[1]}")
        if self.trained is not None:
            parts.append(f"loss on {self.trained} of {self.stop - self.start}")
        if self.source is not None:
            parts.append(_source_text(self.source))
        return f"{', '.join(parts)}: {self.text}"


@dataclass(frozen=True, slots=True)
class RowPicture:
    """One row. `str()` gives text; a notebook shows it as a table, with a strip of the row in proportion.

    `trained`: runs of columns, start and stop, on which the loss counts; None if the batch does not say.
    """

    row: int
    length: int
    segments: tuple[Segment, ...]
    trained: tuple[tuple[int, int], ...] | None = None

    def __str__(self) -> str:
        held = sum(s.stop - s.start for s in self.segments if s.segment)
        trained = [s.trained for s in self.segments if s.trained is not None]
        counts = f", {sum(trained)} of them trained on" if trained else ""
        documents = sum(1 for s in self.segments if s.segment)
        head = f"row {self.row}: {held} of {self.length} places hold tokens{counts}, {counted(documents, 'document')}"
        return "\n".join([head, *(f"  {s.describe()}" for s in self.segments)])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return box(f"<p>{escaped(str(self).splitlines()[0])}</p>", strips_html([self.strip()]), _segments_table(self))

    def strip(self) -> Strip:
        """The row as it is drawn."""
        stretches = [Stretch(s.start, s.stop, s.segment, s.describe(), s.positions) for s in self.segments]
        return Strip(f"row {self.row}", self.length, tuple(stretches), self.trained)

    def svg(self) -> str:
        """The picture alone, as the text of an SVG file."""
        return strips_svg([self.strip()])


@dataclass(frozen=True, slots=True)
class BatchPicture:
    """All rows of a batch. `str()` gives text, of at most 32 rows; a notebook draws them."""

    rows: tuple[RowPicture, ...]

    def __str__(self) -> str:
        more = len(self.rows) - _MOST_ROWS
        return "\n".join(
            [
                *map(str, self.rows[:_MOST_ROWS]),
                *([f"and {more:,} more {'row' if more == 1 else 'rows'}"] if more > 0 else []),
            ]
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        held = sum(s.stop - s.start for row in self.rows for s in row.segments if s.segment)
        places = sum(row.length for row in self.rows)
        documents = sum(1 for row in self.rows for s in row.segments if s.segment)
        filled = f"{100 * held / places:.1f} %" if places else "nothing"
        return box(
            f"<p>{counted(len(self.rows), 'row')}, {held:,} of {places:,} places hold tokens ({filled}), "
            f"{counted(documents, 'document')}</p>",
            strips_html([row.strip() for row in self.rows]),
            _documents_table(self.rows),
        )

    def svg(self) -> str:
        """The picture alone, as the text of an SVG file; at most 32 rows."""
        return strips_svg([row.strip() for row in self.rows])


@overload
def explain_batch(
    batch: Mapping[str, Any],
    row: int = 0,
    *,
    tokenizer: Any = None,
    provenance: Mapping[int, Sequence[Contribution]] | None = None,
    most_characters: int = 60,
) -> RowPicture: ...
@overload
def explain_batch(
    batch: Mapping[str, Any],
    row: None,
    *,
    tokenizer: Any = None,
    provenance: Mapping[int, Sequence[Contribution]] | None = None,
    most_characters: int = 60,
) -> BatchPicture: ...
def explain_batch(
    batch: Mapping[str, Any],
    row: int | None = 0,
    *,
    tokenizer: Any = None,
    provenance: Mapping[int, Sequence[Contribution]] | None = None,
    most_characters: int = 60,
) -> RowPicture | BatchPicture:
    """A picture of one row of a batch, or with `row=None` of all.

    Args:
        batch: What `next` returned: NumPy or `jax.Array`s of shape (rows, length), with the names of `pack`, `pad` or any
            convention of `lm_targets`.
        row: Which row; of the arrays, so on several processes the global row. None: all rows.
        tokenizer: Anything with `decode(ids) -> str`, or such a function, to show texts; left out, ids are shown. A function
            from text to ids, as `tokenize` takes one, is the wrong way round.
        provenance: What the iterator's `provenance()` returned for this batch, to show where documents come from.
        most_characters: Of each document's text.

    Raises:
        ConfigurationError: The batch has no tokens, or no such row, or `tokenizer` does not go from ids to text.

    >>> batch = {"tokens": np.array([[7, 8, 9, 0]]), "segment_ids": np.array([[1, 1, 2, 0]])}
    >>> print(explain_batch(batch))
    row 0: 3 of 4 places hold tokens, 2 documents
      [    0:2    ] segment 1: 7 8
      [    2:3    ] segment 2: 9
      [    3:4    ] padding, 1 token
    """
    if not isinstance(batch, Mapping):
        raise ConfigurationError(f"explain_batch needs a batch, a dict of arrays, got {type(batch).__name__}")
    if row is not None and (isinstance(row, bool) or not isinstance(row, (int, np.integer))):
        raise ConfigurationError(f"explain_batch(row={row!r}) must be the number of a row, or None for all")
    found = {what: next((n for n in names if n in batch), None) for what, names in _FIELDS.items()}
    if found["tokens"] is None:
        raise ConfigurationError(f"explain_batch needs one of {list(_FIELDS['tokens'])}, the batch has {sorted(batch)}")
    rows = len(batch[found["tokens"]])
    if row is not None and not 0 <= row < rows:
        raise ConfigurationError(f"explain_batch(row={row}): the batch has rows 0 to {rows - 1}")
    decode = _decoder(tokenizer)
    if row is not None:
        return _row(batch, found, int(row), decode, provenance, most_characters)
    arrays = {
        name: np.asarray(batch[name]) for name in found.values() if name is not None
    }  # from a device, all at once
    return BatchPicture(tuple(_row(arrays, found, r, decode, provenance, most_characters) for r in range(rows)))


def _row(
    batch: Mapping[str, Any],
    found: Mapping[str, str | None],
    row: int,
    decode: Callable[[list[int]], str],
    provenance: Mapping[int, Sequence[Contribution]] | None,
    most: int,
) -> RowPicture:
    line = {what: None if name is None else np.asarray(batch[name][row]) for what, name in found.items()}
    tokens = line["tokens"]
    assert tokens is not None
    if tokens.ndim != 1:
        raise ConfigurationError(
            f"explain_batch needs rows of tokens, {found['tokens']!r} has rows of shape {tokens.shape}"
        )
    ids = line["segment_ids"] if line["segment_ids"] is not None else np.ones(len(tokens), np.int32)
    sources = None if provenance is None else provenance.get(row)
    segments = [_segment(int(ids[a]), a, b, line, decode, sources, most) for a, b in _runs(ids)]
    loss = line["loss"]
    trained = None if loss is None else tuple((a, b) for a, b in _runs(loss != 0) if loss[a])
    return RowPicture(row, len(tokens), tuple(segments), trained)


def _runs(values: NDArray[Any]) -> list[tuple[int, int]]:
    """Start and stop of each run of equal values."""
    bounds = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)] if len(values) else [0]
    return list(pairwise(bounds))


def _segment(
    number: int,
    start: int,
    stop: int,
    line: Mapping[str, NDArray[Any] | None],
    decode: Callable[[list[int]], str],
    sources: Sequence[Contribution] | None,
    most: int,
) -> Segment:
    tokens, positions, loss = line["tokens"], line["positions"], line["loss"]
    assert tokens is not None
    shown = tokens[start : min(stop, start + 4 * most)].tolist() if number else []
    if line["targets"] is not None and number and loss is not None and loss[stop - 1]:
        shown.append(int(line["targets"][stop - 1]))  # the document goes on in the target behind the row's inputs
    text = decode(shown[: 4 * most]) if number else ""
    return Segment(
        segment=number,
        start=start,
        stop=stop,
        positions=(int(positions[start]), int(positions[stop - 1])) if number and positions is not None else None,
        trained=int(np.count_nonzero(loss[start:stop])) if number and loss is not None else None,
        source=sources[number - 1] if sources is not None and 0 < number <= len(sources) else None,
        text=text if len(text) <= most else f"{text[: most - 1]}…",
    )


def _decoder(tokenizer: Any) -> Callable[[list[int]], str]:
    decode = getattr(tokenizer, "decode", tokenizer)
    if decode is None:
        return lambda ids: " ".join(map(str, ids))
    if not callable(decode):
        raise ConfigurationError(f"explain_batch(tokenizer={tokenizer!r}) must have decode(ids), or be such a function")

    def text_of_ids(ids: list[int]) -> str:
        need = f"explain_batch(tokenizer={tokenizer!r}) must go from ids to text, such as decode(ids) of a tokenizer"
        try:
            text = decode(ids)
        except Exception as error:
            raise ConfigurationError(
                f"{need}; of the ids {ids[:4]} it made {type(error).__name__}: {text_of(error)}"
            ) from error
        if not isinstance(text, (str, bytes)):
            raise ConfigurationError(f"{need}; of the ids {ids[:4]} it made a {type(text).__name__}")
        return repr(text)

    return text_of_ids


def _source_text(source: Contribution) -> str:
    dataset, shard, sample, start, stop = source
    tokens = "" if stop is None else f", tokens {start}:{stop}"
    where = "" if shard == dataset else f" {shard}"
    return f"{dataset}{where} sample {sample}{tokens}"


def _segments_table(row: RowPicture) -> str:
    shown = row.segments[:_MOST_SEGMENTS]
    left = len(row.segments) - len(shown)
    return table(
        ("columns", "segment", "positions", "loss on", "from", "text"),
        [
            (
                Cell(f"{s.start}:{s.stop}"),
                Markup(swatch(s.segment)),
                Cell("" if s.positions is None else f"{s.positions[0]} to {s.positions[1]}"),
                Cell("" if s.trained is None else s.trained),
                Cell("" if s.source is None else _source_text(s.source), left=True),
                Cell(s.text, left=True),
            )
            for s in shown
        ],
        more=f"and {left:,} more" if left else "",
    )


def _documents_table(rows: Sequence[RowPicture]) -> str:
    every = [(row, s) for row in rows for s in row.segments if s.segment]
    shown = every[:_MOST_SEGMENTS]
    left = len(every) - len(shown)
    return table(
        ("row", "columns", "segment", "from", "text"),
        [
            (
                row.row,
                Cell(f"{s.start}:{s.stop}"),
                Markup(swatch(s.segment)),
                Cell("" if s.source is None else _source_text(s.source), left=True),
                Cell(s.text, left=True),
            )
            for row, s in shown
        ],
        more=f"and {left:,} more documents" if left else "",
    )
