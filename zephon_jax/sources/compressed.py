"""gzip and zstd streams, whole or an error.

A compressed file is decompressed once, into the shard cache, and read from there at random: neither format can be
entered in the middle. Both may hold several members (frames), one behind the other. A file that is cut off is an error:
the one-shot calls of the libraries, and zstandard's stream reader, take a truncated zstd stream for a short one.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import zstandard

from zephon_jax.errors import DataError
from zephon_jax.sources import cache
from zephon_jax.sources.storage import StoredFile, stream

__all__ = ["SUFFIXES", "codec_of", "decompressed", "decompressed_copy"]

SUFFIXES = (".gz", ".zst")
_FEED_BYTES = 64 << 10  # compressed bytes at a time: what comes out of a call is bounded by it


def codec_of(path: str) -> str | None:
    """The suffix that says how a file is compressed."""
    return next((suffix for suffix in SUFFIXES if path.endswith(suffix)), None)


@contextlib.contextmanager
def decompressed_copy(file: StoredFile) -> Generator[str, None, None]:
    """The path of the decompressed content in the shard cache, which is not evicted while the block runs."""
    wanted = cache.Wanted(file.path, f"{file.stamp} decompressed", None, lambda: decompressed(stream(file), file.path))
    with cache.shard_cache().pinned(wanted) as path:
        yield path


def decompressed(blocks: Iterable[bytes], path: str) -> Iterator[bytes]:
    """The content of these compressed bytes; `path` tells the format, and stands in errors.

    Raises:
        DataError: The stream is damaged, cut off, or followed by something else.
    """
    codec, at, members, decoder = codec_of(path), 0, 0, None
    try:
        for block in blocks:
            for start in range(0, len(block), _FEED_BYTES):
                piece = block[start : start + _FEED_BYTES]
                at += len(piece)
                while piece:
                    if decoder is None:
                        if (
                            members and codec == ".gz" and not (piece := piece.lstrip(b"\0"))
                        ):  # padding, as tapes have it
                            break
                        decoder, members = _decoder(codec), members + 1
                    if content := decoder.decompress(piece):
                        yield content
                    piece = b""
                    if decoder.eof:
                        piece, decoder = decoder.unused_data, None
    except (zlib.error, zstandard.ZstdError) as error:
        raise DataError(
            f"{path}: the compressed content is damaged near byte {at:,}: {error}. Fetch or write the file again",
            path=path,
        ) from error
    if decoder is not None or not members:
        raise DataError(
            f"{path}: the compressed content is cut off after {at:,} bytes: its last {'member' if codec == '.gz' else 'frame'} "
            "has no end. Fetch or write the file again",
            path=path,
        )


def _decoder(codec: str | None) -> Any:
    if codec == ".gz":
        return zlib.decompressobj(wbits=31)
    return zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj()
