"""The metrics of the pipeline: this module defines every name once (I42)."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tidemark.io.process.metrics import CAPTURE_LABEL, DISK_FULL, LAG_BUCKETS_BYTES, LAG_BUCKETS_S

BATCHES = "tidemark_pipeline_batches_total"
ROWS = "tidemark_pipeline_rows_total"
BYTES = "tidemark_pipeline_bytes_total"
BATCH_SECONDS = "tidemark_pipeline_batch_seconds"
STAGE_SECONDS = "tidemark_pipeline_stage_seconds_total"
STAGE_LABEL = "stage"
VISIBLE_SECONDS = "tidemark_pipeline_commit_to_visible_seconds"
VISIBLE_BYTES = "tidemark_pipeline_commit_to_visible_bytes"
NEWEST_ROW_LAG_SECONDS = "tidemark_pipeline_newest_row_lag_seconds"
APPLIED_LSN = "tidemark_pipeline_held_lsn_bytes"
BACKLOG = "tidemark_pipeline_backlog_values"
TABLES = "tidemark_pipeline_tables"
TABLES_DROPPED = "tidemark_pipeline_tables_dropped"
TABLES_BLOCKED = "tidemark_pipeline_tables_blocked"
TABLES_STALE = "tidemark_pipeline_tables_stale"
TABLES_STOPPED = "tidemark_pipeline_tables_stopped"
TABLES_DIVERGED = "tidemark_pipeline_tables_diverged"
TABLES_PAUSED = "tidemark_pipeline_tables_paused"
RESTARTS = "tidemark_pipeline_restarts_total"
STORE_WAIT_SECONDS = "tidemark_pipeline_store_wait_seconds"
SERVER_WAIT_SECONDS = "tidemark_pipeline_server_wait_seconds"
EXECUTOR_FILES = "tidemark_pipeline_executor_files_total"
EXECUTOR_BYTES = "tidemark_pipeline_executor_bytes_total"
EXECUTOR_SECONDS = "tidemark_pipeline_executor_seconds_total"
EXECUTOR_REFUSALS = "tidemark_pipeline_executor_refusals_total"
EXECUTOR_THRESHOLD_BYTES = "tidemark_pipeline_executor_threshold_bytes"
EXECUTOR_LATE_JOBS = "tidemark_pipeline_executor_late_jobs_total"
MAINTENANCE_STEPS = "tidemark_pipeline_maintenance_steps_total"
MAINTENANCE_CONFLICTS = "tidemark_pipeline_maintenance_conflicts_total"
MAINTENANCE_FAILURES = "tidemark_pipeline_maintenance_failures_total"
MAINTENANCE_FAILING_SECONDS = "tidemark_pipeline_maintenance_failing_seconds"
MAINTENANCE_RUNNING = "tidemark_pipeline_maintenance_running"


class BatchStage(StrEnum):
    """What the driver does with a batch, in this order."""

    OFFSETS = "offsets"  # the end of the batch, from the checkpoint
    READ = "read"  # waiting for values of the outbox that are read and decoded
    WRITE = "write"  # logs and replicas
    RECORD = "record"  # `_positions`
    CONFIRM = "confirm"  # to the outbox
    REPORT = "report"  # the progress


class PipelineMetrics:
    """The metrics of one pipeline, in a separate registry."""

    def __init__(self, capture: str) -> None:
        self.registry = CollectorRegistry()
        self._capture = capture
        self.batches = self._counter(BATCHES, "Batches that are in the lake.")
        self.rows = self._counter(ROWS, "Row changes in these batches, including repeated ones.")
        self.bytes = self._counter(BYTES, "Bytes of outbox values in these batches.")
        self.batch_seconds = self._histogram(BATCH_SECONDS, "Time to write a batch into the lake.")
        stages = Counter(
            STAGE_SECONDS,
            "Time that the driver spent in a stage of its batches.",
            [CAPTURE_LABEL, STAGE_LABEL],
            registry=self.registry,
        )
        self._stage_seconds = {stage: stages.labels(capture, stage.value) for stage in BatchStage}
        self.visible_seconds = self._histogram(
            VISIBLE_SECONDS, "Time from commit at the source to visibility in the lake."
        )
        self.visible_bytes = self._histogram(
            VISIBLE_BYTES,
            "WAL between a commit and the newest one in the outbox, when the lake has the commit.",
            LAG_BUCKETS_BYTES,
        )
        self.newest_row_lag_seconds = self._gauge(
            NEWEST_ROW_LAG_SECONDS,
            "Time since the source's commit of the newest row in the lake, at the moment of the scrape; it grows while "
            "the source is idle. NaN: no row was written since the start.",
        )
        self.newest_row_lag_seconds.set(math.nan)
        self.applied_lsn = self._gauge(APPLIED_LSN, "Commit LSN up to which the lake contains all changes.")
        self.backlog = self._gauge(BACKLOG, "Values in the outbox that are not in the lake.")
        self.tables = self._gauge(TABLES, "Tables in the lake, without dropped ones.")
        self.tables_dropped = self._gauge(TABLES_DROPPED, "Tables that were dropped, and are kept in the lake.")
        self.tables_blocked = self._gauge(TABLES_BLOCKED, "Tables without a usable key: log only.")
        self.tables_stale = self._gauge(TABLES_STALE, "Tables that lost their key: the replica is not updated.")
        self.tables_stopped = self._gauge(TABLES_STOPPED, "Tables with a property that restricts writes.")
        self.tables_diverged = self._gauge(TABLES_DIVERGED, "Tables that another writer changed or that are damaged.")
        self.tables_paused = self._gauge(TABLES_PAUSED, "Tables to which writes failed, and which wait to be resumed.")
        self.disk_full_seconds = self._gauge(
            DISK_FULL, "How long this process has waited for space on a full disk; 0: it does not wait."
        )
        self.store_wait_seconds = self._gauge(
            STORE_WAIT_SECONDS,
            "How long this process has waited for an object store that does not answer or refuses it; 0: it does not "
            "wait.",
        )
        self.server_wait_seconds = self._gauge(
            SERVER_WAIT_SECONDS,
            "How long this process has waited for an outbox server that is away or busy; 0: it does not wait.",
        )
        self.restarts = self._counter(RESTARTS, "Restarts of the query after a failure.")
        self.executor_files = self._counter(EXECUTOR_FILES, "Data files that executors wrote.")
        self.executor_bytes = self._counter(EXECUTOR_BYTES, "Bytes of these files.")
        self.executor_seconds = self._counter(
            EXECUTOR_SECONDS, "Time that writes of tables waited for executors, also if they wrote nothing."
        )
        self.executor_refusals = self._counter(
            EXECUTOR_REFUSALS, "Runs that executors read and did not write, because they have to be merged."
        )
        self.executor_threshold_bytes = self._gauge(
            EXECUTOR_THRESHOLD_BYTES,
            "Bytes of a table in a portion from which executors write them, by the measured times; 0: no executors.",
        )
        self.executor_late_jobs = self._counter(
            EXECUTOR_LATE_JOBS, "Jobs that did not end before their deadline: the driver wrote their files."
        )
        self.maintenance_steps = self._counter(MAINTENANCE_STEPS, "Steps of the maintenance of tables.")
        self.maintenance_conflicts = self._counter(
            MAINTENANCE_CONFLICTS, "Steps of maintenance that yielded to the stream, and are repeated later."
        )
        self.maintenance_failures = self._counter(
            MAINTENANCE_FAILURES, "Steps of maintenance that failed, and are repeated later."
        )
        self.maintenance_failing_seconds = self._gauge(
            MAINTENANCE_FAILING_SECONDS,
            "How long the maintenance of a table has failed, the longest time of all; also after it ended by an error. "
            "0: none fails.",
        )
        self.maintenance_running = self._gauge(MAINTENANCE_RUNNING, "1 while the maintenance of tables runs.")

    def add_stage(self, stage: BatchStage, seconds: float) -> None:
        """Add the time of a stage."""
        self._stage_seconds[stage].inc(seconds)

    @contextmanager
    def in_stage(self, stage: BatchStage) -> Iterator[None]:
        """Add the time of the body to a stage."""
        begun_s = time.monotonic()
        try:
            yield
        finally:
            self.add_stage(stage, time.monotonic() - begun_s)

    def _gauge(self, name: str, description: str) -> Gauge:
        return Gauge(name, description, [CAPTURE_LABEL], registry=self.registry).labels(self._capture)

    def _counter(self, name: str, description: str) -> Counter:
        return Counter(name, description, [CAPTURE_LABEL], registry=self.registry).labels(self._capture)

    def _histogram(self, name: str, description: str, buckets: Sequence[float] = LAG_BUCKETS_S) -> Histogram:
        labels = [CAPTURE_LABEL]
        return Histogram(name, description, labels, registry=self.registry, buckets=buckets).labels(self._capture)
