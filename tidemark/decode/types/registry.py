"""The codec of each type: by OID for the server's own types, by kind for users' types, by name for extensions' types.

A type without a codec is delivered as its raw bytes. To add a type: a codec in the module of its family, a row here,
a row of samples in tests/support/samples/type_samples.py; docs/types.md is generated.
"""

from collections.abc import Callable, Iterable
from functools import partial

import pyarrow as pa

from tidemark.decode.datum.varlena import VARLENA
from tidemark.decode.types.arrays import ArrayCodec, CatalogVectorCodec
from tidemark.decode.types.codec import Codec, ColumnKind, Dialect, without_escapes
from tidemark.decode.types.composites import CompositeCodec
from tidemark.decode.types.families.datetimes import TimetzCodec
from tidemark.decode.types.families.extensions import CubeCodec, HstoreCodec, LtreeCodec
from tidemark.decode.types.families.geometric import CircleCodec, FixedShapeCodec, LineCodec, PathCodec, PolygonCodec
from tidemark.decode.types.families.inet import InetCodec, MacAddressCodec
from tidemark.decode.types.families.internals import (
    CatalogNameCodec,
    LsnCodec,
    ObjectNameCodec,
    SnapshotCodec,
    TidCodec,
)
from tidemark.decode.types.families.json_binary import JsonbCodec
from tidemark.decode.types.families.json_path import JsonPathCodec
from tidemark.decode.types.families.numbers import BoolCodec, FloatCodec, IntegerCodec, Xid8Codec
from tidemark.decode.types.families.postgis import GeometryCodec
from tidemark.decode.types.families.statistics import DependenciesCodec, DistinctCodec
from tidemark.decode.types.families.strings import (
    BitsCodec,
    CharCodec,
    EnumCodec,
    NameCodec,
    RawCodec,
    StringCodec,
    UuidCodec,
)
from tidemark.decode.types.families.text_search import TsqueryCodec, TsvectorCodec
from tidemark.decode.types.families.vectors import SparseVectorCodec, VectorCodec
from tidemark.decode.types.families.xml_text import XmlCodec
from tidemark.decode.types.mapped import (
    bytea_codec,
    date_codec,
    interval_codec,
    money_codec,
    numeric_codec,
    time_codec,
    timestamp_codec,
)
from tidemark.decode.types.ranges import MultirangeCodec, RangeCodec
from tidemark.model.lsn import FIRST_USER_OID, Oid
from tidemark.model.relation import Column, TypeDescription, TypeKind

UTF8 = Dialect()
NO_TYPMOD = -1
NUMERIC = 1700
REGCLASS, REGTYPE, REGNAMESPACE = Oid(2205), Oid(2206), Oid(4089)
NAMED_IN_CATALOGS = frozenset({REGCLASS, REGTYPE, REGNAMESPACE})
INT2VECTOR = 22
OIDVECTOR = 30

# By OID (`pg_type.dat`, PG 18): name, codec. OIDs below 16384 never change.
BUILT_IN: dict[int, tuple[str, Callable[[Dialect], Codec]]] = {
    16: ("boolean", lambda _: BoolCodec()),
    17: ("bytea", bytea_codec),
    18: ('"char"', CharCodec),
    19: ("name", NameCodec),
    20: ("bigint", lambda _: IntegerCodec("<q", pa.int64())),
    21: ("smallint", lambda _: IntegerCodec("<h", pa.int16())),
    23: ("integer", lambda _: IntegerCodec("<i", pa.int32())),
    24: ("regproc", lambda _: ObjectNameCodec()),
    25: ("text", StringCodec),
    26: ("oid", lambda _: IntegerCodec("<I", pa.int64(), ColumnKind.UNSIGNED4)),
    27: ("tid", lambda _: TidCodec()),
    28: ("xid", lambda _: IntegerCodec("<I", pa.int64(), ColumnKind.UNSIGNED4)),
    29: ("cid", lambda _: IntegerCodec("<I", pa.int64(), ColumnKind.UNSIGNED4)),
    114: ("json", StringCodec),
    142: ("xml", XmlCodec),
    194: ("pg_node_tree", StringCodec),
    600: ("point", lambda _: FixedShapeCodec(1)),
    601: ("lseg", lambda _: FixedShapeCodec(2, "[", "]")),
    602: ("path", lambda _: PathCodec()),
    603: ("box", lambda _: FixedShapeCodec(2)),
    604: ("polygon", lambda _: PolygonCodec()),
    628: ("line", lambda _: LineCodec()),
    650: ("cidr", lambda _: InetCodec(always_bits=True)),
    700: ("real", lambda _: FloatCodec(4)),
    701: ("double precision", lambda _: FloatCodec(8)),
    718: ("circle", lambda _: CircleCodec()),
    774: ("macaddr8", lambda _: MacAddressCodec(8)),
    790: ("money", money_codec),
    829: ("macaddr", lambda _: MacAddressCodec(6)),
    869: ("inet", lambda _: InetCodec(always_bits=False)),
    1042: ("character", StringCodec),
    1043: ("character varying", StringCodec),
    1082: ("date", date_codec),
    1083: ("time without time zone", time_codec),
    1114: ("timestamp without time zone", partial(timestamp_codec, zone=False)),
    1184: ("timestamp with time zone", partial(timestamp_codec, zone=True)),
    1186: ("interval", interval_codec),
    1266: ("time with time zone", lambda _: TimetzCodec()),
    1560: ("bit", lambda _: BitsCodec()),
    1562: ("bit varying", lambda _: BitsCodec()),
    NUMERIC: ("numeric", partial(numeric_codec, NO_TYPMOD)),
    1790: ("refcursor", StringCodec),
    2202: ("regprocedure", lambda _: ObjectNameCodec()),
    2203: ("regoper", lambda _: ObjectNameCodec()),
    2204: ("regoperator", lambda _: ObjectNameCodec()),
    2205: ("regclass", partial(CatalogNameCodec.of, REGCLASS)),
    2206: ("regtype", partial(CatalogNameCodec.of, REGTYPE)),
    2950: ("uuid", lambda _: UuidCodec()),
    2970: ("txid_snapshot", lambda _: SnapshotCodec()),
    3220: ("pg_lsn", lambda _: LsnCodec()),
    3361: ("pg_ndistinct", lambda _: DistinctCodec()),
    3402: ("pg_dependencies", lambda _: DependenciesCodec()),
    3614: ("tsvector", TsvectorCodec),
    3615: ("tsquery", TsqueryCodec),
    3734: ("regconfig", lambda _: ObjectNameCodec()),
    3769: ("regdictionary", lambda _: ObjectNameCodec()),
    3802: ("jsonb", JsonbCodec),
    4072: ("jsonpath", JsonPathCodec),
    4089: ("regnamespace", partial(CatalogNameCodec.of, REGNAMESPACE)),
    4096: ("regrole", lambda _: ObjectNameCodec()),
    4191: ("regcollation", lambda _: ObjectNameCodec()),
    5038: ("pg_snapshot", lambda _: SnapshotCodec()),
    5069: ("xid8", lambda _: Xid8Codec()),
}

# Types of extensions, whose OIDs differ between databases, by name: codec.
OF_EXTENSIONS: dict[str, Callable[[Dialect], Codec]] = {
    "citext": StringCodec,
    "cube": lambda _: CubeCodec(),
    "geography": lambda _: GeometryCodec(),
    "geometry": lambda _: GeometryCodec(),
    "halfvec": lambda _: VectorCodec("e"),
    "hstore": HstoreCodec,
    "ltree": LtreeCodec,
    "sparsevec": lambda _: SparseVectorCodec(),
    "vector": lambda _: VectorCodec("f"),
}


def codec_for(description: TypeDescription, typmod: int = NO_TYPMOD, dialect: Dialect = UTF8) -> Codec:
    """Return the codec of a type; `typmod` is the column's. A type without a codec gets `RawCodec`."""
    raw = RawCodec(fixed_length=description.length != VARLENA)
    match description.kind:
        case TypeKind.DOMAIN:
            assert description.base is not None, description.oid
            return codec_for(description.base, description.base_typmod, dialect)
        case TypeKind.ENUM:
            return EnumCodec(description.name, description.labels)
        case TypeKind.COMPOSITE:
            live = [column for column in description.attributes if not column.dropped]
            codecs = [column_codec(column, dialect) for column in live]
            return CompositeCodec(description.attributes, codecs) if all(map(_has_text, codecs)) else raw
        case TypeKind.RANGE:
            assert description.subtype is not None, description.oid
            codec = codec_for(description.subtype, dialect=dialect)
            return RangeCodec(description.subtype, codec) if _has_text(codec) else raw
        case TypeKind.MULTIRANGE:
            assert description.subtype is not None, description.oid
            of = codec_for(description.subtype, dialect=dialect)
            return MultirangeCodec(of) if isinstance(of, RangeCodec) else raw
    return _base_codec(description, typmod, dialect) or raw


def _has_text(codec: Codec) -> bool:
    """Return whether the codec has the server's text, of which rows and ranges consist."""
    inner = _innermost(codec)
    return inner.has_name if isinstance(inner, ObjectNameCodec) else not isinstance(inner, RawCodec)


def _innermost(codec: Codec) -> Codec:
    return codec.element_codec if isinstance(codec, ArrayCodec) else codec


def _base_codec(description: TypeDescription, typmod: int, dialect: Dialect) -> Codec | None:
    if description.element is not None and description.length == VARLENA:
        return _array_codec(description.oid, description.element, typmod, dialect)
    if description.oid == NUMERIC:
        return numeric_codec(typmod, dialect)
    if description.oid in BUILT_IN:
        return BUILT_IN[description.oid][1](dialect)
    if description.oid >= FIRST_USER_OID and description.length == VARLENA and description.name in OF_EXTENSIONS:
        return OF_EXTENSIONS[description.name](dialect)
    return None


def _array_codec(oid: int, element: TypeDescription, typmod: int, dialect: Dialect) -> Codec | None:
    codec = codec_for(element, typmod, dialect)
    if isinstance(codec, RawCodec):
        return None
    return CatalogVectorCodec(element, codec) if oid in (INT2VECTOR, OIDVECTOR) else ArrayCodec(element, codec)


def column_codec(column: Column, dialect: Dialect = UTF8) -> Codec:
    """Return the codec of a live column."""
    if column.type is None:
        return RawCodec(fixed_length=column.length != VARLENA)
    return codec_for(column.type, column.typmod, dialect)


def fits_key(column: Column) -> bool:
    """Return whether a live column can be part of a key: not a list, and not raw bytes."""
    codec = column_codec(column)
    return not isinstance(codec, RawCodec) and not pa.types.is_list(codec.arrow_type)


def fits_row(column: Column) -> bool:
    """Return whether a live column has the same values in a first copy and in the stream: no raw bytes, no names."""
    codec = _innermost(column_codec(column))
    return not isinstance(codec, RawCodec | ObjectNameCodec) and not prints_names(column.type)


def prints_names(description: TypeDescription | None) -> bool:
    """Return whether values of a type contain names that are in the tracked catalogs."""
    if description is None:
        return False
    inner = (description.element, description.base, description.subtype, *(at.type for at in description.attributes))
    return description.oid in NAMED_IN_CATALOGS or any(map(prints_names, inner))


def holds_oids(column: Column) -> bool:
    """Return whether a live column contains OIDs, or arrays of them, that the server prints as names."""
    return isinstance(_innermost(column_codec(column)), ObjectNameCodec)


def arrow_struct(columns: Iterable[Column], dialect: Dialect = UTF8) -> pa.StructType:
    """Return the Arrow types of live columns, in order."""
    fields: dict[str, pa.DataType] = {}
    for column in columns:
        name = without_escapes(column.name)
        if name in fields:  # two names that differ in invalid bytes only
            name = f"{name}_{column.number}"
        fields[name] = column_codec(column, dialect).arrow_type
    return pa.struct(list(fields.items()))
