"""The progress of the pipeline: exported as metrics, logged at intervals, and recorded at the capture.

The record is a small file of the state folder (`tidemark.io.readers.progress_file`), from which nothing is delivered.
Tables whose state a batch changed are logged at once.
"""

import json
import os
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from tidemark.io.host.clock import SystemClock
from tidemark.io.host.logs import Log
from tidemark.model.commit_time import USECS_PER_SECOND
from tidemark.model.errors import StateError
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.model.position import Sequence
from tidemark.pipeline.delta_log.lineage import TableDiverged, TableStopped
from tidemark.pipeline.lake.faults import Fault, FaultKind
from tidemark.pipeline.lake.folders import LOG
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState
from tidemark.pipeline.landing.capture_port import CapturePort
from tidemark.pipeline.landing.feed import Feed
from tidemark.pipeline.landing.metrics import PipelineMetrics
from tidemark.pipeline.landing.table_overview import TableOverview, Tables, changed_tables, faults_of

LAGS_KEPT = 10_000  # number of newest groups from which the percentiles are computed
REPORT_INTERVAL_S = 5.0
CHANGED = "changed"  # the kind of a fault of a log of Iceberg tables: it ends the pipeline
HINTS = {
    FaultKind.DIVERGED: TableDiverged.hint,
    FaultKind.STOPPED: TableStopped.hint,
    FaultKind.PAUSED: "remove the cause, then cdcctl table resume; the outbox keeps the changes, within a bound",
}
GIVEN_UP_HINT = (
    "remove the cause, then let archived WAL supply its changes: cdcctl table resume --archive; or copy it with cdcctl "
    "table recopy"
)
EVENTS = {
    FaultKind.DIVERGED: "table diverged",
    FaultKind.STOPPED: "table stopped",
    FaultKind.PAUSED: "table paused",
}
STALE_HINT = "give the table a primary key or REPLICA IDENTITY FULL, then cdcctl table recopy"


@dataclass(frozen=True, slots=True)
class ProgressFile:
    """The content of the file."""

    pid: int
    reader: str
    lake: str
    batches: int
    rows: int
    sequence: int
    head: int
    lsn: str
    lag_p50_s: float | None  # from commit to visibility in the lake
    lag_p99_s: float | None
    tables: int
    faults: list[dict[str, str]]  # tables that are not written, see `tidemark.pipeline.lake.faults`
    stale: list[str]  # tables whose replica is not updated
    updated_at_us: int
    waits_for_room: str = ""  # why the pipeline waits for space on a full disk; empty: it does not wait
    waits_for_store: str = ""  # why it waits for the object store of the lake


class PipelineProgress:
    """Counts batches; used by one thread."""

    def __init__(self, metrics: PipelineMetrics, log: Log, capture: CapturePort, reader: str, lake: str) -> None:
        self.batches = 0
        self.rows = 0
        self.metrics = metrics
        self._log = log
        self._capture = capture
        self._reader = reader
        self._lake = lake
        self._clock = SystemClock()
        self._lags_s: deque[float] = deque(maxlen=LAGS_KEPT)
        self._newest_us = 0  # when the newest row was committed at the source
        self._reported_at_s = float("-inf")
        self._overview = TableOverview()

    def landed(
        self, feed: Feed, tables: Tables, head: Sequence, head_lsn: Lsn, seconds: float, *, settled: int = 0
    ) -> None:
        """Record that a batch is in the lake; `head_lsn` is the newest commit in the outbox.

        `settled`: the number of dropped tables that `tables` does not have.
        """
        now_us = self._clock.wall_us()
        self.batches += 1
        self.rows += feed.row_count
        metrics = self.metrics
        metrics.batches.inc()
        metrics.rows.inc(feed.row_count)
        metrics.bytes.inc(feed.byte_count)
        metrics.batch_seconds.observe(seconds)
        for committed_us in feed.commit_times_us:
            lag_s = max(0.0, (now_us - committed_us) / USECS_PER_SECOND)  # the clocks of two machines may differ
            self._lags_s.append(lag_s)
            metrics.visible_seconds.observe(lag_s)
        for lsn in feed.commit_lsns:
            metrics.visible_bytes.observe(max(0, head_lsn - lsn))
        self._measure_newest_row(feed)
        self.count_tables(tables, settled)
        metrics.applied_lsn.set(feed.commit_lsn)
        metrics.backlog.set(head - feed.lake_batch.end)
        self._report(feed, head, now_us)

    def _measure_newest_row(self, feed: Feed) -> None:
        """Measure its age at each scrape, so that a pipeline that hangs shows a growing one."""
        if feed.commit_times_us:
            self._newest_us = max(self._newest_us, *feed.commit_times_us)
            self.metrics.newest_row_lag_seconds.set_function(self._newest_row_lag_s)

    def _newest_row_lag_s(self) -> float:
        return max(0.0, (self._clock.wall_us() - self._newest_us) / USECS_PER_SECOND)

    def count_tables(self, tables: Tables, settled: int = 0) -> None:
        """Set the metrics of the tables."""
        metrics, overview = self.metrics, self._overview
        overview.update(tables)
        dropped = overview.count(TableState.DROPPED)
        metrics.tables.set(len(overview) - dropped)
        metrics.tables_dropped.set(dropped + settled)
        metrics.tables_blocked.set(overview.count(TableState.BLOCKED))
        metrics.tables_stale.set(overview.count(TableState.STALE))
        metrics.tables_stopped.set(overview.count(TableState.STOPPED))
        metrics.tables_diverged.set(overview.count(TableState.DIVERGED))
        metrics.tables_paused.set(overview.paused)

    def _report(self, feed: Feed, head: Sequence, now_us: int) -> None:
        lags = sorted(self._lags_s)
        content = ProgressFile(
            pid=os.getpid(),
            reader=self._reader,
            lake=self._lake,
            batches=self.batches,
            rows=self.rows,
            sequence=feed.lake_batch.end,
            head=head,
            lsn=format_lsn(feed.commit_lsn),
            lag_p50_s=lags[len(lags) // 2] if lags else None,
            lag_p99_s=lags[len(lags) * 99 // 100] if lags else None,
            tables=len(self._overview) - self._overview.count(TableState.DROPPED),
            faults=self._fault_list(),
            stale=self._stale_names(),
            updated_at_us=now_us,
        )
        self._write(asdict(content))
        now_s = self._clock.monotonic_s()
        if now_s - self._reported_at_s >= REPORT_INTERVAL_S:
            self._reported_at_s = now_s
            fields = asdict(content)
            del fields["pid"], fields["updated_at_us"], fields["waits_for_room"], fields["waits_for_store"]
            fields["faults"] = len(content.faults)
            self._log.info("wrote a batch into the lake", **fields)

    def record_tables(self, tables: Tables, settled: int = 0) -> None:
        """Record the tables of a lake that was opened, or changed between two batches."""
        self.count_tables(tables, settled)
        with suppress(OSError, ValueError, StateError):
            content = json.loads(self._capture.progress(self._reader))
            lists = {"faults": self._fault_list(), "stale": self._stale_names()}
            self._write({**content, **lists, "updated_at_us": self._clock.wall_us()})

    def record_changed_log(self, table: TablePosition, reason: str, remedy: str) -> None:
        """Write into the file that another writer changed a log, which ends the pipeline; its next start removes it."""
        fields = _table_fields(table) | {
            "target": LOG,
            "kind": CHANGED,
            "reason": reason,
            "after": str(table.position),
            "remedy": remedy,
        }
        self._record("faults", [fields])

    def record_disk_wait(self, reason: str) -> None:
        """Write into the file, if it exists and the disk has space, why the pipeline waits; "": it does not wait."""
        self._record("waits_for_room", reason)

    def record_store_wait(self, reason: str) -> None:
        """Write into the file why the pipeline waits for the object store of the lake; "": it does not wait."""
        self._record("waits_for_store", reason)

    def _record(self, name: str, value: object) -> None:
        with suppress(OSError, ValueError, StateError):
            content = json.loads(self._capture.progress(self._reader))
            self._write({**content, name: value, "updated_at_us": self._clock.wall_us()})

    def _fault_list(self) -> list[dict[str, str]]:
        return [fault_fields(*found) for found in self._overview.faults()]

    def _stale_names(self) -> list[str]:
        return [table.qualified_name for table in self._overview.stale()]

    def _write(self, content: Mapping[str, object]) -> None:
        self._capture.record_progress(self._reader, json.dumps(content).encode())


def fault_fields(table: TablePosition, target: str, fault: Fault) -> dict[str, str]:
    """Return a fault as it is written into the file."""
    found = {"target": target, "kind": fault.kind.value, "reason": fault.reason, "after": str(fault.position)}
    return _table_fields(table) | found


def _table_fields(table: TablePosition) -> dict[str, str]:
    return {"database": str(table.database), "relation": str(table.relation), "table": table.qualified_name}


def report_changes(log: Log, before: Tables, after: Tables) -> None:
    """Log each table that diverged, stopped, became stale or recovered, and each changed reason."""
    for table in changed_tables(before, after):
        _report(log, before.get((table.database, table.relation)), table)


def _report(log: Log, known: TablePosition | None, table: TablePosition) -> None:
    names = {"table": table.qualified_name, "folder": table.folder}
    were = dict(faults_of(known)) if known is not None else {}
    present = dict(faults_of(table))
    for target, fault in present.items():
        known_fault = were.get(target)
        if known_fault is None or (known_fault.kind, known_fault.reason) != (fault.kind, fault.reason):
            hint = GIVEN_UP_HINT if fault.is_given_up else HINTS[fault.kind]
            position = str(fault.position)
            log.error(EVENTS[fault.kind], **names, target=target, reason=fault.reason, after=position, hint=hint)
    for target in were.keys() - present.keys():
        log.info("table continues", **names, target=target)
    for broke in table.breaks[len(known.breaks) if known is not None else 0 :]:
        log.warning("log has a break", **names, reason=broke.reason, after=str(broke.after), to=str(broke.to))
    state = known.state if known is not None else None
    if table.state is not state and table.state is TableState.STALE:
        log.warning("replica is stale: the table has no key", **names, hint=STALE_HINT)
    elif table.state is not state and table.state is TableState.BLOCKED:
        log.warning("table has no key: log only", **names, hint=STALE_HINT)
