"""Hand-made tuples and values, in the server's format: the inverse of the tested code."""

import json
import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal

import lz4.block

from tidemark.model.lsn import Oid
from tidemark.model.relation import Align, Column, EnumLabel, Relation, ReplicaIdentity, TypeDescription, TypeKind

HAS_NULLS = 1
EXTERNAL = b"\x01\x12" + struct.pack("<iIII", 20_000, 19_000, 4711, 4712)
GROUP = 10_000

JsonValue = None | bool | int | Decimal | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"]


def base_type(oid: int, name: str, length: int, align: Align) -> TypeDescription:
    return TypeDescription(Oid(oid), "pg_catalog", name, name, TypeKind.BASE, length, 0 < length <= 8, align)


BOOL = base_type(16, "bool", 1, Align.CHAR)
BYTEA = base_type(17, "bytea", -1, Align.INT)
CHAR = base_type(18, "char", 1, Align.CHAR)
NAME = base_type(19, "name", 64, Align.CHAR)
INT8 = base_type(20, "int8", 8, Align.DOUBLE)
INT2 = base_type(21, "int2", 2, Align.SHORT)
INT4 = base_type(23, "int4", 4, Align.INT)
TEXT = base_type(25, "text", -1, Align.INT)
OID = base_type(26, "oid", 4, Align.INT)
FLOAT4 = base_type(700, "float4", 4, Align.INT)
FLOAT8 = base_type(701, "float8", 8, Align.DOUBLE)
INET = base_type(869, "inet", -1, Align.INT)
DATE = base_type(1082, "date", 4, Align.INT)
TIME = base_type(1083, "time", 8, Align.DOUBLE)
TIMESTAMP = base_type(1114, "timestamp", 8, Align.DOUBLE)
TIMESTAMPTZ = base_type(1184, "timestamptz", 8, Align.DOUBLE)
INTERVAL = base_type(1186, "interval", 16, Align.DOUBLE)
TIMETZ = base_type(1266, "timetz", 12, Align.DOUBLE)
NUMERIC = base_type(1700, "numeric", -1, Align.INT)
UUID = base_type(2950, "uuid", 16, Align.CHAR)
JSONB = base_type(3802, "jsonb", -1, Align.INT)
UNKNOWN = base_type(99_999, "unknown", -1, Align.DOUBLE)
MOOD = TypeDescription(
    Oid(50_000), "public", "mood", "mood", TypeKind.ENUM, 4, True, Align.INT,
    labels=(EnumLabel(Oid(50_001), 1.0, "sad"), EnumLabel(Oid(50_002), 2.0, "very happy")),
)  # fmt: skip


def array_of(element: TypeDescription) -> TypeDescription:
    align = Align.DOUBLE if element.align is Align.DOUBLE else Align.INT
    return TypeDescription(
        Oid(element.oid + 1_000_000), "public", "_" + element.name, element.name + "[]", TypeKind.BASE, -1, False,
        align, element=element,
    )  # fmt: skip


def column(number: int, described: TypeDescription | None, *, typmod: int = -1, missing: bytes | None = None) -> Column:
    """A column; without a type, a dropped column that was a text."""
    shape = described or TEXT
    return Column(
        number=number, name=f"c{number}", type=described, typmod=typmod, length=shape.length, by_value=shape.by_value,
        align=shape.align, dropped=described is None, missing=missing,
    )  # fmt: skip


def relation_of(*types: TypeDescription | None) -> Relation:
    columns = tuple(column(number, described) for number, described in enumerate(types, 1))
    return Relation(Oid(16_500), "public", "t", "r", "p", columns, ReplicaIdentity.DEFAULT)


def made_of(kind: TypeKind, name: str, subtype: TypeDescription) -> TypeDescription:
    """A range, or a multirange of a range."""
    return TypeDescription(Oid(60_000), "public", name, name, kind, -1, False, subtype.align, subtype=subtype)


RANGES = [made_of(TypeKind.RANGE, f"{subtype.name}range", subtype) for subtype in (INT4, INT8, NUMERIC, TEXT, DATE)]
MULTIRANGES = [made_of(TypeKind.MULTIRANGE, f"{of.name}s", of) for of in RANGES]
ROW = TypeDescription(
    Oid(61_000), "public", "row", "row", TypeKind.COMPOSITE, -1, False, Align.DOUBLE,
    attributes=(column(1, INT4), column(2, TEXT), column(3, None), column(4, FLOAT8), column(5, BOOL)),
)  # fmt: skip
BUILT_IN_OTHERS = [
    base_type(oid, name, length, Align.INT)
    for oid, name, length in (
        (24, "regproc", 4), (27, "tid", 6), (142, "xml", -1), (600, "point", 16), (601, "lseg", 32), (602, "path", -1),
        (603, "box", 32), (604, "polygon", -1), (628, "line", 24), (718, "circle", 24), (774, "macaddr8", 8),
        (790, "money", 8), (829, "macaddr", 6), (1560, "bit", -1), (2970, "txid_snapshot", -1), (3220, "pg_lsn", 8),
        (3614, "tsvector", -1), (3615, "tsquery", -1), (4072, "jsonpath", -1),
    )
]  # fmt: skip
EXTENSIONS = ("citext", "cube", "geography", "geometry", "halfvec", "hstore", "ltree", "sparsevec", "vector")
OF_EXTENSIONS = [base_type(20_000, name, -1, Align.INT) for name in EXTENSIONS]
OTHERS = [*RANGES, *MULTIRANGES, ROW, *BUILT_IN_OTHERS, *OF_EXTENSIONS]
BY_NAME = {described.name: described for described in OTHERS}


def numeric_typmod(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


def plain(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload) + 4 << 2) + payload


def short(payload: bytes) -> bytes:
    return bytes([len(payload) + 1 << 1 | 1]) + payload


def compressed(payload: bytes) -> bytes:
    stored: bytes = lz4.block.compress(payload, store_size=False)
    body = struct.pack("<I", len(payload) | 1 << 30) + stored
    return struct.pack("<I", len(body) + 4 << 2 | 2) + body


def form_tuple(columns: Sequence[Column], values: Sequence[bytes | None]) -> bytes:
    """Pack a tuple: only stored values are given, fixed-length ones bare, others as datums."""
    bitmap = b""
    if None in values:
        bits = sum(1 << at for at, value in enumerate(values) if value is not None)
        bitmap = bits.to_bytes((len(values) + 7) // 8, "little")
    hoff = 23 + len(bitmap) + -(23 + len(bitmap)) % 8
    body = bytearray()
    for described, value in zip(columns, values, strict=False):
        if value is None:
            continue
        if described.length != -1 or not value[0] & 1:
            body += bytes(-len(body) % described.align.width)
        body += value
    infomask = HAS_NULLS if bitmap else 0
    return struct.pack("<HHB", len(values), infomask, hoff) + bitmap + bytes(hoff - 23 - len(bitmap)) + bytes(body)


def numeric_payload(number: Decimal, scale: int | None = None) -> bytes:
    """The on-disk form of a decimal."""
    if not number.is_finite():
        return struct.pack("<H", 0xC000 if number.is_nan() else 0xF000 if number.is_signed() else 0xD000)
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    shown = max(0, -exponent) if scale is None else scale
    coefficient = int("".join(map(str, digits)) or "0")
    # Align the decimal point to a group boundary.
    shift = exponent % 4
    coefficient *= 10**shift
    lowest = (exponent - shift) // 4
    groups: list[int] = []
    while coefficient:
        coefficient, group = divmod(coefficient, GROUP)
        groups.insert(0, group)
    weight = lowest + len(groups) - 1
    while groups and groups[-1] == 0:
        groups.pop()
    if not groups:
        weight, sign = 0, 0
    if shown < 64 and -64 <= weight < 64:
        head = struct.pack("<H", 0x8000 | (0x2000 if sign else 0) | shown << 7 | weight & 0x7F)
    else:
        head = struct.pack("<Hh", (0x4000 if sign else 0) | shown, weight)
    return head + struct.pack(f"<{len(groups)}H", *groups)


def array_payload(
    element: TypeDescription, elements: Sequence[bytes | None], sizes: Sequence[int], lows: Sequence[int]
) -> bytes:
    """The on-disk form of an array; elements as datums where the type has variable length."""
    header = 16 + 8 * len(sizes)
    bitmap = b""
    if None in elements:
        bits = sum(1 << at for at, value in enumerate(elements) if value is not None)
        bitmap = bits.to_bytes((len(elements) + 7) // 8, "little")
    start = header + len(bitmap)
    start += -start % 8
    body = bytearray(start)
    struct.pack_into("<iiI", body, 4, len(sizes), start if bitmap else 0, element.oid)
    struct.pack_into(f"<{2 * len(sizes)}i", body, 16, *sizes, *lows)
    body[header : header + len(bitmap)] = bitmap
    for value in elements:
        if value is not None:
            body += bytes(-len(body) % element.align.width) + value
    return bytes(body[4:])


def jsonb_payload(value: JsonValue) -> bytes:
    """The on-disk form of a JSON value; keys in the order of the mapping, each entry a length."""
    if isinstance(value, str) or not isinstance(value, Sequence | Mapping):
        kind, data = _json_child(value, 0)
        return struct.pack("<II", 1 << 28 | 1 << 30 | 1, kind << 28 | len(data)) + data
    return _json_container(value)


def _json_container(value: Sequence[JsonValue] | Mapping[str, JsonValue]) -> bytes:
    is_object = isinstance(value, Mapping)
    children: list[JsonValue] = [*value, *value.values()] if isinstance(value, Mapping) else list(value)
    data = bytearray()
    entries = []
    for child in children:
        kind, content = _json_child(child, len(data))
        entries.append(kind << 28 | len(content))
        data += content
    head = len(value) | (1 << 29 if is_object else 1 << 30)
    return struct.pack(f"<{1 + len(entries)}I", head, *entries) + bytes(data)


def _json_child(value: JsonValue, at: int) -> tuple[int, bytes]:
    if value is None:
        return 4, b""
    if isinstance(value, bool):
        return (3, b"") if value else (2, b"")
    if isinstance(value, str):
        return 0, value.encode()
    padding = bytes(-at % 4)
    if isinstance(value, int | Decimal):
        return 1, padding + plain(numeric_payload(Decimal(value)))
    return 5, padding + _json_container(value)


def json_text(value: JsonValue) -> str:
    """Return the output of jsonb_out, by Python's own writer; numbers have no exponents."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json_text(key)}: {json_text(child)}" for key, child in value.items()) + "}"
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(json_text, value)) + "]"
    return f"{value:f}" if isinstance(value, Decimal) else str(value)
