"""The metrics: every name and label of ours stands here, once (I42).

Prefix `tidemark_`, base units, counters end in `_total`. No relation's name is a label. Rows that belong to the archive
(its lag, switches, markers) are added with the archiver.
"""

from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from tidemark.model.errors import ConfigError

LAG_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
BATCH_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
CAPTURE_LABEL = "capture"

RING_CAPACITY = "tidemark_ring_capacity_bytes"
RING_USED = "tidemark_ring_used_bytes"
RING_HIGH_WATER = "tidemark_ring_high_water_bytes"
RING_FULL = "tidemark_ring_full_total"
QUEUE_USED = "tidemark_decode_queue_bytes"
MODE = "tidemark_mode"
RECEIVED_LSN = "tidemark_received_lsn_bytes"
DECODED_LSN = "tidemark_decoded_lsn_bytes"
DELIVERED_LSN = "tidemark_delivered_lsn_bytes"
CONFIRMED_LSN = "tidemark_confirmed_lsn_bytes"
LAG_BYTES = "tidemark_lag_bytes"
LAG_SECONDS = "tidemark_commit_to_consumer_seconds"
WAL_BYTES = "tidemark_wal_received_bytes_total"
SEGMENTS = "tidemark_segments_read_total"
RECORDS = "tidemark_records_decoded_total"
TRANSACTIONS = "tidemark_transactions_delivered_total"
ROWS = "tidemark_rows_delivered_total"
GROUPS = "tidemark_groups_delivered_total"
DELIVERY_SECONDS = "tidemark_delivery_seconds"
RECONNECTS = "tidemark_reconnects_total"
ERRORS = "tidemark_errors_total"
SPILLED = "tidemark_spilled_bytes_total"
OPEN_TRANSACTIONS = "tidemark_open_transactions"
OUTBOX_USED = "tidemark_outbox_used_bytes"
OUTBOX_CAPACITY = "tidemark_outbox_capacity_bytes"
OUTBOX_FULL = "tidemark_outbox_full_total"
READER_LAG = "tidemark_outbox_unconfirmed_values"
JOURNAL_BYTES = "tidemark_journal_bytes_total"
COPY_TABLES_LEFT = "tidemark_copy_tables_left"
COPY_ROWS = "tidemark_copy_rows_total"
CONNECTED = "tidemark_node_connected"
KERNEL_COMPILED = "tidemark_kernel_compiled"


class Metrics:
    """The metrics of one process, in a registry of its own."""

    def __init__(self, capture: str) -> None:
        self.registry = CollectorRegistry()
        self._capture = capture
        self.ring_capacity = self._gauge(RING_CAPACITY, "Size of the ring of received WAL.")
        self.ring_used = self._gauge(RING_USED, "WAL in the ring that is not decoded.")
        self.ring_high_water = self._gauge(RING_HIGH_WATER, "Most WAL that was in the ring at once.")
        self.ring_full = self._counter(RING_FULL, "Times that the ring was full and capture paused.")
        self.queue_used = self._gauge(QUEUE_USED, "Decoded changes that wait for the consumer.")
        self.mode = self._gauge(MODE, "Mode of the capture: 1 realtime, 2 archive, 3 follower.")
        self.received_lsn = self._gauge(RECEIVED_LSN, "End of the WAL received.")
        self.decoded_lsn = self._gauge(DECODED_LSN, "End of the WAL decoded.")
        self.delivered_lsn = self._gauge(DELIVERED_LSN, "Commit LSN up to which changes are delivered.")
        self.confirmed_lsn = self._gauge(CONFIRMED_LSN, "Commit LSN up to which all targets confirmed.")
        self.lag_bytes = self._gauge(LAG_BYTES, "WAL that the node flushed and that is not decoded.")
        self.lag_seconds = self._histogram(LAG_SECONDS, "From commit to the consumer having it.", LAG_BUCKETS_S)
        self.wal_bytes = self._counter(WAL_BYTES, "WAL received.")
        self.segments = self._counter(SEGMENTS, "WAL segments read to their end.")
        self.records = self._counter(RECORDS, "WAL records decoded.")
        self.transactions = self._counter(TRANSACTIONS, "Transactions delivered.")
        self.rows = self._counter(ROWS, "Row changes delivered.")
        self.groups = self._counter(GROUPS, "Groups delivered.")
        self.delivery_seconds = self._histogram(DELIVERY_SECONDS, "Duration of a delivery.", BATCH_BUCKETS_S)
        self.reconnects = self._counter(RECONNECTS, "Connections to the node that were made anew.")
        self.errors = self._counter(ERRORS, "Errors, retried ones included.")
        self.spilled = self._counter(SPILLED, "Bytes of large transactions that went to disk.")
        self.open_transactions = self._gauge(OPEN_TRANSACTIONS, "Transactions open in the WAL decoded so far.")
        self.outbox_used = self._gauge(OUTBOX_USED, "Bytes in the outbox.")
        self.outbox_capacity = self._gauge(OUTBOX_CAPACITY, "Bound of the outbox.")
        self.outbox_full = self._counter(OUTBOX_FULL, "Deliveries that waited for room in the outbox.")
        self.reader_lag = self._gauge(READER_LAG, "Values in the outbox that not all readers confirmed.")
        self.journal_bytes = self._counter(JOURNAL_BYTES, "Catalog-relevant WAL written to the journal.")
        self.copy_tables_left = self._gauge(COPY_TABLES_LEFT, "Tables whose first copy is not done.")
        self.copy_rows = self._counter(COPY_ROWS, "Rows of first copies delivered.")
        self.connected = self._gauge(CONNECTED, "1 while WAL is streamed from the node.")
        self.kernel_compiled = self._gauge(KERNEL_COMPILED, "1 if the kernels are compiled.")

    def _gauge(self, name: str, told: str) -> Gauge:
        return Gauge(name, told, [CAPTURE_LABEL], registry=self.registry).labels(self._capture)

    def _counter(self, name: str, told: str) -> Counter:
        return Counter(name, told, [CAPTURE_LABEL], registry=self.registry).labels(self._capture)

    def _histogram(self, name: str, told: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, told, [CAPTURE_LABEL], registry=self.registry, buckets=buckets).labels(self._capture)


class Exported(Protocol):
    """Metrics in a registry of their own."""

    registry: CollectorRegistry


class MetricsServer:
    """The endpoint, in a thread of its own."""

    def __init__(self, metrics: Exported, host: str, port: int) -> None:
        try:
            server, thread = start_http_server(port, addr=host, registry=metrics.registry)
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics on {host}:{port}: {error.strerror}",
                hint="choose another metrics.port, or 0 for a free one",
            ) from error
        self.port: int = server.server_port
        self._server, self._thread = server, thread

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
