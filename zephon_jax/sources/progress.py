"""A bar on the screen of someone who waits, and nothing anywhere else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator

__all__ = ["progress"]

_DELAY_S = 1.0  # what is faster than that needs no bar


@contextlib.contextmanager
def progress(files: int, size: int, what: str) -> Generator[Callable[[int], object], None, None]:
    """Shows how much of `size` bytes in `files` files is done, after a second, if tqdm is there and somebody looks.

    The function that it gives takes the bytes of one more file.
    """
    bar = None
    if sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules):  # pyright: ignore[reportUnnecessaryComparison]
        with contextlib.suppress(ImportError):
            from tqdm import tqdm

            bar = tqdm(
                total=size, desc=f"{what} {files:,} files", unit="B", unit_scale=True, delay=_DELAY_S, file=sys.stderr
            )
    try:
        yield (lambda done: None) if bar is None else bar.update
    finally:
        if bar is not None:
            bar.close()
