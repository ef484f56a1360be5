"""Changes as the decoder emits them: columnar batches, schema events, messages, and the groups that contain them.

A *group* is a contiguous prefix of the undelivered stream. It contains its rows in columnar batches, one or more for
each relation version. Every row has its (`_commit_lsn`, `_ordinal`), which gives the order across batches.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Protocol

import pyarrow as pa

from tidemark.model.lsn import INVALID_OID, FullXid, Lsn, Oid, TimelineId, Xid
from tidemark.model.position import Pointer, Position
from tidemark.model.relation import KnownDatabase, Relation

MARKER_PREFIX = "tidemark"
"""Prefix of logical messages that are our own: no consumer and no renderer shows them."""
LOSS_PREFIX = "tidemark.loss"
"""Prefix of the messages that tell of changes that were given up (I29)."""
REWIND_PREFIX = "tidemark.rewind"
"""Prefix of the messages that tell of changes that were delivered and never happened."""
CAPTURE_PREFIXES = frozenset({LOSS_PREFIX, REWIND_PREFIX})
"""Prefixes of the capture's own word: never taken from WAL, where anybody may write them."""


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
    """How much of the old row is known: decided by the replica identity and by what the server wrote."""

    NONE = 0
    KEY = 1
    FULL = 2


META_FIELDS: tuple[pa.Field, ...] = (
    pa.field("_op", pa.string(), nullable=False),  # one letter of Op
    pa.field("_tli", pa.int32(), nullable=False),
    pa.field("_commit_lsn", pa.int64(), nullable=False),
    pa.field("_ordinal", pa.int64(), nullable=False),
    pa.field("_lsn", pa.int64(), nullable=False),  # start of the change's own record
    pa.field("_xid", pa.int64(), nullable=False),  # top-level, 32 bits
    pa.field("_commit_time", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field("_origin", pa.int32(), nullable=False),  # replication origin of the change, 0: none
    pa.field("_before_kind", pa.int8(), nullable=False),
    # Columns of `_after` whose TOASTed value did not change and is not in WAL: little-endian bitmap over the
    # positions of the live columns; NULL where there is none. The column itself holds NULL there.
    pa.field("_unchanged", pa.binary(), nullable=True),
)
BEFORE = "_before"  # struct of the live columns, NULL where _before_kind is NONE
AFTER = "_after"  # struct of the live columns, NULL for a delete
TABLE_ORDINAL = "_table_ordinal"
"""Last column, where changes are counted: number of the change among its table's in the transaction (P11)."""


def batch_schema(columns: pa.StructType) -> pa.Schema:
    """Return the schema of a `ChangeBatch` whose relation has the live columns `columns`."""
    return pa.schema([*META_FIELDS, pa.field(BEFORE, columns), pa.field(AFTER, columns)])


@dataclass(frozen=True, slots=True, eq=False)
class RowsMessage:
    """A record batch as a message of Arrow's IPC format: a fraction of what it takes to be one, if it is small."""

    schema: pa.Schema
    message: bytes | pa.Buffer

    def unpacked(self) -> pa.RecordBatch:
        """Return the record batch, whose columns stay where the message is."""
        return pa.ipc.read_record_batch(self.message, self.schema)


@dataclass(frozen=True, slots=True, eq=False)
class ChangeBatch:
    """Row changes of one relation version, in stream order."""

    database: Oid
    relation: Relation
    given: pa.RecordBatch | RowsMessage

    @property
    def rows(self) -> pa.RecordBatch:
        """Return the rows, which have `batch_schema`: an object of its own each time, over the same columns."""
        return self.given.unpacked() if isinstance(self.given, RowsMessage) else self.given


class SchemaChange(Enum):
    """What a schema event says happened to the relation."""

    CREATE = "create"
    ALTER = "alter"
    DROP = "drop"


class SchemaEffect(Enum):
    """What the DDL did to stored values (P21)."""

    METADATA = "metadata"  # nothing
    CONSTANT = "constant"  # a new column reads as its attmissingval in rows that are there already
    REWRITE = "rewrite"  # every row comes again, as op `r`, between RewriteBegin and RewriteEnd
    UNSEEN = "unseen"  # it came with a whole database: its rows are there, and come by a copy at the next start


@dataclass(frozen=True, slots=True)
class SchemaEvent:
    """A relation's description changed inside a transaction."""

    position: Position
    lsn: Lsn
    database: Oid
    xid: Xid
    change: SchemaChange
    effect: SchemaEffect
    before: Relation | None
    after: Relation | None
    brings_rows: bool = False  # a table of its own from now on, with rows that came under another name (DETACH)


class PartitionChange(Enum):
    """What a partition event says happened to the partition."""

    CREATE = "create"
    ATTACH = "attach"  # a table that was there before: its rows, of which nothing was told under this name, came along
    DETACH = "detach"  # it goes on as a table of its own
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class PartitionEvent:
    """A partition came under a table under whose name its changes come, or left it and took its rows along (P23)."""

    position: Position
    lsn: Lsn
    database: Oid
    xid: Xid
    change: PartitionChange
    relation: Relation  # the partitioned table
    partition: Relation


@dataclass(frozen=True, slots=True)
class RewriteBoundary:
    """Begin or end of the rewritten rows (op `r`) of one relation: they replace all rows that it had.

    With a `partition`, all rows that it had with this `tableoid`.
    """

    position: Position
    lsn: Lsn
    database: Oid
    xid: Xid
    relation: Relation
    begin: bool
    partition: Oid = INVALID_OID


@dataclass(frozen=True, slots=True)
class Truncation:
    """TRUNCATE of one relation, or of its `partition`; a statement over several gives one each."""

    position: Position
    lsn: Lsn
    database: Oid
    xid: Xid
    relation: Relation
    cascade: bool
    restart_identity: bool
    partition: Oid = INVALID_OID
    origin: int = 0  # replication origin, 0: none


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """`pg_logical_emit_message`; one outside a transaction has the position (timeline, its own LSN, 0)."""

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
    """Begin or end of the first copy of one relation; a begin with a greater generation empties what came before."""

    position: Position
    database: Oid
    relation: Relation
    generation: int
    begin: bool
    snapshot: str  # text form of a `Visibility`


GroupItem = ChangeBatch | SchemaEvent | PartitionEvent | RewriteBoundary | Truncation | LogicalMessage | CopyBoundary


@dataclass(frozen=True, slots=True)
class TableCount:
    """How many changes of a table, TRUNCATEs included, a transaction has."""

    relation: Oid
    namespace: str
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """A transaction that commits in a group: begin and commit in one, since only whole ones are told."""

    xid: Xid
    full_xid: FullXid
    timeline: TimelineId
    first_lsn: Lsn
    commit_lsn: Lsn  # start of the commit record
    end_lsn: Lsn  # its end
    commit_time_us: int  # since 1970-01-01 UTC
    database: Oid
    item_count: int
    origin: int = 0
    gid: str | None = None
    tables: tuple[TableCount, ...] | None = None  # what is given out of it; None: not counted


class TransactionEnds(Protocol):
    """Some of them, in commit order: a list, or columns."""

    def __len__(self) -> int:
        """Return how many there are."""

    def __iter__(self) -> Iterator[TransactionEnd]:
        """Give them out."""


@dataclass(frozen=True, slots=True, eq=False)
class ChangeGroup:
    """A contiguous prefix of the stream: the unit of delivery, of state transactions and of Spark's offsets.

    `items` are ordered so that a schema event precedes every batch that needs it; batches never reach over one.
    """

    first: Position
    last: Pointer
    items: Sequence[GroupItem]
    transactions: TransactionEnds
    row_count: int
    byte_count: int
    begun: TransactionEnds = ()  # transactions whose first item is here, where they are counted
    databases: Mapping[Oid, KnownDatabase] = field(default_factory=dict)  # all captured ones, where some are news
