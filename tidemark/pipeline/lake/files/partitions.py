"""Partitions of a Delta table: the files of each have one value of the partition columns, which they do not contain.

The log has the values, as text, with each file. The folders are those of Hive, as `day=2026-11-27/region=a%2Fb`: values
are percent-encoded, and NULL has a special name. Readers take the values from the log. They read an empty text as NULL,
and no date outside of the years 1 to 9999, so such values are refused, as is a text too long for the name of a folder.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from tidemark.model.relation import Relation
from tidemark.pipeline.lake.faults import UnfitSettings
from tidemark.pipeline.lake.layout import lake_columns, shape_of

PARTITIONS_MAX = 4096  # that one commit writes to: each is a file
FOLDER_NAME_MAX = 255  # bytes: NAME_MAX of Linux
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_DAYS = range(-719_162, 2_932_897)  # from 1970-01-01: the years 1 to 9999
PartitionValues = Mapping[str, str | None]
"""The values of the partition columns of one file, as the log has them."""
UNPARTITIONED: PartitionValues = {}


def fits_partition(kind: pa.DataType) -> bool:
    """Return whether a column of a type can be a partition column."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind) or kind == pa.date32()
    )


def partition_columns(relation: Relation, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns in the lake of the source's columns `names`; raise `UnfitSettings` if they do not fit."""
    if not names:
        return ()
    live, shape = relation.live_columns, shape_of(relation)
    columns = {live[column.index].name: column for column in lake_columns(relation)}
    for name in names:
        fault = partition_fault(name, {known: shape.field(column.index).type for known, column in columns.items()})
        if fault:
            raise UnfitSettings(f"{relation.qualified_name}: {fault}")
    if len(names) == len(columns):
        raise UnfitSettings(
            f"{relation.qualified_name}: partition names all its columns, but a data file needs at least one other"
        )
    return tuple(columns[name].name for name in names)


def partition_fault(name: str, columns: Mapping[str, pa.DataType]) -> str:
    """Return why a table with `columns` cannot be partitioned by the column `name`; "" if it can."""
    if name not in columns:
        return f"partition names the column {name}, which it does not have; it has {', '.join(columns)}"
    if not fits_partition(columns[name]):
        return f"partition names the column {name}, whose type {columns[name]} is not an integer, text, boolean or date"
    return ""


def divided(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[PartitionValues, pa.Table]]:
    """Yield the rows of each partition in their order, with all columns; raise `UnfitSettings` for a wrong value."""
    if not columns or not rows.num_rows:
        yield UNPARTITIONED, rows
        return
    codes = np.zeros(rows.num_rows, np.int64)
    for name in columns:
        encoded = rows.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
        _check_values(name, encoded.dictionary)
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    if len(first) > PARTITIONS_MAX:
        raise UnfitSettings(f"partition: {', '.join(columns)} have more than {PARTITIONS_MAX} values in one change")
    order = np.argsort(inverse, kind="stable")
    ends = np.searchsorted(inverse[order], np.arange(len(first)), "right").tolist()
    for begin, end in zip([0, *ends], ends, strict=False):
        part = rows.take(pa.array(order[begin:end]))
        yield {name: _text(part.column(name)[0].as_py()) for name in columns}, part


def check_rows(rows: pa.RecordBatch | pa.Table, columns: Collection[str]) -> None:
    """Raise `UnfitSettings` if a partition column has a value that a partition cannot have."""
    for name in columns:
        values = rows.column(name)
        _check_values(name, values.unique())


def checked_rows(rows: pa.RecordBatchReader | pa.Table, partition: Sequence[str]) -> pa.RecordBatchReader | pa.Table:
    """Return `rows`; raise `UnfitSettings` when one is read with a value that a partition cannot have."""
    if not partition:
        return rows

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else rows:
            check_rows(batch, partition)
            yield batch

    return pa.RecordBatchReader.from_batches(rows.schema, batches())


def _check_values(name: str, values: pa.Array) -> None:
    if pa.types.is_string(values.type):
        wrong = _wrong_text(name, values.to_pylist())
    elif values.type == pa.date32():
        days = values.cast(pa.int32()).to_pylist()
        wrong = "a date outside of the years 1 to 9999" if any(d is not None and d not in _DAYS for d in days) else ""
    else:
        wrong = ""
    if wrong:
        raise UnfitSettings(f"partition: the column {name} has {wrong}, which a partition cannot have")


def _wrong_text(name: str, texts: Collection[str | None]) -> str:
    """Return what is wrong with one of the texts of a column, but not the text itself; "" if nothing is."""
    if "" in texts:
        return "an empty text"
    is_long = any(len(folder_of({name: text}).rstrip("/")) > FOLDER_NAME_MAX for text in texts)
    return "a text too long for the name of a folder" if is_long else ""


def folder_of(values: PartitionValues) -> str:
    """Return the folder of a partition below the table, with a slash at its end; "" for a table without partitions."""
    return "".join(
        f"{quote(name, safe='')}={NULL_FOLDER if value is None else quote(value, safe='')}/"
        for name, value in values.items()
    )


def as_json(values: PartitionValues) -> str:
    """Return partition values as one text, equal for equal ones; "" for a table without partitions."""
    return json.dumps(dict(values)) if values else ""


def from_json(text: str) -> PartitionValues:
    """Return the partition values that `as_json` wrote."""
    found: dict[str, str | None] = json.loads(text) if text else {}
    return found


def listed_values(added: pa.Table) -> list[PartitionValues]:
    """Return the partition values of the add actions of a snapshot, as delta-rs returns them."""
    if "partition" not in added.schema.names or not added.schema.field("partition").type.num_fields:
        return [UNPARTITIONED] * added.num_rows
    return [{name: _text(value) for name, value in row.items()} for row in added.column("partition").to_pylist()]


def _text(value: object) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def parsed(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return a partition value as one of its column's type."""
    if text is None:
        return pa.scalar(None, kind)
    if pa.types.is_boolean(kind):
        return pa.scalar(text == "true", kind)
    if pa.types.is_integer(kind):
        return pa.scalar(int(text), kind)
    return pa.scalar(date.fromisoformat(text) if kind == pa.date32() else text, kind)
