"""Changes as the decoder emits them: columnar batches, schema events, messages, and the groups that contain them.

A *group* is a contiguous prefix of the undelivered stream. It contains its rows in columnar batches, one or more for
each relation version. Every row has its (`_commit_lsn`, `_ordinal`), which gives the order across batches.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Protocol

import pyarrow as pa

from tidemark.model.capture_change import CaptureChange
from tidemark.model.lsn import INVALID_LSN, INVALID_OID, FullXid, Lsn, Oid, TimelineId, Xid
from tidemark.model.position import Pointer, Position
from tidemark.model.relation import KnownDatabase, Relation


class Op(Enum):
    """What happened to a row (docs/design/positions.md)."""

    INSERT = "i"
    UPDATE = "u"
    DELETE = "d"
    TRUNCATE = "t"
    MESSAGE = "m"
    COPY = "c"  # a row of the first copy
    REWRITE = "r"  # a row rewritten by DDL
    RESEND = "s"


class BeforeKind(IntEnum):
    """How much of the old row is known: depends on the replica identity and on what the server wrote."""

    NONE = 0
    KEY = 1
    FULL = 2


UNCHANGED = "_unchanged"
NO_COMMIT_TIME = 0  # of an event that no transaction wrote, or that an earlier version stored; else since 1970 UTC
META_FIELDS: tuple[pa.Field, ...] = (
    pa.field("_op", pa.string(), nullable=False),  # one letter of Op
    pa.field("_tli", pa.int32(), nullable=False),
    pa.field("_commit_lsn", pa.int64(), nullable=False),
    pa.field("_ordinal", pa.int64(), nullable=False),
    pa.field("_lsn", pa.int64(), nullable=False),  # start of the change's record
    pa.field("_xid", pa.int64(), nullable=False),  # top-level, 32 bits
    pa.field("_commit_time", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field("_origin", pa.int32(), nullable=False),  # replication origin of the change, 0: none
    pa.field("_before_kind", pa.int8(), nullable=False),
    # Columns of `_after` whose TOASTed value did not change and is not in WAL: little-endian bitmap over the
    # indexes of the live columns; NULL if there is none. The column itself is NULL there.
    pa.field(UNCHANGED, pa.binary(), nullable=True),
)
BEFORE = "_before"  # struct of the live columns, NULL if _before_kind is NONE
AFTER = "_after"  # struct of the live columns, NULL for a delete
TABLE_ORDINAL = "_table_ordinal"
"""Last column, if changes are counted: the change's number among its table's changes in the transaction (P11)."""


def batch_schema(columns: pa.StructType) -> pa.Schema:
    """Return the schema of a `ChangeBatch` whose relation has the live columns `columns`."""
    return pa.schema([*META_FIELDS, pa.field(BEFORE, columns), pa.field(AFTER, columns)])


class GivenRows(Protocol):
    """Rows that are not in memory as columns yet; their position and number are known."""

    @property
    def row_count(self) -> int:
        """Return the number of rows."""
        ...

    @property
    def byte_count(self) -> int:
        """Return about how many bytes the rows have."""
        ...

    @property
    def first(self) -> Position:
        """Return the position of the first row."""
        ...

    @property
    def last(self) -> Position:
        """Return the position of the last row."""
        ...

    def unpacked(self) -> pa.RecordBatch:
        """Return the rows."""
        ...


@dataclass(slots=True, eq=False)  # NB: each commit creates some, and a frozen object takes three times as long
class RowsMessage:
    """A record batch as a message of Arrow's IPC format: a small one needs a fraction of a RecordBatch's memory."""

    schema: pa.Schema
    message: bytes | pa.Buffer
    row_count: int
    bounds: tuple[int, int, int, int, int, int]  # timeline, commit LSN and ordinal: of the first row, of the last

    @property
    def byte_count(self) -> int:
        """Return the size of the message."""
        return len(self.message)

    @property
    def first(self) -> Position:
        """Return the position of the first row."""
        timeline, commit_lsn, ordinal, _, _, _ = self.bounds
        return Position(TimelineId(timeline), Lsn(commit_lsn), ordinal)

    @property
    def last(self) -> Position:
        """Return the position of the last row."""
        _, _, _, timeline, commit_lsn, ordinal = self.bounds
        return Position(TimelineId(timeline), Lsn(commit_lsn), ordinal)

    def unpacked(self) -> pa.RecordBatch:
        """Return the record batch; its columns are views of the message."""
        return pa.ipc.read_record_batch(self.message, self.schema)


@dataclass(slots=True, eq=False)  # NB: as `RowsMessage`
class ChangeBatch:
    """Row changes of one relation version, in stream order."""

    database: Oid
    relation: Relation
    given: pa.RecordBatch | GivenRows

    @property
    def rows(self) -> pa.RecordBatch:
        """Return the rows, which have `batch_schema`: a new object in each call, over the same columns."""
        return self.given if isinstance(self.given, pa.RecordBatch) else self.given.unpacked()

    @property
    def row_count(self) -> int:
        """Return the number of rows, without unpacking them."""
        return self.given.num_rows if isinstance(self.given, pa.RecordBatch) else self.given.row_count


class SchemaChange(Enum):
    """What happened to the relation of a schema event."""

    CREATE = "create"
    ALTER = "alter"
    DROP = "drop"


class SchemaEffect(Enum):
    """What the DDL did to stored values (P21)."""

    METADATA = "metadata"  # nothing
    CONSTANT = "constant"  # a new column has its attmissingval in existing rows
    REWRITE = "rewrite"  # every row is delivered again as op `r` between two `RewriteBoundary` items
    TRANSFORMS = (
        "transforms"  # nothing: no DDL, but the configured transforms give rows another form from this point on
    )
    UNSEEN = "unseen"  # created with a whole database: its rows exist, and a copy at the next start delivers them


@dataclass(frozen=True, slots=True)
class SchemaEvent:
    """A relation's description changed inside a transaction.

    With an equal description before and after, it reports another change: of the transforms, or of the capture. A DROP
    with the capture `ENDS` reports that the database of the table, which exists, leaves the selection by a rename.
    The DROP of a table that has left the selection describes it as it was delivered last: another table may have that
    name by then, with another OID.
    """

    position: Position
    lsn: Lsn
    database: Oid
    xid: Xid
    change: SchemaChange
    effect: SchemaEffect
    before: Relation | None
    after: Relation | None
    brings_rows: bool = False  # from now on a separate table, whose rows were delivered under another name (DETACH)
    commit_time_us: int = NO_COMMIT_TIME
    capture: CaptureChange = CaptureChange.NONE
    still_exists: bool = False  # of a DROP: the table is unlogged now, or its changes have the name of another one

    @property
    def is_of_capture(self) -> bool:
        """Return whether it only reports that the capture of the table ends or begins."""
        return self.capture is not CaptureChange.NONE and self.before == self.after


class PartitionChange(Enum):
    """What happened to the partition of a partition event."""

    CREATE = "create"
    ATTACH = "attach"  # an existing table with its rows, which were not delivered under this name
    DETACH = "detach"  # it continues as a separate table
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class PartitionEvent:
    """A partition, with its rows, was added to or removed from the table whose name its changes have (P23)."""

    position: Position
    lsn: Lsn
    database: Oid
    xid: Xid
    change: PartitionChange
    relation: Relation  # the partitioned table
    partition: Relation
    commit_time_us: int = NO_COMMIT_TIME


@dataclass(frozen=True, slots=True)
class RewriteBoundary:
    """Begin or end of the rewritten rows (op `r`) of one relation: they replace all rows that it had.

    With a `partition`, they replace the rows that had this `tableoid`.
    """

    position: Position
    lsn: Lsn
    database: Oid
    xid: Xid
    relation: Relation
    begin: bool
    partition: Oid = INVALID_OID
    commit_time_us: int = NO_COMMIT_TIME


@dataclass(frozen=True, slots=True)
class Truncation:
    """TRUNCATE of one relation, or of its `partition`; a statement with several relations gives one item for each."""

    position: Position
    lsn: Lsn
    database: Oid
    xid: Xid
    relation: Relation
    cascade: bool
    restart_identity: bool
    partition: Oid = INVALID_OID
    origin: int = 0  # replication origin, 0: none
    commit_time_us: int = NO_COMMIT_TIME


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """`pg_logical_emit_message`; outside a transaction its position is (timeline, LSN of the message, 0)."""

    position: Position
    lsn: Lsn
    database: Oid
    xid: Xid
    transactional: bool
    prefix: str
    content: bytes
    origin: int = 0  # replication origin, 0: none


@dataclass(frozen=True, slots=True)
class CopyBoundary:
    """Begin or end of the first copy of one relation; a begin with a greater generation removes all earlier rows."""

    position: Position
    database: Oid
    relation: Relation
    generation: int
    begin: bool
    snapshot: str  # text form of a `Visibility`
    # By pg_description.objsubid: 0 for the table, else the column's number. None: not known.
    comments: tuple[tuple[int, str], ...] | None = None
    # Every transaction that the snapshot shows was committed before both. 0: not recorded (an earlier version).
    seen_lsn: Lsn = INVALID_LSN
    seen_time_us: int = NO_COMMIT_TIME  # in the node's clock


GroupEvent = SchemaEvent | PartitionEvent | RewriteBoundary | Truncation | LogicalMessage | CopyBoundary
GroupItem = ChangeBatch | GroupEvent


@dataclass(frozen=True, slots=True)
class TableCount:
    """The number of a transaction's changes of one table, including TRUNCATEs."""

    relation: Oid
    namespace: str
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """A transaction that commits in a group: begin and commit in one, since only whole transactions are delivered."""

    xid: Xid
    full_xid: FullXid
    timeline: TimelineId
    first_lsn: Lsn
    commit_lsn: Lsn  # start of the commit record
    end_lsn: Lsn  # end of the commit record
    commit_time_us: int  # since 1970-01-01 UTC
    database: Oid
    item_count: int
    origin: int = 0
    gid: str | None = None
    tables: tuple[TableCount, ...] | None = None  # counts of delivered changes; None: not counted


@dataclass(frozen=True, slots=True)
class TransactionBoundary:
    """Begins of transactions whose first changes follow, or ends of transactions whose last changes came before.

    Only with `deliver.transactions`; the ends have the counts by table (P11).
    """

    position: Position
    begin: bool
    transactions: tuple[TransactionEnd, ...]  # in commit order


EngineEvent = GroupEvent | TransactionBoundary
"""The items of a stream that are not row changes."""


class TransactionEnds(Protocol):
    """Some transaction ends in commit order: a list, or columns."""

    def __len__(self) -> int:
        """Return their number."""

    def __iter__(self) -> Iterator[TransactionEnd]:
        """Iterate over them."""


@dataclass(slots=True, eq=False)  # NB: as `RowsMessage`
class ChangeGroup:
    """A contiguous part of the stream: the unit of delivery, of state transactions and of Spark's offsets.

    `items` are ordered so that a schema event precedes every batch that needs it; batches never span one.
    """

    first: Position
    last: Pointer
    items: Sequence[GroupItem]
    transactions: TransactionEnds
    row_count: int
    byte_count: int
    begun: TransactionEnds = ()  # transactions whose first item is here, if transactions are counted
    databases: Mapping[Oid, KnownDatabase] = field(default_factory=dict)  # all captured databases, if some are new
