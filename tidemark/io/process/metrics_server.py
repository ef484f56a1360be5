"""The endpoint of the metrics: prometheus_client's page, served without wake-ups while nobody reads it."""

import socket
import threading
from typing import Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from tidemark.model.errors import ConfigError


class Exported(Protocol):
    """Metrics in a separate registry."""

    registry: CollectorRegistry


class MetricsServer:
    """The endpoint, served by a separate thread."""

    def __init__(self, metrics: Exported, host: str, port: int) -> None:
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            server_class = type("Server", (ThreadingWSGIServer,), {"address_family": family})
            self._server: WSGIServer = make_server(
                str(address[0]), port, make_wsgi_app(metrics.registry), server_class, _ScrapeHandler
            )
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics on {host}:{port}: {error.strerror}",
                hint="choose another metrics.port, or 0 for a free one",
            ) from error
        self.port: int = self._server.server_port
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._is_closed = True
        self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._server.server_close()

    def _serve(self) -> None:
        while not self._is_closed:
            self._server.handle_request()  # NB: `serve_forever`, prometheus_client's own way, wakes twice a second


class _ScrapeHandler(WSGIRequestHandler):
    """Logs no requests."""

    def log_message(self, *_: object) -> None:
        """Log nothing."""
