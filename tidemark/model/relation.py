"""Descriptions of relations and types as of one LSN: immutable, comparable, hashable.

A `Relation` is one *version* of a relation. It does not contain the relfilenode: VACUUM FULL gives a relation a new
file without a new version. Two equal versions are the same version, whenever they were valid.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tidemark.model.lsn import INVALID_OID, Oid

PARTITIONED = "p"  # pg_class.relkind
TABLEOID_NUMBER = -6  # sysattr.h: the system column that names a row's partition


class RelFileLocator(NamedTuple):
    """A relation's file (`relfilelocator.h`): tablespace, database and relfilenode, which is not the relation's OID."""

    spc: Oid
    db: Oid
    rel: Oid


class ReplicaIdentity(Enum):
    """The content of an old tuple (`pg_class.relreplident`)."""

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
    """A label of an enum (`pg_enum`): stored values are its OID."""

    oid: Oid
    sort_order: float
    label: str


@dataclass(frozen=True, slots=True)
class TypeDescription:
    """A type with everything that is needed to read its values, recursively.

    `display_name` is the output of `format_type` without a type modifier, with the search_path of test_decoding, quoted
    and qualified as needed (`integer`, `character varying[]`, `app."Mood"`).
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
    subtype: "TypeDescription | None" = None  # of a range; for a multirange its range
    attributes: tuple["Column", ...] = ()  # of a composite, dropped ones included

    def ultimate(self) -> "TypeDescription":
        """Return the type itself, or the base type of a domain (over domains)."""
        described = self
        while described.base is not None:
            described = described.base
        return described


@dataclass(frozen=True, slots=True)
class Column:
    """A user column (`pg_attribute`, attnum > 0), including dropped ones, which still occupy space in tuples."""

    number: int
    name: str
    type: TypeDescription | None  # None: dropped, its type may not exist any more
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
        """Return whether it is computed when it is read; tuples have NULL for it."""
        return self.generated == "v"


class _Hashed:
    """Caches a hash outside the fields: it is valid in one process only."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Relation(_Hashed):
    """One version of a relation: its columns and its keys."""

    oid: Oid
    namespace: str
    name: str
    kind: str  # pg_class.relkind: r table, p partitioned table, t TOAST table, m materialized view, ...
    persistence: str  # p, u, t
    columns: tuple[Column, ...]  # by number, dropped ones included
    replica_identity: ReplicaIdentity
    identity_columns: tuple[int, ...] = ()  # numbers in the index of the replica identity; () if there is none
    primary_key: tuple[int, ...] = ()  # numbers, in the order of the index; () if the key is deferrable
    toast_oid: Oid = INVALID_OID
    rewrite_of: Oid = INVALID_OID  # pg_class.relrewrite: this is the transient heap of that relation
    partition_of: Oid = INVALID_OID  # parent of a partition
    # The partitioned tables above a partition, its parent first, each without the tables above itself. Only inside the
    # decoder: delivered changes have `partition_of`.
    ancestors: tuple["Relation", ...] = ()

    def __post_init__(self) -> None:
        # A version is hashed for each of its rows, so the hash is computed once. NB: versions of one relation that
        # differ only in their columns' types are few; hashing each column with all parts of its type would cost more
        # than all other work for DDL on a wide table.
        names = tuple(column.name for column in self.columns)
        key = (self.oid, self.namespace, self.name, names, self.replica_identity, self.identity_columns)
        object.__setattr__(self, "_hash", hash(key))

    __hash__ = _Hashed.__hash__  # NB: else the dataclass would generate a hash of all fields

    @property
    def live_columns(self) -> tuple[Column, ...]:
        """The columns that a user sees, in order."""
        return tuple(column for column in self.columns if not column.dropped)

    @property
    def has_partition_rows(self) -> bool:
        """Return whether rows of partitions have this relation's name: its last column is then `tableoid`."""
        return bool(self.columns) and self.columns[-1].number == TABLEOID_NUMBER

    @property
    def qualified_name(self) -> str:
        """Return `namespace.name`, unquoted: for people and patterns, not for SQL."""
        return f"{self.namespace}.{self.name}"


class KnownDatabase(NamedTuple):
    """The properties of a database that its changes depend on."""

    name: str
    encoding: str  # PostgreSQL's name
