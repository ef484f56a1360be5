"""An object store with the API of S3 on a loopback address: moto, behind a proxy that can fail as stores do.

The proxy handles one conditional request at a time, because moto tests a condition and writes in two steps.
"""

import http.client
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from moto.server import ThreadedMotoServer

from tidemark.io.process.lake_config import LakeConfig
from tidemark.pipeline.storage.object_client import RequestLimits

HOST = "127.0.0.1"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "a secret"}
QUICK = RequestLimits(connect_s=1.0, answer_s=5.0, retries_max=1, retry_s=2.0, backoff_s=0.01, backoff_s_max=0.02)
Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """A request: `key` is the name of the object, or of the prefix that is listed; "" for another one of the bucket."""

    method: str
    key: str
    is_listing: bool
    access_key: str


class ConnectionCut(Exception):
    """The connection ends without an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the store."""

    status: int
    headers: Headers
    body: bytes


Forward = Callable[[], Answer]
Fault = Callable[[StoreRequest, Forward], Answer]
"""Answers a request, by the store or otherwise; raises `ConnectionCut`."""


def forwarded(_request: StoreRequest, forward: Forward) -> Answer:
    """Answer as the store does."""
    return forward()


def refusal(status: int, code: str) -> Answer:
    """Return an answer with an error of S3."""
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
    return Answer(status, [("Content-Type", "application/xml")], body.encode())


@dataclass
class FaultyStore:
    """The store: `fault` decides about each request; `requests` are all that arrived."""

    port: int
    fault: Fault = forwarded
    requests: list[StoreRequest] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def endpoint(self) -> str:
        """Return its URL."""
        return f"http://{HOST}:{self.port}"

    @property
    def config(self) -> LakeConfig:
        """Return the settings with which it is reached."""
        return LakeConfig(store_endpoint=self.endpoint)

    def environment(self) -> dict[str, str]:
        """Return environment variables for a program that uses it."""
        return {**ENVIRONMENT, "AWS_ENDPOINT_URL": self.endpoint}

    @contextmanager
    def failing(self, fault: Fault) -> Iterator[None]:
        """Let requests fail for a while."""
        self.fault = fault
        try:
            yield
        finally:
            self.fault = forwarded

    def create_bucket(self, name: str) -> None:
        """Create a bucket."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        connection.request("PUT", f"/{name}")
        assert connection.getresponse().status == http.HTTPStatus.OK
        connection.close()


@contextmanager
def object_store() -> Iterator[FaultyStore]:
    """Run the store."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(HOST, 0, verbose=False)
    moto.start()
    _, moto_port = moto.get_host_and_port()
    with ThreadingHTTPServer((HOST, 0), _StoreProxy) as server:
        server.daemon_threads = True
        server.store, server.moto_port = FaultyStore(server.server_address[1]), moto_port  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.store  # type: ignore[attr-defined]
        finally:
            server.shutdown()
            thread.join()
            moto.stop()


class _StoreProxy(BaseHTTPRequestHandler):
    """Forwards requests."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a body after its headers would wait 40 ms for an acknowledgement
    server: ThreadingHTTPServer

    def _answer(self) -> None:
        store: FaultyStore = self.server.store  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = _parsed(self.command, self.path, self.headers.get("Authorization") or "")
        store.requests.append(request)
        try:
            if self.headers.get("If-None-Match"):
                with store.lock:
                    answer = store.fault(request, lambda: self._forward(body))
            else:
                answer = store.fault(request, lambda: self._forward(body))
        except ConnectionCut:
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        length = next((value for name, value in answer.headers if name.lower() == "content-length"), None)
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            with suppress(ConnectionError):  # the client needs no more of the answer
                self.wfile.write(answer.body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815 - as http.server has them

    def _forward(self, body: bytes) -> Answer:
        connection = http.client.HTTPConnection(HOST, self.server.moto_port)  # type: ignore[attr-defined]
        try:
            connection.request(self.command, self.path, body or None, dict(self.headers))
            answer = connection.getresponse()
            return Answer(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server has it
        """Log nothing."""


def _parsed(method: str, path: str, authorization: str) -> StoreRequest:
    place, _, query = path.partition("?")
    _, _, key = unquote(place).lstrip("/").partition("/")
    is_listing = method == "GET" and "list-type" in query
    if is_listing:
        parts = dict(part.partition("=")[::2] for part in query.split("&"))
        key = unquote(parts.get("prefix", ""))
    credential = authorization.partition("Credential=")[2].partition("/")[0]
    return StoreRequest(method, key, is_listing, credential)
