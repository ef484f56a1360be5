"""Rows of older versions of a table in the layout of a log that has later versions already.

A log that receives versions in their order gives a column the type of the last one, and moves older values aside if
they do not fit (`tidemark.pipeline.sinks.rows.logshape`). Rows that come later, but are older, get the same places: the
columns of the log keep their types.
"""

import pyarrow as pa

from tidemark.pipeline.lake.layout import convert
from tidemark.pipeline.sinks.rows.logshape import OLD, aside_name, loses_nothing, spelled


def older_rows(rows: pa.Table, stored: pa.Schema) -> pa.Table:
    """Return `rows` with the columns in which a log with the schema `stored` has their values; new columns follow."""
    rows = spelled(rows, stored)
    places = {field.name: _place(field, stored, rows.schema) for field in rows.schema if field.name != OLD}
    names = [name for name in rows.schema.names if name != OLD]
    columns = [_converted(rows.column(name), places[name]) for name in names]
    fields = [places[name] for name in names]
    if OLD in rows.schema.names:
        old = rows.column(OLD).combine_chunks()
        parts = [places[field.name].remove_metadata() for field in old.type]
        values = [convert(column, part) for column, part in zip(old.flatten(), parts, strict=True)]
        columns.append(pa.StructArray.from_arrays(values, fields=parts, mask=old.is_null()))
        fields.append(pa.field(OLD, pa.struct(parts)))
    return pa.table(columns, schema=pa.schema(fields))


def _converted(values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    return values if values.type == field.type else convert(values.combine_chunks(), field)


def _place(field: pa.Field, stored: pa.Schema, own: pa.Schema) -> pa.Field:
    """Return the column of the log for the values of a column of older rows."""
    if field.name not in stored.names:
        return field
    known = stored.field(field.name)
    if known.type == field.type or loses_nothing(field.type, known.type):
        return field.with_type(known.type)
    return field.with_name(aside_name(field.name, field.type, stored, own))
