"""What a handler receives: a batch of changes of one version of one table, as Arrow and as rows on demand."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from tidemark.model.change import AFTER, BEFORE, Op
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.position import Epoch, Position
from tidemark.model.relation import Relation

ROWS_AT_ONCE = 1_000  # how many rows become Python objects together
META = ("_op", "_tli", "_commit_lsn", "_ordinal", "_lsn", "_xid", "_commit_time", "_origin", "_unchanged")
Values = Mapping[str, object]
"""The columns of a row by name; a value is what `pyarrow` returns for the column's Arrow type."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one row."""

    op: Op
    position: Position
    commit_time: datetime
    lsn: Lsn  # start of the change's record
    xid: int  # of the top-level transaction
    origin: int  # replication origin, 0: none
    before: Values | None  # the old row or its key, as far as the server wrote it; None: nothing
    after: Values | None  # None for a delete
    unchanged: tuple[str, ...]  # columns of `after` that are None because their stored value did not change


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Changes of one version of one table, in the order of the stream."""

    database: str
    relation: Relation  # the version of the table: its columns, its key
    epoch: Epoch  # the fencing token: it grows with each start of an engine on the state
    arrow: pa.RecordBatch  # metadata columns, then the structs `_before` and `_after`

    @property
    def table(self) -> str:
        """The table as `schema.name`."""
        return self.relation.qualified_name

    @property
    def schema(self) -> pa.Schema:
        """The schema of `arrow`; batches of one version of a table have the same."""
        return self.arrow.schema

    @property
    def first(self) -> Position:
        """Position of the first change."""
        return self._position(0)

    @property
    def position(self) -> Position:
        """Position of the last change."""
        return self._position(len(self) - 1)

    @property
    def commit_time(self) -> datetime:
        """When the transaction of the last change was committed, in UTC."""
        found: datetime = self.arrow.column("_commit_time")[len(self) - 1].as_py()
        return found

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def __iter__(self) -> Iterator[Change]:
        """Iterate over the changes; they are made as they are needed."""
        names = tuple(column.name for column in self.relation.live_columns)
        for start in range(0, len(self), ROWS_AT_ONCE):
            rows = self.arrow.slice(start, ROWS_AT_ONCE)
            columns = (rows.column(name).to_pylist() for name in (*META, BEFORE, AFTER))
            for op, timeline, commit_lsn, ordinal, lsn, xid, time, origin, unchanged, before, after in zip(
                *columns, strict=True
            ):
                yield Change(
                    op=Op(op),
                    position=Position(TimelineId(timeline), Lsn(commit_lsn), ordinal),
                    commit_time=time,
                    lsn=Lsn(lsn),
                    xid=xid,
                    origin=origin,
                    before=before,
                    after=after,
                    unchanged=_named(unchanged, names),
                )

    def _position(self, row: int) -> Position:
        timeline, commit_lsn, ordinal = (
            self.arrow.column(name)[row].as_py() for name in ("_tli", "_commit_lsn", "_ordinal")
        )
        return Position(TimelineId(timeline), Lsn(commit_lsn), ordinal)


def _named(bitmap: bytes | None, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns of a bitmap over the indexes of the live columns."""
    if bitmap is None:
        return ()
    bits = int.from_bytes(bitmap, "little")
    return tuple(name for number, name in enumerate(names) if bits >> number & 1)
