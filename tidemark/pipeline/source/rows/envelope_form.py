"""Rows in the form of Debezium's PostgreSQL connector: `before`, `after`, `source`, `op`, `ts_ms`, with typed values.

As in the connector, an update that changes the primary key is a delete and a create. `ts_ms` is the time of the commit,
as `source.ts_ms`, so that a repeated batch is identical. An unknown TOASTed value is NULL.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.decode.render.debezium import CONNECTOR
from tidemark.decode.render.debezium_rows import LETTERS, Sides
from tidemark.model.change import AFTER, BEFORE, ChangeBatch, Op, Truncation
from tidemark.model.commit_time import USECS_PER_MILLISECOND
from tidemark.model.emptied import NO_TRANSACTION
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation
from tidemark.pipeline.source.rows.query_table import QueryTable
from tidemark.pipeline.source.rows.row_form import TableColumns

SOURCE_FIELDS: tuple[pa.Field, ...] = (
    pa.field("version", pa.string()),
    pa.field("connector", pa.string()),
    pa.field("name", pa.string()),
    pa.field("ts_ms", pa.int64()),
    pa.field("snapshot", pa.string()),
    pa.field("db", pa.string()),
    pa.field("schema", pa.string()),
    pa.field("table", pa.string()),
    pa.field("txId", pa.int64()),
    pa.field("lsn", pa.int64()),
)
"""The struct `source` of the connector."""


def envelope_fields(table: QueryTable) -> list[pa.Field]:
    """Return the columns of the form."""
    row, source = pa.struct(table.fields), pa.struct(SOURCE_FIELDS)
    return [
        pa.field("before", row),
        pa.field("after", row),
        pa.field("source", source),
        pa.field("op", pa.string()),
        pa.field("ts_ms", pa.int64()),
    ]


@dataclass(frozen=True)
class EnvelopeForm:
    """The form of `RowColumns.DEBEZIUM`."""

    table: QueryTable
    wanted: pa.Schema
    capture: str
    version: str  # of Tidemark
    databases: Mapping[Oid, str]
    _columns: TableColumns = field(init=False)
    is_complete: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "_columns", TableColumns(self.table))

    def fields_of(self, table: QueryTable) -> list[pa.Field]:
        """Return all columns that the form has for a table."""
        return envelope_fields(table)

    def rows(self, batch: ChangeBatch, sequence: int) -> pa.RecordBatch:  # noqa: ARG002 - of the protocol
        """Return the events of a batch; raise `UnfitValues` if a value does not fit the type of its column."""
        rows, relation = batch.rows, batch.relation
        moved = Sides(relation, rows).moved
        events: list[tuple[int | None, int | None, str]] = []  # the row whose old and whose new values it has, its op
        for row, op in enumerate(map(Op, rows.column("_op").to_pylist())):
            if moved is not None and moved[row]:
                events += [(row, None, LETTERS[Op.DELETE]), (None, row, LETTERS[Op.INSERT])]
            elif op in LETTERS:
                events.append((row, row, LETTERS[op]))
        old, new = (pa.array([event[side] for event in events], pa.int64()) for side in (0, 1))
        ops = pa.array([op for *_, op in events], pa.string())
        at = pc.coalesce(old, new)
        times = pc.divide(rows.column("_commit_time").take(at).cast(pa.int64()), USECS_PER_MILLISECOND)
        columns = {
            "before": self._columns.struct(batch, BEFORE, old),
            "after": self._columns.struct(batch, AFTER, new),
            "source": self._source(batch, at, times, ops),
            "op": ops,
            "ts_ms": times,
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in self.wanted.names], schema=self.wanted)

    def truncation(self, event: Truncation, sequence: int) -> pa.RecordBatch:  # noqa: ARG002 - of the protocol
        """Return the event of a TRUNCATE, or of the begin of a copy; `before` has the `tableoid` of a partition."""
        snapshot = "true" if event.xid == NO_TRANSACTION else "false"
        time_ms = event.commit_time_us // USECS_PER_MILLISECOND or None  # None: an earlier version did not record it
        named = self._named(event.database, event.relation)
        source = named | {"ts_ms": time_ms, "snapshot": snapshot, "txId": event.xid, "lsn": event.lsn}
        before = self._columns.partition(event) or None
        row = {"before": before, "source": source, "op": Op.TRUNCATE.value, "ts_ms": time_ms}
        return pa.RecordBatch.from_pylist([row], schema=self.wanted)

    def _source(self, batch: ChangeBatch, at: pa.Array, times: pa.Array, ops: pa.Array) -> pa.Array:
        columns: dict[str, pa.Array] = {
            name: pa.repeat(text, len(at)) for name, text in self._named(batch.database, batch.relation).items()
        }
        columns["ts_ms"] = times
        columns["snapshot"] = pc.if_else(pc.equal(ops, LETTERS[Op.COPY]), "true", "false")
        columns["txId"], columns["lsn"] = (batch.rows.column(name).take(at) for name in ("_xid", "_lsn"))
        fields = list(SOURCE_FIELDS)
        return pa.StructArray.from_arrays([columns[one.name] for one in fields], fields=fields)

    def _named(self, database: Oid, relation: Relation) -> dict[str, str | int]:
        return {
            "version": self.version,
            "connector": CONNECTOR,
            "name": self.capture,
            "db": self.databases.get(database, ""),
            "schema": relation.namespace,
            "table": relation.name,
        }
