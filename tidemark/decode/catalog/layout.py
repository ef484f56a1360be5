"""The layout of the tracked system catalogs' rows in a heap tuple.

The layouts are not constants: they are read from pg_attribute when a mirror is seeded, and stored with it. A catalog's
row begins with columns of fixed length that are never null; their offsets are constant, so one precompiled `struct`
reads any choice of them. The later ones (`indkey`, `attmissingval`) are found by walking.

Rows are *packed tuples*: u16 infomask2, u16 infomask, u8 hoff, then the tuple's bytes from offset 23 on.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tidemark.model.errors import NodeUnfit
from tidemark.model.lsn import Oid
from tidemark.wal.rmgr.heap import ATTRIBUTES_MASK, HAS_NULLS, HOFF_AT, TUPLE_HEADER_BYTES

PACKED_HEADER = struct.Struct("<HHB")
HAS_VARWIDTH = 0x0002
_FROZEN = 0x0B00  # xmin frozen, xmax invalid
_FROM_SEED = 0xC000  # HEAP_MOVED_OFF and HEAP_MOVED_IN, which no server sets together: a seed made the tuple
DATA_SHIFT = TUPLE_HEADER_BYTES - PACKED_HEADER.size  # hoff counts from the tuple's start, our bytes begin at offset 23
_ALIGNMENT = {"c": 1, "s": 2, "i": 4, "d": 8}
_CODES = {16: "?", 18: "c", 20: "q", 21: "h", 23: "i", 24: "I", 26: "I", 28: "I", 700: "f"}
NAME_OID = Oid(19)


@dataclass(frozen=True, slots=True)
class CatalogId:
    """A tracked system catalog; its OID is the same in every major."""

    oid: Oid
    name: str
    subject: str  # the column with the OID of the object that a row belongs to
    keys: tuple[str, ...]  # columns by which rows are looked up
    mapped: bool = False  # its file is in the relation map, not in pg_class


PG_TYPE = CatalogId(
    Oid(1247), "pg_type", "oid", ("oid", "typelem", "typbasetype", "typnamespace", "typrelid"), mapped=True
)
PG_ATTRIBUTE = CatalogId(Oid(1249), "pg_attribute", "attrelid", ("attrelid", "atttypid"), mapped=True)
PG_CLASS = CatalogId(Oid(1259), "pg_class", "oid", ("oid", "relfilenode", "relnamespace"), mapped=True)
PG_DATABASE = CatalogId(Oid(1262), "pg_database", "oid", ("oid",), mapped=True)
PG_INDEX = CatalogId(Oid(2610), "pg_index", "indrelid", ("indrelid",))
PG_INHERITS = CatalogId(Oid(2611), "pg_inherits", "inhrelid", ("inhrelid", "inhparent"))
PG_NAMESPACE = CatalogId(Oid(2615), "pg_namespace", "oid", ("oid",))
PG_ENUM = CatalogId(Oid(3501), "pg_enum", "enumtypid", ("enumtypid",))
PG_RANGE = CatalogId(Oid(3541), "pg_range", "rngtypid", ("rngtypid", "rngmultitypid", "rngsubtype"))

LOCAL_CATALOGS = (
    PG_CLASS,
    PG_ATTRIBUTE,
    PG_TYPE,
    PG_NAMESPACE,
    PG_INDEX,
    PG_ENUM,
    PG_RANGE,
    PG_INHERITS,
)
SHARED_CATALOGS = (PG_DATABASE,)
HALF_DROPPED = -2  # pg_database.datconnlimit after an interrupted DROP DATABASE: no session can connect to it
CATALOG_OF_OID = {catalog.oid: catalog for catalog in (*LOCAL_CATALOGS, *SHARED_CATALOGS)}
CATALOG_OF_NAME = {catalog.name: catalog for catalog in CATALOG_OF_OID.values()}


class UnknownCatalogShape(NodeUnfit):
    """A system catalog whose columns are not the expected ones."""

    hint = "this build of PostgreSQL has other system catalogs; Tidemark supports those of community PostgreSQL only"


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """A column of a catalog, from its row of pg_attribute."""

    number: int
    name: str
    type_oid: Oid
    length: int
    align: str
    not_null: bool


def align_up(offset: int, width: int) -> int:
    """Return `offset` rounded up to a multiple of `width`, a power of two."""
    return (offset + width - 1) & -width


class CatalogLayout:
    """The columns of one catalog, and the offsets of the fixed ones."""

    def __init__(self, catalog: CatalogId, columns: Iterable[CatalogColumn]) -> None:
        self.catalog = catalog
        self.columns: Sequence[CatalogColumn] = tuple(columns)
        self.offsets: dict[str, int] = {}
        end = 0
        for position, column in enumerate(self.columns):
            if column.number != position + 1:
                raise UnknownCatalogShape(f"{catalog.name}: column {position + 1} is missing")
            if column.length < 0 or not column.not_null:
                break
            end = align_up(end, _ALIGNMENT[column.align])
            self.offsets[column.name] = end
            end += column.length
        self.fixed_bytes = end
        missing = {catalog.subject, *catalog.keys} - self.offsets.keys()
        if missing:
            raise UnknownCatalogShape(f"{catalog.name} has no column {', '.join(sorted(missing))} of fixed place")

    @property
    def fixed(self) -> Sequence[CatalogColumn]:
        """The columns at fixed offsets."""
        return self.columns[: len(self.offsets)]

    @cached_property
    def fixed_struct(self) -> struct.Struct:
        """The fixed columns in order."""
        return self.projection(*self.offsets)

    def projection(self, *names: str) -> struct.Struct:
        """Return a struct that reads the fixed columns `names`, given in the catalog's order, from `data_at`."""
        if unknown := set(names) - self.offsets.keys():
            raise UnknownCatalogShape(f"{self.catalog.name} has no column {', '.join(sorted(unknown))} of fixed place")
        wanted = [column for column in self.fixed if column.name in names]
        if [column.name for column in wanted] != list(names):
            raise UnknownCatalogShape(f"{self.catalog.name} has its columns in another order than {', '.join(names)}")
        code, at = "<", 0
        for column in wanted:
            offset = self.offsets[column.name]
            code += f"{offset - at}x" if offset > at else ""
            code += _CODES.get(column.type_oid, f"{column.length}s")
            at = offset + column.length
        return struct.Struct(code)

    def fits(self, packed: bytes) -> bool:
        """Return whether `packed` can be a row of this catalog, by its number of columns and its length."""
        if len(packed) < PACKED_HEADER.size:
            return False
        infomask2, _, hoff = PACKED_HEADER.unpack_from(packed)
        if infomask2 & ATTRIBUTES_MASK != len(self.columns) or hoff < TUPLE_HEADER_BYTES:
            return False
        return len(packed) >= data_at(packed) + self.fixed_bytes

    def locate(self, packed: bytes, name: str) -> tuple[int, int] | None:
        """Return where the value of the column `name` is in `packed`, with its header; None if it is null."""
        _, infomask, _ = PACKED_HEADER.unpack_from(packed)
        base = data_at(packed)
        at = base + self.fixed_bytes
        for column in self.columns[len(self.offsets) :]:
            index = column.number - 1
            if infomask & HAS_NULLS and not packed[PACKED_HEADER.size + (index >> 3)] >> (index & 7) & 1:
                if column.name == name:
                    return None
                continue
            at, end = _value(packed, base, at, column)
            if column.name == name:
                return at, end
            at = end
        raise UnknownCatalogShape(f"{self.catalog.name} has no column {name}")

    def form(self, fixed: bytes, values: Sequence[bytes | None] | None = None) -> bytes:
        """Return the packed tuple of a row: its fixed part, and the other columns as varlena datums (4-byte header)."""
        if values is None:
            return self._head_without_rest + fixed
        rest = self.columns[len(self.offsets) :]
        data = bytearray(fixed)
        for column, value in zip(rest, values, strict=True):
            if value is not None:
                data += bytes(align_up(len(data), _ALIGNMENT[column.align]) - len(data)) + value
        return self._head([value is not None for value in values]) + bytes(data)

    @cached_property
    def _head_without_rest(self) -> bytes:
        return self._head([False] * (len(self.columns) - len(self.offsets)))

    def _head(self, there: Sequence[bool]) -> bytes:
        """Return the header before a row's values; `there`: which columns after the fixed ones are not null."""
        if all(there):
            hoff = align_up(TUPLE_HEADER_BYTES, 8)
            return PACKED_HEADER.pack(len(self.columns), _FROZEN | _FROM_SEED | HAS_VARWIDTH, hoff) + bytes(
                hoff - TUPLE_HEADER_BYTES
            )
        bits = [True] * len(self.offsets) + list(there)
        bitmap = sum(bit << index for index, bit in enumerate(bits)).to_bytes((len(bits) + 7) >> 3, "little")
        hoff = align_up(TUPLE_HEADER_BYTES + len(bitmap), 8)
        header = PACKED_HEADER.pack(len(self.columns), _FROZEN | _FROM_SEED | HAS_VARWIDTH | HAS_NULLS, hoff)
        return (header + bitmap).ljust(PACKED_HEADER.size + hoff - TUPLE_HEADER_BYTES, b"\0")


def data_at(packed: bytes) -> int:
    """Return the start of the columns in `packed`."""
    return packed[HOFF_AT] - DATA_SHIFT


def is_made_by_seed(packed: bytes) -> bool:
    """Return whether only the fixed columns of `packed` equal those of the server's tuple."""
    return packed[3] & (_FROM_SEED >> 8) == _FROM_SEED >> 8


def name_text(value: bytes) -> bytes:
    """Return the bytes of a `name` without its zero padding."""
    return value.partition(b"\0")[0]


def _value(packed: bytes, base: int, at: int, column: CatalogColumn) -> tuple[int, int]:
    """Return start and end of a non-null value that begins at `at` or, aligned, after it."""
    aligned = base + align_up(at - base, _ALIGNMENT[column.align])
    if column.length >= 0:
        return aligned, aligned + column.length
    first = packed[at]
    if first & 1:  # a short header is never aligned, and never zero, unlike padding
        return at, at + (first >> 1)
    (header,) = struct.unpack_from("<I", packed, aligned)
    return aligned, aligned + (header >> 2)
