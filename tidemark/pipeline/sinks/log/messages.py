"""The log of the logical messages of one database: the messages of `pg_logical_emit_message`, appended once."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from tidemark.io.host.failpoints import passed
from tidemark.model.change import LogicalMessage
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.layout import POSITION_COLUMNS
from tidemark.pipeline.sinks.log.log_table import LogTableT

SCHEMA = pa.schema(
    [
        *POSITION_COLUMNS,
        pa.field("transactional", pa.bool_()),
        pa.field("prefix", pa.string()),
        pa.field("content", pa.binary()),
    ]
)


def append_messages(table: LogTableT, messages: Sequence[tuple[OutboxSequence, LogicalMessage]]) -> LogTableT:
    """Append the messages of `messages`, in stream order, that the log `table` lacks; return the log."""
    late = [(sequence, message) for sequence, message in messages if message.position > table.applied.position]
    if not late:
        return table
    if not table.exists:
        table.create(SCHEMA, table.applied)
    rows = [
        {
            "_seq": sequence,
            "_tli": message.position.timeline,
            "_commit_lsn": message.position.commit_lsn,
            "_ordinal": message.position.ordinal,
            "_lsn": message.lsn,
            "_xid": message.xid,
            "transactional": message.transactional,
            "prefix": message.prefix.encode(errors="surrogateescape").decode(errors="replace"),
            "content": message.content,
        }
        for sequence, message in late
    ]
    sequence, last = late[-1]
    table.append(
        pa.Table.from_pylist(rows, schema=SCHEMA), replace(table.applied, sequence=sequence, position=last.position)
    )
    passed(Failpoint.LOG_APPENDED)
    return table
