"""Writes portions of batches into the change logs of a lake of Iceberg tables."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from tidemark.io.host.clock import SystemClock
from tidemark.io.host.failpoints import passed
from tidemark.io.host.logs import describe_error
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig, Written
from tidemark.model.commit_time import USECS_PER_SECOND
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.iceberg.expiry import SnapshotExpiry
from tidemark.pipeline.iceberg.iceberg_lake import IcebergLake
from tidemark.pipeline.iceberg.positions import CatalogPositions
from tidemark.pipeline.iceberg.snapshot_summary import IcebergTableChanged
from tidemark.pipeline.iceberg.translated import UnfitForIceberg
from tidemark.pipeline.lake.layout import shape_of
from tidemark.pipeline.lake.positions.table_position import TablePosition
from tidemark.pipeline.lake.tables.table_errors import LakeFailed, LakeFull
from tidemark.pipeline.landing.dropped_tables import OFFER_S, is_due
from tidemark.pipeline.landing.feed import Feed
from tidemark.pipeline.landing.landing import LandingParts
from tidemark.pipeline.landing.late_begin import note_late_begin
from tidemark.pipeline.landing.metrics import BatchStage
from tidemark.pipeline.landing.settings_check import BadTableSettings
from tidemark.pipeline.source.captured_databases import CapturedDatabases


class IcebergLanding:
    """One lake of Iceberg tables, as one reader of the outbox writes it; it has no replicas and no paused tables."""

    is_behind = False

    def __init__(self, parts: LandingParts) -> None:
        settings = parts.settings
        check_settings(settings.lake_config)
        self._settings = settings
        self._outbox = parts.outbox
        self._use_reader = parts.use_reader
        self._progress = parts.progress
        self._databases = CapturedDatabases(parts.outbox)
        clock = SystemClock()
        self._expiry = SnapshotExpiry(settings.log_keep_s, lambda: clock.wall_us() / USECS_PER_SECOND)
        self._clock = clock
        self._log = parts.log
        self._due: list[TablePosition] = []  # dropped tables
        self._search_s = 0.0  # when to search for them, and to repeat what failed
        self._refused: set[str] = set()  # folders that another program changed
        self._lake = self._opened(None)

    @property
    def positions(self) -> CatalogPositions:
        """Return the positions in the catalog of the lake."""
        return self._lake.positions

    def open(self, is_over: Callable[[], bool]) -> None:  # noqa: ARG002 - nothing here takes long
        """Open the lake again."""
        self._lake.close()
        self._lake = self._opened(self._lake.positions.lake_id())

    def land(self, feed: Feed) -> None:
        """Write a portion to the logs of its tables, and confirm it."""
        try:
            with self._progress.metrics.in_stage(BatchStage.WRITE):
                self._lake.apply(feed.lake_batch)
        except IcebergTableChanged as error:
            known = None if error.of is None else self._lake.positions.tables.get(error.of)
            if known is not None:
                self._progress.record_changed_log(known, str(error), error.hint)
            raise
        with self._progress.metrics.in_stage(BatchStage.CONFIRM):
            self.confirm()

    def end_portion(self) -> None:
        """Remove a dropped table that is due: there is no maintenance beside the stream."""
        self._remove_dropped()

    def confirm(self) -> None:
        """Confirm to the outbox what every log contains: it is not read again."""
        applied = self._lake.positions.applied.sequence
        self._outbox.confirm(self._settings.reader, applied, applied)
        passed(Failpoint.CONFIRMED)

    def catch_up(self, *, merges: bool = True, is_end: bool = False) -> bool:  # noqa: ARG002 - no table is behind
        """Return False: no table is behind the others."""
        return False

    def record_maintenance(self) -> None:
        """Remove a dropped table that is due; the stream itself expires snapshots."""
        self._remove_dropped()

    def maintained(self) -> AbstractContextManager[None]:
        """Run nothing meanwhile."""
        return nullcontext()

    def complete_maintenance(self, is_over: Callable[[], bool]) -> None:
        """Remove all dropped tables that are due; the stream itself expires snapshots."""
        self._remove_dropped()
        while self._due and not is_over():
            self._remove_dropped()

    def _remove_dropped(self) -> None:
        """Remove one dropped table, if one is due; they are searched at intervals."""
        now_s, lake = self._clock.monotonic_s(), self._lake
        if not self._due:
            if now_s < self._search_s:
                return
            self._search_s, now_us, config = now_s + OFFER_S, self._clock.wall_us(), self._settings.lake_config
            known = lake.positions.tables.values()
            self._due = [one for one in known if one.is_at_rest and is_due(config, one, now_us)]
        try:
            lake.complete_removals()
            table = self._due.pop() if self._due else None
            if table is not None and table.folder not in self._refused:
                self._remove(table)
        except (LakeFailed, LakeFull) as error:
            self._due = []
            self._progress.metrics.maintenance_failures.inc()
            self._log.warning("removal of a dropped table failed", **describe_error(error))

    def _remove(self, table: TablePosition) -> None:
        if self._lake.positions.tables.get((table.database, table.relation)) is not table:
            return  # it exists again
        names = {"table": table.qualified_name, "folder": table.folder}
        try:
            self._lake.remove(table)
        except (IcebergTableChanged, UnfitForIceberg) as error:
            self._refused.add(table.folder)
            self._log.warning("a dropped table is kept", **names, reason=str(error))
        else:
            self._log.info("a dropped table is removed", **names)

    def _opened(self, lake_id: str | None) -> IcebergLake:
        shapes = partial(shape_of, types=self._databases.types)
        lake = IcebergLake(
            self._settings.lake, self._outbox.identity, shapes, self._databases, self._expiry, lake_id=lake_id
        )
        self._use_reader()
        note_late_begin(lake.positions, self._outbox, self._settings)
        self._progress.record_tables(lake.positions.tables)
        return lake


def check_settings(config: LakeConfig) -> None:
    """Raise `BadTableSettings` for settings of tables that a lake of Iceberg tables does not support."""
    faults = [f"{one.pattern}: {key}" for one in config.tables for key in _unsupported(one)]
    if faults:
        raise BadTableSettings(f"with --format iceberg there are only change logs, without {', '.join(faults)}")


def _unsupported(settings: LakeTableConfig) -> list[str]:
    plain = LakeTableConfig(settings.pattern, write=settings.write, dropped_keep_days=settings.dropped_keep_days)
    names = [name for name in settings.__struct_fields__ if getattr(settings, name) != getattr(plain, name)]
    return [*names, *(["write = 'replica'"] if settings.write is Written.REPLICA else [])]
