"""The first copy from a base backup (`copy.base_backup`): without a SELECT on the node, and without the node.

The rows are those at one LSN for all tables, M: the first place after the end of the backup, and after the beginning of
the capture, where all transactions that the stream does not contain whole are known to have ended.

    redo LSN ── end of the backup ── M ──────────
                        beginning ──┘└── changes that commit from here on come by the stream

It is a copy at the beginning alone: once a change was delivered, the rows at M are not those that the stream continues,
and the node is read (`FirstCopy`). After a kill the open tables are copied again from the backup, at the same M.
"""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tidemark.decode.transactions.schema_changes import PERMANENT
from tidemark.io.archive.archive import NoWal
from tidemark.io.backup.backup import BackupFolder, open_backup
from tidemark.io.backup.changed_pages import PageCache, scratch_error
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.disk import StateFull
from tidemark.io.host.logs import Log, describe_error
from tidemark.io.node.copy_source import TableSnapshot
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_views import StateView
from tidemark.model.errors import ConfigError, WalGap
from tidemark.model.lsn import Lsn, SystemIdentifier
from tidemark.model.position import Epoch, Position
from tidemark.model.relation import Relation
from tidemark.model.snapshot import ReplayedSnapshot
from tidemark.runtime.backup_rows.catalogs import CatalogsAt, FoundTable, catalogs_at
from tidemark.runtime.backup_rows.page_replay import PageReplay
from tidemark.runtime.backup_rows.recovery_target import Progressed, settled_target
from tidemark.runtime.backup_rows.table_rows import BackedUpRows, files_of
from tidemark.runtime.context import Stopped
from tidemark.runtime.first_copy.copy_feeding import GENERATION_SHIFT, BuiltBatch, CopyFeeding, Deliver
from tidemark.runtime.first_copy.copy_settings import CopySettings
from tidemark.runtime.first_copy.table_copy import shown_by
from tidemark.runtime.seed.backup_reading import check_archive, wal_of
from tidemark.runtime.seed.backup_seeding import seed_from_backup
from tidemark.runtime.seed.copy_plan import after_drop, after_leave, is_changed_selection, selection_reported
from tidemark.runtime.seed.seed_observer import SilentObserver
from tidemark.wire.recopies import TableKey
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, Fingerprint
from tidemark.wire.state.state_keys import FINGERPRINT
from tidemark.wire.state.values import Beginning


class ForeignBackup(ConfigError):
    """The base backup of another cluster."""

    hint = "set copy.base_backup to a backup of the captured node, or remove it: the rows are then read from the node"


class BackupTooOld(ConfigError):
    """The base backup was taken before a captured database was created."""

    hint = "set copy.base_backup to a later backup, or remove it: the rows are then read from the node"


def may_copy_from_backup(settings: CopySettings, view: StateView, log: Log) -> bool:
    """Return whether the tables can be copied from the configured backup: nothing of the stream was delivered."""
    if not (settings.copy.base_backup and settings.copy.enabled and view.beginning and view.delivered):
        return False
    is_before = view.delivered.pointer.position.commit_lsn < view.beginning.lsn
    if not is_before:
        log.info("base backup is not used: changes were delivered before", backup=settings.copy.base_backup)
    return is_before


class BackupCopy:
    """Copies the tables that are due, one after the other."""

    def __init__(
        self,
        settings: CopySettings,
        store: StateStore,
        epoch: Epoch,
        beginning: Beginning,
        deliver: Deliver,
        *,
        metrics: Metrics,
        log: Log,
        stopping: threading.Event,
    ) -> None:
        self._settings = settings
        self._store = store
        self._epoch = epoch
        self._beginning = beginning
        self._feeding = CopyFeeding(deliver, metrics, log)
        self._metrics = metrics
        self._log = log
        self._stopping = stopping
        self._clock = SystemClock()

    def run(self) -> None:
        """Copy all; wait for WAL that is not archived yet, or that has to be restored, and for space."""
        while True:
            began_s = self._clock.monotonic_s()
            try:
                with open_backup(Path(self._settings.copy.base_backup)) as backup, self._scratch() as scratch:
                    self._copy(backup, scratch)
            except (WalGap, NoWal, StateFull) as error:
                # The WAL is read again: not for more than half of the time.
                delay_s = max(self._settings.retry.max_s, self._clock.monotonic_s() - began_s)
                self._log.warning("first copy from a backup waits", retry_s=round(delay_s, 1), **describe_error(error))
                if self._stopping.wait(delay_s):
                    raise Stopped from error
            else:
                self._log.info("first copy done")
                return

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """Create an empty folder for temporary files; a killed process may have left one."""
        folder = self._store.folder.copy_pages
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise scratch_error(folder, error) from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _copy(self, backup: BackupFolder, scratch: Path) -> None:
        settings, beginning = self._settings, self._beginning
        _check_same(backup, self._store.identity.system_identifier)
        archive = wal_of(backup, settings.archive)
        checkpoint = check_archive(backup, archive)
        observer = _StopObserver(self._check_stop)
        seed = seed_from_backup(backup, archive, settings.select.selection().selects_database, observer=observer)
        if missing := beginning.databases.keys() - seed.databases.keys():
            names = ", ".join(sorted(beginning.databases[oid] for oid in missing))
            raise BackupTooOld(f"the backup {backup.folder} does not have the captured databases {names}")
        from_lsn = max(seed.lsn, beginning.lsn)
        target = settled_target(archive, from_lsn, beginning.complete_from, self._check_stop)
        catalogs = catalogs_at(seed, backup, archive, target, self._check_stop)
        tables = self._plan(catalogs)
        self._metrics.copy_tables_left.set(len(tables))
        replay = PageReplay(
            backup,
            checkpoint,
            files_of(found for found, _ in tables),
            PageCache(scratch, changed_bytes_max=settings.copy.spool_bytes),
            self._check_stop,
        )
        replay.run(archive, catalogs.lsn)
        for number, (found, shown) in enumerate(tables, 1):
            self._feed(BackedUpRows(found, shown, catalogs, replay, beginning.types, scratch), replay.latest_time_us)
            self._metrics.copy_tables_left.set(len(tables) - number)

    def _check_stop(self) -> None:
        if self._stopping.is_set():
            raise Stopped

    def _plan(self, catalogs: CatalogsAt) -> list[tuple[FoundTable, Relation]]:
        """Return the tables to be copied, and record them: a kill does not change the plan."""
        select, copy, view = self._settings.select, self._settings.copy, self._store.view()
        is_first = is_changed_selection(select, copy, view)
        due: list[tuple[FoundTable, Relation]] = []
        changed = dict[TableKey, CopyProgress]()
        gone = self._open_tables(view)
        for found in catalogs.tables():
            shown = shown_by(select.selection(), found.relation)
            key = (found.mirror.database, found.relation.oid)
            known = view.copies.get(key)
            if found.relation.persistence != PERMANENT:
                continue
            gone.discard(key)
            if shown is None:
                if known is not None and known.is_open:
                    changed[key] = after_leave(known)
                continue
            if known is None and is_first:
                changed[key] = CopyProgress(CopyPhase.WAITING, 0)
                due.append((found, shown))
            elif known is not None and known.is_open:
                due.append((found, shown))
        with self._store.transaction(self._epoch) as transaction:
            for key, progress in changed.items():
                seen = replace(progress, seen_lsn=catalogs.lsn, timeline=catalogs.timeline)
                transaction.put_copy(*key, seen)
            for key in gone:  # dropped before a later backup than that of the plan
                transaction.put_copy(*key, after_drop(view, key, self._shows(catalogs.lsn)))
            if is_first:
                selection = selection_reported(select, copy)
                listed = dict.fromkeys(map(str, self._beginning.databases), self._shows(catalogs.lsn))
                transaction.put(FINGERPRINT, Fingerprint(selection, catalogs.lsn, catalogs.timeline, listed))
        self._log.info("first copy planned", tables=len(due), lsn=catalogs.lsn, backup=copy.base_backup)
        return due

    def _open_tables(self, view: StateView) -> set[TableKey]:
        """Return the planned tables of the selected databases."""
        selection, names = self._settings.select.selection(), self._beginning.databases
        selected = {database for database, name in names.items() if selection.selects_database(name)}
        return {key for key, known in view.copies.items() if known.is_open and key[0] in selected}

    def _feed(self, rows: BackedUpRows, seen_time_us: int) -> None:
        key = (rows.database, rows.found.relation.oid)
        known = self._store.copy(*key)
        assert known is not None, "recorded when it was planned"
        generation, place = known.generation + 1, rows.position
        shows = self._shows(place.commit_lsn)
        snapshot = TableSnapshot(
            rows.relation, shows, seen_time_us, None, place.commit_lsn, place.timeline, seen_time_us
        )
        position = replace(place, ordinal=generation << GENERATION_SHIFT)
        self._feeding.feed(key, position, generation, snapshot, built=self._built(rows, position), whole=_is_whole)

    def _shows(self, lsn: Lsn) -> str:
        """Return the snapshot of everything that was copied, or listed, at an LSN."""
        return str(ReplayedSnapshot(self._beginning.complete_from, lsn))

    def _built(self, rows: BackedUpRows, after: Position) -> Iterator[BuiltBatch]:
        rows_max, bytes_max = self._settings.bounds
        for batch in rows.batches(after, rows_max=rows_max, bytes_max=bytes_max):
            first = batch.rows.slice(0, 1)
            yield replace(after, ordinal=first.column("_ordinal")[0].as_py()), batch, batch.rows.nbytes


class _StopObserver(SilentObserver):
    """Ends a seed when the process stops."""

    def __init__(self, check: Progressed) -> None:
        self._check = check

    def replaying(self, start_lsn: Lsn, lsn: Lsn, end_lsn: Lsn) -> None:
        """Raise `Stopped` if the process stops."""
        del start_lsn, lsn, end_lsn
        self._check()


def _is_whole() -> None:
    """Do nothing: an error in the rows was raised before their end."""


def _check_same(backup: BackupFolder, expected: SystemIdentifier) -> None:
    found = backup.control.system_identifier
    if found != expected:
        raise ForeignBackup(f"the backup {backup.folder} is of system {found}, the capture of {expected}")
