"""The items of a stream that remove all earlier rows of a table, or of one of its partitions.

A reader that keeps the rows of a table needs one rule for them, that of TRUNCATE. They are a TRUNCATE itself; the begin
of a copy, which delivers the rows again, because changes before it may be missing, or a copy before it was interrupted;
a table that is created, under a name of which earlier rows were delivered, or logged again after it was unlogged; the
begin of rows that DDL rewrote, since DDL can change keys; and a partition that is dropped or detached.
"""

from tidemark.model.change import (
    CopyBoundary,
    GroupItem,
    PartitionChange,
    PartitionEvent,
    RewriteBoundary,
    SchemaChange,
    SchemaEffect,
    SchemaEvent,
    Truncation,
)
from tidemark.model.lsn import INVALID_OID, Oid, Xid
from tidemark.model.relation import Relation

NO_TRANSACTION = Xid(0)  # of the begin of a copy


def emptying(item: GroupItem) -> Truncation | None:
    """Return the TRUNCATE that has the effect of an item on the earlier rows; None if it removes none."""
    match item:
        case Truncation():
            return item
        case CopyBoundary(begin=True):
            return copied_anew(item)
        case RewriteBoundary(begin=True):
            return _truncation(item, item.relation, item.partition)
        case PartitionEvent(change=PartitionChange.DROP | PartitionChange.DETACH):
            return _truncation(item, item.relation, item.partition.oid)
        case SchemaEvent(change=SchemaChange.CREATE, after=Relation() as created) if begins_without_rows(item):
            return _truncation(item, created)
        case _:
            return None


def copied_anew(begin: CopyBoundary) -> Truncation:
    """Return the TRUNCATE before the rows of a copy; it belongs to no transaction."""
    return Truncation(
        begin.position,
        begin.position.commit_lsn,
        begin.database,
        NO_TRANSACTION,
        begin.relation,
        cascade=False,
        restart_identity=False,
        commit_time_us=begin.seen_time_us,
    )


def dropped_partition(item: GroupItem) -> Truncation | None:
    """Return the TRUNCATE that a partition under its own name gets from its DROP; None for other items."""
    match item:
        case SchemaEvent(change=SchemaChange.DROP, before=Relation() as dropped) if dropped.partition_of:
            return _truncation(item, dropped)
        case _:
            return None


def begins_without_rows(created: SchemaEvent) -> bool:
    """Return whether a created table is empty, apart from the rows that follow."""
    return created.effect in (SchemaEffect.METADATA, SchemaEffect.REWRITE) and not created.brings_rows


def _truncation(
    event: SchemaEvent | PartitionEvent | RewriteBoundary, relation: Relation, partition: Oid = INVALID_OID
) -> Truncation:
    return Truncation(
        event.position,
        event.lsn,
        event.database,
        event.xid,
        relation,
        cascade=False,
        restart_identity=False,
        partition=partition,
        commit_time_us=event.commit_time_us,
    )
