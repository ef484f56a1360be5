"""Maintenance of the lake's tables in a thread beside the stream: checkpoints, clustering, unused files, short logs.

The stream reports after each batch which tables it wrote. It waits for this thread only while a commit becomes visible,
and while the unused files of the table that it writes to are listed (0.04 s for 3,000 files). A table is due when it
has made a number of commits since it was maintained last, at its first batch after a start, and when its replaced files
are unused for long enough. Checkpoints come first: they are cheap, and opening a table costs more without them. Then
one table at a time is maintained in bounded steps; after each step the thread rests for as long as the step took.
Maintenance that loses against the stream, or fails, is repeated later, with growing waits and smaller steps; it is
reported, and ends neither the stream nor the maintenance of other tables. A damaged table waits for its next version.

A step examines the tables that were reported, that are due, or whose next time has come: not at all of a lake.

`_positions` may name a version from before a commit made here until the stream records the new one (`take_results`):
its files are not deleted before.
"""

import heapq
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
from deltalake.exceptions import DeltaError, TableNotFoundError

from tidemark.io.host.disk import is_full
from tidemark.io.host.failpoints import passed
from tidemark.io.host.logs import Log, describe_error
from tidemark.io.process.lake_config import LakeConfig
from tidemark.model.errors import TidemarkError
from tidemark.pipeline.delta_log.commit_files import CHECKPOINT_EVERY, LOG_FOLDER
from tidemark.pipeline.delta_log.damage import ScanStopped, damage_of
from tidemark.pipeline.delta_log.durability import sync_checkpoint
from tidemark.pipeline.delta_log.lineage import NO_VERSION, TableDiverged, TableStopped
from tidemark.pipeline.delta_log.log_cleanup import LogCleanup, last_checkpoint
from tidemark.pipeline.delta_log.maintenance_commit import MaintenanceLost
from tidemark.pipeline.delta_log.unused_files import delete_unused_files
from tidemark.pipeline.failpoints import MaintenanceFailpoint
from tidemark.pipeline.failures import first_reason, is_of_host, reports_full_disk
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.lake.tables.table_locks import TableLocks
from tidemark.pipeline.landing.dropped_tables import DroppedTables
from tidemark.pipeline.landing.metrics import PipelineMetrics
from tidemark.pipeline.merge.clustering import recluster
from tidemark.pipeline.sinks.table_writes import NO_UPKEEP, Upkeep
from tidemark.pipeline.storage.store_errors import StoreUnavailable, store_failure
from tidemark.pipeline.storage.stores import open_delta

POLL_S = 0.2  # while no table is due
RETRY_FIRST_S, RETRY_MAX_S = 1.0, 300.0
STEP_BYTES_MIN = 1 << 20  # a step that lost is halved down to this
ENDED = ("", "")  # in place of a folder and its work: all of it
FAILURES = (DeltaError, OSError, pa.ArrowException, TidemarkError)


@dataclass(slots=True)
class _Retries:
    """When work is tried that failed."""

    waits_s: float = 0.0  # after the last failure
    not_before_s: float = 0.0

    def failed(self) -> None:
        self.waits_s = min(max(2 * self.waits_s, RETRY_FIRST_S), RETRY_MAX_S)
        self.not_before_s = time.monotonic() + self.waits_s


@dataclass(slots=True)
class _DueTable:
    """A log or replica, or `_positions`, as maintenance has seen it last."""

    recorded: int  # the version in `_positions`
    upkeep: Upkeep
    checkpointed: int = 0
    maintained: int = 0  # the version at the last complete maintenance
    cleared: int = 0  # the version at which unused files were deleted last, all of them
    unused_at_s: float = math.inf  # when the files that were replaced last are unused for long enough
    step_bytes: int = 0
    retries: _Retries = field(default_factory=_Retries)
    is_damaged: bool = False  # in the recorded version; reported to the stream


@dataclass(slots=True)
class MaintenanceResults:
    """What the stream must know: folders with a new commit, and damaged ones with the reason."""

    committed: set[str] = field(default_factory=set)
    damaged: dict[str, str] = field(default_factory=dict)


class Maintenance:
    """Maintains the tables of one lake: `report` and `take_results` are for the stream, `step` for one thread."""

    def __init__(
        self,
        config: LakeConfig,
        locks: TableLocks,
        cleanup: LogCleanup,
        metrics: PipelineMetrics,
        log: Log,
        *,
        dropped: DroppedTables | None = None,
    ) -> None:
        """Maintain with the settings of `config`; `dropped` are the removals of the lake, None: there are none."""
        self._dropped = dropped
        self._removal = _Retries()
        self._root = cleanup.root
        self._config = config
        self._locks = locks
        self._cleanup = cleanup
        self._metrics = metrics
        self._log = log
        self._stop = threading.Event()
        self._lock = threading.Lock()  # of the next three
        self._reported: dict[str, tuple[int, Upkeep]] = {}
        self._finishing: set[str] = set()
        self._results = MaintenanceResults()
        self._tables: dict[str, _DueTable] = {}  # by folder
        self._finished: set[str] = set()  # folders of dropped tables, which are forgotten when nothing is left to do
        self._looked_at: dict[str, None] = {}  # folders that may be due; the one that was maintained last is at the end
        self._later: list[tuple[float, str]] = []  # a heap: the folder may be due at that time
        self._scheduled: dict[str, float] = {}  # the times in the heap
        self._failing: dict[tuple[str, str], float] = {}  # since when; by folder and work
        metrics.maintenance_failing_seconds.set_function(self._failing_s)

    def report(self, written: Iterable[tuple[str, int]], upkeep: Mapping[str, Upkeep]) -> None:
        """Report the Delta tables that a batch wrote: folder below the root and recorded version."""
        with self._lock:
            for folder, version in written:
                self._reported[folder] = version, upkeep.get(folder, NO_UPKEEP)

    def finish(self, folders: Iterable[str]) -> None:
        """Let the Delta tables of dropped tables be forgotten once they are maintained."""
        with self._lock:
            self._finishing.update(folders)

    def take_results(self) -> MaintenanceResults | None:
        """Return the results since the last call; None if there are none."""
        with self._lock:
            results, self._results = self._results, MaintenanceResults()
        return results if results.committed or results.damaged else None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run steps in a thread; at the end wait for the present one, which is bounded."""
        self._stop.clear()
        thread = threading.Thread(target=self._run, name="tidemark-maintenance")
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def complete(self, is_over: Callable[[], bool]) -> None:
        """Do all due work at the end of a stream, until `is_over` returns true."""
        with self._reporting_its_end():
            while not is_over() and self.step():
                pass

    def _run(self) -> None:
        with self._reporting_its_end():
            rest_s = POLL_S
            while not self._stop.wait(rest_s):
                begun_s = time.monotonic()
                was_due = self.step()
                rest_s = time.monotonic() - begun_s if was_due else POLL_S

    @contextmanager
    def _reporting_its_end(self) -> Iterator[None]:
        self._metrics.maintenance_running.set(1)
        self._failing.pop(ENDED, None)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the stream continues without maintenance, and the operator sees it
            self._log.error("maintenance of the lake ends", **describe_error(error))
            self._failing.setdefault(ENDED, time.monotonic())
        finally:
            self._metrics.maintenance_running.set(0)

    def _failing_s(self) -> float:
        """Return how long the work has failed that has failed the longest; read by another thread."""
        begun_s = list(self._failing.values())
        return time.monotonic() - min(begun_s) if begun_s else 0.0

    def step(self) -> bool:
        """Do a bounded part of the work; return whether a table was due."""
        self._take_reports()
        self._wake(time.monotonic())
        for folder in list(self._looked_at):
            table = self._tables[folder]
            if self._needs_checkpoint(table) and self._is_tried(table):
                self._attempt(folder, table, self._checkpoint)
        due = next((folder for folder in list(self._looked_at) if self._is_due(folder)), None)
        if due is None:
            return self._dropped is not None and self._remove_dropped(self._dropped)
        del self._looked_at[due]
        self._looked_at[due] = None  # the others are next
        self._attempt(due, self._tables[due], self._maintain)
        return True

    def _wake(self, now_s: float) -> None:
        """Examine the tables whose time has come."""
        while self._later and self._later[0][0] <= now_s:
            at_s, folder = heapq.heappop(self._later)
            if self._scheduled.get(folder) == at_s:
                del self._scheduled[folder]
                self._looked_at.setdefault(folder)

    def _is_due(self, folder: str) -> bool:
        """Return whether a table is due; one that is not is looked at again after its next report, or at its time."""
        table = self._tables[folder]
        if self._needs_maintenance(table) and self._is_tried(table):
            return True
        del self._looked_at[folder]
        next_s = self._next_look_s(table)
        if next_s < self._scheduled.get(folder, math.inf):
            self._scheduled[folder] = next_s
            heapq.heappush(self._later, (next_s, folder))
        elif next_s == math.inf and folder in self._finished:
            self._forget(folder)
        return False

    def _next_look_s(self, table: _DueTable) -> float:
        """Return from when on a table may be due that is not now, without a report."""
        if table.is_damaged:
            return math.inf
        if self._needs_checkpoint(table) or self._needs_maintenance(table):
            return table.retries.not_before_s
        return table.unused_at_s if self._is_maintained(table) else math.inf

    def _take_reports(self) -> None:
        with self._lock:
            reported, self._reported = self._reported, {}
            finishing, self._finishing = self._finishing, set()
        if self._finished:
            self._finished.difference_update(reported)
        if finishing:
            self._finished.update(finishing)
            self._looked_at.update(dict.fromkeys(finishing & self._tables.keys()))
        for folder, (version, upkeep) in reported.items():
            table = self._tables.get(folder)
            if table is None or version < table.recorded:  # another table in its place
                checkpointed = last_checkpoint(f"{self._root}/{folder}/{LOG_FOLDER}") or 0
                table = _DueTable(NO_VERSION, upkeep, checkpointed, step_bytes=self._config.maintain_bytes)
                self._tables[folder] = table
            if version != table.recorded:
                table.recorded, table.is_damaged = version, False
                table.unused_at_s = time.monotonic() + upkeep.keep_hours * 3600 + 1
            table.upkeep = upkeep
            self._looked_at.setdefault(folder)
        self._cleanup.run((folder, version) for folder, (version, _) in reported.items())

    def _is_tried(self, table: _DueTable) -> bool:
        return not table.is_damaged and time.monotonic() >= table.retries.not_before_s

    def _is_maintained(self, table: _DueTable) -> bool:
        return bool(self._config.maintain_commits) and table.upkeep is not NO_UPKEEP

    def _needs_maintenance(self, table: _DueTable) -> bool:
        if not self._is_maintained(table):
            return False
        every = self._config.maintain_commits
        return self._may_have_unused(table) or table.recorded // every > table.maintained // every

    def _needs_checkpoint(self, table: _DueTable) -> bool:
        return table.recorded // CHECKPOINT_EVERY > table.checkpointed // CHECKPOINT_EVERY

    def _may_have_unused(self, table: _DueTable) -> bool:
        """Return whether unused files are looked for: once for each time that the table is due."""
        every = self._config.maintain_commits
        return table.unused_at_s < time.monotonic() or table.recorded // every > table.cleared // every

    def _checkpoint(self, folder: str, table: _DueTable) -> None:
        delta = open_delta(f"{self._root}/{folder}")
        delta.create_checkpoint()
        sync_checkpoint(f"{self._root}/{folder}", delta.version())
        table.checkpointed = table.recorded
        passed(MaintenanceFailpoint.CHECKPOINT_WRITTEN)

    def _maintain(self, folder: str, table: _DueTable) -> None:
        uri, upkeep, most = f"{self._root}/{folder}", table.upkeep, self._config.maintain_files
        lock, begun_s = self._locks.of(uri), time.monotonic()
        # Maintenance does not touch a diverged table either.
        snapshot = LakeTable(uri, upkeep.app, upkeep.recorded) if upkeep.key else None
        # NB: this is first: a table that always has files to combine, or whose steps always lose, has unused files too.
        deleted = 0
        if self._may_have_unused(table):
            opened = snapshot.delta if snapshot is not None else None
            deleted = delete_unused_files(uri, upkeep.keep_hours, table.recorded, most, lock, opened=opened)
            if deleted < most:
                table.cleared = table.recorded
                if table.unused_at_s < begun_s:
                    table.unused_at_s = math.inf
        made = None
        if snapshot is not None:
            made = recluster(snapshot, upkeep.key, lock, rows_max=upkeep.rows_max, bytes_max=table.step_bytes)
        self._metrics.maintenance_steps.inc()
        if made is not None:
            with self._lock:
                self._results.committed.add(folder)
        if deleted < most and (made is None or made.is_complete):
            table.maintained = table.recorded

    def _attempt(self, folder: str, table: _DueTable, work: Callable[[str, _DueTable], None]) -> None:
        try:
            work(folder, table)
        except MaintenanceLost as lost:
            self._metrics.maintenance_conflicts.inc()
            self._log.info("maintenance of a table yields to the stream", table=folder, reason=str(lost))
            table.step_bytes = max(STEP_BYTES_MIN, table.step_bytes // 2)
        except (TableDiverged, TableStopped, TableNotFoundError):
            self._forget(folder)  # the stream finds it out with the next batch
            return
        except Exception as error:  # noqa: BLE001 - other tables are still maintained, and the operator sees it
            self._metrics.maintenance_failures.inc()
            self._failing.setdefault((folder, work.__name__), time.monotonic())
            fields, is_known = describe_error(error), isinstance(error, FAILURES)
            if is_known:
                fields["error"] = first_reason(str(error))  # all of it may have column values
            self._log.warning("maintenance of a table failed", table=folder, **fields)
            is_elsewhere = is_of_host(error) or is_full(error) or reports_full_disk(str(error)) or store_failure(error)
            if is_known and not (is_elsewhere or isinstance(error, StoreUnavailable)):
                table.is_damaged = self._look_for_damage(folder)  # reads the whole table
            if table.is_damaged:
                self._forget_failures(folder)  # the stream makes it diverge
        else:
            self._failing.pop((folder, work.__name__), None)
            table.retries.waits_s, table.step_bytes = 0.0, self._config.maintain_bytes
            return
        table.retries.failed()

    def _remove_dropped(self, dropped: DroppedTables) -> bool:
        """Remove a part of the dropped tables; return whether there was one."""
        retries, work = self._removal, ("", "_remove_dropped")
        if not dropped.has_work or time.monotonic() < retries.not_before_s:
            return False
        try:
            is_done = dropped.step(self._config.maintain_files)
        except Exception as error:  # noqa: BLE001 - tables are still maintained, and the operator sees it
            self._metrics.maintenance_failures.inc()
            self._failing.setdefault(work, time.monotonic())
            fields = {**describe_error(error), "error": first_reason(str(error))}
            self._log.warning("removal of a dropped table failed", **fields)
            retries.failed()
            return True
        for folder in self._tables.keys() & dropped.take_checked():
            self._forget(folder)
        self._failing.pop(work, None)
        if is_done:
            retries.waits_s = 0.0
        else:
            retries.failed()
        return is_done

    def _forget(self, folder: str) -> None:
        del self._tables[folder]
        self._finished.discard(folder)
        self._looked_at.pop(folder, None)
        self._scheduled.pop(folder, None)
        self._cleanup.forget(folder)
        self._forget_failures(folder)

    def _forget_failures(self, folder: str) -> None:
        for failing in [one for one in self._failing if one[0] == folder]:
            del self._failing[failing]

    def _look_for_damage(self, folder: str) -> bool:
        """Let the stream know if the table is damaged; return whether it is."""
        try:
            reason = damage_of(f"{self._root}/{folder}", is_over=self._stop.is_set)
        except (ScanStopped, StoreUnavailable):
            return False
        if reason:
            with self._lock:
                self._results.damaged[folder] = reason
        return bool(reason)
