"""Object storage by tensorstore's key-value stores: s3:// and gs://. The only file that knows of tensorstore's drivers.

tensorstore brings credentials, signatures, retries and connections. Three things are added here.

**Bounds.** Retries are counted, every result is waited for at most `ZEPHON_JAX_REQUEST_TIMEOUT_S` (60), and at most 32
requests of a call are in flight. By default tensorstore retries for minutes, and a server that accepts and says nothing
would hold it for ever.

**Sizes.** The Python interface has no call for an object's size: a listing gives keys only, a result only its content and
generation. A request far behind the end costs one round trip and no content, and the refusal of S3 and of the servers
that imitate it names the size. Where it does not, reads of one byte, fifteen at a time, come close to the end, and a range
that reaches over it is answered with the total size, which tensorstore's refusal repeats. A read of the first byte, sent at
the same moment, gives the generation (the etag) and, unlike a HEAD, an error with a text.

**One content.** Each result's generation is compared with the one seen first, so that an object replaced during a run is
an error. tensorstore's `read` can refuse an equal generation, not an unequal one, hence after the fact.

There is one store per bucket and process, which fetches credentials once.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from zephon_jax.errors import ConfigurationError, DataError

__all__ = [
    "exists",
    "keys_below",
    "read_object",
    "read_ranges",
    "request_timeout_s",
    "spec",
    "split",
    "stat_all",
    "stream",
    "write_object",
]

_IN_FLIGHT = 32
_PART_BYTES = 16 << 20  # larger ranges are read in parts
_AHEAD = 2  # blocks of a stream that are on their way
_PROBED_AT_ONCE = 8  # objects whose size has to be found
_STATS_IN_FLIGHT = 128  # these carry no content
_RETRIES = {"max_retries": 6, "initial_delay": "250ms", "max_delay": "8s"}  # 16 s of waiting in all
_LISTING = 10  # a listing is many requests, one behind the other: its time-out is so many times that of one
_NEAR_BYTES = 1 << 20  # so close to the end, reading the rest costs less than more round trips
_BEYOND = 10**15  # behind the end of any object: these have at most some 5e13 bytes
_SIZE = re.compile(r"ActualObjectSize>(\d+)<|total size (\d+)|value of size (\d+)|bytes \d+-\d+/(\d+)")

_stores: dict[tuple[Any, ...], Any] = {}
_stores_lock = threading.Lock()


# -- stores ------------------------------------------------------------------------------------------------------------
def split(url: str) -> tuple[str, str, str]:
    """Scheme, bucket and key of a URL."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if not bucket:
        raise ConfigurationError(f"{url}: the bucket is missing; {scheme}://BUCKET/KEY was expected")
    return scheme, bucket, key


def spec(scheme: str, bucket: str) -> dict[str, Any]:
    """What tensorstore is asked to open. `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL` and `AWS_REGION` are honoured."""
    if scheme == "gs":
        return {"driver": "gcs", "bucket": bucket, "context": _context("gcs")}
    found: dict[str, Any] = {"driver": "s3", "bucket": bucket, "context": _context("s3")}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint:
        found |= {"endpoint": endpoint, "aws_region": region or "us-east-1"}
    elif region:
        found["aws_region"] = region
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        # The first link of the default chain. Named outright, the others do not complain about files that are not there.
        found["aws_credentials"] = {"type": "environment"}
    return found


def _context(driver: str) -> dict[str, Any]:
    return {f"{driver}_request_retries": _RETRIES, f"{driver}_request_concurrency": {"limit": _STATS_IN_FLIGHT}}


def _store(url: str) -> tuple[Any, str]:
    """The open store of the URL's bucket, and the key in it."""
    scheme, bucket, key = split(url)
    wanted = spec(scheme, bucket)
    name = (os.getpid(), scheme, bucket, wanted.get("endpoint"), wanted.get("aws_region"))
    with _stores_lock:
        if name not in _stores:
            import tensorstore as ts

            try:
                _stores[name] = ts.KvStore.open(wanted).result(timeout=request_timeout_s())
            except (ValueError, TimeoutError) as error:
                raise _explained(url, error) from error
        return _stores[name], key


def request_timeout_s() -> float:
    """How long one request may take, retries included: `ZEPHON_JAX_REQUEST_TIMEOUT_S`, or a minute."""
    text = os.environ.get("ZEPHON_JAX_REQUEST_TIMEOUT_S") or "60"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ConfigurationError(f"ZEPHON_JAX_REQUEST_TIMEOUT_S={text!r} must be a number of seconds above 0")
    return seconds


def _in_flight(requests: Iterable[Callable[[], Any]], limit: int = _IN_FLIGHT) -> Iterator[Any]:
    """The result of each request, or the exception it ended with, in order; `limit` of them run at a time."""
    waiting: collections.deque[Any] = collections.deque()
    timeout_s = request_timeout_s()

    def first() -> Any:
        try:
            return waiting.popleft().result(timeout=timeout_s)
        except (ValueError, TimeoutError) as error:
            return error

    try:
        for request in requests:
            if len(waiting) == limit:
                yield first()
            waiting.append(request())
        while waiting:
            yield first()
    finally:
        for future in waiting:
            future.cancel()


# -- looking at objects ------------------------------------------------------------------------------------------------
def stat_all(urls: Sequence[str]) -> list[tuple[int, str]]:
    """Size in bytes and stamp of each object; DataError for the first one that cannot be read."""

    def requests() -> Iterator[Callable[[], Any]]:
        for url in urls:
            store, key = _store(url)
            for at in (0, _BEYOND):
                yield functools.partial(store.read, key, byte_range=slice(at, at + 1))

    results = _in_flight(requests(), _STATS_IN_FLIGHT)
    stamps: list[str] = []
    sizes: list[int | None] = []
    for url in urls:
        size, stamp = _looked_at(url, next(results), next(results))
        sizes.append(size)
        stamps.append(stamp)
    if unknown := [url for url, size in zip(urls, sizes, strict=True) if size is None]:
        with concurrent.futures.ThreadPoolExecutor(_PROBED_AT_ONCE, "zephon_jax-sizes") as pool:
            probed = iter(list(pool.map(_size_by_probing, unknown)))
        sizes = [next(probed) if size is None else size for size in sizes]
    return [(size, f"{size}-{stamp}") for size, stamp in zip(sizes, stamps, strict=True) if size is not None]


def exists(url: str) -> bool:
    """Whether there is such an object."""
    store, key = _store(url)
    result = next(_in_flight([functools.partial(store.read, key, byte_range=slice(0, 1))]))
    if _missing(result):
        return False
    if not _out_of_range(result):
        _generation(url, result)
    return True


def _looked_at(url: str, first_byte: Any, beyond: Any) -> tuple[int | None, str]:
    """The object's size, None if the server does not tell, and its generation."""
    if _out_of_range(first_byte):
        return 0, "empty"
    stamp = _generation(url, first_byte)
    if isinstance(beyond, ValueError) and (told := _told_size(beyond)) is not None:
        return told, stamp
    if _out_of_range(beyond):
        return None, stamp
    _generation(url, beyond)  # an error or a missing object is told as such
    raise DataError(
        f"{url}: the server answers ranges behind the end of an object, which is no object storage", path=url
    )


def _told_size(refusal: ValueError) -> int | None:
    """The object's size, if the refusal of a range names it."""
    found = _SIZE.search(str(refusal))
    return None if found is None else int(next(filter(None, found.groups())))


def _size_by_probing(url: str) -> int:
    """The size of an object that has at least one byte, by reading single bytes."""
    store, key = _store(url)

    def there(offsets: list[int]) -> int:
        """How many of these ascending offsets lie within the object."""

        def requests() -> Iterator[Callable[[], Any]]:
            for at in offsets:
                yield functools.partial(store.read, key, byte_range=slice(at, at + 1))

        results = list(_in_flight(requests()))
        for result in results:
            if not _out_of_range(result):
                _generation(url, result)
        return sum(not _out_of_range(result) for result in results)

    powers = [16**n for n in range(1, 13)]
    n = there(powers)
    low, high = [0, *powers][n], [*powers, _BEYOND][n]
    while high - low > 1:  # the byte at `low` is there, the one at `high` is not
        if high - low <= _NEAR_BYTES:
            over = next(_in_flight([functools.partial(store.read, key, byte_range=slice(low, high + 1))]))
            if isinstance(over, ValueError) and (told := _told_size(over)) is not None:
                return told
        offsets = sorted({low + (high - low) * k // 16 for k in range(1, 16)} - {low})
        n = there(offsets)
        low, high = [low, *offsets][n], [*offsets, high][n]
    return high


def _out_of_range(result: Any) -> bool:
    return isinstance(result, ValueError) and str(result).startswith("OUT_OF_RANGE")


def _missing(result: Any) -> bool:
    return not isinstance(result, Exception) and result.state == "missing"


def _generation(url: str, result: Any) -> str:
    """The generation of a result, hexadecimal; DataError if it is none."""
    if isinstance(result, Exception):
        raise _explained(url, result) from result
    if result.state != "value":
        scheme, bucket, key = split(url)
        raise DataError(
            f"{url}: there is no object {key!r} in bucket {bucket!r}, or no such bucket: {scheme} gives one answer to both",
            path=url,
        )
    return bytes(result.stamp.generation).hex()


def keys_below(url: str) -> list[str]:
    """The URLs of all objects whose key begins with that of this URL, sorted. One request per 1,000 of them."""
    import tensorstore as ts

    store, prefix = _store(url)
    try:
        keys = store.list(_prefix_range(ts, prefix)).result(timeout=_LISTING * request_timeout_s())
    except (ValueError, TimeoutError) as error:
        raise _explained(url, error) from error
    scheme, bucket, _ = split(url)
    return sorted(f"{scheme}://{bucket}/{key.decode('utf-8', 'surrogateescape')}" for key in keys)


def _prefix_range(ts: Any, prefix: str) -> Any:
    if not prefix:
        return ts.KvStore.KeyRange()
    first = prefix.encode("utf-8", "surrogateescape")
    return ts.KvStore.KeyRange(first, first[:-1] + bytes([first[-1] + 1]))


# -- reading and writing -----------------------------------------------------------------------------------------------
def read_ranges(url: str, size: int, stamp: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Bytes [start, stop) of each range of an object that was looked at before."""
    parts = [
        (i, at, min(at + _PART_BYTES, stop))
        for i, (start, stop) in enumerate(ranges)
        for at in range(start, stop, _PART_BYTES)
    ]
    pieces: list[list[bytes]] = [[] for _ in ranges]
    for (i, _, _), piece in zip(
        parts, _parts(url, size, stamp, [(a, b) for _, a, b in parts], _IN_FLIGHT), strict=True
    ):
        pieces[i].append(piece)
    return [one[0] if len(one) == 1 else b"".join(one) for one in pieces]


def stream(url: str, size: int, stamp: str, block_bytes: int) -> Iterator[bytes]:
    """The whole object in blocks, a few of them ahead."""
    yield from _parts(url, size, stamp, [(a, min(a + block_bytes, size)) for a in range(0, size, block_bytes)], _AHEAD)


def _parts(url: str, size: int, stamp: str, parts: list[tuple[int, int]], limit: int) -> Iterator[bytes]:
    store, key = _store(url)

    def requests() -> Iterator[Callable[[], Any]]:
        for start, stop in parts:
            yield functools.partial(store.read, key, byte_range=slice(start, stop))

    for (start, stop), result in zip(parts, _in_flight(requests(), limit), strict=True):
        if _out_of_range(result) or f"{size}-{_generation(url, result)}" != stamp:
            raise DataError(
                f"{url} has changed since it was indexed (bytes {start} to {stop} of {size} were asked for); a dataset must "
                "not change while it is used. Make the Dataset again, so that checkpoints are compared with its new content",
                path=url,
            )
        yield result.value


def read_object(url: str) -> bytes | None:
    """A whole, small object; None if it is not there."""
    store, key = _store(url)
    result = next(_in_flight([lambda: store.read(key)]))
    if _missing(result):
        return None
    _generation(url, result)
    return result.value


def write_object(url: str, content: bytes) -> None:
    """Write an object, whole or not at all."""
    store, key = _store(url)
    result = next(_in_flight([lambda: store.write(key, content)]))
    if isinstance(result, Exception):
        raise _explained(url, result) from result


# -- errors ------------------------------------------------------------------------------------------------------------
_CLASSES = (
    (r"NoSuchBucket|missing <ListBucketResult>", "there is no such bucket"),
    (
        r"curl_code='3'",
        "the storage library cannot ask for an object of this name (tensorstore 0.1.86 can); rename it, or upgrade",
    ),
    (r"ExpiredToken|expired", "the credentials have expired; get new ones and start again"),
    (
        r"PERMISSION_DENIED|http_response_code='403'",
        "access is denied: the credentials that were found may not read it, or there are none",
    ),
    (r"UNAUTHENTICATED|http_response_code='401'|[Cc]redentials", "no valid credentials were found"),
    (r"curl_code='6'|curl_code='7'", "the server cannot be reached; is the endpoint right?"),
    (r"curl_code|ABORTED.*(EOF|reset|truncated)", "the connection was cut, again and again"),
    (
        r"http_response_code='(429|503)'",
        "the server asks for fewer requests (throttling) or is not available, again and again",
    ),
    (r"http_response_code='(301|307)'|AuthorizationHeaderMalformed", "the bucket is in another region; set AWS_REGION"),
)


def _explained(url: str, error: BaseException) -> DataError:
    """What tensorstore's error means: nearly all are ValueErrors, told apart by their text only."""
    _, bucket, key = split(url)
    text = str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        what = (
            f"no answer within {request_timeout_s():g} s; set ZEPHON_JAX_REQUEST_TIMEOUT_S if the network is that slow"
        )
    else:
        what = next(
            (meaning for pattern, meaning in _CLASSES if re.search(pattern, text, re.DOTALL)), "the request failed"
        )
    return DataError(
        f"{url} (bucket {bucket!r}, key {key!r}): {what}. The storage library says: {text[:600]}", path=url
    )
