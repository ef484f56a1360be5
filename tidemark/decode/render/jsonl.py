"""Changes as JSON lines, one an item, in stream order: for people, pipes, and consumers that want no Arrow.

A row: op, database, schema, table, position, lsn, xid, origin (of replication, where there is one), commit_time, and by
what is known `before`, `after` and `unchanged`, the columns whose TOASTed value did not change and which `after`
therefore leaves out. `before` holds the key columns alone where the server wrote no more. Values are JSON's own where
JSON has them: integers, booleans, text, lists; floats but for NaN and infinities; the rest is text (decimals too:
readers round numbers), bytes as hex after a backslash and x.

Columns are turned into text whole, and rows put together from them: no dictionary a row.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from json.encoder import encode_basestring

import pyarrow as pa

from tidemark.decode.codecs.codec import without_escapes
from tidemark.decode.render.bounds import Line, TransactionBounds, bound_line, is_counted
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

NULL = "null"
_SECONDS = "%Y-%m-%dT%H:%M:%S"  # with microseconds, where the type has them

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class JsonLines:
    """Prints groups; `databases` are the names of the databases, by OID."""

    def __init__(self, databases: Mapping[Oid, str]) -> None:
        self._databases = databases
        self._bounds = TransactionBounds(partial(bound_line, databases))

    def lines(self, group: ChangeGroup) -> Iterator[str]:
        """Give out the group's items in stream order, without newlines, and their transactions' bounds if counted."""
        placed = self._placed(group)
        yield from self._bounds.around(placed, group) if is_counted(group) else (line for _, _, line in placed)

    def _placed(self, group: ChangeGroup) -> Iterator[Line]:
        waiting: list[Line] = []  # rows and messages since the last barrier: batches of several relations overlap
        for item in group.items:
            if isinstance(item, ChangeBatch):
                waiting.extend(self._rows(item))
            elif isinstance(item, LogicalMessage):
                waiting.append((item.position.commit_lsn, item.position.ordinal, self.item(item)))
            else:
                waiting.sort(key=_place)
                yield from waiting
                waiting = []
                yield item.position.commit_lsn, item.position.ordinal, self.item(item)
        waiting.sort(key=_place)
        yield from waiting

    def _rows(self, batch: ChangeBatch) -> Iterator[Line]:
        rows = batch.rows
        column = {
            name: rows.column(name).to_pylist()
            for name in ("_op", "_tli", "_commit_lsn", "_ordinal", "_lsn", "_origin")
        }
        xids = rows.column("_xid").to_pylist()
        times = _texts(rows.column("_commit_time"))
        names = self._names(batch.database, batch.relation)
        numbers = rows.column(TABLE_ORDINAL).to_pylist() if TABLE_ORDINAL in rows.schema.names else None
        tails = _tails(batch)
        for index, op in enumerate(column["_op"]):
            commit_lsn, ordinal = column["_commit_lsn"][index], column["_ordinal"][index]
            position = f"{column['_tli'][index]}:{format_lsn(commit_lsn)}:{ordinal}"
            origin = f'"origin":{column["_origin"][index]},' if column["_origin"][index] else ""
            number = f',"table_ordinal":{numbers[index]}' if numbers is not None else ""
            line = (
                f'{{"op":"{op}",{names},"position":"{position}","lsn":"{format_lsn(column["_lsn"][index])}",'
                f'"xid":{xids[index]},{origin}"commit_time":{times[index]}{number}{tails[index]}}}'
            )
            yield commit_lsn, ordinal, line

    def _names(self, database: Oid, relation: Relation) -> str:
        texts = (self._databases.get(database, str(database)), relation.namespace, relation.name)
        return '"database":{},"schema":{},"table":{}'.format(
            *(encode_basestring(without_escapes(text)) for text in texts)
        )

    def item(self, item: GroupItem) -> str:
        """Return the line of an item that is no batch."""
        told: dict[str, Json]
        match item:
            case LogicalMessage():
                return self._message(item)
            case SchemaEvent():
                return self._schema_event(item)
            case Truncation():
                flags = {"cascade": item.cascade, "restart_identity": item.restart_identity}
                told = {**flags, **_partition(item.partition), **_origin(item.origin)}
                return self._line("t", item.position, item.relation, item.database, told)
            case RewriteBoundary():
                op = "rewrite_begin" if item.begin else "rewrite_end"
                told = {"xid": item.xid, **_partition(item.partition)}
                return self._line(op, item.position, item.relation, item.database, told)
            case PartitionEvent():
                told = {
                    "lsn": format_lsn(item.lsn),
                    "xid": item.xid,
                    "change": item.change.value,
                    "partition": {"schema": item.partition.namespace, "table": item.partition.name},
                    **_partition(item.partition.oid),
                }
                return self._line("partition", item.position, item.relation, item.database, told)
            case CopyBoundary():
                op = "copy_begin" if item.begin else "copy_end"
                told = {"generation": item.generation, "snapshot": item.snapshot}
                return self._line(op, item.position, item.relation, item.database, told)
        raise AssertionError(f"a batch is not one line: {item}")

    def _message(self, item: LogicalMessage) -> str:
        try:
            content = {"content": item.content.decode()}
        except UnicodeDecodeError:
            content = {"content_hex": item.content.hex()}
        told: dict[str, Json] = {
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
        return _dump(told)

    def _schema_event(self, item: SchemaEvent) -> str:
        described = item.after or item.before
        assert described is not None, item
        told: dict[str, Json] = {
            "lsn": format_lsn(item.lsn),
            "xid": item.xid,
            "change": item.change.value,
            "effect": item.effect.value,
            "before": _described(item.before),
            "after": _described(item.after),
        }
        if item.brings_rows:
            told["brings_rows"] = True
        return self._line("schema", item.position, described, item.database, told)

    def _line(self, op: str, position: Position, relation: Relation, database: Oid, more: Mapping[str, Json]) -> str:
        names = self._names(database, relation)
        return f'{{"op":"{op}",{names},"position":"{position}",{_dump(dict(more))[1:]}'


def _partition(oid: Oid) -> dict[str, Json]:
    """Return what tells of which partition an event is."""
    return {"tableoid": oid} if oid else {}


def _origin(number: int) -> dict[str, Json]:
    return {"origin": number} if number else {}


def _place(line: Line) -> tuple[int, int]:
    return line[:2]


def _dump(value: Json) -> str:
    return without_escapes(json.dumps(value, ensure_ascii=False, separators=(",", ":")))  # JSON is UTF-8


def _described(relation: Relation | None) -> Json:
    """Return what a schema event shows of a version."""
    if relation is None:
        return None
    columns: list[Json] = [
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
    key: list[Json] = [names[number] for number in relation.primary_key]
    return {
        "oid": relation.oid,
        "schema": relation.namespace,
        "table": relation.name,
        "columns": columns,
        "primary_key": key,
        "replica_identity": relation.replica_identity.name.lower(),
    }


def _tails(batch: ChangeBatch) -> list[str]:
    """Return for each row what is known of it: before, after, unchanged."""
    relation, rows = batch.relation, batch.rows
    count = rows.num_rows
    before, after = rows.column(BEFORE), rows.column(AFTER)
    kinds = rows.column("_before_kind").to_pylist()
    tails = [""] * count
    if before.null_count < count:
        whole = _objects(before)
        identity = relation.identity_columns or relation.primary_key
        names = before.type.names
        keys = {names[place] for place, column in enumerate(relation.live_columns) if column.number in identity}
        key = _objects(before, only=keys) if BeforeKind.KEY in kinds else whole
        for index, kind in enumerate(kinds):
            if kind != BeforeKind.NONE:
                tails[index] = ',"before":' + (key if kind == BeforeKind.KEY else whole)[index]
    present = after.is_valid().to_pylist()
    texts = _objects(after)
    bitmaps = rows.column("_unchanged").to_pylist()
    for index in range(count):
        if bitmaps[index] is not None:
            bits = int.from_bytes(bitmaps[index], "little")
            unchanged = [name for place, name in enumerate(after.type.names) if bits >> place & 1]
            known = _objects(after.slice(index, 1), only=set(after.type.names) - set(unchanged))
            tails[index] += f',"after":{known[0]},"unchanged":{_dump(list(unchanged))}'
        elif present[index]:
            tails[index] += ',"after":' + texts[index]
    return tails


def _objects(struct: pa.StructArray, only: set[str] | None = None) -> list[str]:
    """Return a JSON object for each row of `struct`, null or not, with the columns `only`."""
    names = [name for name in struct.type.names if only is None or name in only]
    if not names:
        return ["{}"] * len(struct)
    template = "{" + ",".join(encode_basestring(name).replace("%", "%%") + ":%s" for name in names) + "}"
    columns = [_texts(struct.field(name)) for name in names]
    return [template % values for values in zip(*columns, strict=True)]


def _texts(column: pa.Array) -> list[str]:
    """Return each value of `column` as JSON."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        pc = import_module("pyarrow.compute")  # loaded where it is used: it takes as long as a small file to decode
        wall_clock = column.cast(pa.timestamp(kind.unit))  # UTC: the clock stays
        column = pc.binary_join_element_wise(pc.strftime(wall_clock, format=_SECONDS), zone, "")
    elif pa.types.is_date(kind) or pa.types.is_decimal(kind):
        column = column.cast(pa.string())
    elif pa.types.is_floating(kind):
        return [NULL if value is None else _float(value) for value in column.to_pylist()]
    values: Sequence[object] = column.to_pylist()
    if pa.types.is_string(column.type):
        return [encode_basestring(value) if isinstance(value, str) else NULL for value in values]
    if pa.types.is_integer(kind):
        return [NULL if value is None else str(value) for value in values]
    return [_dump(_plain(value)) for value in values]


def _plain(value: object) -> Json:
    """Return a value of a list, or a list, as JSON has it."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, float):
        return value if math.isfinite(value) else _float(value).strip('"')
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _float(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if math.isnan(value) else f'"{"-" * (value < 0)}Infinity"'
