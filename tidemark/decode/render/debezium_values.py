"""A column's values in the JSON form of Debezium's PostgreSQL connector, by PostgreSQL type.

The form is that of the connector's defaults, except that decimals are text (`decimal.handling.mode=string`): dates as
days, times and timestamps as microseconds, or milliseconds if the type has at most three fractional digits,
`timestamptz` and `timetz` as ISO text in UTC, `interval` as microseconds with a month of 30.4375 days, `bytea` in
Base64, bits as little-endian bytes, `point` and PostGIS types as objects, `hstore` as a JSON object in a string. The
columns have the Arrow types of `MAPPING`. docs/debezium.md lists the differences.
"""

import json
import math
import re
import struct
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from json.encoder import encode_basestring

import numpy as np
import pyarrow as pa

from tidemark.decode.render.column_texts import TextColumn as Texts
from tidemark.decode.render.json_columns import (
    Form,
    FormattedColumn,
    base64,
    booleans,
    days,
    decimals,
    fixed,
    floats,
    instants,
    int64_column,
    integers,
    lists,
    numeric_texts,
    strings,
    validity,
)
from tidemark.decode.types.families.calendar import clock_text, parse_clock, parse_zone
from tidemark.decode.types.families.intervals import parse_interval
from tidemark.model.commit_time import USECS_PER_DAY, USECS_PER_MILLISECOND, USECS_PER_SECOND
from tidemark.model.mapping import Decimals, TypeMapping
from tidemark.model.relation import Column, TypeDescription

MAPPING = TypeMapping(decimals=Decimals.STRING)
UNAVAILABLE = "__debezium_unavailable_value"
USECS_PER_MONTH = USECS_PER_DAY * 487 // 16  # of 30.4375 days
INT64_MAX = (1 << 63) - 1
MILLISECOND_DIGITS = 3
LITTLE_ENDIAN, WKB_IS_POINT, WKB_HEAD_BYTES, EWKB_HAS_SRID = 1, 1, 9, 0x20000000
# Types by OID (`pg_type.dat`), which never change.
POINT, TIME, TIMESTAMP, INTERVAL, TIMETZ, BIT, VARBIT, NUMERIC = 600, 1083, 1114, 1186, 1266, 1560, 1562, 1700
_HSTORE_PAIR = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:NULL|"((?:[^"\\]|\\.)*)")', re.DOTALL)
_HSTORE_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_WKB_POINT = struct.Struct("<BIdd")


def form_of(column: Column) -> Form:
    """Return the function that writes the column's values as JSON."""
    return _form(column.type, column.typmod) if column.type is not None else _by_arrow_type


def _form(described: TypeDescription, typmod: int) -> Form:
    while described.base is not None:
        described, typmod = described.base, described.base_typmod
    if described.oid in {TIME, TIMESTAMP} and 0 <= typmod <= MILLISECOND_DIGITS:
        return _milliseconds
    if described.oid == BIT and typmod == 1:
        return _each(_bit)
    found = _BY_OID.get(described.oid) or _BY_NAME.get(described.name)
    if found is not None:
        return partial(_of_text, found)
    if described.element is None:
        return _by_arrow_type
    of_values = _form(described.element, typmod)  # an array has the form of its elements
    return lambda values: lists(values, of_values) if pa.types.is_list(values.type) else _by_arrow_type(values)


def _of_text(form: Form, values: pa.Array) -> Texts:
    """Apply a form of text or bytes, unless the mapping of types (`[types]`) has another Arrow type for the column."""
    is_text = pa.types.is_string(values.type) or pa.types.is_binary(values.type)
    return form(values) if is_text else _by_arrow_type(values)


def _by_arrow_type(values: pa.Array) -> Texts:
    form = next(form for is_it, form in _BY_ARROW_TYPE if is_it(values.type))
    return form(values)


def _instants(values: pa.Array) -> Texts:
    return instants(values) if values.type.tz else int64_column(fixed(values, np.int64), validity(values))


def _lists(values: pa.Array) -> Texts:
    return lists(values, _by_arrow_type)


def _milliseconds(values: pa.Array) -> Texts:
    # NB: the type has rounded finer values already
    return int64_column(fixed(values, np.int64) // USECS_PER_MILLISECOND, validity(values))


def _bit(value: object) -> str:
    return "true" if value == "1" else "false"


def _bytes_of_bits(value: object) -> str:
    number = int(f"0{value}", 2)
    return f'"{_base64(number.to_bytes((number.bit_length() + 7) // 8, "little"))}"'


def _base64(value: object) -> str:
    assert isinstance(value, bytes), value
    return b64encode(value).decode("ascii")


def _interval_usecs(value: object) -> str:
    months, days, usecs = parse_interval(str(value))
    return str(max(min(months * USECS_PER_MONTH + days * USECS_PER_DAY + usecs, INT64_MAX), -INT64_MAX - 1))


def _clock_in_utc(value: object) -> str:
    printed = str(value)
    at = max(printed.rfind("+"), printed.rfind("-"))
    east = parse_zone(printed[at:]) * USECS_PER_SECOND
    return f'"{clock_text((parse_clock(printed) - east) % USECS_PER_DAY)}Z"'


def _point(value: object) -> str:
    x, y = (float(part) for part in str(value).strip("()").split(","))
    wkb = _base64(_WKB_POINT.pack(LITTLE_ENDIAN, WKB_IS_POINT, x, y))
    return f'{{"x":{_float(x)},"y":{_float(y)},"wkb":"{wkb}","srid":null}}'


def _float(value: float) -> str:
    return json.dumps(value) if math.isfinite(value) else f'"{json.dumps(value)}"'


def _geometry(value: object) -> str:
    assert isinstance(value, bytes), value
    order = "<" if value[:1] == bytes([LITTLE_ENDIAN]) else ">"
    kind, srid = struct.unpack_from(f"{order}II", value.ljust(WKB_HEAD_BYTES, b"\0"), 1)
    return f'{{"wkb":"{_base64(value)}","srid":{srid if kind & EWKB_HAS_SRID else "null"}}}'


def _hstore(value: object) -> str:
    pairs = {
        _HSTORE_ESCAPE.sub(r"\1", found[1]): None if found[2] is None else _HSTORE_ESCAPE.sub(r"\1", found[2])
        for found in _HSTORE_PAIR.finditer(str(value))
    }
    return encode_basestring(json.dumps(pairs, ensure_ascii=False, separators=(",", ":")))


def _each(form: Callable[[object], str]) -> Form:
    return partial(FormattedColumn, form=form)


_BY_OID: dict[int, Form] = {
    POINT: _each(_point),
    INTERVAL: _each(_interval_usecs),
    TIMETZ: _each(_clock_in_utc),
    BIT: _each(_bytes_of_bits),
    VARBIT: _each(_bytes_of_bits),
    NUMERIC: numeric_texts,
}
_BY_NAME: dict[str, Form] = {"geography": _each(_geometry), "geometry": _each(_geometry), "hstore": _each(_hstore)}


_BY_ARROW_TYPE: tuple[tuple[Callable[[pa.DataType], bool], Form], ...] = (
    (pa.types.is_string, strings),
    (pa.types.is_boolean, booleans),
    (pa.types.is_integer, integers),
    (pa.types.is_floating, floats),
    (pa.types.is_date32, days),
    (pa.types.is_timestamp, _instants),
    (pa.types.is_binary, base64),
    (pa.types.is_list, _lists),
    (pa.types.is_decimal, decimals),
)


def unavailable(column: Column) -> str:
    """Return the placeholder of an unchanged value that is not in WAL."""
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
    return "null" if element in {"float4", "float8", "bool"} else f'["{UNAVAILABLE}"]'
