"""The Arrow types of rows as Iceberg stores them.

Iceberg has no integers below 32 bits and none without a sign. pyiceberg reads strings, bytes and lists with 64-bit
offsets; rows are given to it in that form, so that two schemas can be compared.
"""

from collections.abc import Callable, Mapping

import pyarrow as pa

_STORED: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), pa.large_string()),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), pa.large_binary()),
    (lambda kind: kind in {pa.int8(), pa.int16(), pa.uint8(), pa.uint16()}, pa.int32()),
    (lambda kind: kind == pa.uint32(), pa.int64()),
    (lambda kind: kind == pa.float16(), pa.float32()),
)
_DOC = b"doc"  # pyiceberg's key of a column's comment
_PROMOTIONS = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Iceberg stores `kind`."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, stored_type(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.large_list(pa.field("element", stored_type(kind.value_type)))
    return next((stored for is_one, stored in _STORED if is_one(kind)), kind)


def stored_schema(schema: pa.Schema, comments: Mapping[str, str]) -> pa.Schema:
    """Return the columns of a new table, all of them optional, with their comments."""
    fields = []
    for field in schema:
        comment = comments.get(field.name)
        metadata = {_DOC: comment.encode()} if comment else None
        fields.append(pa.field(field.name, stored_type(field.type), metadata=metadata))
    return pa.schema(fields)


def is_promotion(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether Iceberg lets a column of type `old` become `new` without a rewrite of its files."""
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(old.scale == new.scale and old.precision <= new.precision)
    return (old, new) in _PROMOTIONS


def conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return `rows` with exactly the columns of `schema`, in its order; a column that they lack is NULL."""
    columns = [
        _conformed(rows.column(field.name).combine_chunks(), field.type)
        if field.name in rows.schema.names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _conformed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.chunk(0) if values.num_chunks else pa.array([], values.type)
    if not pa.types.is_struct(kind):
        return values.cast(kind)
    parts = dict(zip((field.name for field in values.type), values.flatten(), strict=True))
    arrays = [
        _conformed(parts[field.name], field.type) if field.name in parts else pa.nulls(len(values), field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=values.is_null())
