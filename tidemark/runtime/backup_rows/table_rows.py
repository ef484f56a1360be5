"""The rows that a table had at the end of a base backup, or at a later moment, as the batches of a first copy.

    recovery_target   the moment as an LSN
    catalogs          the table, its columns and its files there
    page_replay       the pages of these files there
    toasted_values    values in the TOAST table

The WAL since the redo LSN of the backup is read once for each of these steps, and never a row that is not requested.
Memory is bounded; changed pages beyond the bound, and the index of TOASTed values, are in a folder of temporary files.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.decode.arrow.batches import BatchBuilder
from tidemark.decode.catalog.databases import MappedDialects
from tidemark.decode.groups.partitions import PartitionRoutes, as_target, by_leaf, under_own_name
from tidemark.decode.pages.copied_batches import BYTES_MAX, ROWS_MAX, CopiedBatches
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.backup.backup import BackupFolder
from tidemark.io.backup.changed_pages import PageCache
from tidemark.model.change import ChangeBatch
from tidemark.model.commit_time import CommitTime
from tidemark.model.lsn import Lsn, Oid
from tidemark.model.mapping import TypeMapping
from tidemark.model.position import Position
from tidemark.model.relation import PARTITIONED, Relation, RelFileLocator
from tidemark.model.table_name import TableName
from tidemark.runtime.backup_rows.catalogs import CatalogsAt, FoundTable, catalogs_at
from tidemark.runtime.backup_rows.page_replay import PageReplay
from tidemark.runtime.backup_rows.recovery_target import recovery_target
from tidemark.runtime.backup_rows.toasted_values import ToastedValues
from tidemark.runtime.seed.backup_reading import check_archive
from tidemark.runtime.seed.backup_seeding import seed_from_backup
from tidemark.runtime.seed.seed_observer import SeedObserver


@dataclass(frozen=True, slots=True)
class BackedUpRows:
    """A table at one LSN."""

    found: FoundTable
    relation: Relation  # under which its rows are delivered
    _catalogs: CatalogsAt
    _replay: PageReplay
    _types: TypeMapping
    _scratch: Path

    @property
    def database(self) -> Oid:
        """Return the table's database."""
        return self.found.mirror.database

    @property
    def position(self) -> Position:
        """Return the position before the rows: they follow in the same place of the stream."""
        return Position(self._catalogs.timeline, self._catalogs.lsn, 0)

    def batches(
        self, after: Position | None = None, *, rows_max: int = ROWS_MAX, bytes_max: int = BYTES_MAX
    ) -> Iterator[ChangeBatch]:
        """Yield the rows, with positions after `after`, or else `position`."""
        before, time_us = after or self.position, self._replay.latest_time_us
        seed = self._catalogs.seed
        dialects = MappedDialects(seed.mirrors, self._types, seed.format.major)
        routes = PartitionRoutes(dialects, self._root_of if self.relation.has_partition_rows else by_leaf)
        first = replace(before, ordinal=before.ordinal + 1)
        for files in self.found.heaps():
            builder = BatchBuilder(self.database, files.relation, dialects[self.database])
            batches = CopiedBatches(builder, first, time_us, rows_max=rows_max, bytes_max=bytes_max)
            toasted = ToastedValues(self._replay, files, self._scratch)
            pages = self._replay.pages(files.heap)
            for row in self._replay.visibility.rows(pages, files.relation.qualified_name):
                if made := batches.add(toasted.fill_in(row.packed)):
                    yield from self._routed(routes, made)
            yield from self._routed(routes, batches.build())
            first = replace(first, ordinal=first.ordinal + batches.row_count)

    def _routed(self, routes: PartitionRoutes, made: list[ChangeBatch]) -> Iterator[ChangeBatch]:
        """Yield batches under the table's name; partitions have the key of the table above them."""
        for batch in routes.batches(made):
            yield replace(batch, relation=self.relation)

    def _root_of(self, lineage: Sequence[Relation]) -> Relation | None:
        return next((above for above in lineage if above.oid == self.relation.oid), None)


def rows_of_tables(
    backup: BackupFolder,
    archive: ArchiveFolder,
    names: Sequence[TableName],
    moment: Lsn | CommitTime | None,
    *,
    scratch: Path,
    types: TypeMapping,
    observer: SeedObserver | None = None,
) -> list[BackedUpRows]:
    """Return the rows of some tables at a moment; None: at the end of the backup. `scratch` is a folder of its own."""
    checkpoint = check_archive(backup, archive)
    target = None if moment is None else recovery_target(archive, backup.label.start_lsn, moment)
    databases = {name.database for name in names}
    seed = seed_from_backup(backup, archive, lambda name: None in databases or name in databases, observer=observer)
    catalogs = catalogs_at(seed, backup, archive, target)
    tables = [(found, _delivered(found)) for found in map(catalogs.find, names)]
    replay = PageReplay(backup, checkpoint, files_of(found for found, _ in tables), PageCache(scratch))
    replay.run(archive, catalogs.lsn)
    return [BackedUpRows(found, shown, catalogs, replay, types, scratch) for found, shown in tables]


def files_of(tables: Iterable[FoundTable]) -> list[RelFileLocator]:
    """Return all files of tables."""
    return list(dict.fromkeys(locator for found in tables for files in found.heaps() for locator in files.locators))


def _delivered(found: FoundTable) -> Relation:
    """Return the version under which the rows are delivered, as by a first copy."""
    if found.relation.kind == PARTITIONED:
        return as_target(found.relation)
    own = under_own_name(found.relation, by_leaf)
    assert own is not None, "no rows are routed"
    return own
