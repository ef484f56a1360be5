"""Emits schema events for relations that a transaction changed, before the first item that needs the new description.

WAL has no record of "ALTER TABLE", only changed rows of catalogs, which the mirror applies. An event is the difference
between the last emitted (or the committed) description and what the transaction sees now, for every relation that its
catalog changes may have affected, in an order that depends only on the catalogs: the same WAL gives the same events.

An event belongs to one subtransaction, so that rolling back a savepoint removes its events. This works because pending
changes are emitted before a record of another subtransaction is processed.

A table that DDL rewrites gets a transient heap (`pg_class.relrewrite`), whose rows are in WAL. A rewrite is open from
the first such row until the transaction no longer sees the transient heap.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeGuard

from tidemark.decode.transactions.ports import Catalog, DatabaseSelectionChange
from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import NO_COMMIT_TIME, RewriteBoundary, SchemaChange, SchemaEffect, SchemaEvent
from tidemark.model.lsn import INVALID_LSN, INVALID_OID, INVALID_XID, Lsn, Oid, TimelineId, Xid
from tidemark.model.position import Position
from tidemark.model.relation import Relation, ReplicaIdentity

FIRST_UNPINNED_OID = 12000  # transam.h: lower OIDs are system catalogs (IsCatalogRelation)
CAPTURED_KINDS = "rp"  # pg_class.relkind: ordinary and partitioned tables
PERMANENT, UNLOGGED = "p", "u"  # pg_class.relpersistence: tables that are not permanent are not in WAL
NO_POSITION_YET = Position(TimelineId(0), INVALID_LSN, 0)  # of an item whose transaction has not committed yet


@dataclass(frozen=True, slots=True)
class UncapturedDrop:
    """A table was dropped that is unlogged, or in a database that left the capture.

    It is delivered if the table was captured before.
    """

    position: Position
    lsn: Lsn
    database: Oid
    xid: Xid
    relation: Oid
    commit_time_us: int = NO_COMMIT_TIME


SchemaItem = SchemaEvent | RewriteBoundary | UncapturedDrop


def is_captured(relation: Relation | None) -> TypeGuard[Relation]:
    """Return whether row changes of `relation` are captured."""
    return (
        relation is not None
        and relation.kind in CAPTURED_KINDS
        and relation.persistence == PERMANENT
        and relation.rewrite_of == INVALID_OID
        and relation.oid >= FIRST_UNPINNED_OID
    )


def is_unlogged(relation: Relation) -> bool:
    """Return whether a table would be captured if it were logged."""
    return relation.persistence == UNLOGGED and is_captured(replace(relation, persistence=PERMANENT))


def effect_of(before: Relation | None, after: Relation | None, *, rewritten: bool) -> SchemaEffect:
    """Return the effect of the change from `before` to `after` on stored values."""
    if rewritten:
        return SchemaEffect.REWRITE
    if before is None or after is None:
        return SchemaEffect.METADATA
    numbers = {column.number for column in before.columns}
    added = (column for column in after.live_columns if column.number not in numbers)
    return SchemaEffect.CONSTANT if any(column.missing is not None for column in added) else SchemaEffect.METADATA


def database_event(database_change: DatabaseSelectionChange, relation: Relation, xid: Xid, lsn: Lsn) -> SchemaEvent:
    """Return the event for a table that appears or disappears with its whole database, whose rows no record contains.

    With a database that is renamed out of the selection, the capture of the table ends.
    """
    database = database_change.catalog.database
    if database_change.appears:
        unseen = SchemaEffect.UNSEEN
        return SchemaEvent(NO_POSITION_YET, lsn, database, xid, SchemaChange.CREATE, unseen, None, relation)
    metadata, capture = SchemaEffect.METADATA, CaptureChange.NONE if database_change.is_dropped else CaptureChange.ENDS
    return SchemaEvent(
        NO_POSITION_YET, lsn, database, xid, SchemaChange.DROP, metadata, relation, None, capture=capture
    )


def logical_description(relation: Relation) -> Relation:
    """Return `relation` without the attributes that describe only storage: VACUUM FULL changes them without an event.

    Of the tables above a partition, only the names remain: they determine under which name its changes are delivered.
    """
    columns = tuple(replace(column, missing=None) for column in relation.columns)
    names = (
        replace(above, columns=(), identity_columns=(), primary_key=(), replica_identity=ReplicaIdentity.DEFAULT)
        for above in relation.ancestors
    )
    return replace(relation, columns=columns, toast_oid=INVALID_OID, ancestors=tuple(names))


def differ(before: Relation | None, after: Relation | None) -> bool:
    """Return whether readers see a difference between two versions, or only one of them exists."""
    if before is None or after is None:
        return before is not after
    if len(before.columns) != len(after.columns):  # checked first: most DDL changes few columns of a wide table
        return True
    return before != after and logical_description(before) != logical_description(after)


def _rank(before: Relation | None, after: Relation | None) -> int:
    """Return the rank among events that are emitted together; events of equal rank are in OID order.

    Only partitions have the missing values of new columns, the partitioned table has not: so partitions come first,
    unless they are created or dropped with the table.
    """
    described = after or before
    assert described is not None, "one of both descriptions exists"
    depth = len(described.ancestors)
    return depth if before is None or after is None else -depth


class TaggedItem(NamedTuple):
    """An item, and the subtransaction whose rollback removes it."""

    xid: Xid
    item: SchemaItem


class _Reported(NamedTuple):
    """The last emitted version of a relation, by an event of `xid`."""

    xid: Xid
    version: Relation | None
    is_unlogged: bool  # it exists without a version


class _Rewrite(NamedTuple):
    """A rewrite by `xid` whose rows are being read; `target` is their version."""

    xid: Xid
    target: Relation


class SchemaTracker:
    """One open transaction's schema changes: pending changes, emitted versions, open rewrites."""

    __slots__ = (
        "_catalog",
        "_dirty_lsn",
        "_dropped_events",
        "_reported",
        "_reported_by",
        "_rewrites",
        "_top_xid",
        "dirty_xid",
    )

    def __init__(self, catalog: Catalog, top_xid: Xid) -> None:
        self.dirty_xid = INVALID_XID  # the subtransaction whose catalog changes are pending
        self._catalog = catalog
        self._top_xid = top_xid
        self._dirty_lsn = INVALID_LSN
        self._reported: dict[Oid, list[_Reported]] = {}
        self._reported_by: dict[Xid, set[Oid]] = {}
        self._dropped_events: set[Oid] = set()  # relations whose last event was removed with its savepoint
        self._rewrites: dict[Oid, _Rewrite] = {}  # by the transient heap's OID

    def touch(self, xid: Xid, lsn: Lsn) -> None:
        """Record that `xid` changed a catalog."""
        assert self.dirty_xid in (INVALID_XID, xid), "pending changes of another subtransaction are reported first"
        self.dirty_xid = xid
        self._dirty_lsn = lsn

    def pending_events(self, only: Oid | None = None) -> list[TaggedItem]:
        """Return the pending events; with `only`, those of the relation whose rewritten rows come next.

        One command may rewrite many tables in sequence: each one's event is emitted before its rows, when its effect is
        known.
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
        for oid in sorted(self._pop_touched() if only is None else (only,)):
            before = self._known(oid)
            now = self._catalog.relation(oid, self._top_xid)
            after = now if is_captured(now) else None
            if before is not after and differ(before, after):
                changed.append((before, after, oid in rewriting))
            elif now is None and self._was_unlogged(oid):
                items.append(self._unlogged_drop(xid, oid))
        changed.sort(key=lambda change: _rank(*change[:2]))
        return [*items, *(self._event(xid, before, after, rewritten=is_new) for before, after, is_new in changed)]

    def _pop_touched(self) -> set[Oid]:
        touched = {*self._catalog.pop_touched(self._top_xid), *self._dropped_events}
        self._dropped_events.clear()
        return touched

    def begin_rewrite(self, heap: Oid, target: Relation, xid: Xid, lsn: Lsn) -> list[TaggedItem]:
        """Open the rewrite of `target` through the transient heap `heap`, whose first row was read."""
        items = []
        if not is_captured(target):  # SET LOGGED: it becomes captured when the heaps are swapped
            target = replace(target, persistence=PERMANENT)
            self._dirty_lsn = lsn
            items.append(self._event(xid, None, target, rewritten=True))
        self._rewrites[heap] = _Rewrite(xid, target)
        boundary = RewriteBoundary(NO_POSITION_YET, lsn, self._catalog.database, self._top_xid, target, begin=True)
        items.append(TaggedItem(xid, boundary))
        return items

    def rewrite_target(self, heap: Oid) -> Relation | None:
        """Return the version of the rows of the transient heap `heap`, if its rewrite is open."""
        rewrite = self._rewrites.get(heap)
        return rewrite.target if rewrite is not None else None

    def end_rewrites(self, lsn: Lsn) -> list[TaggedItem]:
        """Close the rewrites that are still open when the transaction commits."""
        self._dirty_lsn = lsn
        return [self._end_rewrite(heap) for heap in list(self._rewrites)]

    def drop(self, xids: set[Xid]) -> None:
        """Drop the changes of aborted subtransactions."""
        if self.dirty_xid in xids:
            self.dirty_xid = INVALID_XID
        dropped = {oid for xid in xids for oid in self._reported_by.pop(xid, ())}
        for oid in dropped:
            self._reported[oid][:] = [reported for reported in self._reported[oid] if reported.xid not in xids]
        self._dropped_events |= dropped
        self._rewrites = {heap: rewrite for heap, rewrite in self._rewrites.items() if rewrite.xid not in xids}

    def _known(self, oid: Oid) -> Relation | None:
        versions = self._reported.get(oid)
        if versions:
            return versions[-1].version
        committed = self._catalog.relation(oid, None)
        return committed if is_captured(committed) else None

    def _was_unlogged(self, oid: Oid) -> bool:
        """Return whether a table existed that is not captured, although its kind is."""
        versions = self._reported.get(oid)
        if versions:
            return versions[-1].is_unlogged
        committed = self._catalog.relation(oid, None)
        return committed is not None and is_unlogged(committed)

    def _unlogged_drop(self, xid: Xid, oid: Oid) -> TaggedItem:
        self._report(xid, oid, _Reported(xid, None, is_unlogged=False))
        database = self._catalog.database
        return TaggedItem(xid, UncapturedDrop(NO_POSITION_YET, self._dirty_lsn, database, self._top_xid, oid))

    def _report(self, xid: Xid, oid: Oid, reported: _Reported) -> None:
        self._reported.setdefault(oid, []).append(reported)
        self._reported_by.setdefault(xid, set()).add(oid)

    def _event(self, xid: Xid, before: Relation | None, after: Relation | None, *, rewritten: bool) -> TaggedItem:
        described = after if after is not None else before
        assert described is not None, "one of both descriptions exists"
        still_exists = after is None and self._catalog.relation(described.oid, self._top_xid) is not None
        self._report(xid, described.oid, _Reported(xid, after, is_unlogged=still_exists))
        change = SchemaChange.ALTER
        if before is None:
            change = SchemaChange.CREATE
        elif after is None:
            change = SchemaChange.DROP
        effect = effect_of(before, after, rewritten=rewritten)
        event = SchemaEvent(
            NO_POSITION_YET,
            self._dirty_lsn,
            self._catalog.database,
            self._top_xid,
            change,
            effect,
            before,
            after,
            still_exists=still_exists,
        )
        return TaggedItem(xid, event)

    def _end_rewrite(self, heap: Oid) -> TaggedItem:
        rewrite = self._rewrites.pop(heap)
        lsn, database = self._dirty_lsn, self._catalog.database
        boundary = RewriteBoundary(NO_POSITION_YET, lsn, database, self._top_xid, rewrite.target, begin=False)
        return TaggedItem(rewrite.xid, boundary)
