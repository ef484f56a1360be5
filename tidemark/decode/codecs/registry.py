"""Which codec a type has: by OID for the server's own types, by kind for those that users make.

Whatever is not here arrives as its raw bytes. How to add a type: a codec in the module of its family, a row here,
a row of samples in tests/support/type_samples.py; docs/types.md is generated.
"""

from collections.abc import Callable

import pyarrow as pa

from tidemark.decode.codecs.arrays import ArrayCodec, VectorCodec
from tidemark.decode.codecs.codec import Codec, ColumnKind, Dialect, without_escapes
from tidemark.decode.codecs.datetimes import DateCodec, TimeCodec, TimestampCodec, TimetzCodec
from tidemark.decode.codecs.intervals import IntervalCodec
from tidemark.decode.codecs.json_binary import JsonbCodec
from tidemark.decode.codecs.network import InetCodec
from tidemark.decode.codecs.numbers import BoolCodec, FloatCodec, IntegerCodec, Xid8Codec
from tidemark.decode.codecs.numeric import DecimalCodec, NumericCodec, declared_digits
from tidemark.decode.codecs.strings import (
    ByteaCodec,
    CharCodec,
    EnumCodec,
    NameCodec,
    RawCodec,
    StringCodec,
    UuidCodec,
)
from tidemark.model.relation import Column, Relation, TypeDescription, TypeKind

UTF8 = Dialect()
VARLENA = -1
NUMERIC = 1700
INT2VECTOR = 22
OIDVECTOR = 30

# By OID (`pg_type.dat`, PG 18): name, codec. OIDs below 16384 never change.
BUILT_IN: dict[int, tuple[str, Callable[[Dialect], Codec]]] = {
    16: ("boolean", lambda _: BoolCodec()),
    17: ("bytea", lambda _: ByteaCodec()),
    18: ('"char"', CharCodec),
    19: ("name", NameCodec),
    20: ("bigint", lambda _: IntegerCodec("<q", pa.int64())),
    21: ("smallint", lambda _: IntegerCodec("<h", pa.int16())),
    23: ("integer", lambda _: IntegerCodec("<i", pa.int32())),
    25: ("text", StringCodec),
    26: ("oid", lambda _: IntegerCodec("<I", pa.int64(), ColumnKind.UNSIGNED4)),
    28: ("xid", lambda _: IntegerCodec("<I", pa.int64(), ColumnKind.UNSIGNED4)),
    29: ("cid", lambda _: IntegerCodec("<I", pa.int64(), ColumnKind.UNSIGNED4)),
    114: ("json", StringCodec),
    650: ("cidr", lambda _: InetCodec(always_bits=True)),
    700: ("real", lambda _: FloatCodec(4)),
    701: ("double precision", lambda _: FloatCodec(8)),
    869: ("inet", lambda _: InetCodec(always_bits=False)),
    1042: ("character", StringCodec),
    1043: ("character varying", StringCodec),
    1082: ("date", lambda _: DateCodec()),
    1083: ("time without time zone", lambda _: TimeCodec()),
    1114: ("timestamp without time zone", lambda _: TimestampCodec(zone=False)),
    1184: ("timestamp with time zone", lambda _: TimestampCodec(zone=True)),
    1186: ("interval", IntervalCodec),
    1266: ("time with time zone", lambda _: TimetzCodec()),
    NUMERIC: ("numeric", lambda _: NumericCodec()),
    2950: ("uuid", lambda _: UuidCodec()),
    3802: ("jsonb", JsonbCodec),
    5069: ("xid8", lambda _: Xid8Codec()),
}


def codec_for(description: TypeDescription, typmod: int = -1, dialect: Dialect = UTF8) -> Codec:
    """Return the codec of a type; `typmod` is the column's. A type that has none gets `RawCodec`."""
    if description.base is not None:
        return codec_for(description.base, description.base_typmod, dialect)
    if description.element is not None and description.length == VARLENA:
        return _array_codec(description.oid, description.element, typmod, dialect)
    digits = declared_digits(typmod) if description.oid == NUMERIC else None
    if digits:
        return DecimalCodec(*digits)
    if description.kind is TypeKind.ENUM:
        return EnumCodec(description.name, description.labels)
    if description.oid in BUILT_IN:
        return BUILT_IN[description.oid][1](dialect)
    return RawCodec(fixed_length=description.length != VARLENA)


def _array_codec(oid: int, element: TypeDescription, typmod: int, dialect: Dialect) -> Codec:
    codec = codec_for(element, typmod, dialect)
    if isinstance(codec, RawCodec):
        return RawCodec(fixed_length=False)
    return VectorCodec(element, codec) if oid in (INT2VECTOR, OIDVECTOR) else ArrayCodec(element, codec)


def column_codec(column: Column, dialect: Dialect = UTF8) -> Codec:
    """Return the codec of a live column."""
    if column.type is None:
        return RawCodec(fixed_length=column.length != VARLENA)
    return codec_for(column.type, column.typmod, dialect)


def is_raw(column: Column) -> bool:
    """Tell if the values of a live column come as bytes that nothing here can read."""
    return isinstance(column_codec(column), RawCodec)


def arrow_struct(relation: Relation, dialect: Dialect = UTF8) -> pa.StructType:
    """Return the Arrow types of the live columns of `relation`, in order."""
    fields: dict[str, pa.DataType] = {}
    for column in relation.live_columns:
        name = without_escapes(column.name)
        if name in fields:  # two names that differed in invalid bytes only
            name = f"{name}_{column.number}"
        fields[name] = column_codec(column, dialect).arrow_type
    return pa.struct(list(fields.items()))
