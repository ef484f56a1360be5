"""Writes portions of batches into the change logs of a lake of Iceberg tables."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from tidemark.io.host.clock import SystemClock
from tidemark.io.host.failpoints import passed
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig, Written
from tidemark.model.commit_time import USECS_PER_SECOND
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.iceberg.expiry import SnapshotExpiry
from tidemark.pipeline.iceberg.iceberg_lake import IcebergLake
from tidemark.pipeline.iceberg.positions import CatalogPositions
from tidemark.pipeline.iceberg.snapshot_summary import IcebergTableChanged
from tidemark.pipeline.lake.layout import shape_of
from tidemark.pipeline.landing.feed import Feed
from tidemark.pipeline.landing.landing import LandingParts
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
        self._progress = parts.progress
        self._databases = CapturedDatabases(parts.outbox)
        clock = SystemClock()
        self._expiry = SnapshotExpiry(settings.log_keep_s, lambda: clock.wall_us() / USECS_PER_SECOND)
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
        """Do nothing: no table was resumed, and there is no maintenance beside the stream."""

    def confirm(self) -> None:
        """Confirm to the outbox what every log contains: it is not read again."""
        applied = self._lake.positions.applied.sequence
        self._outbox.confirm(self._settings.reader, applied, applied)
        passed(Failpoint.CONFIRMED)

    def catch_up(self, *, merges: bool = True, is_end: bool = False) -> bool:  # noqa: ARG002 - no table is behind
        """Return False: no table is behind the others."""
        return False

    def record_maintenance(self) -> None:
        """Do nothing: the stream itself expires snapshots."""

    def maintained(self) -> AbstractContextManager[None]:
        """Run nothing meanwhile."""
        return nullcontext()

    def complete_maintenance(self, is_over: Callable[[], bool]) -> None:
        """Do nothing: the stream itself expires snapshots."""

    def _opened(self, lake_id: str | None) -> IcebergLake:
        shapes = partial(shape_of, types=self._databases.types)
        lake = IcebergLake(
            self._settings.lake, self._outbox.identity, shapes, self._databases, self._expiry, lake_id=lake_id
        )
        self._progress.record_tables(lake.positions.tables)
        return lake


def check_settings(config: LakeConfig) -> None:
    """Raise `BadTableSettings` for settings of tables that a lake of Iceberg tables does not support."""
    faults = [f"{one.pattern}: {key}" for one in config.tables for key in _unsupported(one)]
    if faults:
        raise BadTableSettings(f"with --format iceberg there are only change logs, without {', '.join(faults)}")


def _unsupported(settings: LakeTableConfig) -> list[str]:
    plain = LakeTableConfig(settings.pattern, write=settings.write)
    names = [name for name in settings.__struct_fields__ if getattr(settings, name) != getattr(plain, name)]
    return [*names, *(["write = 'replica'"] if settings.write is Written.REPLICA else [])]
