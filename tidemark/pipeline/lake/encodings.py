"""The encoding of columns in Parquet files, chosen from a sample of their values.

By default every column has a dictionary, which makes repeated values small. If nearly all values differ, a dictionary
only costs: each value is hashed and kept until the dictionary is full and is abandoned. Such columns have none, and
numbers are written as differences. A sample that is not representative costs bytes, nothing else.
"""

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import ColumnProperties, WriterProperties

SAMPLE_ROWS = 4096
SAMPLE_ROWS_MIN = 1000  # fewer are not representative of the rows that a merge rewrites with them
DISTINCT_MIN = 0.9  # share of distinct values among the sample's non-NULL values
INT64_DIGITS = 18  # decimals with up to this many digits are written as integers
DIFFERENCES = ColumnProperties(dictionary_enabled=False, encoding="DELTA_BINARY_PACKED")
PLAIN = ColumnProperties(dictionary_enabled=False)


def properties_for(rows: pa.Table) -> WriterProperties:
    """Return the writer properties for `rows` and similar rows."""
    return WriterProperties(compression="SNAPPY", column_properties=encodings(rows))


def encodings(rows: pa.Table) -> dict[str, ColumnProperties]:
    """Return the encodings of those columns of `rows` that are better without a dictionary."""
    if rows.num_rows < SAMPLE_ROWS_MIN:
        return {}
    sample = rows.slice(max(0, rows.num_rows - SAMPLE_ROWS) // 2, SAMPLE_ROWS)
    return {
        field.name: DIFFERENCES if _is_number(field.type) else PLAIN
        for field, values in zip(sample.schema, sample.columns, strict=True)
        if not pa.types.is_nested(field.type) and _differ(values)
    }


def _is_number(kind: pa.DataType) -> bool:
    """Return whether values of the type are written as integers."""
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= INT64_DIGITS)
    return bool(pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _differ(values: pa.ChunkedArray) -> bool:
    known = len(values) - values.null_count
    return bool(known > 0 and pc.count_distinct(values).as_py() >= DISTINCT_MIN * known)
