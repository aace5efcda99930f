"""A bar for a training loop: how fast it goes, how much of it waits for input, and how long it still takes.

It stands outside the iterator and changes nothing of it: it times `next` from the outside, counts steps, and looks at the
shapes of batches, never at their values, which may not be computed yet.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self, TextIO

from zephon_jax.emit.iterator import PipelineIterator
from zephon_jax.errors import ConfigurationError

__all__ = ["Progress", "progress"]

_SCREEN_S: Final = 0.2  # between two pictures of the bar
_LOG_S: Final = 60.0  # between two lines where nobody watches
_REPLAY_S: Final = 1.0  # a replay that is faster than that needs no bar
_CELLS: Final = 20
_TOKENS: Final = ("tokens", "inputs", "decoder_input_tokens")


class Progress(Iterator[Any]):
    """What `progress` returns: the same batches, one by one, and a bar. `str()` is what the bar says."""

    def __init__(
        self,
        batches: Iterable[Any],
        total: int | None,
        first: int,
        every_s: float,
        file: TextIO | None,
        clock: Callable[[], float],
    ):
        self._closed = True  # until everything that close() looks at is there
        self._source = batches
        self._batches = iter(batches)
        self._total, self._first, self._every_s, self._file, self._clock = total, first, every_s, file, clock
        self._screen = _is_watched(file)
        self._started: float | None = None  # when the first batch was there: what comes before it is no rate
        self._shown = clock()
        self._bar: Any = None
        self._plain = False
        self._width = 0
        self.steps = 0
        self.tokens = 0
        self.wait_s = 0.0
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        began = self._clock()
        try:
            batch = self._first_of() if self._started is None else next(self._batches)
        except BaseException:  # the end, an error or Ctrl-C: the line is finished, and what was raised goes on
            self.close()
            raise
        now = self._clock()
        self.steps += 1
        if self._started is None:
            self._started = now
            if self._screen:
                self._shown = now
                self._show()  # a bar that is made now has the same beginning
        else:
            self.wait_s += now - began
            self.tokens += _places(batch)
        if now - self._shown >= self._every_s:
            self._shown = now
            self._show()
        return batch

    def _first_of(self) -> Any:
        """The first batch; while it is waited for, a replay says how far it is."""
        if not self._screen or not isinstance(self._source, PipelineIterator) or not self._source.replay_progress()[1]:
            return next(self._batches)
        done = threading.Event()
        ticker = threading.Thread(target=self._watch_replay, args=(done, self._source), name="zephon-bar", daemon=True)
        ticker.start()
        try:
            return next(self._batches)
        finally:
            done.set()
            ticker.join()

    def _watch_replay(self, done: threading.Event, source: PipelineIterator) -> None:
        wait = _REPLAY_S
        while not done.wait(wait):
            chunks, total = source.replay_progress()
            self._write(f"\r{_drawn(chunks, total)} replaying after the restore: {chunks:,} of {total:,} chunks")
            wait = _SCREEN_S

    # -- what it says ----------------------------------------------------------------------------------------------
    @property
    def steps_per_s(self) -> float:
        """Since the first batch was there; 0 before the second."""
        elapsed = self._elapsed()
        return (self.steps - 1) / elapsed if elapsed > 0 else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Places of rows, padding included, since the first batch was there."""
        elapsed = self._elapsed()
        return self.tokens / elapsed if elapsed > 0 else 0.0

    @property
    def wait_fraction(self) -> float:
        """The part of that time for which the loop waited for its next batch."""
        elapsed = self._elapsed()
        return self.wait_s / elapsed if elapsed > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds until `total`, at the rate so far; None if that is not known."""
        if self._total is None or not self.steps_per_s:
            return None
        return max(self._total - self._first - self.steps, 0) / self.steps_per_s

    def _elapsed(self) -> float:
        return 0.0 if self._started is None else self._clock() - self._started

    def _rates(self) -> str:
        parts = [f"{self.steps_per_s:.3g} steps/s"]
        if self.tokens:
            parts.append(f"{_scaled(self.tokens_per_s)} tokens/s")
        parts.append(f"input wait {100 * self.wait_fraction:.0f} %")
        return ", ".join(parts)

    def __str__(self) -> str:
        at = self._first + self.steps
        if self._total is not None and at > self._total:  # the last step was another one
            return f"step {at:,}, past {self._total:,}, {self._rates()}"
        head = f"step {at:,}" if self._total is None else f"{_drawn(at, self._total)} step {at:,} of {self._total:,}"
        left = "" if self.left_s is None else f", {_clocked(self.left_s)} left"
        return f"{head}, {self._rates()}{left}"

    # -- where it says it ------------------------------------------------------------------------------------------
    def _show(self) -> None:
        if not self._screen:
            self._write(f"{self}\n")
            return
        if self._bar is None and not self._plain:
            self._bar = _tqdm_bar(self._total, self._first + self.steps, self._file)
            self._plain = self._bar is None
        if self._bar is None:
            self._write(f"\r{self}")
            return
        with contextlib.suppress(OSError, ValueError):  # as in _write
            self._bar.set_postfix_str(self._rates().partition(", ")[2], refresh=False)  # it counts steps itself
            self._bar.update(self._first + self.steps - self._bar.n)
            self._bar.refresh()

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        with contextlib.suppress(OSError, ValueError):  # a terminal that is gone is no reason to end a training
            if text.startswith("\r"):
                columns = _columns(self._file)
                line = text[1:][: columns - 1]
                text = "\r" + line.ljust(min(self._width, columns - 1))
                self._width = len(line)
            self._file.write(text)
            self._file.flush()

    def close(self) -> None:
        """Finish the line. What it goes over stays open: that is for whoever made it to close."""
        if self._closed:
            return
        self._closed = True
        if self.steps:
            self._show()
        if self._bar is not None:  # its truth is its total
            with contextlib.suppress(OSError, ValueError):
                self._bar.close()
        elif self._screen and self._width:
            self._write("\n")

    def __del__(self) -> None:
        if not sys.is_finalizing():  # a loop that was left by `break`
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def progress(
    batches: Iterable[Any],
    total: int | None = None,
    *,
    every_s: float | None = None,
    file: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """Goes over the same batches, and shows steps per second, tokens per second, the share of time that waits for input, and
    the time left where it is known.

    Args:
        batches: An iterator of a pipeline, or anything else that gives batches.
        total: Steps at the end of the run, counted from the start of the stream like `step`, so that it stays the same after a
            resume. Left out, a pipeline's iterator that ends says it where it is known before data is read.
        every_s: Seconds between two pictures: on a screen or in a notebook 0.2, elsewhere (a log) 60, a line each.
        file: Where to; by default the standard error. Where that is None (no console), nothing is shown.
        clock: Seconds that only grow.

    With tqdm installed (`pip install "zephon-jax[progress]"`) its bar is drawn on a screen, without it a line of text. Tokens
    are places of rows of `tokens` or `inputs`, padding included, of this process's view of the batch. While a restore
    replays, the first `next` shows how far it is. Use it from one thread, like the iterator.

    >>> import io
    >>> said = io.StringIO()
    >>> sum(progress([1, 2, 3], total=3, file=said))
    6
    >>> said.getvalue().startswith("[####################] step 3 of 3, ")
    True
    """
    if isinstance(batches, (str, bytes, Mapping)) or not isinstance(batches, Iterable):
        raise ConfigurationError(
            f"progress needs something to go over, such as an iterator, got {type(batches).__name__}"
        )
    if total is not None and (isinstance(total, bool) or not isinstance(total, int) or total < 0):
        raise ConfigurationError(f"progress(total={total!r}) must be the number of the last step")
    if every_s is not None and (isinstance(every_s, bool) or not isinstance(every_s, (int, float)) or every_s < 0):
        raise ConfigurationError(f"progress(every_s={every_s!r}) must be a number of seconds")
    first = 0
    if isinstance(batches, PipelineIterator):
        first = batches.step
        total = batches.last_step() if total is None else total
    out = sys.stderr if file is None else file
    every = (_SCREEN_S if _is_watched(out) else _LOG_S) if every_s is None else every_s
    return Progress(batches, total, first, every, out, clock)


def _is_watched(file: TextIO | None) -> bool:
    if file is None:
        return False
    try:
        return file.isatty() or (file is sys.stderr and "ipykernel" in sys.modules)
    except (AttributeError, ValueError):  # no file after all, or closed
        return False


def _tqdm_bar(total: int | None, first: int, file: TextIO | None) -> Any:
    """A bar of tqdm; None if it is not installed, or there is no screen any more."""
    try:
        from tqdm import tqdm

        return tqdm(total=total, initial=first, unit="step", file=file, dynamic_ncols=True)
    except (ImportError, OSError, ValueError):
        return None


def _columns(file: TextIO) -> int:
    try:
        return max(20, os.get_terminal_size(file.fileno()).columns or 80)
    except (OSError, ValueError, AttributeError):
        return 80


def _places(batch: object) -> int:
    """Of the rows of tokens in a batch, from the shape alone."""
    if not isinstance(batch, Mapping):
        return 0
    for name in _TOKENS:
        shape = getattr(batch.get(name), "shape", None)
        if shape is not None and len(shape) >= 2:
            n = 1
            for size in shape:
                n *= int(size)
            return n
    return 0


def _drawn(done: int, total: int) -> str:
    full = _CELLS * min(done, total) // total if total else _CELLS
    return f"[{'#' * full}{'.' * (_CELLS - full)}]"


def _scaled(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _clocked(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
