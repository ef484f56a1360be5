"""Row changes as Debezium's PostgreSQL connector gives them in JSON without a schema, a line a change.

`before`, `after`, `source`, `op`, `ts_ms`, `transaction`, in stream order: c, u, d, t, messages as m, rows of a first
copy as r. An update that changes the primary key is a delete and a create, as there. What the connector does not know
(schema events, rows that DDL rewrote, bounds of copies) has no line. docs/debezium.md lists what differs.

Columns are turned into text whole, and rows put together from them: no object a row.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.decode.codecs.codec import without_escapes
from tidemark.decode.render.bounds import Line, TransactionBounds, is_counted
from tidemark.decode.render.debezium_rows import Changes, json_string, seldom_new, sides, transaction_place
from tidemark.decode.render.json_text import NULL, TEXT, Pieces, chosen, joined, text
from tidemark.model.change import ChangeBatch, ChangeGroup, LogicalMessage, Op, TransactionEnd, Truncation
from tidemark.model.lsn import Lsn, Oid

CONNECTOR = "postgresql"
USECS_PER_MILLISECOND = 1000
NSECS_PER_USEC = 1000
NO_ORDER = '"data_collection_order":null'

Integers = npt.NDArray[np.int64]


class Lines(NamedTuple):
    """Lines with their places; `texts` end with a newline."""

    commit_lsn: Integers
    ordinal: Integers
    texts: pa.Array


class DebeziumLines:
    """Prints groups; `databases` are the names of the databases, by OID."""

    def __init__(
        self, databases: Mapping[Oid, str], *, version: str, now_ns: Callable[[], int], name: str = "tidemark"
    ) -> None:
        """`version` and `name` are told in `source`; `now_ns` tells when a line was made, since 1970."""
        self._databases = databases
        told = {"version": version, "connector": CONNECTOR, "name": name}
        self._program = json.dumps(told, separators=(",", ":"))[1:-1]
        self._now_ns = now_ns
        self._bounds = TransactionBounds(_bound)

    def lines(self, group: ChangeGroup) -> Iterator[bytes | memoryview]:
        """Give out the lines of the group in stream order, many at once, each with its newline."""
        made = self._in_order(group)
        if not is_counted(group):
            return (_contents(found.texts) for found in made)
        rows = (row for found in made for row in _rows(found))
        return (f"{line}\n".encode() for line in self._bounds.around(rows, group))

    def _in_order(self, group: ChangeGroup) -> Iterator[Lines]:
        counted = is_counted(group)
        waiting: list[Lines] = []  # since the last barrier: batches of several relations overlap
        times: CommitTimes | None = None
        for item in group.items:
            if isinstance(item, ChangeBatch):
                waiting += self._of_batch(item)
            elif isinstance(item, LogicalMessage | Truncation):
                times = times or CommitTimes(group)
                waiting.append(self._of_item(item, times, counted=counted))
            else:
                yield from _merged(waiting)
                waiting = []
        yield from _merged(waiting)

    def _of_batch(self, batch: ChangeBatch) -> list[Lines]:
        changes = Changes.of(batch)
        if changes is None:
            return []
        rows, count = changes.rows, len(changes.rows)
        now_ns = self._now_ns()
        before, after = sides(changes)
        pieces: Pieces = ['{"before":', *before, ',"after":', *after]
        pieces += self._source(batch, rows)
        pieces += [',"transaction":', *transaction_place(rows), ',"op":"', *changes.ops, f'",{_made_at(now_ns)}}}\n']
        commit_lsn, ordinal = (rows.column(name).to_numpy() for name in ("_commit_lsn", "_ordinal"))
        return [Lines(commit_lsn, ordinal, joined(pieces, count))]

    def _source(self, batch: ChangeBatch, rows: pa.RecordBatch) -> Pieces:
        """Return what is told of where the rows come from."""
        usecs = rows.column("_commit_time").cast(pa.int64())
        lsn = text(rows.column("_lsn"))
        origin = rows.column("_origin")
        is_copy = rows.column("_op")[0].as_py() == Op.COPY.value
        return [
            f',"source":{{{self._program},"ts_ms":',
            *seldom_new(pc.divide(usecs, USECS_PER_MILLISECOND)),
            f',"snapshot":"{"true" if is_copy else "false"}","db":{self._database(batch.database)},"sequence":"[\\"',
            *seldom_new(rows.column("_commit_lsn")),
            '\\",\\"',
            lsn,
            '\\"]","ts_us":',
            *seldom_new(usecs),
            ',"ts_ns":',
            *seldom_new(usecs),
            f'000,"schema":{json_string(batch.relation.namespace)},"table":{json_string(batch.relation.name)},"txId":',
            *seldom_new(rows.column("_xid")),
            ',"lsn":',
            lsn,
            ',"xmin":null,"origin":',
            *chosen(pc.not_equal(origin, 0), ['"', text(origin), '"'], NULL),
            ',"origin_lsn":null}',
        ]

    def _of_item(self, item: LogicalMessage | Truncation, times: "CommitTimes", *, counted: bool) -> Lines:
        """Return the line of a TRUNCATE or a message."""
        now_ns = self._now_ns()
        position = item.position
        usecs = times.of(position.commit_lsn)
        usecs = now_ns // NSECS_PER_USEC if usecs is None else usecs
        message = item if isinstance(item, LogicalMessage) else None
        relation = item.relation if isinstance(item, Truncation) else None
        in_transaction = message is None or message.transactional
        source = (
            f'{{{self._program},"ts_ms":{usecs // USECS_PER_MILLISECOND},"snapshot":"false",'
            f'"db":{self._database(item.database)},"sequence":"[\\"{position.commit_lsn}\\",\\"{item.lsn}\\"]",'
            f'"ts_us":{usecs},"ts_ns":{usecs}000,"schema":{json_string(relation.namespace if relation else "")},'
            f'"table":{json_string(relation.name if relation else "")},"txId":{item.xid if in_transaction else NULL},'
            f'"lsn":{item.lsn},"xmin":null,"origin":{json_string(str(item.origin)) if item.origin else NULL},'
            f'"origin_lsn":null}}'
        )
        place = NULL
        if counted and in_transaction:
            place = f'{{"id":"{item.xid}:{position.commit_lsn}","total_order":{position.ordinal + 1},{NO_ORDER}}}'
        if message is None:
            line = f'{{"before":null,"after":null,"source":{source},"transaction":{place},"op":"t",{_made_at(now_ns)}}}'
        else:
            content = b64encode(message.content).decode("ascii")
            told = f'{{"prefix":{json_string(message.prefix)},"content":"{content}"}}'
            made_ms = now_ns // NSECS_PER_USEC // USECS_PER_MILLISECOND
            line = f'{{"op":"m","ts_ms":{made_ms},"source":{source},"transaction":{place},"message":{told}}}'
        commit_lsn, ordinal = (np.array([number], np.int64) for number in (position.commit_lsn, position.ordinal))
        return Lines(commit_lsn, ordinal, pa.array([f"{line}\n"], TEXT))

    def _database(self, oid: Oid) -> str:
        return json_string(self._databases.get(oid, str(oid)))


class CommitTimes:
    """When the transactions of a group committed, for what does not carry it."""

    def __init__(self, group: ChangeGroup) -> None:
        self._by_lsn = {int(end.commit_lsn): end.commit_time_us for end in (*group.begun, *group.transactions)}
        for item in group.items:
            if isinstance(item, ChangeBatch):  # of one that goes on over the group's end
                last = item.rows.num_rows - 1
                lsn, moment = (item.rows.column(name)[last] for name in ("_commit_lsn", "_commit_time"))
                self._by_lsn.setdefault(lsn.as_py(), moment.value)

    def of(self, commit_lsn: Lsn) -> int | None:
        """Return the time of a transaction, or None."""
        return self._by_lsn.get(int(commit_lsn))


def _merged(parts: Sequence[Lines]) -> Iterator[Lines]:
    """Yield the parts as one, in stream order."""
    if len(parts) <= 1:
        yield from parts
        return
    commit_lsn, ordinal = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
    order = np.lexsort((ordinal, commit_lsn))  # stable: the two events of a changed key keep their order
    texts = pa.concat_arrays([part.texts for part in parts]).take(pa.array(order))
    yield Lines(commit_lsn[order], ordinal[order], texts)


def _rows(lines: Lines) -> Iterator[Line]:
    return zip(
        lines.commit_lsn.tolist(), lines.ordinal.tolist(), (line[:-1] for line in lines.texts.to_pylist()), strict=True
    )


def _contents(texts: pa.Array) -> memoryview:
    """Return all lines, one behind the other, as they stand in memory."""
    offsets = np.frombuffer(texts.buffers()[1], np.int64)
    return memoryview(texts.buffers()[2])[offsets[texts.offset] : offsets[texts.offset + len(texts)]]


def _bound(op: str, end: TransactionEnd) -> str:
    """Return the event of a transaction's begin or end."""
    told: dict[str, object] = {
        "status": op.upper(),
        "id": f"{end.xid}:{int(end.commit_lsn)}",
        "ts_ms": end.commit_time_us // USECS_PER_MILLISECOND,
        "event_count": None,
        "data_collections": None,
    }
    if op == "end":
        tables = end.tables or ()
        told["event_count"] = sum(table.count for table in tables)
        told["data_collections"] = [
            {"data_collection": f"{table.namespace}.{table.name}", "event_count": table.count} for table in tables
        ]
    return without_escapes(json.dumps(told, ensure_ascii=False, separators=(",", ":")))


def _made_at(now_ns: int) -> str:
    usecs = now_ns // NSECS_PER_USEC
    return f'"ts_ms":{usecs // USECS_PER_MILLISECOND},"ts_us":{usecs},"ts_ns":{now_ns}'
