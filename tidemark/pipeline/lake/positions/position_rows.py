"""The rows of the positions table: one for each table, and one for the whole lake, with database 0.

What is written in which batch is chosen by `positions`.
"""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

import pyarrow as pa

from tidemark.model.change import NO_COMMIT_TIME
from tidemark.model.lsn import Lsn, Oid, TimelineId
from tidemark.model.position import Position, Sequence
from tidemark.pipeline.delta_log.lineage import NO_VERSION
from tidemark.pipeline.lake.faults import (
    BREAK,
    FAULT,
    POSITION,
    break_columns,
    parse_breaks,
    parse_target,
    target_columns,
)
from tidemark.pipeline.lake.positions.leaving import LEAVING
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition, TableState
from tidemark.wire.relations import decode_relation, encode_relation

SCHEMA = pa.schema(
    [
        pa.field("database", pa.int64()),
        pa.field("relation", pa.int64()),
        pa.field("namespace", pa.string()),
        pa.field("name", pa.string()),
        pa.field("folder", pa.string()),  # below the lake's root
        pa.field("state", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("timeline", pa.int32()),
        pa.field("commit_lsn", pa.int64()),
        pa.field("ordinal", pa.int64()),
        pa.field("generation", pa.int64()),
        pa.field("log_version", pa.int64()),  # of the Delta tables; -1: the table does not exist
        pa.field("replica_version", pa.int64()),
        pa.field("outbox", pa.string()),
        pa.field("capture", pa.string()),
        pa.field("system_identifier", pa.string()),  # an unsigned 64-bit number
        pa.field("log_id", pa.string()),  # of the Delta table; "": not recorded
        pa.field("replica_id", pa.string()),
        pa.field("log_token", pa.int64()),  # of the last commit of Tidemark
        pa.field("replica_token", pa.int64()),
        pa.field("log_fault", FAULT),  # why the table is not written; NULL: it is written
        pa.field("replica_fault", FAULT),
        pa.field("log_breaks", pa.list_(BREAK)),  # gaps in the log
        pa.field("pinned", pa.string()),  # the relation version whose columns are kept (schema_policy); NULL: none
        pa.field("settings", pa.string()),  # of the table in [[lake.tables]], as it is written; NULL: not recorded
        pa.field("dropped_us", pa.int64()),  # the commit time of its DROP; NULL: it exists, or the time is not known
        # Of the whole lake, in the row of database 0: the latest commit in it, and after which position `_events` has
        # all events. NULL: an earlier version of Tidemark wrote the lake last.
        pa.field("commit_time_us", pa.int64()),
        pa.field("events_after", POSITION),
        # Also there: folders of removed tables that are being deleted, and the position when a table was removed last.
        pa.field("leaving", LEAVING),
        pa.field("removed_to", POSITION),
        pa.field("begins_late", pa.string()),  # also there: why the lake lacks the first changes; NULL: it has them
    ]
)


class TableRows:
    """The rows of all tables, as they were built last: a batch builds those of the tables that it changed."""

    def __init__(self, owner: Mapping[str, str]) -> None:
        self._owner = owner
        self._outbox = ""
        self._tables: list[TablePosition] = []  # of the rows, in their order
        self._rows = SCHEMA.empty_table()

    def of(self, outbox: str, tables: Mapping[TableId, TablePosition]) -> pa.Table:
        """Return the rows of `tables`; those of the same objects are not built again."""
        known = self._tables if outbox == self._outbox else []
        stays = [at for at, one in enumerate(known) if tables.get((one.database, one.relation)) is one]
        kept = [known[at] for at in stays]
        names = {(one.database, one.relation) for one in kept}
        changed = [one for of, one in tables.items() if of not in names]
        built = as_rows([{**table_row(one), **self._owner, "outbox": outbox} for one in changed])
        self._rows = pa.concat_tables([self._rows.take(pa.array(stays, pa.int64())), built]).combine_chunks()
        self._tables, self._outbox = [*kept, *changed], outbox
        return self._rows


def as_rows(rows: SequenceOf[Mapping[str, object]]) -> pa.Table:
    """Return rows, each with all columns; one that is not named is NULL."""
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def table_row(table: TablePosition) -> dict[str, object]:
    """Return the columns of a table's row that belong to the table alone."""
    at = table.position
    return {
        "database": table.database,
        "relation": table.relation,
        "namespace": table.namespace,
        "name": table.name,
        "folder": table.folder,
        "state": table.state.value,
        "sequence": table.sequence,
        "timeline": at.timeline,
        "commit_lsn": at.commit_lsn,
        "ordinal": at.ordinal,
        "generation": table.generation,
        **target_columns("log", table.log),
        **target_columns("replica", table.replica),
        "log_breaks": [break_columns(gap) for gap in table.breaks],
        "pinned": encode_relation(table.pinned).decode() if table.pinned is not None else None,
        "settings": table.settings or None,
        "dropped_us": table.dropped_us or None,
    }


def time_of(row: Mapping[str, object], name: str) -> int:
    """Return a time of a row; `NO_COMMIT_TIME` if it has none, or an earlier version of Tidemark wrote it."""
    time_us = row.get(name)
    return time_us if isinstance(time_us, int) else NO_COMMIT_TIME


def _state_of(row: Mapping[str, object]) -> TableState:
    """Return a table's state; an earlier version of Tidemark created replicas of tables without a key."""
    state = TableState(row["state"])
    return TableState.STALE if state is TableState.BLOCKED and row["replica_version"] != NO_VERSION else state


def parse_table(row: Mapping[str, object]) -> TablePosition:
    """Return the position of a table from its row."""

    def number(name: str) -> int:
        value = row[name]
        assert isinstance(value, int), name
        return value

    return TablePosition(
        Oid(number("database")),
        Oid(number("relation")),
        str(row["namespace"]),
        str(row["name"]),
        str(row["folder"]),
        _state_of(row),
        Sequence(number("sequence")),
        Position(TimelineId(number("timeline")), Lsn(number("commit_lsn")), number("ordinal")),
        number("generation"),
        parse_target("log", row),
        parse_target("replica", row),
        parse_breaks(row.get("log_breaks")),
        decode_relation(pinned.encode()) if isinstance(pinned := row.get("pinned"), str) else None,
        time_of(row, "dropped_us"),
        str(row.get("settings") or ""),
    )
