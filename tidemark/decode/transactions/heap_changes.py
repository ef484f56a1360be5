"""Converts heap records of user relations to row changes: decides which are kept, their op, and fills in values.

The rules are the server's (decode.c and `ReorderBufferProcessTXN`, PG 16):

  catalogs, sequences             skipped
  TOAST tables                    inserts are chunks of the row that follows in the same subtransaction
  transient heaps (relrewrite)    of an ordinary table: op `r` of that table; of others (REFRESH): skipped
  everything else                 row changes; also of materialized views, which only the server's own format prints
"""

from collections.abc import Callable
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from tidemark.decode.datum.row_entries import ENTRY_BYTES
from tidemark.decode.datum.toast import HAS_EXTERNAL, INFOMASK_AT, ToastChunks
from tidemark.decode.datum.tuples import TupleLayout
from tidemark.decode.transactions.object_names import NameKeeper, RowContext
from tidemark.decode.transactions.ports import Catalog, Databases
from tidemark.decode.transactions.reorder_buffer.open_transaction import OpenTransaction, SpeculativeKey, SpeculativeRow
from tidemark.decode.transactions.reorder_buffer.transactions import TransactionTable
from tidemark.decode.transactions.schema_changes import FIRST_UNPINNED_OID, NO_POSITION_YET, PERMANENT
from tidemark.decode.transactions.skim import Skimmer
from tidemark.decode.transactions.version_cache import VersionBound, VersionCache
from tidemark.decode.types.registry import prints_names
from tidemark.model.change import BeforeKind, Op, Truncation
from tidemark.model.errors import CorruptWal, NodeUnfit
from tidemark.model.lsn import INVALID_OID, INVALID_XID, Oid, Xid, format_lsn
from tidemark.model.relation import Relation, RelFileLocator
from tidemark.wal.record import Record
from tidemark.wal.rmgr import heap, heap2

SelectsRelation = Callable[[Relation], bool]
ORDINARY_TABLE = "r"  # pg_class.relkind
SEQUENCE = "S"
TOAST_TABLE = "t"

_INSERT = ord(Op.INSERT.value)
_UPDATE = ord(Op.UPDATE.value)
_DELETE = ord(Op.DELETE.value)
_REWRITE = ord(Op.REWRITE.value)


class UnknownFile(CorruptWal):
    """A row in a file that belongs to no relation."""

    hint = "the catalog mirror does not match this WAL: create it again (cdcctl init), and report this if it recurs"


class RowNotLogged(NodeUnfit):
    """A change of a captured table whose record lacks the row: it was written with `wal_level` below logical.

    Before PostgreSQL 17, only such records show a standby the `wal_level` of its primary.
    """

    hint = (
        "set wal_level = logical on the primary and restart it, then create a new state with cdcctl init, which copies "
        "all rows again: this row is not in WAL"
    )


class _RowHandling(Enum):
    """How the rows of a relation are handled."""

    IGNORED = "catalog or sequence"
    TOAST = "chunks of other rows' values"
    ROWS = "row changes"
    TRANSIENT = "a rewrite's new heap"


class _RelationFacts:
    """A relation version with the facts that its rows need."""

    def __init__(self, relation: Relation, role: _RowHandling) -> None:
        self.relation = relation
        self.role = role

    @cached_property
    def prints_names(self) -> bool:
        """Return whether values contain names, so that each row must be inspected."""
        return any(prints_names(column.type) for column in self.relation.live_columns)

    @cached_property
    def layout(self) -> TupleLayout:
        """The tuple layout: needed only for rows with TOASTed values."""
        return TupleLayout.of(self.relation)


def emit_schema(transaction: OpenTransaction, only: Oid | None = None) -> None:
    """Emit pending schema changes, of one relation or all, before the next item."""
    if transaction.schema is not None:
        for tagged in transaction.schema.pending_events(only):
            transaction.add_item(tagged.xid, tagged.item)


def every_relation(_relation: Relation) -> bool:
    """Accept every relation."""
    return True


def _role_of(relation: Relation) -> _RowHandling:
    if relation.oid < FIRST_UNPINNED_OID or relation.kind == SEQUENCE:
        return _RowHandling.IGNORED
    if relation.kind == TOAST_TABLE:
        return _RowHandling.TOAST
    return _RowHandling.TRANSIENT if relation.rewrite_of != INVALID_OID else _RowHandling.ROWS


def _before_kind(flags: int, whole: int, key: int) -> BeforeKind:
    if flags & whole:
        return BeforeKind.FULL
    return BeforeKind.KEY if flags & key else BeforeKind.NONE


class _Site(NamedTuple):
    """The context of a change: record, transaction, database."""

    record: Record
    transaction: OpenTransaction
    catalog: Catalog

    @property
    def xid(self) -> Xid:
        return self.record.xid

    def filled_in(self, packed: bytes, table: _RelationFacts) -> bytes:
        """Return the tuple with the TOASTed values of the preceding chunks."""
        chunks = self.transaction.toast.get(self.xid)
        return packed if chunks is None else chunks.fill_in(packed, table.layout)

    def forget_chunks(self) -> None:
        """Drop the chunks after the row that owned them was read."""
        chunks = self.transaction.toast.get(self.xid)
        if chunks is not None:
            chunks.clear()


class HeapChanges:
    """Adds the row changes of heap records to their transactions.

    A row of a relation that `selects` rejects counts among the changes of its transaction, but its tuples are not kept.
    """

    def __init__(self, transactions: TransactionTable, skimmer: Skimmer) -> None:
        self.selects: SelectsRelation = every_relation
        self.names: NameKeeper | None = None
        self._transactions = transactions
        self._skimmer = skimmer
        self._tables: VersionCache[Relation, _RelationFacts] = VersionCache()
        self._numbered = VersionBound()

    def decode_heap(self, record: Record, transaction: OpenTransaction, catalog: Catalog) -> None:
        """Process a record of the resource manager HEAP that names a block."""
        site = _Site(record, transaction, catalog)
        match heap.parse(record):
            case heap.HeapInsert() as insert:
                self._insert(site, insert)
            case heap.HeapUpdate() as update:
                self._update(site, update)
            case heap.HeapDelete() as delete:
                self._delete(site, delete)
            case heap.HeapConfirm() as confirm:
                self._confirm(site, confirm)

    def decode_heap2(self, record: Record, transaction: OpenTransaction, catalog: Catalog) -> None:
        """Process a record of the resource manager HEAP2."""
        insert = heap2.parse(record)
        if not isinstance(insert, heap2.HeapMultiInsert):
            return
        site = _Site(record, transaction, catalog)
        if not insert.flags & heap.INSERT_CONTAINS_NEW_TUPLE or insert.tuples is None:
            self._pass_over(site, insert.block.locator)
            return
        table = self._resolve(site, insert.block.locator)
        for packed in insert.tuples:
            self._new_row(site, table, packed)
        if insert.flags & heap.INSERT_LAST_IN_MULTI:
            site.forget_chunks()

    def pass_over(self, record: Record, transaction: OpenTransaction, catalog: Catalog) -> None:
        """Let the skimmer skip further rows of passed-over transactions in the file of a record."""
        locator = record.blocks[0].locator
        relation = catalog.resolve(locator, transaction.xid)
        if relation is not None and _role_of(relation) is not _RowHandling.IGNORED:
            self._skimmer.file_can_be_passed_over(locator)

    def decode_truncate(self, record: Record, transaction: OpenTransaction, databases: Databases) -> None:
        """Process a TRUNCATE: one item for each relation, including partitioned ones."""
        truncate = heap.parse_truncate(record)
        catalog = databases.captured(truncate.database)
        if catalog is None:
            return
        emit_schema(transaction)
        for oid in truncate.relations:
            relation = catalog.relation(oid, transaction.xid)
            if relation is None:
                raise UnknownFile(f"TRUNCATE at {format_lsn(record.lsn)} names the unknown relation {oid}")
            if relation.persistence == PERMANENT and relation.oid >= FIRST_UNPINNED_OID:
                item = Truncation(
                    position=NO_POSITION_YET,
                    lsn=record.lsn,
                    database=catalog.database,
                    xid=transaction.xid,
                    relation=relation,
                    cascade=truncate.cascade,
                    restart_identity=truncate.restart_identity,
                    origin=record.origin,
                )
                transaction.add_item(record.xid, item)

    def _insert(self, site: _Site, insert: heap.HeapInsert) -> None:
        if not insert.flags & heap.INSERT_CONTAINS_NEW_TUPLE or insert.tuple is None:
            self._pass_over(site, insert.block.locator)
            return
        table = self._resolve(site, insert.block.locator)
        if insert.flags & heap.INSERT_IS_SPECULATIVE and table.role is _RowHandling.ROWS:
            key = SpeculativeKey(insert.block.locator, insert.block.block, insert.offset)
            packed = site.filled_in(insert.tuple, table)
            site.transaction.speculative[key] = SpeculativeRow(table.relation, site.record.lsn, site.xid, packed)
            return
        self._new_row(site, table, insert.tuple)
        if table.role is not _RowHandling.TOAST:
            site.forget_chunks()

    def _update(self, site: _Site, update: heap.HeapUpdate) -> None:
        locator = update.block.locator
        if not update.flags & heap.UPDATE_CONTAINS_NEW_TUPLE or update.tuple is None:
            self._pass_over(site, locator)
            return
        table = self._resolve(site, locator)
        if table.role is not _RowHandling.ROWS:
            return
        new = site.filled_in(update.tuple, table)
        kind = _before_kind(update.flags, heap.UPDATE_CONTAINS_OLD_TUPLE, heap.UPDATE_CONTAINS_OLD_KEY)
        self._add(site, _UPDATE, table.relation, new=new, old=update.old_tuple, before_kind=kind)
        site.forget_chunks()

    def _delete(self, site: _Site, delete: heap.HeapDelete) -> None:
        locator = delete.block.locator
        if delete.flags & heap.DELETE_IS_SUPER:
            # NB: each TOAST chunk of the speculative row is deleted in the same way; only the row's own place is known.
            key = SpeculativeKey(locator, delete.block.block, delete.offset)
            if site.transaction.speculative.pop(key, None) is not None:
                site.forget_chunks()
            return
        if delete.old_tuple is None and site.catalog.resolve(locator, site.transaction.xid) is None:
            return  # a mapped catalog, as above
        table = self._resolve(site, locator)
        if table.role is not _RowHandling.ROWS:
            return
        kind = _before_kind(delete.flags, heap.DELETE_CONTAINS_OLD_TUPLE, heap.DELETE_CONTAINS_OLD_KEY)
        self._add(site, _DELETE, table.relation, old=delete.old_tuple, before_kind=kind)
        site.forget_chunks()

    def _confirm(self, site: _Site, confirm: heap.HeapConfirm) -> None:
        key = SpeculativeKey(confirm.block.locator, confirm.block.block, confirm.offset)
        row = site.transaction.speculative.pop(key, None)
        if row is not None:
            is_current = site.catalog.resolve(confirm.block.locator, site.transaction.xid) is row.relation
            self._add(site, _INSERT, row.relation, new=row.packed, is_current=is_current)
            site.forget_chunks()

    def _new_row(self, site: _Site, table: _RelationFacts, packed: bytes) -> None:
        """Add a row of an insert, depending on the role of its relation."""
        if table.role is _RowHandling.TOAST:
            site.transaction.toast.setdefault(site.xid, ToastChunks()).add(packed)
            self._transactions.grew(len(packed))
        elif table.role is _RowHandling.ROWS:
            self._add(site, _INSERT, table.relation, new=site.filled_in(packed, table))
        elif table.role is _RowHandling.TRANSIENT:
            target = self._rewrite_target(site, table.relation)
            if target is not None:
                self._add(site, _REWRITE, target, new=site.filled_in(packed, table))
            else:
                self._skimmer.own_file_is_passed_over(site.transaction, site.record.blocks[0].locator)

    def _rewrite_target(self, site: _Site, transient: Relation) -> Relation | None:
        """Return the version of the table that `transient` rewrites, with its rewrite open; None for a REFRESH."""
        schema = site.transaction.schema
        assert schema is not None, "a transient heap is visible to the transaction that made it only"
        target = schema.rewrite_target(transient.oid)
        if target is not None:
            return target
        target = site.catalog.relation(transient.rewrite_of, site.transaction.xid)
        if target is None or target.kind != ORDINARY_TABLE:
            return None
        emit_schema(site.transaction, only=target.oid)
        for tagged in schema.begin_rewrite(transient.oid, target, site.xid, site.record.lsn):
            site.transaction.add_item(tagged.xid, tagged.item)
        return schema.rewrite_target(transient.oid)

    def _add(
        self,
        site: _Site,
        op: int,
        relation: Relation,
        *,
        new: bytes | None = None,
        old: bytes | None = None,
        before_kind: BeforeKind = BeforeKind.NONE,
        is_current: bool = True,
    ) -> None:
        """Add a row; `is_current`: a further row in the same place would have this version, too."""
        if op != _REWRITE:
            emit_schema(site.transaction)
        selected = self.selects(relation)
        if not selected:
            new = old = None
        elif self.names is not None:
            self._record_names(self.names, site, relation, new, old)
        rows, lsn = site.transaction.rows, site.record.lsn
        number = rows.versions.number(site.catalog.database, relation)
        if new is not None and new[INFOMASK_AT] & HAS_EXTERNAL:
            self._skimmer.set_layout(number, self._facts_of(relation).layout)
        origin = site.record.origin
        rows.append(op, number, lsn, site.xid, new=new, old=old, before_kind=before_kind, origin=origin)
        self._transactions.grew(len(new or b"") + len(old or b"") + ENTRY_BYTES)
        if is_current and site.transaction.schema is not None and self._is_ordinary(self._facts_of(relation)):
            locator = site.record.blocks[0].locator
            self._skimmer.own_file_has_rows(
                site.transaction, locator, number, selected=selected, rewritten=op == _REWRITE
            )

    def _record_names(self, names: NameKeeper, site: _Site, relation: Relation, *packed: bytes | None) -> None:
        recorded = site.transaction.names
        before = recorded.byte_count
        names.record(RowContext(site.catalog, site.transaction.xid, site.record.lsn, recorded), relation, *packed)
        self._transactions.grew(recorded.byte_count - before)

    def _pass_over(self, site: _Site, locator: RelFileLocator) -> None:
        """Skip a change without its new row; raise an error unless the relation is not logged logically.

        These are catalogs (the file of a mapped one, such as pg_proc, may be unknown), TOAST tables that VACUUM FULL
        and CLUSTER copy, and transient heaps (`RelationIsLogicallyLogged`, HEAP_INSERT_NO_LOGICAL).
        """
        relation = site.catalog.resolve(locator, site.transaction.xid)
        if relation is None:
            return
        table = self._resolve(site, locator)
        if table.role is _RowHandling.ROWS and relation.persistence == PERMANENT:
            raise RowNotLogged(
                f"record at {format_lsn(site.record.lsn)} changes {relation.qualified_name} without its new row: "
                "wal_level was below logical"
            )

    def _resolve(self, site: _Site, locator: RelFileLocator) -> _RelationFacts:
        relation = site.catalog.resolve(locator, site.transaction.xid)
        if relation is None:
            raise UnknownFile(
                f"record at {format_lsn(site.record.lsn)} changes a row in file "
                f"{locator.spc}/{locator.db}/{locator.rel}, which no relation has"
            )
        table = self._facts_of(relation)
        if site.transaction.schema is None or self._is_ignored_by_all(site, table, locator):
            self._classify_for_skimmer(table, locator, site.catalog.database)
        elif table.role is _RowHandling.TOAST:
            self._skimmer.own_file_has_chunks(site.transaction, locator)
        return table

    def _facts_of(self, relation: Relation) -> _RelationFacts:
        table = self._tables.get(relation)
        return self._tables.keep(relation, _RelationFacts(relation, _role_of(relation))) if table is None else table

    def _is_ordinary(self, table: _RelationFacts) -> bool:
        """Return whether the skimmer can extract rows of a table: no row needs an inspection."""
        return table.role is _RowHandling.ROWS and not (self.names is not None and table.prints_names)

    def _is_ignored_by_all(self, site: _Site, table: _RelationFacts, locator: RelFileLocator) -> bool:
        """Return whether every transaction skips the file: a catalog such as pg_depend, to which DDL writes most."""
        return table.role is _RowHandling.IGNORED and site.catalog.resolve(locator, INVALID_XID) is table.relation

    def _classify_for_skimmer(self, table: _RelationFacts, locator: RelFileLocator, database: Oid) -> None:
        if table.role is _RowHandling.IGNORED:
            self._skimmer.file_is_passed_over(locator)
        elif table.role is _RowHandling.TOAST:
            self._skimmer.file_has_chunks(locator)
        elif self._is_ordinary(table):
            number = self._number_of(database, table.relation)
            self._skimmer.file_has_rows(locator, number, selected=self.selects(table.relation))

    def _number_of(self, database: Oid, relation: Relation) -> int:
        """Return the number of a version; begin a new numbering if there are too many."""
        versions = self._transactions.versions
        if len(versions) >= self._numbered.kept_max:
            self._numbered.drop(versions.relations)
            self._transactions.renew_versions()
            self._skimmer.forget_all()
            versions = self._transactions.versions
        before = len(versions)
        number = versions.number(database, relation)
        if number == before:
            self._numbered.add(relation)
        return number
