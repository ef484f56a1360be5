"""A seed from a base backup and an archive, without a server: mirrors that are exact at the end of the backup.

    start    the redo LSN in backup_label; from there on WAL has the image of every page that is changed
    replay   the archive from there to the record that ends the backup: the mirrors are updated, and the ends of
             transactions, page images and relation maps are kept
    pages    rows that no record contains are read from the backup's pages, or from their images (`page_seed`)

The result shows which files contain the catalogs: the relation map at the end, and pg_class at that LSN. If other files
were followed, because a catalog was rewritten while the backup ran, the replay is repeated with the right ones. A
rewrite that was running when the backup began is no exception: it writes its pages to WAL and to the file together, so
a row without an image is on a page. If a row is missing nevertheless, tables lack columns, and the backup is rejected.

A backup of a standby has no record that ends it: its pg_control, copied last, has the LSN up to which to replay.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tidemark.decode.catalog.databases import DatabaseMirrors
from tidemark.decode.catalog.follower import CatalogFollower
from tidemark.decode.catalog.layout import PG_DATABASE
from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.decode.catalog.record_filter import RecordFilter
from tidemark.decode.catalog.redo import CatalogDiverged, SeedOvertaken
from tidemark.decode.catalog.seeding import page_seed, seed
from tidemark.decode.catalog.seeding.commit_log import CommitLog, Multixacts
from tidemark.decode.catalog.store import GLOBAL_TABLESPACE
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.backup.backup import BackupFolder
from tidemark.io.node.node import NodeFacts
from tidemark.model.lsn import INVALID_OID, OID_BYTES, Lsn, Oid, Xid, format_lsn
from tidemark.runtime.replay.archive_blocks import archived_blocks, of_rmgr
from tidemark.runtime.replay.offline import ArchiveEndsEarly, ForeignArchive
from tidemark.runtime.seed.backup_reading import BackupFilenodes, BackupSource, open_source
from tidemark.runtime.seed.seed_observer import SeedObserver, SilentObserver
from tidemark.runtime.seed.seeding import FollowsDatabase, Seed, next_xid_after, no_other_database
from tidemark.wal.data_directory import BackupUnusable
from tidemark.wal.page import RecordBlock
from tidemark.wal.record import INFO_MASK, Record
from tidemark.wal.rmgr import (
    RM_DBASE,
    RM_MULTIXACT,
    RM_RELMAP,
    RM_STANDBY,
    RM_XACT,
    RM_XLOG,
    multixact,
    relmap,
    standby,
    xact,
    xlog,
)

REPLAYS_MAX = 4  # one, one more for a rewritten mapped catalog, and one more for a catalog whose file is in pg_class
_LSN_END = Lsn((1 << 64) - 1)


def seed_from_backup(
    backup: BackupFolder,
    archive: ArchiveFolder,
    selects: Callable[[str], bool],
    follows: FollowsDatabase = no_other_database,
    observer: SeedObserver | None = None,
) -> Seed:
    """Return mirrors of the databases that `selects` accepts, exact at the end of the backup.

    The mirrors of the templates, and of databases that `follows` accepts, are included, as in `read_seed`. `observer`
    receives the progress through the backup's WAL, again for each replay.
    """
    source, files = open_source(backup, archive, selects, follows)
    for _ in range(REPLAYS_MAX):
        replay = _BackupReplay(source, files, observer or SilentObserver())
        try:
            replay.run()
        except (SeedOvertaken, CatalogDiverged) as error:
            raise BackupUnusable(f"{backup.folder}: {error}") from error
        if replay.files() == files:
            replay.check()
            return replay.seed()
        files = replay.files()
    raise BackupUnusable(f"{backup.folder}: the files of the catalogs at its end cannot be determined")


class _BackupReplay:
    """One replay of the backup's WAL by mirrors, under an assumption about the catalogs' files."""

    def __init__(self, source: BackupSource, files: BackupFilenodes, observer: SeedObserver) -> None:
        self._source = source
        self._observer = observer
        self._backup = backup = source.backup
        self._older_than = Xid(source.checkpoint.next_xid & 0xFFFFFFFF)
        self._mirrors = self._begin(files)
        followed = DatabaseMirrors(self._mirrors, lambda row: row.oid in source.selected)
        self._follower = CatalogFollower(backup.format, followed)
        self._filter = RecordFilter(backup.format, followed)
        self._followed = followed
        stores = [store for mirror in self._mirrors for store in (mirror.store, mirror.shared.store)]
        self._images = page_seed.PageImages(heap.file for store in stores for heap in store.heaps.values())
        self._log = CommitLog(partial(backup.slru_page, "pg_xact"), self._older_than)
        self._multixacts = Multixacts(
            partial(backup.slru_page, "pg_multixact/offsets"),
            partial(backup.slru_page, "pg_multixact/members"),
            source.checkpoint.next_multixact,
            source.checkpoint.next_member,
        )
        self._maps: dict[Oid, Mapping[Oid, Oid]] = {}  # latest in WAL, by database
        self._remade: set[Oid] = set()  # created, dropped or moved databases
        self._lsn = backup.label.start_lsn
        self._next_xid = source.checkpoint.next_xid

    def _begin(self, files: BackupFilenodes) -> Sequence[CatalogMirror]:
        mirrors: list[CatalogMirror] = []
        for database in self._source.databases.values():
            mirror = seed.begin(
                self._backup.format,
                seed.DatabaseIdentity(database.oid, database.tablespace, database.encoding),
                self._source.columns,
                [*files.local[database.oid].items(), (PG_DATABASE.oid, files.shared)],
                next_xid=self._older_than,
                files_lsn=_LSN_END,
                shared=mirrors[0].shared if mirrors else None,
            )
            mirrors.append(mirror)
        return mirrors

    def run(self) -> None:
        """Follow all WAL of the backup, and add the rows on its pages."""
        if not self._follow():
            began = f"the backup that began at {format_lsn(self._backup.label.start_lsn)}"
            raise ArchiveEndsEarly(
                f"{self._source.archive.folder} ends at {format_lsn(self._lsn)}, before the end of {began}",
                hint="wait until the last segment of the backup is archived (pg_switch_wal() speeds this up)",
            )
        self._check_end()
        heaps = (heap for mirror in self._mirrors for heap in mirror.store.heaps.values())
        self._backup.prefetch(heap.file for heap in heaps)
        page_seed.complete(self._mirrors, self._images, self._backup.pages, self._log, self._multixacts)

    def _check_end(self) -> None:
        """Check that the backup ends in the archive where its manifest says; WAL has no end of a standby's."""
        reported_lsn = self._backup.end_lsn
        if not self._backup.label.from_standby and reported_lsn not in (None, self._lsn):
            ends = f"according to its manifest, the backup {self._backup.folder} ends at {format_lsn(reported_lsn)}"
            raise ForeignArchive(
                f"{ends}, in {self._source.archive.folder} at {format_lsn(self._lsn)}",
                hint="give the archive of the server from which the backup was taken",
            )

    def files(self) -> BackupFilenodes:
        """Return the files of the catalogs at the end."""
        local = {mirror.database: page_seed.files_of(mirror, self._map(mirror.database)) for mirror in self._mirrors}
        return BackupFilenodes(local, self._map(INVALID_OID)[PG_DATABASE.oid])

    def check(self) -> None:
        """Raise `BackupUnusable` if a captured database's mirror may be wrong; leave out other such mirrors."""
        for mirror in self._mirrors:
            if self._source.databases[mirror.database].captured:
                self._check(mirror)
                continue
            try:
                self._check(mirror)
            except BackupUnusable as error:
                self._followed.leave_out(mirror.database, str(error))

    def _check(self, mirror: CatalogMirror) -> None:
        known = self._source.databases[mirror.database]
        now = mirror.shared.database(mirror.database)
        was_changed = now is None or (now.name, now.tablespace) != (known.name, known.tablespace)
        if was_changed or mirror.database in self._remade:
            raise BackupUnusable(f"database {known.name} was created, dropped, renamed or moved during the backup")
        try:
            deque(mirror.relations(), maxlen=0)
        except CatalogDiverged as error:
            raise BackupUnusable(f"{self._backup.folder} lacks rows of its catalogs: {error}") from error

    def seed(self) -> Seed:
        """Return the seed."""
        selected = self._source.selected
        first = next(iter(selected.values()))
        facts = NodeFacts(
            major=self._backup.format.major,
            server_version=str(self._backup.format.major),
            system_identifier=self._backup.control.system_identifier,
            timeline=self._backup.label.timeline,
            segment_bytes=self._source.archive.segment_bytes,
            database=first.name,
            database_oid=first.oid,
            role="",
        )
        return Seed(
            node=facts,
            format=self._backup.format,
            timeline=self._backup.label.timeline,
            lsn=self._lsn,
            mirrors=self._followed,
            databases={oid: database.name for oid, database in selected.items()},
            complete_from=self._next_xid,
            top_of=dict(self._follower.top_of),
        )

    def _map(self, database: Oid) -> Mapping[Oid, Oid]:
        relation_map = self._maps.get(database)
        if relation_map is not None:
            return relation_map
        known = self._source.databases.get(database)
        return self._backup.relation_map(known.tablespace if known else GLOBAL_TABLESPACE, database)

    def _follow(self) -> bool:
        """Follow the records of the backup; return whether its end was found."""
        end_lsn = self._reported_end()
        for block in archived_blocks(self._source.archive, self._lsn):
            stop, is_over = self._stop(block)
            for index in of_rmgr(block, stop, RM_MULTIXACT):
                created = multixact.parse(block.record(index))
                if created is not None:
                    self._multixacts.record(created)
            for index in of_rmgr(block, stop, RM_DBASE):
                self._record_recreated(block.record(index))
            for record in self._filter.records(block, stop):
                self._apply(record)
            self._next_xid = next_xid_after(self._next_xid, block, stop)
            if stop:
                self._lsn = Lsn(block.ends[stop - 1])
            self._observer.replaying(self._backup.label.start_lsn, self._lsn, max(self._lsn, end_lsn))
            if is_over:
                return True
        return False

    def _reported_end(self) -> Lsn:
        """Return the end of the backup according to its files, or else the end of the archive."""
        if self._backup.label.from_standby:
            return self._backup.control.min_recovery_lsn
        return self._backup.end_lsn or self._source.archive.last_lsn()

    def _stop(self, block: RecordBlock) -> tuple[int, bool]:
        """Return how many records of the block belong to the backup, and whether it ends with them."""
        count = len(block)
        if self._backup.label.from_standby:
            end_lsn = self._backup.control.min_recovery_lsn
            stop = bisect_left(block.lsns, end_lsn, 0, count)
            return stop, stop < count or (count > 0 and block.ends[count - 1] >= end_lsn)
        for index in of_rmgr(block, count, RM_XLOG):
            if block.infos[index] & INFO_MASK == xlog.BACKUP_END:
                ended = xlog.parse(block.record(index), self._backup.format)
                if ended == xlog.BackupEnd(self._backup.label.start_lsn):
                    return index + 1, True
        return count, False

    def _record_recreated(self, record: Record) -> None:
        oid = Oid(int.from_bytes(record.main[:OID_BYTES], "little"))
        if oid in self._source.selected:
            name = self._source.databases[oid].name
            raise BackupUnusable(f"database {name} was created, dropped or moved during the backup")
        self._remade.add(oid)

    def _apply(self, record: Record) -> None:
        self._images.store_images(record)
        if record.rmgr == RM_XACT:
            ended = xact.parse(record, self._backup.format)
            if isinstance(ended, xact.Commit | xact.Abort):
                self._log.record((ended.xid, *ended.subxids), committed=isinstance(ended, xact.Commit))
        elif record.rmgr == RM_STANDBY:
            running = standby.parse(record)
            if running is not None:
                self._log.record_running(running.oldest_running_xid)
        elif record.rmgr == RM_RELMAP:
            update = relmap.parse(record, self._backup.format)
            if update is not None and (update.database in self._source.databases or update.database == INVALID_OID):
                self._maps[update.database] = update.files
        self._follower.follow(record)
