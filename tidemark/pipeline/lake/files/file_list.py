"""The files of a snapshot, with the bounds of some columns, as a table that Tidemark's own commits bring up to date.

    path | size_bytes | num_records | partition | null_count | min | max        the last three: structs of the columns

A partition column has the same minimum and maximum.

delta-rs lists and reads the log again to return the files after a commit, which costs more than the commit.
"""

import json
from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.delta_log.commit_files import FileChange
from tidemark.pipeline.lake.files.partitions import PartitionValues, as_json, listed_values, parsed

_STATISTICS = ("null_count", "min", "max")
_IN_LOG = {"null_count": "nullCount", "min": "minValues", "max": "maxValues"}


def listed(added: pa.Table, fields: Sequence[pa.Field]) -> pa.Table:
    """Return the files of `added`, the add actions of a snapshot as delta-rs returns them."""
    columns = [added.column(name).cast(kind) for name, kind in _PLAIN.items()]
    partitions, rows = listed_values(added), added.column("num_records").to_pylist()
    columns.append(pa.chunked_array([pa.array(map(as_json, partitions), pa.string())]))
    for name in _STATISTICS:
        parts = [
            _of_partition(name, field, partitions, rows)
            if field.name in (partitions[0] if partitions else ())
            else statistic(added, name, field).combine_chunks()
            for field in _of(name, fields)
        ]
        columns.append(pa.chunked_array([pa.StructArray.from_arrays(parts, fields=_of(name, fields))]))
    return pa.table(columns, names=[*_PLAIN, _PARTITION, *_STATISTICS])


def changed(files: pa.Table, change: FileChange, fields: Sequence[pa.Field]) -> pa.Table:
    """Return `files` after a commit."""
    removed = pa.array([action.path for action in change.removed], pa.string())
    stays = files.filter(pc.invert(pc.is_in(files.column("path"), value_set=removed))) if len(removed) else files
    stats: list[dict[str, dict[str, object]]] = [
        json.loads(action.stats, parse_float=Decimal) for action in change.added
    ]
    columns = [
        pa.array([action.path for action in change.added], pa.string()),
        pa.array([action.size for action in change.added], pa.int64()),
        pa.array([one["numRecords"] for one in stats], pa.int64()),
        pa.array([as_json(action.partition_values) for action in change.added], pa.string()),
    ]
    partitions, rows = [action.partition_values for action in change.added], [one["numRecords"] for one in stats]
    for name in _STATISTICS:
        found = [one[_IN_LOG[name]] for one in stats]
        parts = [
            _of_partition(name, field, partitions, rows)
            if field.name in (partitions[0] if partitions else ())
            else _typed([values.get(field.name) for values in found], field.type)
            for field in _of(name, fields)
        ]
        columns.append(pa.StructArray.from_arrays(parts, fields=_of(name, fields)))
    return pa.concat_tables([stays, pa.table(columns, names=files.schema.names)])


def statistic(files: pa.Table, name: str, field: pa.Field) -> pa.ChunkedArray:
    """Return a statistic of one column, which is a field of the struct `name`; NULL where it is unknown."""
    if name in files.schema.names:
        found = files.column(name).combine_chunks()
        index = found.type.get_field_index(field.name) if pa.types.is_struct(found.type) else -1
        if index >= 0 and not pa.types.is_nested(found.type.field(index).type):
            return pa.chunked_array([found.flatten()[index].cast(field.type)])
    return pa.chunked_array([pa.nulls(files.num_rows, field.type)])


def _of_partition(
    name: str, field: pa.Field, partitions: Sequence[PartitionValues], rows: Sequence[object]
) -> pa.Array:
    """Return a statistic of a partition column."""
    values = [one[field.name] for one in partitions]
    if name == "null_count":
        nulls = [count if value is None else 0 for value, count in zip(values, rows, strict=True)]
        return pa.array(nulls, pa.int64())
    return pa.array([parsed(value, field.type).as_py() for value in values], field.type)


_PARTITION = "partition"
_PLAIN = {"path": pa.string(), "size_bytes": pa.int64(), "num_records": pa.int64()}


def _of(name: str, fields: Sequence[pa.Field]) -> list[pa.Field]:
    return [pa.field(field.name, pa.int64() if name == "null_count" else field.type) for field in fields]


def _typed(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Return values of JSON as values of a column: dates and times are text there."""
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        return pa.nulls(len(values), kind)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pa.array(values, pa.string()).cast(kind)
    if pa.types.is_floating(kind):
        return pa.array([None if value is None else float(str(value)) for value in values], kind)
    if pa.types.is_decimal(kind):
        return pa.array([None if value is None else Decimal(str(value)) for value in values], kind)
    return pa.array(values, kind)
