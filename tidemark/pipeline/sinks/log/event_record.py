"""The events of a lake's tables, which their logs do not contain: one Delta table, `_events`, beside `_positions`.

    database relation _tli _commit_lsn _ordinal _seq commit_time | kind item | columns constants is_reduced

A log has the values of rows. Its columns are those of all versions of its table, and so do not show which of them a
version had; it has no row for DDL, for the bounds of a copy or of a rewrite, and none that names the partition of a
TRUNCATE. `_events` has these facts, so that the contents of a table at a moment follow from its log. `item` is the
event as in the outbox. A row of kind `version` states a relation version that changes from its position on have;
`columns` are the types of that version in Arrow, `constants` the values of its columns in rows that are older than the
column. `is_reduced` is true if the log gets other columns than these (`schema_policy` = `ignore`).

A batch is recorded before its tables are written. After a crash it is recorded again: equal rows with equal positions
are one event. Readers of the logs are not disturbed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum

import pyarrow as pa

from tidemark.decode.types.codec import Dialect
from tidemark.decode.types.registry import UTF8
from tidemark.io.host.failpoints import passed
from tidemark.model.change import ChangeBatch, CopyBoundary, PartitionEvent, RewriteBoundary, SchemaEvent, Truncation
from tidemark.model.lsn import Oid
from tidemark.model.position import Position
from tidemark.model.relation import Relation
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.layout import Constants, Shapes, lake_columns
from tidemark.pipeline.lake.positions.table_position import TableId
from tidemark.pipeline.lake.tables.table_upkeep import compact
from tidemark.pipeline.lake.tables.writable_table import writable_table
from tidemark.pipeline.sinks.log.event_expiry import (
    ExpiredLsn,
    IsRemoved,
    delete_events,
    expire_events,
    tables_with_events,
)
from tidemark.pipeline.sinks.steps import Delivered, TableEvent, bounds_of
from tidemark.wire.items import encode_item, relation_of
from tidemark.wire.relations import encode_relation

FOLDER = "_events"
COMPACT_EVERY = 100  # commits
SCHEMA = pa.schema(
    [
        pa.field("database", pa.int64()),
        pa.field("relation", pa.int64()),
        pa.field("_tli", pa.int32()),
        pa.field("_commit_lsn", pa.int64()),
        pa.field("_ordinal", pa.int64()),
        pa.field("_seq", pa.int64()),
        pa.field("commit_time", pa.timestamp("us", tz="UTC")),  # NULL: no transaction wrote the event
        pa.field("kind", pa.string()),
        pa.field("item", pa.string()),  # JSON
        pa.field("columns", pa.binary()),  # an IPC stream without rows
        pa.field("constants", pa.binary()),  # an IPC stream of one row, whose columns are named by number
        pa.field("is_reduced", pa.bool_()),  # NULL: as in the row before
    ]
)


_AS_BEFORE: dict[str, object] = {"columns": None, "constants": None, "is_reduced": None}


class EventKind(Enum):
    """The kind of a row."""

    SCHEMA = "schema"
    PARTITION = "partition"
    REWRITE = "rewrite"
    TRUNCATION = "truncation"
    COPY = "copy"
    VERSION = "version"


_KINDS: Mapping[type[TableEvent], EventKind] = {
    SchemaEvent: EventKind.SCHEMA,
    PartitionEvent: EventKind.PARTITION,
    RewriteBoundary: EventKind.REWRITE,
    Truncation: EventKind.TRUNCATION,
    CopyBoundary: EventKind.COPY,
}


IsReduced = Callable[[TableId, Sequence[Delivered]], bool]
"""Returns whether the log of a table gets other columns than the version of the last of some items has."""


class EventRecord:
    """Records the events of a lake; the versions that it has recorded are known until the lake is opened again."""

    def __init__(
        self,
        root: str,
        capture: str,
        shapes: Shapes,
        constants: Constants,
        dialects: Mapping[Oid, Dialect],
        *,
        is_reduced: IsReduced,
        expired_lsn: ExpiredLsn,
        is_removed: IsRemoved,
    ) -> None:
        self._is_reduced = is_reduced
        self._expired_lsn = expired_lsn
        self._is_removed = is_removed
        self._uri, self._app = f"{root}/{FOLDER}", f"tidemark:{capture}:events"
        self._shapes, self._constants, self._dialects = shapes, constants, dialects
        self._versions: dict[TableId, Relation] = {}
        self._present: set[TableId] | None = None  # tables that may have events; None: not needed so far

    def record(self, tables: Mapping[TableId, Sequence[Delivered]], applied: Applied, keep_hours: int) -> int | None:
        """Record the events of a batch that ends at `applied`; return the version of `_events`, None: unchanged."""
        versions = dict(self._versions)
        rows = [
            row
            for of, items in tables.items()
            for at in range(len(items))
            for row in self._rows(of, items, at, versions)
        ]
        if not rows:
            return None
        if self._present is not None:
            self._present.update(tables)
        table = writable_table(self._uri, self._app)
        if not table.exists:
            table.create(SCHEMA, table.applied)
        table.append(pa.Table.from_pylist(rows, schema=SCHEMA), applied, merge_schema=True)
        passed(Failpoint.EVENTS_RECORDED)
        self._versions = versions
        if table.has_passed(COMPACT_EVERY):
            # NB: the positions of new tables follow; a copy may have an earlier one than the removal of another table.
            expire_events(table, self._expired_lsn, lambda of, lsn: of not in tables and self._is_removed(of, lsn))
            compact(table, keep_hours)
        return table.version

    def forget_removed(self, of: Collection[TableId]) -> None:
        """Delete the events of tables that were removed and get a new log: a replay must begin with later ones."""
        if self._present is None:
            table = writable_table(self._uri, self._app)
            self._present = tables_with_events(table) if table.exists else set()
        again = sorted(self._present.intersection(of))
        if again:
            delete_events(writable_table(self._uri, self._app), again)
            self._present.difference_update(again)
        for one in of:
            self.forget(one)

    def forget(self, of: TableId) -> None:
        """Forget the version of a dropped table."""
        self._versions.pop(of, None)

    def _rows(
        self, of: TableId, items: Sequence[Delivered], at: int, versions: dict[TableId, Relation]
    ) -> list[dict[str, object]]:
        delivered = items[at]
        item, relation = delivered.item, relation_of(delivered.item)
        assert relation is not None, item
        is_known = versions.get(of) == relation
        versions[of] = relation
        if isinstance(item, ChangeBatch):
            if is_known or not item.row_count:
                return []
            position, time_us = bounds_of(item)[0], 0
            kind, text = EventKind.VERSION, encode_relation(relation).decode()
        else:
            kind, text = _KINDS[type(item)], bytes(encode_item(item)[1]).decode()
            position = item.position
            time_us = item.seen_time_us if isinstance(item, CopyBoundary) else item.commit_time_us
        described = _AS_BEFORE if is_known else self._described(of, relation)
        if not is_known:
            described["is_reduced"] = self._is_reduced(of, items[: at + 1])
        return [
            {**_place(of, position, delivered), "commit_time": time_us or None, "kind": kind.value, "item": text}
            | described
        ]

    def _described(self, of: TableId, relation: Relation) -> dict[str, object]:
        columns = pa.schema(list(self._shapes(relation)))
        live = {column.number for column in lake_columns(relation)}
        constants = self._constants(relation, self._dialects.get(of[0], UTF8))
        values = {str(number): value for number, value in constants.items() if number in live}
        arrays = [pa.array([value.as_py()], value.type) for value in values.values()]
        row = pa.RecordBatch.from_arrays(arrays, names=list(values)) if values else None
        return {"columns": _stream(columns), "constants": None if row is None else _stream(row.schema, row)}


def _place(of: TableId, position: Position, delivered: Delivered) -> dict[str, object]:
    return {
        "database": of[0],
        "relation": of[1],
        "_tli": position.timeline,
        "_commit_lsn": position.commit_lsn,
        "_ordinal": position.ordinal,
        "_seq": delivered.sequence,
    }


def _stream(schema: pa.Schema, row: pa.RecordBatch | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        if row is not None:
            stream.write_batch(row)
    return bytes(sink.getvalue())
