"""Reports in the stream that the capture of tables ended or began with a start, without a copy of their rows.

A start may have another selection of tables, and a copy may be refused. A table that left the selection has later
changes that are not delivered; one that came into it, or returned, has earlier ones. Of one that left and returned
without a report, both is reported. Planning records this with the
progress of the table's copy (`CopyProgress.capture`). The first group of the start then begins with a schema event of
each such table, before and after which the table has one version. The event and the record that it was delivered are
in one transaction (`tidemark.runtime.first_copy.selected_tables`), or, for a custom consumer, in the one that stores
its confirmation.

The event of DDL that brings a table into the selection, or removes it, reports that itself: the decoder marks it.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from tidemark.decode.groups.partitions import has_rows, own_version, under_own_name
from tidemark.decode.transactions.schema_changes import is_captured
from tidemark.engine.selection import Selection
from tidemark.io.host.logs import Log
from tidemark.io.state.state import StateStore
from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import ChangeGroup, SchemaChange, SchemaEffect, SchemaEvent
from tidemark.model.lsn import Lsn, Oid, Xid, format_lsn
from tidemark.model.position import Position
from tidemark.model.relation import Relation
from tidemark.wire.recopies import TableKey
from tidemark.wire.state.copy_progress import DueNotice

GROUP_TABLES = 4096  # whose events are in front of one group: some kilobytes each

ENDED = "the capture of a table has ended: it is not selected any more"
BEGUN = "the capture of a table begins without its rows and earlier changes"
NONE_SELECTED = "no table matches the patterns at present"
NONE_SELECTED_HINT = "a table that matches is captured from its creation on; correct select.tables if that is not meant"
BEGUN_HINT = "the rows of the table do not follow from its log before the next copy: cdcctl table recopy"


_CHANGES = {
    DueNotice.ENDS: (CaptureChange.ENDS,),
    DueNotice.ENDS_AND_BEGINS: (CaptureChange.ENDS, CaptureChange.BEGINS),
    DueNotice.BEGINS: (CaptureChange.BEGINS,),
}


class TableVersion(NamedTuple):
    """A table as of the start."""

    relation: Relation
    is_selected: bool  # under its own name


class CaptureNotices:
    """The tables whose capture ended or began with this start; for the application thread."""

    def __init__(
        self, store: StateStore, versions: Mapping[TableKey, TableVersion], delivered: Position, log: Log
    ) -> None:
        """`versions`: of the tables at the start. `delivered`: the position of the last delivered change."""
        self._store = store
        self._versions = versions
        self._delivered = delivered
        self._log = log
        self._pending: dict[TableKey, DueNotice] | None = None  # None: they are not read yet

    @classmethod
    def of_start(
        cls,
        store: StateStore,
        selection: Selection,
        tables: Callable[[], Iterable[tuple[Oid, Relation]]],
        databases: Container[Oid],
        *,
        planning: bool,
        log: Log,
    ) -> "CaptureNotices | None":
        """Return the notices of a start; None if there are none.

        `tables`: all tables at the start, with their databases, of which `databases` are captured. `planning`: the
        copies are planned before the first group, which may add notices.
        """
        copies, start = store.view().copies, store.marks().start
        is_pending = any(copy.capture is not DueNotice.NONE for copy in copies.values())
        if start is None or not (planning or is_pending):
            return None
        versions = table_versions(selection, tables(), databases)
        if planning and not any(version.is_selected for version in versions.values()):
            log.warning(NONE_SELECTED, tables=", ".join(selection.tables), hint=NONE_SELECTED_HINT)
        return cls(store, versions, start.position, log)

    def announced(self, group: ChangeGroup) -> ChangeGroup:
        """Return a group of the stream with the events of the tables whose capture ended or began.

        A group that continues a transaction has no position for them before its changes: they come with the next one.
        No event of a table comes after its DROP.
        """
        if self._pending is None:
            self._pending = self._read()
        if not self._pending:
            self._versions = {}
            return group
        begins_transaction = group.first.commit_lsn > self._delivered.commit_lsn
        self._delivered = group.last.position
        dropped = self._pending.keys() & _dropped(group)
        if not begins_transaction:
            for key in dropped:
                del self._pending[key]
            return group
        at = group.first.timeline, Lsn(group.first.commit_lsn - 2)  # records begin at multiples of 8
        keys = [key for due in _CHANGES for key, pending in self._pending.items() if pending is due]
        first = set(sorted(keys, key=lambda key: key not in dropped)[: max(GROUP_TABLES, len(dropped))])
        keys = [key for key in keys if key in first]
        changes = [(key, change) for key in keys for change in _CHANGES[self._pending.pop(key)]]
        events = [self._event(key, change, Position(*at, number)) for number, (key, change) in enumerate(changes)]
        return replace(group, items=[*events, *group.items]) if events else group

    def _read(self) -> dict[TableKey, DueNotice]:
        """Return the changes that the stream does not report by itself.

        NB: they were planned by the present names of the tables. Where the version at the start differs from the plan,
        the stream has yet to bring the DDL, whose event is marked.
        """
        return {
            key: copy.capture
            for key, copy in sorted(self._store.view().copies.items())
            if copy.capture is not DueNotice.NONE
            and (version := self._versions.get(key)) is not None
            and version.is_selected == (copy.capture is not DueNotice.ENDS)
        }

    def _event(self, key: TableKey, change: CaptureChange, position: Position) -> SchemaEvent:
        relation = self._versions[key].relation
        if change is CaptureChange.ENDS:
            self._log.info(ENDED, table=relation.qualified_name, lsn=format_lsn(position.commit_lsn))
        else:
            self._log.warning(
                BEGUN, table=relation.qualified_name, lsn=format_lsn(position.commit_lsn), hint=BEGUN_HINT
            )
        return SchemaEvent(
            position=position,
            lsn=position.commit_lsn,
            database=key[0],
            xid=Xid(0),
            change=SchemaChange.ALTER,
            effect=SchemaEffect.METADATA,
            before=relation,
            after=relation,
            capture=change,
        )


def _dropped(group: ChangeGroup) -> set[TableKey]:
    """Return the tables that a group drops, also those whose database leaves the selection with it."""
    events = (item for item in group.items if isinstance(item, SchemaEvent) and item.change is SchemaChange.DROP)
    return {(event.database, event.before.oid) for event in events if event.before is not None}


def table_versions(
    selection: Selection, tables: Iterable[tuple[Oid, Relation]], databases: Container[Oid]
) -> dict[TableKey, TableVersion]:
    """Return those of `tables` that can be captured, as a selection names them; `databases` are captured."""
    return {
        (database, relation.oid): _version(selection, relation, is_there=database in databases)
        for database, relation in tables
        if is_captured(relation)
    }


def _version(selection: Selection, relation: Relation, *, is_there: bool) -> TableVersion:
    own = under_own_name(relation, selection.root_of)
    is_selected = is_there and own is not None and has_rows(own) and selection.selects(own)
    return TableVersion(own_version(relation, selection.root_of), is_selected)
