"""An S3 server on loopback, and a proxy in front of it that counts requests and misbehaves on demand."""

from __future__ import annotations

import http.client
import http.server
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import quote, urlsplit

# The server looks at who signed, not at the signature; what nobody signed may not be overwritten.
_SIGNED = "AWS4-HMAC-SHA256 Credential=testing/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00"


class Request(NamedTuple):
    method: str
    path: str
    range: str | None


class Answer(NamedTuple):
    """What the proxy says itself. `cut`: so many bytes of the body are sent, then the connection is closed."""

    status: int
    body: bytes = b""
    cut: int | None = None


Fault = Callable[[Request], Answer | str | None]
"""An answer, "hang", "no body", or None: the request goes to the server."""


def error(status: int, code: str) -> Answer:
    return Answer(status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode())


class Store:
    """Puts, deletes and counts; `url` is the endpoint to give to clients."""

    def __init__(self, upstream: str, proxy: http.server.ThreadingHTTPServer):
        self._upstream = upstream
        self.url = f"http://127.0.0.1:{proxy.server_address[1]}"
        self.prefix = ""
        self.requests: list[Request] = []
        self.fault: Fault | None = None
        self.closing = threading.Event()

    def put(self, key: str, content: bytes | str, bucket: str = "data") -> str:
        body = content if isinstance(content, bytes) else content.encode()
        assert self._ask("PUT", f"/{bucket}/{quote(key)}", body) == 200
        return f"s3://{bucket}/{key}"

    def delete(self, key: str, bucket: str = "data") -> None:
        assert self._ask("DELETE", f"/{bucket}/{quote(key)}") == 204

    def make_bucket(self, bucket: str) -> None:
        assert self._ask("PUT", f"/{bucket}") == 200

    def _ask(self, method: str, path: str, body: bytes | None = None) -> int:
        connection = http.client.HTTPConnection(self._upstream, timeout=20)
        try:
            connection.request(method, path, body, {"Authorization": _SIGNED})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def reads(self, key: str) -> list[Request]:
        return [r for r in self.requests if r.path.endswith(f"/{quote(key)}") and r.method == "GET"]


@contextmanager
def proxied(upstream: str) -> Generator[Store, None, None]:
    """A proxy in front of the server at host:port `upstream`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 10

        def log_message(self, *args: object) -> None:
            pass

        def answer(self) -> None:
            request = Request(self.command, urlsplit(self.path).path, self.headers.get("Range"))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            store.requests.append(request)
            told = store.fault(request) if store.fault is not None else None
            if told == "hang":
                store.closing.wait(8)
                self.close_connection = True
                return
            if isinstance(told, Answer):
                self.send(told.status, [], told.body, told.cut)
                return
            connection = http.client.HTTPConnection(upstream, timeout=20)
            try:
                connection.request(self.command, self.path, body or None, dict(self.headers))
                reply = connection.getresponse()
                content = reply.read()
            finally:
                connection.close()
            if told == "no body" and reply.status >= 400:
                content = b""
            dropped = {"content-length", "connection", "transfer-encoding"}
            headers = [(name, value) for name, value in reply.getheaders() if name.lower() not in dropped]
            if self.command == "HEAD":
                headers.append(("Content-Length", reply.getheader("Content-Length") or "0"))
            self.send(
                reply.status, headers, content, int(told[4:]) if isinstance(told, str) and told[:4] == "cut " else None
            )

        def send(self, status: int, headers: list[tuple[str, str]], body: bytes, cut: int | None) -> None:
            self.send_response_only(status)
            for name, value in headers:
                self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body if cut is None else body[:cut])
            if cut is not None:
                self.close_connection = True

        do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = answer

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    store = Store(upstream, server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="proxy")
    thread.start()
    try:
        yield store
    finally:
        store.closing.set()
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)
