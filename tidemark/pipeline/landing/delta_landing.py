"""Writes portions of batches into the Delta tables of a lake, with paused and deferred tables and maintenance."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from tidemark.io.host.failpoints import passed
from tidemark.pipeline.delta_log.log_cleanup import LogCleanup, keep_hours
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.tables.table_locks import TableLocks
from tidemark.pipeline.landing.behind.deferred_replicas import DeferredReplicas
from tidemark.pipeline.landing.behind.paused_tables import PausedTables
from tidemark.pipeline.landing.dropped_tables import DroppedTables
from tidemark.pipeline.landing.feed import Feed
from tidemark.pipeline.landing.landing import LandingParts
from tidemark.pipeline.landing.late_begin import note_late_begin
from tidemark.pipeline.landing.maintenance import Maintenance
from tidemark.pipeline.landing.metrics import BatchStage
from tidemark.pipeline.landing.progress import report_changes
from tidemark.pipeline.landing.settings import paused_bytes
from tidemark.pipeline.landing.settings_check import check_settings, check_source, unmatched_patterns
from tidemark.pipeline.landing.table_overview import faults_of
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.source.captured_databases import CapturedDatabases


class DeltaLanding:
    """One lake of Delta tables, as one reader of the outbox writes it."""

    def __init__(self, parts: LandingParts) -> None:
        settings, outbox, capture, log = parts.settings, parts.outbox, parts.capture, parts.log
        self._writers = parts.writers
        self._settings = settings
        self._outbox = outbox
        self._use_reader = parts.use_reader
        self._capture = capture
        self._progress = parts.progress
        self._log = log
        self._databases = CapturedDatabases(outbox)
        self._locks = TableLocks()
        kept_bytes = paused_bytes(settings, outbox)
        self._paused = PausedTables(outbox, capture, settings.reader, kept_bytes)
        self._deferred = DeferredReplicas(outbox, kept_bytes)
        self._lake = self._opened(lambda: False)
        self._paused.close_old_requests(self._lake)
        tables = self._lake.positions.tables
        report_changes(log, {}, {of: table for of, table in tables.items() if any(faults_of(table))})
        check_settings(settings.lake_config, settings.lake, tables.values())
        check_source(settings.lake_config, capture, tables.keys(), log)
        for pattern in unmatched_patterns(settings.lake_config, tables.values()):
            log.warning("a pattern of lake.tables applies to no table of the lake", pattern=pattern)
        cleanup = LogCleanup(settings.lake, settings.log_keep_s, log)
        self._dropped = DroppedTables(settings.lake, outbox.identity.capture, settings.lake_config, log)
        metrics = parts.progress.metrics
        self._maintenance = Maintenance(settings.lake_config, self._locks, cleanup, metrics, log, dropped=self._dropped)

    @property
    def positions(self) -> Positions:
        """Return the positions table of the lake."""
        return self._lake.positions

    @property
    def is_behind(self) -> bool:
        """Return whether there are paused or deferred tables."""
        return bool(self._lake.paused or self._lake.deferred)

    def open(self, is_over: Callable[[], bool]) -> None:
        """Open the lake again; retries and checks end once `is_over` returns true."""
        self._lake = self._opened(is_over)

    def land(self, feed: Feed) -> None:
        """Write a portion to log and replica of its tables, and confirm it."""
        lake, metrics = self._lake, self._progress.metrics
        before, were_paused = lake.positions.tables, set(lake.paused)
        self._paused.give_up_oldest(lake)
        self._paused.resume_copied(lake, feed.lake_batch.items)
        self._take_maintenance()
        begun_s = time.monotonic()
        lake.apply(feed.lake_batch)
        metrics.add_stage(BatchStage.RECORD, lake.recording_s)
        metrics.add_stage(BatchStage.WRITE, time.monotonic() - begun_s - lake.recording_s)
        report_changes(self._log, before, lake.positions.tables)
        with metrics.in_stage(BatchStage.CONFIRM):
            self.confirm()
        self._has_resumed = bool(were_paused - lake.paused.keys())

    def end_portion(self) -> None:
        """Close the requests of resumed tables, and report the written tables to maintenance."""
        if self._has_resumed:
            self._paused.close_old_requests(self._lake)
        self._report_written()

    def confirm(self) -> None:
        """Confirm to the outbox what every table contains: it is not read again."""
        self._outbox.confirm(self._settings.reader, self._lake.contained, self._lake.contained)
        passed(Failpoint.CONFIRMED)

    def catch_up(self, *, merges: bool = True, is_end: bool = False) -> bool:
        """Let a resumed table, or a deferred replica, catch up by one slice; return whether there was one."""
        lake = self._lake
        before = lake.positions.tables
        is_resumed = self._paused.resume(lake, lambda: self._record_tables(lake))
        if not is_resumed and not (merges and self._deferred.merge(lake, all_of_them=is_end)):
            return False
        report_changes(self._log, before, lake.positions.tables)
        self.confirm()
        self._report_written()
        return True

    def record_maintenance(self) -> None:
        """Record the results of maintenance in `_positions`."""
        if self._take_maintenance():
            self._lake.refresh()
            self._report_written()
            self._record_tables(self._lake)
        self._dropped.offer(self._lake)

    def maintained(self) -> AbstractContextManager[None]:
        """Run the thread of maintenance meanwhile."""
        return self._maintenance.running()

    def complete_maintenance(self, is_over: Callable[[], bool]) -> None:
        """Maintain all tables that are due, and record the results: of dropped tables those of two steps."""
        self._dropped.offer(self._lake)
        for _ in ("check", "delete"):
            self._maintenance.complete(is_over)
            self.record_maintenance()

    def _opened(self, is_over: Callable[[], bool]) -> Lake:
        databases, settings = self._databases, self._settings
        lake = Lake(
            settings.lake,
            self._outbox.identity,
            partial(shape_of, types=databases.types),
            constants_of,
            databases,
            dialects=databases.dialects,
            keep_hours=keep_hours(settings.log_keep_s),
            accepted=partial(self._capture.accepted_breaks, settings.reader),
            is_over=is_over,
            config=settings.lake_config,
            locks=self._locks,
            writers=self._writers,
        )
        if lake.positions.foreign_change:
            change = lake.positions.foreign_change
            self._log.warning("another writer changed the positions table; ignoring its change", change=change)
        self._use_reader()
        note_late_begin(lake.positions, self._outbox, self._settings)
        self._record_tables(lake)
        self._has_resumed = False
        return lake

    def _record_tables(self, lake: Lake) -> None:
        self._progress.record_tables(lake.positions.tables, len(lake.positions.settled))

    def _report_written(self) -> None:
        self._maintenance.report(self._lake.written, self._lake.upkeep)
        self._maintenance.finish(self._lake.take_finished())
        self._dropped.offer(self._lake)

    def _take_maintenance(self) -> bool:
        results = self._maintenance.take_results()
        if results is not None:
            self._lake.record_maintenance(results.committed, results.damaged)
        has_removals = self._dropped.record(self._lake)
        return results is not None or has_removals
