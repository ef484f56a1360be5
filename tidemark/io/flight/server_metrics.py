"""The metrics of the outbox server: the only definition of their names (I42)."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from tidemark.io.process.metrics import CAPTURE_LABEL, KIND_LABEL
from tidemark.wire.outbox_requests import Query

REQUESTS = "tidemark_server_requests_total"
ERRORS = "tidemark_server_errors_total"
REFUSED = "tidemark_server_refused_total"
STREAMS = "tidemark_server_streams"
STREAMS_MAX = "tidemark_server_streams_max"
SENT_BYTES = "tidemark_server_sent_bytes_total"
VALUES_KIND = "values"


class ServerMetrics:
    """The metrics of one server, in a separate registry."""

    def __init__(self, capture: str) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._requests = Counter(REQUESTS, "Requests, by kind.", [CAPTURE_LABEL, KIND_LABEL], registry=self.registry)
        self._capture = capture
        for kind in (VALUES_KIND, *(query.value for query in Query)):
            self._requests.labels(capture, kind)
        self.errors = self._counter(ERRORS, "Requests that ended with an error.")
        self.refused = self._counter(REFUSED, "Requests refused for a wrong token or because too many run.")
        self.sent_bytes = self._counter(SENT_BYTES, "Bytes of values sent.")
        self.streams = self._gauge(STREAMS, "Streams of values that are being sent.")
        self.streams_max = self._gauge(STREAMS_MAX, "Bound of the streams at once.")

    def count(self, kind: str) -> None:
        """Count a request."""
        self._requests.labels(self._capture, kind).inc()

    def _counter(self, name: str, description: str) -> Counter:
        return Counter(name, description, [CAPTURE_LABEL], registry=self.registry).labels(self._capture)

    def _gauge(self, name: str, description: str) -> Gauge:
        return Gauge(name, description, [CAPTURE_LABEL], registry=self.registry).labels(self._capture)
