"""Row changes in the JSON form of Debezium's PostgreSQL connector without a schema, one line for each change.

`before`, `after`, `source`, `op`, `ts_ms`, `transaction`, in stream order: c, u, d, t, messages as m, rows of a first
copy as r. As in the connector, an update that changes the primary key is a delete and a create. Items that the
connector does not have (schema events, rows that DDL rewrote, bounds of copies) have no line. docs/debezium.md lists
the differences.

Whole columns are converted to text, and rows are assembled from them: no object for each row.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidemark.decode.render.bounds import BEGIN, END, SmallEnds, dumped, is_counted, json_line
from tidemark.decode.render.column_texts import Int64Array, TextColumn
from tidemark.decode.render.debezium_rows import LETTERS, Sides
from tidemark.decode.render.json_columns import NULL, fixed, int64_column, integers
from tidemark.decode.render.placed_lines import Lines, Piece, TransactionColumn
from tidemark.decode.render.row_kinds import RowKind, json_string, kinds_of
from tidemark.decode.render.stream_lines import StreamLines
from tidemark.model.change import (
    TABLE_ORDINAL,
    ChangeBatch,
    ChangeGroup,
    GroupItem,
    LogicalMessage,
    Op,
    TransactionEnd,
    Truncation,
)
from tidemark.model.commit_time import NSECS_PER_USEC, USECS_PER_MILLISECOND
from tidemark.model.emptied import NO_TRANSACTION
from tidemark.model.lsn import Lsn, Oid

CONNECTOR = "postgresql"
NO_VALUE = "null"
NO_ORDER = '"data_collection_order":null'


class DebeziumLines:
    """Prints groups; `databases` are the names of the databases, by OID."""

    def __init__(
        self, databases: Mapping[Oid, str], *, version: str, now_ns: Callable[[], int], name: str = "tidemark"
    ) -> None:
        """`version` and `name` are values of `source`; `now_ns` returns the time when a line is written, since 1970."""
        self._databases = databases
        fields = {"version": version, "connector": CONNECTOR, "name": name}
        self._program = json.dumps(fields, separators=(",", ":"))[1:-1]
        self._now_ns = now_ns
        self._times: CommitTimes | None = None
        self._lines = StreamLines(self.of_batch, self._of_item, DebeziumBounds())

    def lines(self, group: ChangeGroup) -> Iterator[memoryview]:
        """Yield the lines of the group in stream order, many at once, each with its newline.

        NB: the memory of a block is reused for the next one.
        """
        return self._lines.blocks(group)

    def of_batch(self, batch: ChangeBatch, sides: Sides | None = None) -> Lines | None:
        """Return the lines of a batch; None if it has no rows. `sides`: of the batch, if they are made already."""
        rows = batch.rows
        if not len(rows):
            return None
        made_at = _made_at(self._now_ns())
        sides = sides or Sides(batch.relation, rows)
        variants, kinds = kinds_of(rows, sides.moved)
        usecs, xid, commit_lsn, ordinal = (
            fixed(rows.column(name), np.int64) for name in ("_commit_time", "_xid", "_commit_lsn", "_ordinal")
        )
        by_transaction = TransactionColumns(
            TransactionColumn(usecs // USECS_PER_MILLISECOND), *map(TransactionColumn, (usecs, xid, commit_lsn))
        )
        lsn, origin = (integers(rows.column(name)) for name in ("_lsn", "_origin"))
        order = _transaction_fields(rows, by_transaction)
        relation = batch.relation
        names = (self._database(batch.database), json_string(relation.namespace), json_string(relation.name))

        def line(kind: RowKind, op: Op, before: Sequence[Piece], after: Sequence[Piece]) -> list[Piece]:
            source = self._source(names, by_transaction, lsn, origin if kind.has_origin else None, op)
            end = f',"op":"{LETTERS[op]}",{made_at}}}\n'.encode()
            head, between = b'{"before":', b',"after":'
            return [head, *before, between, *after, *source, b',"transaction":', *order, end]

        pieces: dict[int, list[Piece]] = {}
        for number, kind in kinds.items():
            if kind.op not in LETTERS:
                pieces[number] = []
                continue
            before, after = sides.before(kind), sides.after(kind)
            if kind.moved:
                deletion = line(kind, Op.DELETE, before, [NULL])
                pieces[number] = [*deletion, *line(kind, Op.INSERT, [NULL], after)]
            else:
                pieces[number] = line(kind, kind.op, before, after)
        return Lines(commit_lsn, ordinal, variants, pieces)

    def _source(
        self,
        names: tuple[str, str, str],
        by_transaction: "TransactionColumns",
        lsn: TextColumn,
        origin: TextColumn | None,
        op: Op,
    ) -> list[Piece]:
        """Return the `source` object of the rows."""
        database, namespace, table = names
        head = f'"snapshot":"{"true" if op is Op.COPY else "false"}","db":{database},"sequence":"[\\"'
        return [
            f',"source":{{{self._program},"ts_ms":'.encode(),
            by_transaction.msecs,
            f",{head}".encode(),
            by_transaction.commit_lsn,
            b'\\",\\"',
            lsn,
            b'\\"]","ts_us":',
            by_transaction.usecs,
            b',"ts_ns":',
            by_transaction.usecs,
            f'000,"schema":{namespace},"table":{table},"txId":'.encode(),
            by_transaction.xid,
            b',"lsn":',
            lsn,
            b',"xmin":null,"origin":',
            *((NULL,) if origin is None else (b'"', origin, b'"')),
            b',"origin_lsn":null}',
        ]

    def _of_item(self, item: GroupItem, group: ChangeGroup) -> bytes:
        """Return the line of a TRUNCATE or a message; other items have none."""
        if not isinstance(item, LogicalMessage | Truncation):
            return b""
        if self._times is None or self._times.group is not group:
            self._times = CommitTimes(group)
        return self.of_event(item, self._times.of(item.position.commit_lsn), counted=is_counted(group))

    def of_event(self, item: LogicalMessage | Truncation, usecs: int | None = None, *, counted: bool = False) -> bytes:
        """Return the line of a TRUNCATE, that before a copy included, or a message.

        `usecs`: when it was committed, None: it counts as now.
        """
        now_ns = self._now_ns()
        position = item.position
        usecs = now_ns // NSECS_PER_USEC if usecs is None else usecs
        message = item if isinstance(item, LogicalMessage) else None
        relation = item.relation if isinstance(item, Truncation) else None
        is_of_copy = message is None and item.xid == NO_TRANSACTION
        in_transaction = message.transactional if message is not None else not is_of_copy
        snapshot = "true" if is_of_copy else "false"
        source = (
            f'{{{self._program},"ts_ms":{usecs // USECS_PER_MILLISECOND},"snapshot":"{snapshot}",'
            f'"db":{self._database(item.database)},"sequence":"[\\"{position.commit_lsn}\\",\\"{item.lsn}\\"]",'
            f'"ts_us":{usecs},"ts_ns":{usecs}000,"schema":{json_string(relation.namespace if relation else "")},'
            f'"table":{json_string(relation.name if relation else "")},"txId":'
            f'{item.xid if in_transaction or is_of_copy else NO_VALUE},"lsn":{item.lsn},"xmin":null,"origin":'
            f'{json_string(str(item.origin)) if item.origin else NO_VALUE},"origin_lsn":null}}'
        )
        order = NO_VALUE
        if counted and in_transaction:
            order = f'{{"id":"{item.xid}:{position.commit_lsn}","total_order":{position.ordinal + 1},{NO_ORDER}}}'
        if message is None:
            line = f'{{"before":null,"after":null,"source":{source},"transaction":{order},"op":"t",{_made_at(now_ns)}}}'
        else:
            content = b64encode(message.content).decode("ascii")
            content_json = f'{{"prefix":{json_string(message.prefix)},"content":"{content}"}}'
            made_ms = now_ns // NSECS_PER_USEC // USECS_PER_MILLISECOND
            line = f'{{"op":"m","ts_ms":{made_ms},"source":{source},"transaction":{order},"message":{content_json}}}'
        return f"{line}\n".encode()

    def _database(self, oid: Oid) -> str:
        return json_string(self._databases.get(oid, str(oid)))


class TransactionColumns(NamedTuple):
    """Values that are equal for all rows of a transaction."""

    msecs: TransactionColumn
    usecs: TransactionColumn
    xid: TransactionColumn
    commit_lsn: TransactionColumn


def _transaction_fields(rows: pa.RecordBatch, by_transaction: TransactionColumns) -> list[Piece]:
    """Return the rows' numbers in their transactions, if they were counted."""
    if TABLE_ORDINAL not in rows.schema.names:
        return [NULL]
    total, own = (int64_column(fixed(rows.column(name), np.int64) + 1) for name in ("_ordinal", TABLE_ORDINAL))
    head, orders = (b'{"id":"', b":"), (b'","total_order":', b',"data_collection_order":')
    return [head[0], by_transaction.xid, head[1], by_transaction.commit_lsn, orders[0], total, orders[1], own, b"}"]


class CommitTimes:
    """The commit times of a group's transactions, for items that do not carry it."""

    def __init__(self, group: ChangeGroup) -> None:
        self.group = group
        self._by_lsn = {int(end.commit_lsn): end.commit_time_us for end in (*group.begun, *group.transactions)}
        for item in group.items:
            if isinstance(item, ChangeBatch):  # of a transaction that continues after the group
                last = item.rows.num_rows - 1
                lsn, moment = (item.rows.column(name)[last] for name in ("_commit_lsn", "_commit_time"))
                self._by_lsn.setdefault(lsn.as_py(), moment.value)

    def of(self, commit_lsn: Lsn) -> int | None:
        """Return the time of a transaction, or None."""
        return self._by_lsn.get(int(commit_lsn))


class DebeziumBounds:
    """The events of transactions' begins and ends."""

    @staticmethod
    def line(op: str, end: TransactionEnd) -> bytes:
        """Return the event of one transaction."""
        fields: dict[str, object] = {
            "status": op.upper(),
            "id": f"{end.xid}:{int(end.commit_lsn)}",
            "ts_ms": end.commit_time_us // USECS_PER_MILLISECOND,
            "event_count": None,
            "data_collections": None,
        }
        if op == END:
            tables = end.tables or ()
            fields["event_count"] = sum(table.count for table in tables)
            fields["data_collections"] = [
                {"data_collection": f"{table.namespace}.{table.name}", "event_count": table.count} for table in tables
            ]
        return json_line(fields)

    @staticmethod
    def pieces(op: str, ends: SmallEnds) -> tuple[Int64Array, Mapping[int, Sequence[Piece]]]:
        """Return the events of small transactions."""
        xids, commit_lsns = int64_column(ends.xids()), int64_column(ends.column("commit_lsns"))
        msecs = int64_column(ends.column("times_us") // USECS_PER_MILLISECOND)
        head: list[Piece] = [f'{{"status":"{op.upper()}","id":"'.encode(), xids, b":", commit_lsns]
        head += [b'","ts_ms":', msecs, b',"event_count":']
        if op == BEGIN:
            return np.zeros_like(ends.chosen), {0: [*head, b'null,"data_collections":null}\n']}
        variants, sets = ends.table_sets()
        total = int64_column(ends.totals())
        pieces: dict[int, Sequence[Piece]] = {}
        for variant, tables in sets.items():
            collections: list[Piece] = []
            for table, count in tables:
                name = dumped(f"{table.namespace}.{table.name}")
                collections += [
                    f'{"," if collections else ""}{{"data_collection":{name},"event_count":'.encode(),
                    count,
                    b"}",
                ]
            pieces[variant] = [*head, total, b',"data_collections":[', *collections, b"]}\n"]
        return variants, pieces


def _made_at(now_ns: int) -> str:
    usecs = now_ns // NSECS_PER_USEC
    return f'"ts_ms":{usecs // USECS_PER_MILLISECOND},"ts_us":{usecs},"ts_ns":{now_ns}'
