"""Descriptions of relations and types as of one LSN: immutable, comparable, hashable.

A `Relation` is one *version* of a relation. It does not contain the relfilenode: VACUUM FULL gives a relation a new
file without a new version. Two equal versions are the same version, whenever they were valid.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tidemark.model.lsn import INVALID_OID, Oid

TABLEOID_NUMBER = -6  # sysattr.h: the system column that names the partition which a row stands in


class RelFileLocator(NamedTuple):
    """A relation's file (`relfilelocator.h`): tablespace, database and relfilenode, which is not the relation's OID."""

    spc: Oid
    db: Oid
    rel: Oid


class ReplicaIdentity(Enum):
    """What an old tuple holds (`pg_class.relreplident`)."""

    DEFAULT = "d"
    FULL = "f"
    INDEX = "i"
    NOTHING = "n"


class TypeKind(Enum):
    """Kind of a type (`pg_type.typtype`)."""

    BASE = "b"
    COMPOSITE = "c"
    DOMAIN = "d"
    ENUM = "e"
    MULTIRANGE = "m"
    PSEUDO = "p"
    RANGE = "r"


class Align(Enum):
    """Alignment of a value (`pg_type.typalign`); the number of bytes is in `width`."""

    CHAR = "c"
    SHORT = "s"
    INT = "i"
    DOUBLE = "d"

    @property
    def width(self) -> int:
        """Alignment in bytes: 1, 2, 4 or 8."""
        return {"c": 1, "s": 2, "i": 4, "d": 8}[self.value]


@dataclass(frozen=True, slots=True)
class EnumLabel:
    """A label of an enum (`pg_enum`): values on disk are its OID."""

    oid: Oid
    sort_order: float
    label: str


@dataclass(frozen=True, slots=True)
class TypeDescription:
    """A type with all that is needed to read its values, recursively.

    `display_name` is what `format_type` prints without a type modifier under the oracle's search_path, quoted and
    qualified as needed (`integer`, `character varying[]`, `app."Mood"`).
    """

    oid: Oid
    namespace: str
    name: str
    display_name: str
    kind: TypeKind
    length: int  # bytes; -1 varlena, -2 cstring
    by_value: bool
    align: Align
    delimiter: str = ","
    element: "TypeDescription | None" = None  # of an array type
    base: "TypeDescription | None" = None  # of a domain
    base_typmod: int = -1  # of a domain
    labels: tuple[EnumLabel, ...] = ()  # of an enum, in sort order
    subtype: "TypeDescription | None" = None  # of a range; of a multirange its range
    attributes: tuple["Column", ...] = ()  # of a composite, dropped ones included

    def ultimate(self) -> "TypeDescription":
        """Return the type itself, or what a domain (over domains) stands on."""
        described = self
        while described.base is not None:
            described = described.base
        return described


@dataclass(frozen=True, slots=True)
class Column:
    """A user column (`pg_attribute`, attnum > 0), dropped ones included: they still take their place in tuples."""

    number: int
    name: str
    type: TypeDescription | None  # None: dropped, its type may be gone
    typmod: int
    length: int
    by_value: bool
    align: Align
    not_null: bool = False
    dropped: bool = False
    generated: str = ""  # "", "s" stored, "v" virtual (18)
    missing: bytes | None = None  # attmissingval: the on-disk array datum of one element, header included

    @property
    def is_virtual(self) -> bool:
        """Tell if it is computed when it is read: NULL stands for it in tuples."""
        return self.generated == "v"


class _Hashed:
    """Keeps a hash that is no field: it is of one process only."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Relation(_Hashed):
    """One version of a relation: what its rows look like, and what is known of its keys."""

    oid: Oid
    namespace: str
    name: str
    kind: str  # pg_class.relkind: r table, p partitioned table, t TOAST table, m materialized view, ...
    persistence: str  # p, u, t
    columns: tuple[Column, ...]  # by number, dropped ones included
    replica_identity: ReplicaIdentity
    identity_columns: tuple[int, ...] = ()  # numbers in the index that the replica identity names; () if there is none
    primary_key: tuple[int, ...] = ()  # numbers, in the order of the index; () if rows may share a key for a moment
    toast_oid: Oid = INVALID_OID
    rewrite_of: Oid = INVALID_OID  # pg_class.relrewrite: this is the transient heap of that relation
    partition_of: Oid = INVALID_OID  # parent of a partition
    # The partitioned tables above a partition, its parent first, each without those above itself. Inside the decoder
    # only: whoever takes changes sees `partition_of`.
    ancestors: tuple["Relation", ...] = ()

    def __post_init__(self) -> None:
        # A version is hashed for every row that it describes: once is enough. NB: versions of one relation that differ
        # in nothing else than their columns' types are few; to hash each column with all that its type is made of would
        # cost more than all else that DDL does to a wide table.
        names = tuple(column.name for column in self.columns)
        key = (self.oid, self.namespace, self.name, names, self.replica_identity, self.identity_columns)
        object.__setattr__(self, "_hash", hash(key))

    __hash__ = _Hashed.__hash__  # NB: else the dataclass would make one of all fields

    @property
    def live_columns(self) -> tuple[Column, ...]:
        """The columns that a user sees, in order."""
        return tuple(column for column in self.columns if not column.dropped)

    @property
    def gathers_partitions(self) -> bool:
        """Tell if rows of partitions come under this relation's name: then it has the column `tableoid`, the last."""
        return bool(self.columns) and self.columns[-1].number == TABLEOID_NUMBER

    @property
    def qualified_name(self) -> str:
        """Return namespace and name with a dot between, unquoted: for people and patterns, not for SQL."""
        return f"{self.namespace}.{self.name}"


class KnownDatabase(NamedTuple):
    """What has to be known of a database to make sense of its changes."""

    name: str
    encoding: str  # PostgreSQL's name
