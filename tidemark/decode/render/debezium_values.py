"""A column's values as Debezium's PostgreSQL connector has them in JSON, by PostgreSQL's type.

As the connector does with its defaults, but with decimals as text (`decimal.handling.mode=string`): dates as days,
times and timestamps as microseconds, or milliseconds where the type has at most three digits of a second, `timestamptz`
and `timetz` as ISO text in UTC, `interval` as microseconds with a month of 30.4375 days, `bytea` in Base64, bits as
little-endian bytes, `point` and PostGIS types as objects, `hstore` as a JSON object in a string. The columns come with
the Arrow forms of `MAPPING`. docs/debezium.md lists what differs.
"""

import json
import math
import re
import struct
from base64 import b64encode
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.decode.codecs.calendar import USECS_PER_DAY, USECS_PER_SECOND, clock_text, parse_clock, parse_zone
from tidemark.decode.codecs.intervals import parse_interval
from tidemark.decode.render.json_text import (
    NULL,
    QUOTE,
    TEXT,
    Pieces,
    each,
    floats,
    lists,
    numbers,
    or_null,
    quoted,
    text,
)
from tidemark.model.mapping import Decimals, TypeMapping
from tidemark.model.relation import Column, TypeDescription

MAPPING = TypeMapping(decimals=Decimals.STRING)
UNAVAILABLE = "__debezium_unavailable_value"
USECS_PER_MONTH = USECS_PER_DAY * 487 // 16  # of 30.4375 days
INT64_MAX = (1 << 63) - 1
MILLISECOND_DIGITS = 3
DATE_CHARACTERS = 10
LITTLE_ENDIAN, WKB_IS_POINT, WKB_HEAD_BYTES, EWKB_HAS_SRID = 1, 1, 9, 0x20000000
# Types by OID (`pg_type.dat`), which never change.
POINT, TIME, TIMESTAMP, INTERVAL, TIMETZ, BIT, VARBIT, NUMERIC = 600, 1083, 1114, 1186, 1266, 1560, 1562, 1700
SPECIAL_NUMERICS = {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}
_HSTORE_PAIR = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:NULL|"((?:[^"\\]|\\.)*)")', re.DOTALL)
_HSTORE_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_WKB_POINT = struct.Struct("<BIdd")

Form = Callable[[pa.Array], Pieces]


def form_of(column: Column) -> Form:
    """Return what makes JSON of the column's values."""
    return _form(column.type, column.typmod) if column.type is not None else _by_arrow_type


def _form(described: TypeDescription, typmod: int) -> Form:
    while described.base is not None:
        described, typmod = described.base, described.base_typmod
    if described.oid in {TIME, TIMESTAMP} and 0 <= typmod <= MILLISECOND_DIGITS:
        return _milliseconds
    if described.oid == BIT and typmod == 1:
        return _bit
    found = _BY_OID.get(described.oid) or _BY_NAME.get(described.name)
    if found is not None or described.element is None:
        return found or _by_arrow_type
    of_values = _form(described.element, typmod)  # an array's is that of its elements
    return lambda values: lists(values, of_values) if pa.types.is_list(values.type) else _by_arrow_type(values)


def _by_arrow_type(values: pa.Array) -> Pieces:
    form = next((form for is_it, form in _BY_ARROW_TYPE if is_it(values.type)), _decimals)
    return form(values)


def _dates(values: pa.Array) -> Pieces:
    return numbers(values.cast(pa.int32()))


def _instants(values: pa.Array) -> Pieces:
    return _zoned(values) if values.type.tz else numbers(values.cast(pa.int64()))


def _binary(values: pa.Array) -> Pieces:
    return each(values, lambda value: f'"{_base64(value)}"')


def _lists(values: pa.Array) -> Pieces:
    return lists(values, _by_arrow_type)


def _decimals(values: pa.Array) -> Pieces:
    return or_null(values, [QUOTE, text(values), QUOTE])


def _milliseconds(values: pa.Array) -> Pieces:
    return numbers(pc.divide(values.cast(pa.int64()), 1000))  # NB: what is finer is rounded already, by the type


def _zoned(values: pa.Array) -> Pieces:
    clock = text(values.cast(pa.timestamp("us")))  # of UTC
    return or_null(values, [QUOTE, pc.binary_replace_slice(clock, DATE_CHARACTERS, DATE_CHARACTERS + 1, "T"), 'Z"'])


def _numeric(values: pa.Array) -> Pieces:
    texts = values.cast(pa.large_string())
    if pc.any(pc.match_substring_regex(texts, "[Ny]")).as_py():
        for printed, name in SPECIAL_NUMERICS.items():
            texts = pc.if_else(pc.equal(texts, printed), pa.scalar(name, pa.large_string()), texts)
    return or_null(values, [QUOTE, texts, QUOTE])


def _bit(values: pa.Array) -> Pieces:
    return each(values, lambda value: "true" if value == "1" else "false")


def _bits(values: pa.Array) -> Pieces:
    return each(values, _bytes_of_bits)


def _bytes_of_bits(value: object) -> str:
    number = int(f"0{value}", 2)
    return f'"{_base64(number.to_bytes((number.bit_length() + 7) // 8, "little"))}"'


def _base64(value: object) -> str:
    assert isinstance(value, bytes), value
    return b64encode(value).decode("ascii")


def _intervals(values: pa.Array) -> Pieces:
    return each(values, _interval_usecs)


def _interval_usecs(value: object) -> str:
    months, days, usecs = parse_interval(str(value))
    return str(max(min(months * USECS_PER_MONTH + days * USECS_PER_DAY + usecs, INT64_MAX), -INT64_MAX - 1))


def _clocks_in_utc(values: pa.Array) -> Pieces:
    return each(values, _clock_in_utc)


def _clock_in_utc(value: object) -> str:
    printed = str(value)
    at = max(printed.rfind("+"), printed.rfind("-"))
    east = parse_zone(printed[at:]) * USECS_PER_SECOND
    return f'"{clock_text((parse_clock(printed) - east) % USECS_PER_DAY)}Z"'


def _points(values: pa.Array) -> Pieces:
    return each(values, _point)


def _point(value: object) -> str:
    x, y = (float(part) for part in str(value).strip("()").split(","))
    wkb = _base64(_WKB_POINT.pack(LITTLE_ENDIAN, WKB_IS_POINT, x, y))
    return f'{{"x":{_float(x)},"y":{_float(y)},"wkb":"{wkb}","srid":null}}'


def _float(value: float) -> str:
    return json.dumps(value) if math.isfinite(value) else f'"{json.dumps(value)}"'


def _geometries(values: pa.Array) -> Pieces:
    return each(values, _geometry)


def _geometry(value: object) -> str:
    assert isinstance(value, bytes), value
    order = "<" if value[:1] == bytes([LITTLE_ENDIAN]) else ">"
    kind, srid = struct.unpack_from(f"{order}II", value.ljust(WKB_HEAD_BYTES, b"\0"), 1)
    return f'{{"wkb":"{_base64(value)}","srid":{srid if kind & EWKB_HAS_SRID else "null"}}}'


def _hstores(values: pa.Array) -> Pieces:
    return quoted(pa.array([None if value is None else _json_of_hstore(value) for value in values.to_pylist()], TEXT))


def _json_of_hstore(printed: str) -> str:
    pairs = {
        _HSTORE_ESCAPE.sub(r"\1", found[1]): None if found[2] is None else _HSTORE_ESCAPE.sub(r"\1", found[2])
        for found in _HSTORE_PAIR.finditer(printed)
    }
    return json.dumps(pairs, ensure_ascii=False, separators=(",", ":"))


_BY_OID: dict[int, Form] = {
    POINT: _points,
    INTERVAL: _intervals,
    TIMETZ: _clocks_in_utc,
    BIT: _bits,
    VARBIT: _bits,
    NUMERIC: _numeric,
}
_BY_NAME: dict[str, Form] = {"geography": _geometries, "geometry": _geometries, "hstore": _hstores}


_BY_ARROW_TYPE: tuple[tuple[Callable[[pa.DataType], bool], Form], ...] = (
    (pa.types.is_string, quoted),
    (pa.types.is_boolean, numbers),
    (pa.types.is_integer, numbers),
    (pa.types.is_floating, floats),
    (pa.types.is_date32, _dates),
    (pa.types.is_timestamp, _instants),
    (pa.types.is_binary, _binary),
    (pa.types.is_list, _lists),
)


def unavailable(column: Column) -> str:
    """Return what stands for a value that did not change and is not in WAL."""
    described = column.type.ultimate() if column.type is not None else None
    name = described.name if described is not None else ""
    if name == "hstore":
        return json.dumps(json.dumps({UNAVAILABLE: UNAVAILABLE}, separators=(",", ":")))
    if name == "bytea":
        return f'"{_base64(UNAVAILABLE.encode())}"'
    if described is None or described.element is None:
        return f'"{UNAVAILABLE}"'
    element = described.element.ultimate().name
    if element in {"int2", "int4", "int8"}:
        return json.dumps(list(UNAVAILABLE.encode()), separators=(",", ":"))
    return NULL if element in {"float4", "float8", "bool"} else f'["{UNAVAILABLE}"]'
