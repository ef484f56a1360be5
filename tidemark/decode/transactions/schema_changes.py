"""Which descriptions of relations a transaction changed, told as events before the first item that needs them.

Nothing in WAL says "ALTER TABLE": there are changed rows of catalogs, seen through the mirror. An event is the
difference between what was told last (or is committed) and what the transaction sees now, for every relation that its
catalog changes may have touched, in an order that the catalogs alone decide: the same WAL gives the same events.

An event belongs to one subtransaction, so that a rolled-back savepoint takes its events with it. That holds because
pending changes are told before a record of another subtransaction is looked at.

A table that DDL rewrites gets a transient heap (`pg_class.relrewrite`) whose rows stand in WAL; a rewrite is open from
the first such row until the transient heap is gone from the transaction's view.
"""

from dataclasses import replace
from typing import NamedTuple, TypeGuard

from tidemark.decode.transactions.ports import Catalog, DatabaseTurn
from tidemark.model.change import RewriteBoundary, SchemaChange, SchemaEffect, SchemaEvent
from tidemark.model.lsn import INVALID_LSN, INVALID_OID, INVALID_XID, Lsn, Oid, TimelineId, Xid
from tidemark.model.position import Position
from tidemark.model.relation import Relation, ReplicaIdentity

FIRST_UNPINNED_OID = 12000  # transam.h: below are the system catalogs (IsCatalogRelation)
CAPTURED_KINDS = "rp"  # pg_class.relkind: ordinary and partitioned tables
PERMANENT = "p"  # pg_class.relpersistence: the others are not in WAL
UNPLACED = Position(TimelineId(0), INVALID_LSN, 0)  # of an item whose transaction has not committed yet

SchemaItem = SchemaEvent | RewriteBoundary


def is_captured(relation: Relation | None) -> TypeGuard[Relation]:
    """Tell if row changes of `relation` are given out."""
    return (
        relation is not None
        and relation.kind in CAPTURED_KINDS
        and relation.persistence == PERMANENT
        and relation.rewrite_of == INVALID_OID
        and relation.oid >= FIRST_UNPINNED_OID
    )


def effect_of(before: Relation | None, after: Relation | None, *, rewritten: bool) -> SchemaEffect:
    """Return what the change from `before` to `after` did to values that were stored already."""
    if rewritten:
        return SchemaEffect.REWRITE
    if before is None or after is None:
        return SchemaEffect.METADATA
    numbers = {column.number for column in before.columns}
    added = (column for column in after.live_columns if column.number not in numbers)
    return SchemaEffect.CONSTANT if any(column.missing is not None for column in added) else SchemaEffect.METADATA


def whole_database_event(turn: DatabaseTurn, relation: Relation, xid: Xid, lsn: Lsn) -> SchemaEvent:
    """Return what tells of a table that comes, or goes, with its whole database; with rows that no record tells of."""
    database = turn.catalog.database
    if turn.appears:
        unseen = SchemaEffect.UNSEEN
        return SchemaEvent(UNPLACED, lsn, database, xid, SchemaChange.CREATE, unseen, None, relation)
    metadata = SchemaEffect.METADATA
    return SchemaEvent(UNPLACED, lsn, database, xid, SchemaChange.DROP, metadata, relation, None)


def as_readers_see(relation: Relation) -> Relation:
    """Return `relation` without what only says how its rows are stored: VACUUM FULL changes that, and no event.

    Of the tables above a partition the names are left: they say under which one its changes come.
    """
    columns = tuple(replace(column, missing=None) for column in relation.columns)
    names = (
        replace(above, columns=(), identity_columns=(), primary_key=(), replica_identity=ReplicaIdentity.DEFAULT)
        for above in relation.ancestors
    )
    return replace(relation, columns=columns, toast_oid=INVALID_OID, ancestors=tuple(names))


def differ(before: Relation | None, after: Relation | None) -> bool:
    """Tell if readers see a difference between two versions, or that one of the two is none."""
    if before is None or after is None:
        return before is not after
    if len(before.columns) != len(after.columns):  # as most DDL leaves a wide table
        return True
    return before != after and as_readers_see(before) != as_readers_see(after)


def _rank(before: Relation | None, after: Relation | None) -> int:
    """Return the place among the events that are told together, those of equal rank being in the order of OIDs.

    What a new column holds in rows that are there already stands with the partitions, not with the table above them: so
    they come before it, unless they come into being, or go, with it.
    """
    described = after or before
    assert described is not None, "nothing became nothing"
    depth = len(described.ancestors)
    return depth if before is None or after is None else -depth


class TaggedItem(NamedTuple):
    """An item and the subtransaction that takes it along when it is rolled back."""

    xid: Xid
    item: SchemaItem


class _Reported(NamedTuple):
    """The version of a relation that was told last, by an event of `xid`."""

    xid: Xid
    version: Relation | None


class _Rewrite(NamedTuple):
    """A rewrite whose rows are being read, by `xid`; `target` is the version that they have."""

    xid: Xid
    target: Relation


class SchemaTracker:
    """One open transaction's schema changes: what is pending, what was told, which rewrites are open."""

    __slots__ = ("_catalog", "_dirty_lsn", "_reported", "_reported_by", "_rewrites", "_top_xid", "_unsaid", "dirty_xid")

    def __init__(self, catalog: Catalog, top_xid: Xid) -> None:
        self.dirty_xid = INVALID_XID  # whose catalog changes are still to be told
        self._catalog = catalog
        self._top_xid = top_xid
        self._dirty_lsn = INVALID_LSN
        self._reported: dict[Oid, list[_Reported]] = {}
        self._reported_by: dict[Xid, set[Oid]] = {}
        self._unsaid: set[Oid] = set()  # relations whose last event is gone with its savepoint
        self._rewrites: dict[Oid, _Rewrite] = {}  # by the transient heap's OID

    def touch(self, xid: Xid, lsn: Lsn) -> None:
        """Note that `xid` changed a catalog."""
        assert self.dirty_xid in (INVALID_XID, xid), "pending changes of another subtransaction are told first"
        self.dirty_xid = xid
        self._dirty_lsn = lsn

    def tell(self, only: Oid | None = None) -> list[TaggedItem]:
        """Return what is pending; `only` of the relation whose rewritten rows come next, if that is given.

        One command may rewrite many tables, one after the other: of each is told when its turn comes, so that the
        effect is known by then.
        """
        xid = self.dirty_xid
        if xid == INVALID_XID:
            return []
        if only is None:
            self.dirty_xid = INVALID_XID
        gone = [heap for heap in self._rewrites if self._catalog.relation(heap, self._top_xid) is None]
        items = [self._end_rewrite(heap) for heap in gone]
        rewriting = self._catalog.rewriting(self._top_xid)
        changed = []
        for oid in sorted(self._take_touched() if only is None else (only,)):
            before = self._known(oid)
            now = self._catalog.relation(oid, self._top_xid)
            after = now if is_captured(now) else None
            if before is not after and differ(before, after):
                changed.append((before, after, oid in rewriting))
        changed.sort(key=lambda change: _rank(*change[:2]))
        return [*items, *(self._event(xid, before, after, rewritten=is_new) for before, after, is_new in changed)]

    def _take_touched(self) -> set[Oid]:
        touched = {*self._catalog.take_touched(self._top_xid), *self._unsaid}
        self._unsaid.clear()
        return touched

    def begin_rewrite(self, heap: Oid, target: Relation, xid: Xid, lsn: Lsn) -> list[TaggedItem]:
        """Open the rewrite of `target` by way of the transient heap `heap`, whose first row has been read."""
        items = []
        if not is_captured(target):  # SET LOGGED: it is, as soon as the heaps are swapped
            target = replace(target, persistence=PERMANENT)
            self._dirty_lsn = lsn
            items.append(self._event(xid, None, target, rewritten=True))
        self._rewrites[heap] = _Rewrite(xid, target)
        boundary = RewriteBoundary(UNPLACED, lsn, self._catalog.database, self._top_xid, target, begin=True)
        items.append(TaggedItem(xid, boundary))
        return items

    def rewrite_target(self, heap: Oid) -> Relation | None:
        """Return the version that rows of the transient heap `heap` have, if its rewrite is open."""
        rewrite = self._rewrites.get(heap)
        return rewrite.target if rewrite is not None else None

    def end_rewrites(self, lsn: Lsn) -> list[TaggedItem]:
        """Close what is still open when the transaction commits."""
        self._dirty_lsn = lsn
        return [self._end_rewrite(heap) for heap in list(self._rewrites)]

    def drop(self, xids: set[Xid]) -> None:
        """Forget what aborted subtransactions changed."""
        if self.dirty_xid in xids:
            self.dirty_xid = INVALID_XID
        unsaid = {oid for xid in xids for oid in self._reported_by.pop(xid, ())}
        for oid in unsaid:
            self._reported[oid][:] = [reported for reported in self._reported[oid] if reported.xid not in xids]
        self._unsaid |= unsaid
        self._rewrites = {heap: rewrite for heap, rewrite in self._rewrites.items() if rewrite.xid not in xids}

    def _known(self, oid: Oid) -> Relation | None:
        versions = self._reported.get(oid)
        if versions:
            return versions[-1].version
        committed = self._catalog.relation(oid, None)
        return committed if is_captured(committed) else None

    def _event(self, xid: Xid, before: Relation | None, after: Relation | None, *, rewritten: bool) -> TaggedItem:
        described = after if after is not None else before
        assert described is not None, "nothing became nothing"
        self._reported.setdefault(described.oid, []).append(_Reported(xid, after))
        self._reported_by.setdefault(xid, set()).add(described.oid)
        change = SchemaChange.ALTER
        if before is None:
            change = SchemaChange.CREATE
        elif after is None:
            change = SchemaChange.DROP
        effect = effect_of(before, after, rewritten=rewritten)
        database = self._catalog.database
        event = SchemaEvent(UNPLACED, self._dirty_lsn, database, self._top_xid, change, effect, before, after)
        return TaggedItem(xid, event)

    def _end_rewrite(self, heap: Oid) -> TaggedItem:
        rewrite = self._rewrites.pop(heap)
        lsn, database = self._dirty_lsn, self._catalog.database
        boundary = RewriteBoundary(UNPLACED, lsn, database, self._top_xid, rewrite.target, begin=False)
        return TaggedItem(rewrite.xid, boundary)
