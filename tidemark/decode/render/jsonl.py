"""Changes as JSON lines, one for each item, in stream order: for people, pipes, and consumers without Arrow.

A row: op, database, schema, table, position, lsn, xid, origin (of replication, if any), commit_time, and as available
`before`, `after` and `unchanged`: the columns whose TOASTed value did not change and which `after` therefore leaves
out. `before` has only the key columns if the server wrote no more. Values are JSON values where JSON has the type:
integers, booleans, text, lists, floats except NaN and infinities. Others are text (also decimals, since readers round
numbers), and bytes are hex after a backslash and x. Values in lists have the form of their type.

Whole columns are converted to text, and rows are assembled from them: no dictionary for each row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from json.encoder import encode_basestring

import numpy as np
import pyarrow as pa

from tidemark.decode.render.bounds import JsonBounds, dumped
from tidemark.decode.render.column_texts import TextColumn
from tidemark.decode.render.json_columns import (
    Form,
    booleans,
    dates,
    decimals,
    fixed,
    in_hex,
    instants,
    int64_column,
    integers,
    lists,
    lsns,
    plain_floats,
    strings,
)
from tidemark.decode.render.placed_lines import Lines, Piece, TransactionColumn
from tidemark.decode.render.row_kinds import RowKind, json_string, kinds_of
from tidemark.decode.render.stream_lines import StreamLines
from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import (
    AFTER,
    BEFORE,
    TABLE_ORDINAL,
    BeforeKind,
    ChangeBatch,
    ChangeGroup,
    CopyBoundary,
    GroupItem,
    LogicalMessage,
    PartitionEvent,
    RewriteBoundary,
    SchemaEvent,
    Truncation,
)
from tidemark.model.lsn import Oid, format_lsn
from tidemark.model.position import Position
from tidemark.model.relation import Relation

JsonMember = None | bool | int | float | str | list["JsonMember"] | dict[str, "JsonMember"]


class JsonLines:
    """Prints groups; `databases` are the names of the databases, by OID."""

    def __init__(self, databases: Mapping[Oid, str]) -> None:
        self._databases = databases
        self._lines = StreamLines(self._of_batch, self._of_item, JsonBounds(databases))

    def lines(self, group: ChangeGroup) -> Iterator[memoryview]:
        """Yield the group's items in stream order, many at once, and their transactions' bounds if counted.

        NB: the memory of a block is reused for the next one.
        """
        return self._lines.blocks(group)

    def _of_item(self, item: GroupItem, _group: ChangeGroup) -> bytes:
        return f"{self.item(item)}\n".encode()

    def _of_batch(self, batch: ChangeBatch) -> Lines | None:
        rows = batch.rows
        if not len(rows):
            return None
        variants, kinds = kinds_of(rows, None)
        commit_lsn, ordinal, lsn, xid = (
            fixed(rows.column(name), np.int64) for name in ("_commit_lsn", "_ordinal", "_lsn", "_xid")
        )
        numbers: list[Piece] = []
        if TABLE_ORDINAL in rows.schema.names:
            numbers = [b',"table_ordinal":', integers(rows.column(TABLE_ORDINAL))]
        names = self._names(batch.database, batch.relation)
        timeline = TransactionColumn(fixed(rows.column("_tli"), np.int32).astype(np.int64))
        position: list[Piece] = [timeline, b":", lsns(commit_lsn), b":", int64_column(ordinal)]
        position += [b'","lsn":"', lsns(lsn)]
        moment, origin = instants(rows.column("_commit_time")), integers(rows.column("_origin"))
        objects = RowObjects(batch)
        pieces = {
            number: [
                f'{{"op":"{kind.op.value}",{names},"position":"'.encode(),
                *position,
                b'","xid":',
                TransactionColumn(xid),
                *((b',"origin":', origin) if kind.has_origin else ()),
                b',"commit_time":',
                moment,
                *numbers,
                *objects.of(kind),
                b"}\n",
            ]
            for number, kind in kinds.items()
        }
        return Lines(commit_lsn, ordinal, variants, pieces)

    def _names(self, database: Oid, relation: Relation) -> str:
        texts = (self._databases.get(database, str(database)), relation.namespace, relation.name)
        return '"database":{},"schema":{},"table":{}'.format(*map(json_string, texts))

    def item(self, item: GroupItem) -> str:
        """Return the line of an item that is not a batch."""
        fields: dict[str, JsonMember]
        match item:
            case LogicalMessage():
                return self._message(item)
            case SchemaEvent():
                return self._schema_event(item)
            case Truncation():
                flags = {"cascade": item.cascade, "restart_identity": item.restart_identity}
                fields = {**flags, **_partition(item.partition), **_origin(item.origin)}
                return self._line("t", item.position, item.relation, item.database, fields)
            case RewriteBoundary():
                op = "rewrite_begin" if item.begin else "rewrite_end"
                fields = {"xid": item.xid, **_partition(item.partition)}
                return self._line(op, item.position, item.relation, item.database, fields)
            case PartitionEvent():
                fields = {
                    "lsn": format_lsn(item.lsn),
                    "xid": item.xid,
                    "change": item.change.value,
                    "partition": {"schema": item.partition.namespace, "table": item.partition.name},
                    **_partition(item.partition.oid),
                }
                return self._line("partition", item.position, item.relation, item.database, fields)
            case CopyBoundary():
                op = "copy_begin" if item.begin else "copy_end"
                fields = {"generation": item.generation, "snapshot": item.snapshot}
                return self._line(op, item.position, item.relation, item.database, fields)
        raise AssertionError(f"a batch is not one line: {item}")

    def _message(self, item: LogicalMessage) -> str:
        try:
            content = {"content": item.content.decode()}
        except UnicodeDecodeError:
            content = {"content_hex": item.content.hex()}
        fields: dict[str, JsonMember] = {
            "op": "m",
            "database": self._databases.get(item.database, str(item.database)),
            "position": str(item.position),
            "lsn": format_lsn(item.lsn),
            "xid": item.xid,
            "transactional": item.transactional,
            "prefix": item.prefix,
            **_origin(item.origin),
            **content,
        }
        return dumped(fields)

    def _schema_event(self, item: SchemaEvent) -> str:
        described = item.after or item.before
        assert described is not None, item
        fields: dict[str, JsonMember] = {
            "lsn": format_lsn(item.lsn),
            "xid": item.xid,
            "change": item.change.value,
            "effect": item.effect.value,
            "before": _described(item.before),
            "after": _described(item.after),
        }
        if item.brings_rows:
            fields["brings_rows"] = True
        if item.capture is not CaptureChange.NONE:
            fields["capture"] = item.capture.value
        return self._line("schema", item.position, described, item.database, fields)

    def _line(
        self, op: str, position: Position, relation: Relation, database: Oid, more: Mapping[str, JsonMember]
    ) -> str:
        names = self._names(database, relation)
        return f'{{"op":"{op}",{names},"position":"{position}",{dumped(dict(more))[1:]}'


def _partition(oid: Oid) -> dict[str, JsonMember]:
    """Return the fields for the partition of an event."""
    return {"tableoid": oid} if oid else {}


def _origin(number: int) -> dict[str, JsonMember]:
    return {"origin": number} if number else {}


def _described(relation: Relation | None) -> JsonMember:
    """Return the description of a version in a schema event."""
    if relation is None:
        return None
    columns: list[JsonMember] = [
        {
            "number": column.number,
            "name": column.name,
            "type": column.type.display_name if column.type is not None else None,
            "typmod": column.typmod,
            "not_null": column.not_null,
        }
        for column in relation.live_columns
    ]
    names = {column.number: column.name for column in relation.columns}
    key: list[JsonMember] = [names[number] for number in relation.primary_key]
    return {
        "oid": relation.oid,
        "schema": relation.namespace,
        "table": relation.name,
        "columns": columns,
        "primary_key": key,
        "replica_identity": relation.replica_identity.name.lower(),
    }


class RowObjects:
    """The JSON objects of a batch's rows: before, after, unchanged."""

    def __init__(self, batch: ChangeBatch) -> None:
        relation, rows = batch.relation, batch.rows
        self._names: list[str] = rows.schema.field(AFTER).type.names
        identity = relation.identity_columns or relation.primary_key
        self._key = {index for index, column in enumerate(relation.live_columns) if column.number in identity}
        self._old, self._new = (
            [column_text(struct.field(index)) for index in range(len(self._names))]
            if struct.null_count < len(rows)
            else []
            for struct in (rows.column(BEFORE), rows.column(AFTER))
        )

    def of(self, kind: RowKind) -> list[Piece]:
        """Return the sides of a kind of rows."""
        locations = range(len(self._names))
        pieces: list[Piece] = []
        if kind.before_kind is not BeforeKind.NONE:
            shown = [index for index in locations if kind.before_kind is BeforeKind.FULL or index in self._key]
            pieces += [b',"before":', *self._object(self._old, shown)]
        if kind.has_after:
            pieces += [b',"after":', *self._object(self._new, self._known(kind))]
        if kind.unchanged is not None:
            unchanged: list[JsonMember] = [self._names[index] for index in locations if kind.is_unchanged(index)]
            pieces.append(f',"unchanged":{dumped(unchanged)}'.encode())
        return pieces

    def row(self, kind: RowKind) -> list[Piece]:
        """Return the new row of a kind of rows, for a delete what is known of the old one."""
        if not kind.has_after:
            return self.old_row(kind)
        return self._object(self._new, self._known(kind))

    def old_row(self, kind: RowKind) -> list[Piece]:
        """Return what is known of the old row of a kind of rows."""
        is_full = kind.before_kind is BeforeKind.FULL
        shown = [index for index in range(len(self._names)) if is_full or index in self._key]
        return self._object(self._old, shown if self._old else [])

    def _known(self, kind: RowKind) -> list[int]:
        return [index for index in range(len(self._names)) if not kind.is_unchanged(index)]

    def _object(self, columns: Sequence[TextColumn], locations: Sequence[int]) -> list[Piece]:
        if not locations:
            return [b"{}"]
        pieces: list[Piece] = []
        for index in locations:
            pieces += [f"{',' if pieces else '{'}{encode_basestring(self._names[index])}:".encode(), columns[index]]
        return [*pieces, b"}"]


def column_text(values: pa.Array) -> TextColumn:
    """Return the values of a column in the forms of these lines."""
    return next(form for is_it, form in _BY_ARROW_TYPE if is_it(values.type))(values)


_BY_ARROW_TYPE: tuple[tuple[Callable[[pa.DataType], bool], Form], ...] = (
    (pa.types.is_string, strings),
    (pa.types.is_integer, integers),
    (pa.types.is_boolean, booleans),
    (pa.types.is_floating, plain_floats),
    (pa.types.is_timestamp, instants),
    (pa.types.is_date32, dates),
    (pa.types.is_decimal, decimals),
    (pa.types.is_binary, in_hex),
    (pa.types.is_list, lambda values: lists(values, column_text)),
)
