"""Writes rows as one data file of a Delta table, for the commit that adds it.

A file without a commit is not part of the table: after a crash it is an orphan, which the vacuum removes. The commit
syncs it to disk.
"""

import time
from collections.abc import Collection
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction, RemoveAction

from tidemark.pipeline.lake.files.file_format import COMPRESSION, ArrowEncodings
from tidemark.pipeline.lake.files.file_statistics import statistics
from tidemark.pipeline.lake.files.partitions import UNPARTITIONED, PartitionValues, folder_of
from tidemark.pipeline.storage.lake_store import ParquetSource
from tidemark.pipeline.storage.stores import store_of

SMALL_BYTES = 1 << 16  # of rows in memory


def write_file(
    uri: str,
    rows: pa.Table,
    encodings: ArrowEncodings,
    key: Collection[str] = (),
    *,
    data_change: bool = True,
    partition: PartitionValues = UNPARTITIONED,
) -> AddAction:
    """Write `rows` of one `partition` in a new file of the table at `uri`; return the action that adds it.

    The file has the statistics of its first columns and of the columns of `key`.
    """
    name = f"{folder_of(partition)}part-00000-{uuid4()}-c000.snappy.parquet"
    rows = rows.drop_columns(list(partition)) if partition else rows
    is_small = rows.nbytes <= SMALL_BYTES

    def write(sink: ParquetSource) -> None:
        pq.write_table(
            rows,
            sink,
            compression=COMPRESSION,
            use_dictionary=encodings.dictionaries,
            write_statistics=not is_small,  # the log has those of the file, of which no part is worth skipping
            column_encoding=encodings.encodings,
            store_schema=False,
            store_decimal_as_integer=True,
        )

    size = store_of(uri).write_parquet(f"{uri}/{name}", write, makes_folder=bool(partition), is_small=is_small)
    found = statistics(rows, key)
    return AddAction(quote(name, safe="/="), size, dict(partition), now_ms(), data_change, found)


def removal(name: str, size: int, *, data_change: bool, partition: PartitionValues = UNPARTITIONED) -> RemoveAction:
    """Return the action that removes a file from a table; `name` is its path as in the log."""
    return RemoveAction(name, data_change, now_ms(), size, dict(partition))


def now_ms() -> int:
    """Return the time as the actions of a commit contain it, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table | None:
    """Return `rows` with the columns of `schema`, NULL where they lack one; None if `schema` lacks a part of them."""
    if rows.schema.equals(schema):
        columns = [
            as_type(values, kind) if kind.num_fields else values
            for values, kind in zip(rows.columns, schema.types, strict=True)
        ]
        return pa.table(columns, schema=schema)
    kinds = {field.name: field.type for field in schema}
    if any(field.name not in kinds or not _fits(field.type, kinds[field.name]) for field in rows.schema):
        return None
    found = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns = [
        _filled(found[name], kind) if name in found else pa.nulls(rows.num_rows, kind) for name, kind in kinds.items()
    ]
    return pa.table(columns, schema=schema)


def as_type(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return `values` as values of `kind`. NB: lists whose elements have other names are equal, but not the same."""
    return values if values.type == kind and not _has_lists(kind) else values.cast(kind)


def _has_lists(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind)) and (not pa.types.is_struct(kind) or any(_has_lists(f.type) for f in kind))


def _fits(kind: pa.DataType, stored: pa.DataType) -> bool:
    """Return whether values of `kind` are values of `stored`; a struct may lack fields."""
    if not (pa.types.is_struct(kind) and pa.types.is_struct(stored)):
        return bool(kind == stored)
    indexes = [stored.get_field_index(field.name) for field in kind]
    pairs = zip(kind, indexes, strict=True)
    return all(index >= 0 and _fits(field.type, stored.field(index).type) for field, index in pairs)


def _filled(values: pa.Array | pa.ChunkedArray, stored: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return `values` with the missing fields of structs."""
    if values.type == stored or not pa.types.is_struct(stored):
        return as_type(values, stored)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    found = dict(zip((field.name for field in values.type), values.flatten(), strict=True))
    parts = [
        _filled(found[field.name], field.type) if field.name in found else pa.nulls(len(values), field.type)
        for field in stored
    ]
    return pa.StructArray.from_arrays(parts, fields=list(stored), mask=values.is_null())
