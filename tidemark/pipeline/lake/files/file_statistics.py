"""The statistics of a data file in the Delta log: rows, and minimum, maximum and NULL count of each column.

A bound is either correct or absent: a minimum is at most every value, a maximum at least every value, in the order of
the type. Absent are the bounds of columns that contain NaN or infinity (JSON has neither), of dates and times outside
of the years 1 to 9999 (PostgreSQL's infinity and BC dates: readers of the log fail to parse them), and of binary and
nested columns (the protocol has none). Decimals are printed with all digits. The maximum of a time is rounded up,
because a reader may truncate it to milliseconds.
"""

import json
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

COLUMNS_MAX = 32  # the default of delta.dataSkippingNumIndexedCols
NAMES_KEPT = 4096  # of columns, as JSON
LISTED_MAX = 64  # rows: a computation of Arrow costs as much as to list the values of that many
TEXT_MAX = 256  # characters of a bound: long common prefixes must not make all ranges equal
_LAST = "\U0010ffff"
_SURROGATES = range(0xD800, 0xE000)
_MILLISECOND_US = 1000
_DAY_MS = 86_400_000
_DAYS = range(-719_162, 2_932_897)  # from 1970-01-01: the years 1 to 9999
_ENCODE = json.JSONEncoder(ensure_ascii=False).encode  # `dumps` with options makes an encoder each time
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the zone is added as text
ValueT = TypeVar("ValueT", int, float, str, Decimal)
ColumnBounds = tuple[str, str]
"""Minimum and maximum as JSON."""


def statistics(rows: pa.Table, key: Collection[str]) -> str:
    """Return the statistics of a file that contains `rows`: of its first columns and of the columns of `key`."""
    minima, maxima, nulls = [], [], []
    for number, (field, values) in enumerate(zip(rows.schema, rows.columns, strict=True)):
        if field.type.num_fields or (number >= COLUMNS_MAX and field.name not in key):
            continue
        name = _name(field.name)
        nulls.append(f"{name}:{values.null_count}")
        bounds = _bounds(values) if values.null_count < len(values) else None
        if bounds is not None:
            minima.append(f"{name}:{bounds[0]}")
            maxima.append(f"{name}:{bounds[1]}")
    found = {"minValues": minima, "maxValues": maxima, "nullCount": nulls}
    columns = ",".join(f'"{name}":{{{",".join(values)}}}' for name, values in found.items())
    return f'{{"numRecords":{rows.num_rows},{columns}}}'


def _bounds(values: pa.ChunkedArray) -> ColumnBounds | None:
    bounds_of = _BY_TYPE.get(values.type.id)
    return None if bounds_of is None else bounds_of(values)


def _ends(values: pa.ChunkedArray, _of: type[ValueT]) -> tuple[ValueT, ValueT]:
    """Return the least and the greatest value; there is at least one."""
    if len(values) <= LISTED_MAX:
        known: list[ValueT] = [value for value in values.to_pylist() if value is not None]
        return min(known), max(known)
    found = pc.min_max(values).as_py()
    return found["min"], found["max"]


def _of_decimals(values: pa.ChunkedArray) -> ColumnBounds:
    lowest, highest = _ends(values, Decimal)
    return f"{lowest:f}", f"{highest:f}"


def _of_integers(values: pa.ChunkedArray) -> ColumnBounds:
    least, most = _ends(values, int)
    return str(least), str(most)


def _of_booleans(values: pa.ChunkedArray) -> ColumnBounds:
    least, most = _ends(values, int)
    return str(least).lower(), str(most).lower()


def _of_floats(values: pa.ChunkedArray) -> ColumnBounds | None:
    if not pc.all(pc.is_finite(values)).as_py():
        return None
    least, most = _ends(values, float)
    # 0 and -0 are equal, but a reader may compare them as different values.
    return json.dumps(least or -0.0), json.dumps(most or 0.0)


def _of_dates(dates: pa.ChunkedArray) -> ColumnBounds | None:
    least, most = _ends(dates.cast(pa.int32()), int)
    if least not in _DAYS or most not in _DAYS:
        return None
    first, last = (f'"{(_EPOCH + timedelta(days=day)).date().isoformat()}"' for day in (least, most))
    return first, last


def _of_times(times: pa.ChunkedArray) -> ColumnBounds | None:
    zone = "" if times.type.tz is None else "Z"
    earliest, latest = _ends(times.cast(pa.int64()), int)
    least, most = earliest // _MILLISECOND_US, -(-latest // _MILLISECOND_US)
    if least // _DAY_MS not in _DAYS or most // _DAY_MS not in _DAYS:
        return None
    first, last = ((_EPOCH + timedelta(milliseconds=at)).isoformat(timespec="milliseconds") for at in (least, most))
    return f'"{first}{zone}"', f'"{last}{zone}"'


def _of_text(values: pa.ChunkedArray) -> ColumnBounds | None:
    least, most = _ends(values, str)
    upper = most if len(most) <= TEXT_MAX else _above(most[:TEXT_MAX])
    return None if upper is None else (_text(least[:TEXT_MAX]), _text(upper))


def _text(value: str) -> str:
    # NB: not escaped: arrow-rs, and so delta-rs, reads the surrogate pair of U+20000 as U+10000.
    return _ENCODE(value)


@lru_cache(NAMES_KEPT)
def _name(name: str) -> str:
    return _text(name)


def _above(prefix: str) -> str | None:
    """Return a text that is greater than every text with this prefix; None if there is none."""
    cut = prefix.rstrip(_LAST)
    if not cut:
        return None
    code = ord(cut[-1]) + 1
    return cut[:-1] + chr(_SURROGATES.stop if code in _SURROGATES else code)


_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_BY_TYPE: Mapping[int, Callable[[pa.ChunkedArray], ColumnBounds | None]] = {
    **{kind.id: _of_floats for kind in (pa.float16(), pa.float32(), pa.float64())},
    **{kind.id: _of_integers for kind in _INTEGERS},
    **{kind.id: _of_decimals for kind in (pa.decimal128(1), pa.decimal256(1))},
    pa.bool_().id: _of_booleans,
    pa.date32().id: _of_dates,
    pa.timestamp("us").id: _of_times,
    pa.string().id: _of_text,
}
"""By the id of the type: a test for each kind of type would cost more than the bounds."""
