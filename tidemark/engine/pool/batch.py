"""What a handler receives: a batch of changes of one version of one table, as Arrow and as rows on demand."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Self

import pyarrow as pa

from tidemark.model.change import AFTER, BEFORE, META_FIELDS, TABLE_ORDINAL, Op
from tidemark.model.lsn import INVALID_OID, Lsn, Oid, TimelineId
from tidemark.model.position import Epoch, Position
from tidemark.model.relation import Column, Relation, ReplicaIdentity

ROWS_AT_ONCE = 1_000  # how many rows become Python objects together
DESCRIBED_MAX = 4096  # whose descriptions are not made again for each batch
DELETED = "_deleted"  # the column that `Flatten` adds
META_NAMES = (*(field.name for field in META_FIELDS), TABLE_ORDINAL)
_META = ("_op", "_tli", "_commit_lsn", "_ordinal", "_lsn", "_xid", "_commit_time", "_origin", "_unchanged")
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
    parked_number: int = 0  # of a parked change that is delivered again, outside the order of the stream; 0: not parked


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Changes of one version of one table, in the order of the stream."""

    database: str
    table: str  # `schema.name`, or the name that a `Route` gave
    relation: Relation  # the version in the source, before transforms: columns, key. With transforms: no constants
    key: tuple[str, ...]  # the columns that identify a row, by their current names; () if there are none
    columns: tuple[Column, ...]  # of both sides after transforms; a column whose values a transform created has no type
    epoch: Epoch  # the fencing token: it grows with each start of an engine on the state
    arrow: pa.RecordBatch  # metadata columns, then the structs `_before` and `_after`; `Flatten` has columns instead
    parked_number: int = 0  # of a parked change that is delivered again, outside the order of the stream; 0: not parked
    database_oid: Oid = INVALID_OID  # another database may have the name later

    @classmethod
    def of(
        cls, database: str, relation: Relation, epoch: Epoch, arrow: pa.RecordBatch, database_oid: Oid = INVALID_OID
    ) -> Self:
        """Return the batch as it is before all transforms."""
        table, key, columns = _described(relation)
        return cls(database, table, relation, key, columns, epoch, arrow, 0, database_oid)

    # NB: these are called for each batch; `dataclasses.replace` would cost three times as much.

    def with_rows(self, arrow: pa.RecordBatch) -> "Batch":
        """Return the batch with other rows."""
        described = self.database, self.table, self.relation, self.key, self.columns, self.epoch
        return Batch(*described, arrow, self.parked_number, self.database_oid)

    def with_sides(self, change: Callable[[pa.StructArray], pa.StructArray]) -> "Batch":
        """Return the batch with `change` applied to `_before` and to `_after`."""
        rows = self.arrow
        for name in (BEFORE, AFTER):
            at = rows.schema.get_field_index(name)
            changed = change(rows.column(at))
            rows = rows.set_column(at, pa.field(name, changed.type), changed)
        return self.with_rows(rows)

    def with_columns(self, key: tuple[str, ...], columns: tuple[Column, ...]) -> "Batch":
        """Return the batch with other descriptions of its columns."""
        described = self.database, self.table, self.relation, key, columns, self.epoch
        return Batch(*described, self.arrow, self.parked_number, self.database_oid)

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
        """Iterate over the changes; each is created when it is read. A flat row is `after`."""
        for start in range(0, len(self), ROWS_AT_ONCE):
            rows = self.arrow.slice(start, ROWS_AT_ONCE)
            names, befores, afters = _sides(rows)
            columns = (rows.column(name).to_pylist() for name in _META)
            for op, timeline, commit_lsn, ordinal, lsn, xid, time, origin, unchanged, before, after in zip(
                *columns, befores, afters, strict=True
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
                    parked_number=self.parked_number,
                )

    def positions(self) -> Sequence[Position]:
        """Return the position of each change."""
        columns = (self.arrow.column(name).to_pylist() for name in ("_tli", "_commit_lsn", "_ordinal"))
        return [
            Position(TimelineId(timeline), Lsn(commit_lsn), ordinal)
            for timeline, commit_lsn, ordinal in zip(*columns, strict=True)
        ]

    def _position(self, row: int) -> Position:
        timeline, commit_lsn, ordinal = (
            self.arrow.column(name)[row].as_py() for name in ("_tli", "_commit_lsn", "_ordinal")
        )
        return Position(TimelineId(timeline), Lsn(commit_lsn), ordinal)


@lru_cache(DESCRIBED_MAX)
def _described(relation: Relation) -> tuple[str, tuple[str, ...], tuple[Column, ...]]:
    """Return the name of a table, the names of its key's columns, and its columns."""
    return relation.qualified_name, key_of(relation), relation.live_columns


def key_of(relation: Relation) -> tuple[str, ...]:
    """Return the names of the columns that identify a row: the replica identity; with FULL the primary key."""
    is_full = relation.replica_identity is ReplicaIdentity.FULL
    numbers = relation.primary_key if is_full or not relation.identity_columns else relation.identity_columns
    names = {column.number: column.name for column in relation.live_columns}
    return tuple(names[number] for number in numbers if number in names)


def _sides(rows: pa.RecordBatch) -> tuple[tuple[str, ...], Sequence[Values | None], Sequence[Values | None]]:
    """Return the names of the table's columns, and both sides of each row."""
    if AFTER in rows.schema.names:
        names = tuple(field.name for field in rows.schema.field(AFTER).type)
        return names, rows.column(BEFORE).to_pylist(), rows.column(AFTER).to_pylist()
    shown = [name for name in rows.schema.names if name not in META_NAMES]
    names = tuple(name for name in shown if name != DELETED)
    return names, [None] * rows.num_rows, rows.select(shown).to_pylist()


def _named(bitmap: bytes | None, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns of a bitmap over the indexes of the live columns."""
    if bitmap is None:
        return ()
    bits = int.from_bytes(bitmap, "little")
    return tuple(name for number, name in enumerate(names) if bits >> number & 1)
