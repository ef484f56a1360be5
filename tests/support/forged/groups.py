"""Hand-made groups of changes: a small relation, batches of it, schema events, with given positions."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from tidemark.model.change import (
    ChangeBatch,
    ChangeGroup,
    GroupItem,
    LogicalMessage,
    SchemaChange,
    SchemaEffect,
    SchemaEvent,
    TransactionEnd,
    batch_schema,
)
from tidemark.model.lsn import FullXid, Lsn, Oid, TimelineId, Xid
from tidemark.model.position import Pointer, Position
from tidemark.model.relation import Align, Column, Relation, ReplicaIdentity, TypeDescription, TypeKind

DATABASE = Oid(16384)
TIMELINE = TimelineId(1)
INT8 = TypeDescription(Oid(20), "pg_catalog", "int8", "bigint", TypeKind.BASE, 8, True, Align.DOUBLE)
TEXT = TypeDescription(Oid(25), "pg_catalog", "text", "text", TypeKind.BASE, -1, False, Align.INT)
COLUMNS = pa.struct([pa.field("id", pa.int64()), pa.field("note", pa.string())])


def relation(name: str = "account", oid: int = 16385, missing: bytes | None = None) -> Relation:
    """Return a relation with the columns id and note."""
    return Relation(
        oid=Oid(oid),
        namespace="public",
        name=name,
        kind="r",
        persistence="p",
        columns=(
            Column(1, "id", INT8, -1, 8, True, Align.DOUBLE, not_null=True),
            Column(2, "note", TEXT, -1, -1, False, Align.INT, missing=missing),
        ),
        replica_identity=ReplicaIdentity.DEFAULT,
        identity_columns=(1,),
        primary_key=(1,),
    )


def text_relation(*names: str, oid: int = 16385, name: str = "account") -> Relation:
    """Return a relation with an id and text columns with these names."""
    described = relation(name, oid)
    more = [replace(described.columns[1], number=2 + at, name=column) for at, column in enumerate(names)]
    return replace(described, columns=(described.columns[0], *more))


def position(commit_lsn: int, ordinal: int = 0) -> Position:
    """Return a position on timeline 1."""
    return Position(TIMELINE, Lsn(commit_lsn), ordinal)


def batch(commit_lsn: int, ids: Sequence[int], note: str = "x", of: Relation | None = None) -> ChangeBatch:
    """Return inserts of rows with these ids, all of one transaction."""
    count = len(ids)
    after = pa.array([{"id": number, "note": note} for number in ids], COLUMNS)
    columns = [
        pa.array(["i"] * count, pa.string()),
        pa.array([TIMELINE] * count, pa.int32()),
        pa.array([commit_lsn] * count, pa.int64()),
        pa.array(range(1, count + 1), pa.int64()),
        pa.array([commit_lsn - 8] * count, pa.int64()),
        pa.array([700] * count, pa.int64()),
        pa.array([commit_lsn] * count, pa.timestamp("us", tz="UTC")),
        pa.array([0] * count, pa.int32()),
        pa.array([0] * count, pa.int8()),
        pa.nulls(count, pa.binary()),
        pa.nulls(count, COLUMNS),
        after,
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=batch_schema(COLUMNS))
    return ChangeBatch(DATABASE, of or relation(), rows)


def insert(commit_lsn: int, of: Relation, *values: str | None) -> ChangeGroup:
    """Return a group with one inserted row of a `text_relation`; its id is the LSN."""
    shape = pa.struct([("id", pa.int64()), *((column.name, pa.string()) for column in of.columns[1:])])
    rows = batch(commit_lsn, [commit_lsn]).rows
    row = dict(zip((field.name for field in shape), (commit_lsn, *values), strict=True))
    columns = [*rows.columns[:-2], pa.nulls(1, shape), pa.array([row], shape)]
    inserted = pa.RecordBatch.from_arrays(columns, names=rows.schema.names)
    return group(commit_lsn, [ChangeBatch(DATABASE, of, inserted)])


def insert_text_key(commit_lsn: int) -> ChangeGroup:
    """Return a group with one inserted row of a `text_relation` whose id is a text as well."""
    of = text_relation("note")
    columns = (replace(of.columns[1], number=1, name="id"), of.columns[1])
    shape = pa.struct([("id", pa.string()), ("note", pa.string())])
    rows = batch(commit_lsn, [commit_lsn]).rows
    after = pa.array([{"id": "not a number", "note": "b"}], shape)
    inserted = pa.RecordBatch.from_arrays([*rows.columns[:-2], pa.nulls(1, shape), after], names=rows.schema.names)
    return group(commit_lsn, [ChangeBatch(DATABASE, replace(of, columns=columns), inserted)])


def schema_event(commit_lsn: int, after: Relation) -> SchemaEvent:
    """Return the event of a relation's creation."""
    return SchemaEvent(
        position=position(commit_lsn),
        lsn=Lsn(commit_lsn - 4),
        database=DATABASE,
        xid=Xid(700),
        change=SchemaChange.CREATE,
        effect=SchemaEffect.METADATA,
        before=None,
        after=after,
    )


def message(lsn: int, content: bytes, prefix: str = "app") -> LogicalMessage:
    """Return a message outside a transaction."""
    return LogicalMessage(position(lsn), Lsn(lsn), DATABASE, Xid(0), False, prefix, content)


def end(commit_lsn: int) -> TransactionEnd:
    """Return the end of a transaction."""
    return TransactionEnd(
        xid=Xid(700),
        full_xid=FullXid(700),
        timeline=TIMELINE,
        first_lsn=Lsn(commit_lsn - 16),
        commit_lsn=Lsn(commit_lsn),
        end_lsn=Lsn(commit_lsn + 8),
        commit_time_us=commit_lsn,
        database=DATABASE,
        item_count=1,
    )


def group(commit_lsn: int, items: Sequence[GroupItem], ordinal: int = 1_000_000) -> ChangeGroup:
    """Return a group of one transaction with these items."""
    last = Pointer(position(commit_lsn, ordinal), Lsn(commit_lsn - 16))
    rows = sum(item.rows.num_rows for item in items if isinstance(item, ChangeBatch))
    return ChangeGroup(position(commit_lsn), last, items, (end(commit_lsn),), rows, rows * 100)
