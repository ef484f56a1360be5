"""The metrics: the only definition of every name and label (I42).

The prefix is `tidemark_`; units are base units; counters end in `_total`. No relation's name is a label. Sidecar and
archiver export the same set, each with its own work and observations; values of the state are the same in both. Every
series exists from the start, so that a rate includes the first event: a counter by kind is 0 for each kind, and a value
of the archive that the process has not read yet is NaN, because 0 would be an alarm. Each commit adds to a
`SingleWriterCounter` or `SingleWriterHistogram`: they cost less than a counter or a histogram of prometheus_client, and
only one thread may add to them at a time.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, zip_longest

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tidemark.engine.handover import Event
from tidemark.model.commit_time import USECS_PER_SECOND
from tidemark.model.mode import Role, Stage
from tidemark.model.poison import Poison
from tidemark.wire.marker import Ignored, MarkerKind
from tidemark.wire.state.process_log import ProcessEnd

LAG_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
LAG_BUCKETS_BYTES = tuple(1 << bits for bits in (10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36))
BATCH_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
CAPTURE_LABEL = "capture"

RING_CAPACITY = "tidemark_ring_capacity_bytes"
RING_USED = "tidemark_ring_used_bytes"
RING_HIGH_WATER = "tidemark_ring_high_water_bytes"
RING_FULL = "tidemark_ring_full_total"
QUEUE_USED = "tidemark_decode_queue_bytes"
HOST_BUSY = "tidemark_host_busy"
MODE = "tidemark_mode"
RECEIVED_LSN = "tidemark_received_lsn_bytes"
DECODED_LSN = "tidemark_decoded_lsn_bytes"
DELIVERED_LSN = "tidemark_delivered_lsn_bytes"
CONFIRMED_LSN = "tidemark_confirmed_lsn_bytes"
DELIVERER_LSN = "tidemark_leader_marker_lsn_bytes"
LAG_BYTES = "tidemark_lag_bytes"
LAG_SECONDS = "tidemark_commit_to_consumer_seconds"
DELIVERY_LAG_BYTES = "tidemark_commit_to_consumer_bytes"
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
READER_HELD = "tidemark_reader_held_bytes"
READER_HOLD_MAX = "tidemark_reader_hold_bytes_max"
READER_LAPSED = "tidemark_reader_lapsed"
JOURNAL_BYTES = "tidemark_journal_bytes_total"
CATALOG_BASE_BYTES = "tidemark_catalog_base_bytes_total"
COPY_TABLES_LEFT = "tidemark_copy_tables_left"
COPY_REFUSED = "tidemark_copy_tables_refused"
COPY_ROWS = "tidemark_copy_rows_total"
POOL_CPU = "tidemark_pool_worker_cpu_seconds_total"
POISON = "tidemark_poison_changes_total"
PARKED = "tidemark_parked_changes"
RECOPIES_FAILED = "tidemark_recopies_failed_total"
CONNECTED = "tidemark_node_connected"
KERNEL_COMPILED = "tidemark_kernel_compiled"
BASES_DAMAGED = "tidemark_catalog_bases_damaged"
SWITCHES = "tidemark_switches_total"
MARKERS_WRITTEN = "tidemark_markers_written_total"
MARKERS_FAILED = "tidemark_markers_failed_total"
MARKERS_READ = "tidemark_markers_read_total"
MARKERS_IGNORED = "tidemark_markers_ignored_total"
SEGMENT_SWITCHES = "tidemark_segment_switches_total"
SEGMENT_SECONDS = "tidemark_segment_seconds"
ARCHIVED_LSN = "tidemark_archived_lsn_bytes"
ARCHIVE_LAG = "tidemark_ring_to_archive_lag_segments"
ARCHIVE_BYTES = "tidemark_archive_bytes"
ARCHIVE_FREE = "tidemark_archive_free_bytes"
ARCHIVE_HOLES = "tidemark_archive_holes"
DISK_FULL = "tidemark_disk_full_seconds"
ARCHIVE_WAITING = "tidemark_archive_waiting_seconds"
ARCHIVE_TRIMMED = "tidemark_archive_trimmed_segments_total"
ARCHIVER_ACTIVE = "tidemark_archiver_active"
HEARTBEAT_AGE = "tidemark_heartbeat_age_seconds"
LAST_EXIT_CODE = "tidemark_last_exit_code"
LAST_END = "tidemark_last_end_timestamp_seconds"
KIND_LABEL = "kind"
ROLE_LABEL = "role"
READER_LABEL = "reader"
WORKER_LABEL = "worker"
NO_HEARTBEAT_S = -1.0
NO_EXIT_CODE = -1.0  # for a process that was killed

_POISON = (Poison.SKIP.value, Poison.PARK.value)
_EVENTS = tuple(event.name for event in Event)
_MARKERS = tuple(kind.value for kind in MarkerKind)
_IGNORED = tuple(why.name for why in Ignored)
_STAGES = ", ".join(f"{stage.number} {stage.value}" for stage in Stage)


class Family:
    """Counters of one name with one label; those of the known kinds are 0 before anything is counted."""

    def __init__(self, counter: Counter, capture: str, kinds: Iterable[str]) -> None:
        self._counter = counter
        self._capture = capture
        for kind in kinds:
            counter.labels(capture, kind)

    def inc(self, kind: str) -> None:
        """Count one event of `kind`."""
        self._counter.labels(self._capture, kind).inc()


class SingleWriterCounter(Collector):
    """A counter incremented by one thread at a time: without a lock and in one call, since each commit counts here."""

    def __init__(self, name: str, description: str, capture: str) -> None:
        self._name, self._description, self._capture = name, description, capture
        self._value = 0

    def inc(self, amount: int = 1) -> None:
        """Add to the count."""
        self._value += amount

    def collect(self) -> Iterable[Metric]:
        """Return the count."""
        family = CounterMetricFamily(self._name, self._description, labels=[CAPTURE_LABEL])
        family.add_metric([self._capture], self._value)
        return (family,)


class SingleWriterHistogram(Collector):
    """A histogram to which one thread at a time adds."""

    def __init__(self, name: str, description: str, capture: str, bounds: tuple[float, ...]) -> None:
        self._name, self._description, self._capture = name, description, capture
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, amount: float) -> None:
        """Add one value."""
        self._counts[bisect_left(self._bounds, amount)] += 1
        self._sum += amount

    def collect(self) -> Iterable[Metric]:
        """Return how many values are at or below each bound, and their sum."""
        family = HistogramMetricFamily(self._name, self._description, labels=[CAPTURE_LABEL])
        below = zip((*map(floatToGoString, self._bounds), "+Inf"), accumulate(self._counts), strict=True)
        family.add_metric([self._capture], list(below), self._sum)
        return (family,)


class EndsCollector(Collector):
    """The last end of each process of the capture, read from the state at each scrape."""

    def __init__(self, capture: str) -> None:
        self._capture = capture
        self.read_ends: Callable[[], Mapping[str, ProcessEnd]] = dict

    def collect(self) -> Iterable[Metric]:
        """Return code and time of each end; 0 and 0 for a process that never ended."""
        labels = [CAPTURE_LABEL, ROLE_LABEL]
        codes = GaugeMetricFamily(LAST_EXIT_CODE, "Exit code of the last run of a process; -1: killed.", labels=labels)
        times = GaugeMetricFamily(LAST_END, "Time of that end; 0: never or unknown.", labels=labels)
        ends = self.read_ends()
        for role in sorted({*(role.value for role in Role), *ends}):
            end = ends.get(role, ProcessEnd(0, 0, ""))
            codes.add_metric([self._capture, role], NO_EXIT_CODE if end.exit_code is None else end.exit_code)
            times.add_metric([self._capture, role], end.at_us / USECS_PER_SECOND)
        return (codes, times)


class StateCountCollector(Collector):
    """A number that is read from the state at each scrape."""

    def __init__(self, name: str, description: str, capture: str, registry: CollectorRegistry) -> None:
        self._name, self._description, self._capture = name, description, capture
        self.count: Callable[[], int] = int
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Return the number."""
        family = GaugeMetricFamily(self._name, self._description, labels=[CAPTURE_LABEL])
        family.add_metric([self._capture], self.count())
        return (family,)


class ReadersCollector(Collector):
    """The readers of the outbox by name, at most 64, read from the state at each scrape."""

    def __init__(self, capture: str, registry: CollectorRegistry) -> None:
        self._capture = capture
        self.read_held: Callable[[], Mapping[str, int | None]] = dict  # bytes; None: the reader has lapsed
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Return what each reader holds, and which have lapsed."""
        labels = [CAPTURE_LABEL, READER_LABEL]
        held = GaugeMetricFamily(READER_HELD, "Bytes of the outbox that only this reader still needs.", labels=labels)
        lapsed = GaugeMetricFamily(READER_LAPSED, "1 if a reader held too much and lost values.", labels=labels)
        for name, byte_count in self.read_held().items():
            held.add_metric([self._capture, name], byte_count or 0)
            lapsed.add_metric([self._capture, name], byte_count is None)
        return (held, lapsed)


class PoolCpuCollector(Collector):
    """The CPU time of the workers of a pool, by their numbers; it continues with the pool of the next capture."""

    def __init__(self, capture: str, registry: CollectorRegistry) -> None:
        self._capture = capture
        self._ended: tuple[float, ...] = ()  # of the pools that have ended
        self._read: Callable[[], Sequence[float]] = tuple
        registry.register(self)

    def follow(self, read: Callable[[], Sequence[float]]) -> None:
        """Read the CPU seconds of a new pool, by worker, at each scrape."""
        self.settle()
        self._read = read

    def settle(self) -> None:
        """Keep the last values of a pool that has ended, and nothing else of it."""
        self._ended, self._read = self._total(), tuple

    def collect(self) -> Iterable[Metric]:
        """Return the CPU seconds of each worker, numbered from 1."""
        family = CounterMetricFamily(
            POOL_CPU, "CPU time of the workers of the pool.", labels=[CAPTURE_LABEL, WORKER_LABEL]
        )
        for number, seconds in enumerate(self._total(), 1):
            family.add_metric([self._capture, str(number)], seconds)
        return (family,)

    def _total(self) -> tuple[float, ...]:
        return tuple(map(sum, zip_longest(self._ended, self._read(), fillvalue=0.0)))


class Metrics:
    """The metrics of one process, in a separate registry."""

    def __init__(self, capture: str) -> None:
        self.registry = CollectorRegistry(auto_describe=True)  # otherwise our collectors could not be queried by name
        self._capture = capture
        self.ring_capacity = self._gauge(RING_CAPACITY, "Size of the ring of received WAL.")
        self.ring_used = self._gauge(RING_USED, "WAL in the ring that has not been decoded.")
        self.ring_high_water = self._gauge(RING_HIGH_WATER, "Greatest amount of WAL in the ring so far.")
        self.ring_full = self._counter(RING_FULL, "Times that the ring was full and capture paused.")
        self.queue_used = self._gauge(QUEUE_USED, "Decoded changes that wait for the consumer.")
        self.mode = self._gauge(MODE, f"Stage of the capture: {_STAGES}.")
        self.received_lsn = self._gauge(RECEIVED_LSN, "End of the WAL received.")
        self.decoded_lsn = self._gauge(DECODED_LSN, "End of the WAL decoded.")
        self.delivered_lsn = self._gauge(DELIVERED_LSN, "Commit LSN up to which changes are delivered.")
        self.confirmed_lsn = self._gauge(CONFIRMED_LSN, "Commit LSN up to which all required targets confirmed.")
        self.deliverer_lsn = self._gauge(DELIVERER_LSN, "LSN of the marker from which a follower would begin; 0: none.")
        self.lag_bytes = self._gauge(LAG_BYTES, "WAL that the node has flushed and that has not been decoded.")
        self.lag_seconds = self._fast_histogram(LAG_SECONDS, "Time from commit to delivery.", LAG_BUCKETS_S)
        self.delivery_lag_bytes = self._fast_histogram(
            DELIVERY_LAG_BYTES,
            "WAL received after the first commit of a group, when the group is delivered.",
            LAG_BUCKETS_BYTES,
        )
        self.wal_bytes = self._fast_counter(WAL_BYTES, "WAL received.")
        self.segments = self._counter(SEGMENTS, "WAL segments read to their end.")
        self.records = self._fast_counter(RECORDS, "WAL records decoded.")
        self.transactions = self._fast_counter(TRANSACTIONS, "Transactions delivered.")
        self.rows = self._fast_counter(ROWS, "Row changes delivered.")
        self.groups = self._fast_counter(GROUPS, "Groups delivered.")
        self.delivery_seconds = self._fast_histogram(DELIVERY_SECONDS, "Duration of a delivery.", BATCH_BUCKETS_S)
        self.reconnects = self._counter(RECONNECTS, "Reconnections to the node.")
        self.errors = self._counter(ERRORS, "Errors, retried ones included.")
        self.spilled = self._counter(SPILLED, "Bytes of large transactions that were spilled to disk.")
        self.open_transactions = self._gauge(OPEN_TRANSACTIONS, "Transactions open in the WAL decoded so far.")
        self.journal_bytes = self._counter(JOURNAL_BYTES, "Catalog-relevant WAL written to the journal.")
        self.catalog_base_bytes = self._counter(CATALOG_BASE_BYTES, "Bytes of catalog bases written.")
        self.copy_tables_left = self._gauge(COPY_TABLES_LEFT, "Tables whose first copy is not done.")
        self.copy_rows = self._counter(COPY_ROWS, "Rows of first copies delivered.")
        self.recopies_failed = self._counter(RECOPIES_FAILED, "Copies of tables that failed.")
        self.connected = self._gauge(CONNECTED, "1 while WAL is streamed from the node.")
        self.kernel_compiled = self._gauge(KERNEL_COMPILED, "1 if the kernels are compiled.")
        self.bases_damaged = self._gauge(
            BASES_DAMAGED, "Catalog bases that were damaged at the start of the capture; an older one was used."
        )
        self.switches = self._by(SWITCHES, "Moves from one stage to another, by the event.", _EVENTS)
        self.markers_written = self._by(MARKERS_WRITTEN, "Markers written into WAL.", _MARKERS)
        self.markers_failed = self._counter(MARKERS_FAILED, "Markers that could not be written.")
        self.markers_read = self._by(MARKERS_READ, "Markers of this capture that were read in WAL.", _MARKERS)
        self.markers_ignored = self._by(
            MARKERS_IGNORED, "Messages with the prefix of Tidemark that are not markers of this capture.", _IGNORED
        )
        self.segment_switches = self._counter(SEGMENT_SWITCHES, "Segment switches requested from the node.")
        self.segment_seconds = self._fast_histogram(
            SEGMENT_SECONDS, "Processor time to decode a segment.", LAG_BUCKETS_S
        )
        self._add_outbox()
        self._add_archive()
        self.ends = EndsCollector(capture)
        self.registry.register(self.ends)
        self.refused = StateCountCollector(
            COPY_REFUSED,
            "Tables whose existing rows are not captured, because their copy was refused.",
            capture,
            self.registry,
        )
        self._add_consumer()
        self._heartbeat_age = Gauge(
            HEARTBEAT_AGE,
            "Age of the last heartbeat of a process; -1 if it does not run.",
            [CAPTURE_LABEL, ROLE_LABEL],
            registry=self.registry,
        )
        for role in Role:
            self.heartbeat_age(role).set(NO_HEARTBEAT_S)

    def _add_outbox(self) -> None:
        self.outbox_used = self._gauge(OUTBOX_USED, "Bytes in the outbox.")
        self.outbox_capacity = self._gauge(OUTBOX_CAPACITY, "Size limit of the outbox.")
        self.outbox_full = self._counter(OUTBOX_FULL, "Deliveries that waited for space in the outbox.")
        self.reader_lag = self._gauge(READER_LAG, "Values in the outbox that some required reader has not confirmed.")
        self.reader_hold_max = self._gauge(READER_HOLD_MAX, "What a reader may hold before it lapses.")
        self.readers = ReadersCollector(self._capture, self.registry)

    def _add_consumer(self) -> None:
        self.parked = StateCountCollector(
            PARKED, "Changes that a consumer could not handle, and that are parked.", self._capture, self.registry
        )
        self.pool_cpu = PoolCpuCollector(self._capture, self.registry)
        self.host_busy = self._gauge(
            HOST_BUSY, "1 while tasks of the host wait for a CPU: deliveries wait up to deliver.busy_linger_ms."
        )
        self.poison = self._by(POISON, "Changes that were skipped or parked.", _POISON)

    def _add_archive(self) -> None:
        self.disk_full_seconds = self._gauge(
            DISK_FULL, "How long this process has waited for space on a full disk; 0: it does not wait."
        )
        self.archived_lsn = self._unset_gauge(ARCHIVED_LSN, "End of the archived WAL that follows without a hole.")
        self.archive_lag = self._unset_gauge(ARCHIVE_LAG, "Segments of received WAL that are not archived yet.")
        self.archive_bytes = self._unset_gauge(ARCHIVE_BYTES, "Size of the files in the archive folder.")
        self.archive_free = self._unset_gauge(ARCHIVE_FREE, "Free space of the archive folder's file system.")
        self.archive_holes = self._unset_gauge(
            ARCHIVE_HOLES, "Files that archiving gave up, recorded or not, or that will not arrive."
        )
        # NB: never NaN: "nothing waits" and "not checked yet" are both 0, since an alert compares it.
        self.archive_waiting_seconds = self._gauge(
            ARCHIVE_WAITING, "How long complete segments have waited since one arrived in the archive; 0: none waits."
        )
        self.archive_trimmed = self._counter(ARCHIVE_TRIMMED, "Files that were removed from the spool.")
        self.archiver_active = self._gauge(ARCHIVER_ACTIVE, "1 while the archiver delivers.")

    def heartbeat_age(self, role: Role) -> Gauge:
        """Return the gauge of one process's heartbeat age."""
        return self._heartbeat_age.labels(self._capture, role.value)

    def _gauge(self, name: str, description: str) -> Gauge:
        return Gauge(name, description, [CAPTURE_LABEL], registry=self.registry).labels(self._capture)

    def _unset_gauge(self, name: str, description: str) -> Gauge:
        gauge = self._gauge(name, description)
        gauge.set(math.nan)
        return gauge

    def _counter(self, name: str, description: str) -> Counter:
        return Counter(name, description, [CAPTURE_LABEL], registry=self.registry).labels(self._capture)

    def _by(self, name: str, description: str, kinds: Iterable[str]) -> Family:
        return Family(
            Counter(name, description, [CAPTURE_LABEL, KIND_LABEL], registry=self.registry), self._capture, kinds
        )

    def _fast_counter(self, name: str, description: str) -> SingleWriterCounter:
        counter = SingleWriterCounter(name, description, self._capture)
        self.registry.register(counter)
        return counter

    def _fast_histogram(self, name: str, description: str, bounds: tuple[float, ...]) -> SingleWriterHistogram:
        histogram = SingleWriterHistogram(name, description, self._capture, bounds)
        self.registry.register(histogram)
        return histogram
