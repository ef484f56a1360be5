"""The format of data files: their size, and the encoding of columns by a sample of values, for delta-rs and PyArrow.

By default every column has a dictionary, which makes repeated values small. If nearly all values differ, a dictionary
only costs: each value is hashed and kept until the dictionary is full and is abandoned. Such columns have none, and
numbers are written as differences. A sample that is not representative costs bytes, nothing else.
"""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import ColumnProperties, WriterProperties

FILE_BYTES = 48 << 20  # between 32 and 64 MB: large enough to scan
SAMPLE_ROWS = 4096
DICTIONARY_ROWS_MIN = 64  # fewer take fewer bytes, and less time, without dictionaries: each is a further page
SAMPLE_ROWS_MIN = 1000  # fewer are not representative of the rows that a merge rewrites with them
DISTINCT_MIN = 0.9  # share of distinct values among the sample's non-NULL values
INT64_DIGITS = 18  # decimals with up to this many digits are written as integers
COMPRESSION: Final = "SNAPPY"
_DIFFERENCES: Final = "DELTA_BINARY_PACKED"
DIFFERENCES = ColumnProperties(dictionary_enabled=False, encoding=_DIFFERENCES)
PLAIN = ColumnProperties(dictionary_enabled=False)


@dataclass(frozen=True, slots=True)
class ArrowEncodings:
    """The columns with a dictionary, and the encodings of others, in PyArrow's terms."""

    dictionaries: list[str]
    encodings: dict[str, str]


PLAIN_COLUMNS = ArrowEncodings([], {})


def properties_for(rows: pa.Table) -> WriterProperties:
    """Return delta-rs's writer properties for `rows` and similar rows."""
    return WriterProperties(compression=COMPRESSION, column_properties=encodings(rows))


def encodings(rows: pa.Table) -> dict[str, ColumnProperties]:
    """Return the encodings of those columns of `rows` that are better without a dictionary."""
    distinct = _distinct_columns(rows)
    return {field.name: DIFFERENCES if _is_number(field.type) else PLAIN for field in distinct}


def arrow_encodings(rows: pa.Table) -> ArrowEncodings:
    """Return the same encodings for PyArrow's writer; few rows have no dictionaries."""
    if rows.num_rows < DICTIONARY_ROWS_MIN:
        return PLAIN_COLUMNS
    distinct = _distinct_columns(rows)
    left = {field.name for field in rows.schema} - {field.name for field in distinct}
    return ArrowEncodings(
        [path for field in rows.schema if field.name in left for path in _leaves(field)],
        {field.name: _DIFFERENCES for field in distinct if _is_number(field.type)},
    )


def _distinct_columns(rows: pa.Table) -> list[pa.Field]:
    """Return the columns of `rows` in which nearly all values differ."""
    if rows.num_rows < SAMPLE_ROWS_MIN:
        return []
    sample = rows.slice(max(0, rows.num_rows - SAMPLE_ROWS) // 2, SAMPLE_ROWS)
    columns = zip(sample.schema, sample.columns, strict=True)
    return [field for field, values in columns if not pa.types.is_nested(field.type) and _differ(values)]


def _leaves(field: pa.Field) -> list[str]:
    """Return the paths of a column's values in a Parquet file."""
    if pa.types.is_list(field.type):
        return [f"{field.name}.list.{leaf}" for leaf in _leaves(field.type.value_field.with_name("element"))]
    if pa.types.is_struct(field.type):
        return [f"{field.name}.{leaf}" for child in field.type.fields for leaf in _leaves(child)]
    return [field.name]


def _is_number(kind: pa.DataType) -> bool:
    """Return whether values of the type are written as integers."""
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= INT64_DIGITS)
    return bool(pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _differ(values: pa.ChunkedArray) -> bool:
    known = len(values) - values.null_count
    return bool(known > 0 and pc.count_distinct(values).as_py() >= DISTINCT_MIN * known)
