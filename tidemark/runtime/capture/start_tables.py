"""The tables of a capture as of its start, by the catalog mirrors at the restart LSN."""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from tidemark.decode.catalog.databases import DatabaseMirrors, every_database
from tidemark.decode.groups.partitions import ROUTED_KIND
from tidemark.engine.selection import Selection
from tidemark.io.host.logs import Log
from tidemark.io.state.history_files import load_catalogs
from tidemark.io.state.state import StateStore
from tidemark.model.lsn import Lsn, Oid
from tidemark.model.relation import Relation
from tidemark.runtime.first_copy.capture_notices import CaptureNotices
from tidemark.runtime.seed.copy_plan import StartTable
from tidemark.wire.recopies import TableKey


class StartTables:
    """The tables at one start."""

    def __init__(self, store: StateStore, mirrors: DatabaseMirrors, selection: Selection) -> None:
        self._store = store
        self._mirrors = mirrors
        self._selection = selection

    def _of(self, databases: Iterable[Oid]) -> Iterator[tuple[Oid, Relation]]:
        """Yield the tables of some databases with these."""
        for oid in databases:
            mirror = self._mirrors.get(oid)
            relations = mirror.relations() if mirror is not None else ()
            yield from ((oid, relation) for relation in relations)

    def _all(self) -> Iterator[tuple[Oid, Relation]]:
        """Yield all tables, also those in databases that were captured by another name."""
        return self._of(self._mirrors.names)

    def is_dropped(self, database: Oid, relation: Oid) -> bool:
        """Return whether a table does not exist."""
        mirror = self._mirrors.get(database)
        return mirror is None or mirror.file_of(relation) is None

    def databases(self) -> dict[Oid, str]:
        """Return the names of the databases that can be captured."""
        rows = self._mirrors.shared.databases()
        return {row.oid: row.name for row in rows if every_database(row) and row.oid in self._mirrors}

    def by_key(self) -> dict[TableKey, StartTable]:
        """Return all tables by their OIDs, also those in databases that were captured by another name.

        A table of which the DROP was delivered is left out, although the start is at an earlier restart LSN.
        """
        tables = {
            (database, relation.oid): StartTable(
                relation.namespace,
                relation.name,
                relation.kind == ROUTED_KIND,
                tuple((above.namespace, above.name) for above in relation.ancestors),
            )
            for database, relation in self._all()
        }
        dropped = self._dropped_since(tables.keys() - self._store.view().copies.keys())
        return {key: table for key, table in tables.items() if key not in dropped}

    def _dropped_since(self, tables: AbstractSet[TableKey]) -> set[TableKey]:
        """Return which of `tables`, of which no copy is recorded, do not exist after the last delivered commit."""
        view = self._store.view()
        start = view.start
        if not tables or start is None or start.restart_lsn > start.position.commit_lsn:
            return set()
        delivered_to = Lsn(start.position.commit_lsn + 1)
        mirrors = load_catalogs(self._store.folder.history, view.history, view.journal, delivered_to).mirrors
        return {
            (database, oid)
            for database, oid in tables
            if (mirror := mirrors.get(database)) is None or mirror.file_of(oid) is None
        }

    def selected(self) -> Iterator[tuple[Oid, Relation]]:
        """Yield the selected ones."""
        return (table for table in self._of(self._mirrors.known()) if self._selection.selects(table[1]))

    def notices(self, *, planning: bool, log: Log) -> CaptureNotices | None:
        """Return the notices of tables whose capture ended or began (`CaptureNotices.of_start`)."""
        return CaptureNotices.of_start(
            self._store, self._selection, self._all, self._mirrors.known(), planning=planning, log=log
        )
