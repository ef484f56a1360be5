"""The marks of a replica that keeps deleted rows (`soft_deletes`): three columns beside those of the source.

_deleted        whether the source has deleted the row
_deleted_lsn    the commit that did, as `_commit_lsn` in the log; NULL for a row that the source has
_deleted_at     the time of that commit; NULL also for a TRUNCATE, which has none
"""

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model.position import Position
from tidemark.pipeline.lake.layout import NUMBER
from tidemark.pipeline.lake.tables.delta_sql import quoted, sql_time
from tidemark.pipeline.lake.tables.lake_table import LakeTable

DELETED, DELETED_LSN, DELETED_AT = "_deleted", "_deleted_lsn", "_deleted_at"
# NB: they have numbers, as the columns of the source, so that one comparison of layouts covers them. PostgreSQL's are
# above -7 (FirstLowInvalidHeapAttributeNumber, sysattr.h).
_FIRST_NUMBER = -101
MARKS = tuple(
    pa.field(name, kind, metadata={NUMBER: str(_FIRST_NUMBER - at).encode()})
    for at, (name, kind) in enumerate(
        ((DELETED, pa.bool_()), (DELETED_LSN, pa.int64()), (DELETED_AT, pa.timestamp("us", tz="UTC")))
    )
)
MARK_NAMES = frozenset(field.name for field in MARKS)
MARK_NUMBERS = frozenset(int(field.metadata[NUMBER]) for field in MARKS)
NOT_DELETED = {_FIRST_NUMBER: pa.scalar(False)}
"""The marks of rows that are older than the setting, by number."""


def not_deleted(rows: pa.Table) -> pa.Table:
    """Return rows that the source has, with their marks."""
    for field in MARKS:
        values = pa.nulls(rows.num_rows, field.type)
        rows = rows.append_column(field, pc.fill_null(values, fill_value=False) if field.name == DELETED else values)
    return rows


def marked(rows: pa.Table, changes: pa.Table, deleted_by: pa.Array) -> pa.Table:
    """Return `rows` with their marks; `deleted_by`: the index of the change that deleted the row, else NULL."""
    lsn, time = (changes.column(name).take(deleted_by) for name in ("_commit_lsn", "_commit_time"))
    for field, values in zip(MARKS, (deleted_by.is_valid(), lsn, time), strict=True):
        rows = rows.append_column(field, values)
    return rows


def expire_deleted(table: LakeTable, before_us: int) -> None:
    """Delete the rows that the source deleted before a time; those of a TRUNCATE have no time, and stay."""
    if DELETED in table.schema.names:
        table.delete(f"{quoted(DELETED)} AND {quoted(DELETED_AT)} < {sql_time(before_us)}", table.applied)


def marks_after(position: Position) -> dict[str, str]:
    """Return the marks, as SQL, of rows that an event without a time deletes."""
    return {DELETED: "true", DELETED_LSN: str(position.commit_lsn)}
