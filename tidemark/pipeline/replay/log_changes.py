"""Rows of a log as the changes that the decoder emitted: the inverse of `changelog.log_rows`."""

import re
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model.change import META_FIELDS, UNCHANGED, BeforeKind, ChangeBatch, Op, batch_schema
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation
from tidemark.pipeline.lake.layout import convert, lake_columns
from tidemark.pipeline.replay.refusal import ReplayRefused
from tidemark.pipeline.sinks.rows.logshape import OLD, loses_nothing


def changes_of(database: Oid, relation: Relation, columns: pa.StructType, rows: pa.Table) -> ChangeBatch:
    """Return rows of a log as changes of one version, whose live columns are `columns` in Arrow."""
    arrays: dict[str, pa.Array] = {name: _plain(rows.column(name)) for name in rows.schema.names}
    meta = {field.name: arrays[field.name] for field in META_FIELDS if field.name != UNCHANGED}
    meta[UNCHANGED] = _bitmaps(relation, arrays[UNCHANGED])
    after = _struct(relation, columns, arrays, pc.equal(arrays["_op"], Op.DELETE.value))
    is_new = pc.equal(arrays["_before_kind"], BeforeKind.NONE.value)
    if OLD in arrays:
        old = arrays[OLD]
        nested = dict(zip((field.name for field in old.type), old.flatten(), strict=True))
        before = _struct(relation, columns, nested, pc.or_(is_new, old.is_null()))
    else:
        before = pa.nulls(rows.num_rows, columns)
    values = [*(meta[field.name] for field in META_FIELDS), before, after]
    return ChangeBatch(database, relation, pa.RecordBatch.from_arrays(values, schema=batch_schema(columns)))


def _plain(values: pa.ChunkedArray) -> pa.Array:
    combined = values.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(values.chunks)


def _struct(
    relation: Relation, columns: pa.StructType, stored: Mapping[str, pa.Array], is_null: pa.Array
) -> pa.StructArray:
    names = {column.index: column.name for column in lake_columns(relation)}
    used = {name.lower() for name in names.values()}
    children = [
        _values(relation, names[index], field, stored, used) if index in names else pa.nulls(len(is_null), field.type)
        for index, field in enumerate(columns)
    ]
    return pa.StructArray.from_arrays(children, fields=list(columns), mask=is_null)


def _values(
    relation: Relation, name: str, wanted: pa.Field, stored: Mapping[str, pa.Array], used: set[str]
) -> pa.Array:
    """Return the values of a column, which the log may have converted, or moved to another column.

    NB: a row has its value in one of these columns, and NULL in the others.
    """
    moved = re.compile(rf"{re.escape(name)}__[a-z0-9_]+", re.IGNORECASE)
    found = []
    for column, values in stored.items():
        is_same = column.lower() == name.lower()
        if not is_same and (moved.fullmatch(column) is None or column.lower() in used):
            continue
        if values.type == wanted.type or loses_nothing(wanted.type, values.type):
            found.append(convert(values, wanted))
    if not found:
        raise ReplayRefused(f"{relation.qualified_name}: its log has no column {name} of the type {wanted.type}")
    return found[0] if len(found) == 1 else pc.coalesce(*found)


def _bitmaps(relation: Relation, names: pa.Array) -> pa.Array:
    """Return the names of unchanged columns as bitmaps over the live columns."""
    if names.null_count == len(names):
        return pa.nulls(len(names), pa.binary())
    bits = {column.name.lower(): 1 << column.index for column in lake_columns(relation)}
    size = (len(relation.live_columns) >> 3) + 1
    return pa.array(
        [
            None if kept is None else sum(bits[name.lower()] for name in kept).to_bytes(size, "little")
            for kept in names.to_pylist()
        ],
        pa.binary(),
    )
