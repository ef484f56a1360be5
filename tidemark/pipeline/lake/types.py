"""The lake's types for events without rows: the types of the decoder's codecs."""

import pyarrow as pa

from tidemark.decode.datum.tuples import missing_value
from tidemark.decode.types.codec import Dialect
from tidemark.decode.types.registry import UTF8, arrow_struct, column_codec
from tidemark.model.mapping import DEFAULT_MAPPING, TypeMapping
from tidemark.model.relation import Relation


def shape_of(relation: Relation, types: TypeMapping = DEFAULT_MAPPING) -> pa.StructType:
    """Return the live columns of `relation` as Arrow types."""
    return arrow_struct(relation.live_columns, UTF8.mapped(types))


def constants_of(relation: Relation, dialect: Dialect = UTF8) -> dict[int, pa.Scalar]:
    """Return the values of columns in rows that are older than the column (attmissingval), by number."""
    found = {}
    for column in relation.live_columns:
        missing = missing_value(column)
        codec = column_codec(column, dialect)
        # Bytes if the catalog's own row was decoded, text if it was read by SQL.
        if isinstance(missing, bytes):
            found[column.number] = pa.array([codec.arrow_value(missing)], codec.arrow_type)[0]
        elif isinstance(missing, str):
            found[column.number] = pa.array([codec.parse_text(missing)], codec.arrow_type)[0]
    return found
