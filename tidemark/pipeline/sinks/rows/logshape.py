"""The columns of a change log during the life of its table.

A log only gains columns: a renamed or dropped column remains, for the rows that have it. If a type changes, older
values are converted if the conversion loses nothing, and otherwise moved to another column, whose name ends in their
type (`price__decimal128_10_2`), so no value is ever read with a wrong type. Names that differ only by case are one name
to Delta, and therefore one column, spelled as it was first.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.io.host.failpoints import passed
from tidemark.model.change import AFTER, BEFORE, UNCHANGED
from tidemark.model.relation import Relation
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.layout import (
    COMMENT,
    META,
    VERSIONS_KEPT,
    Comments,
    convert,
    lake_columns,
    source_fields,
    unchanged_names,
)
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.sinks.steps import Rows

OLD = "_old"
_Moves = dict[str, tuple[str, pa.DataType]]
_INTEGER_DIGITS = {16: 5, 32: 10, 64: 19}


@lru_cache(VERSIONS_KEPT)
def log_schema(relation: Relation, columns: pa.StructType, comments: Comments = ()) -> pa.Schema:
    """Return the schema of log rows for `relation`, whose live columns are `columns` in Arrow."""
    fields = source_fields(relation, columns, comments)
    nested = pa.struct([field.remove_metadata() for field in fields])
    old = [pa.field(OLD, nested)] if fields else []  # Parquet has no empty struct
    return pa.schema([*META, *fields, *old])


def log_rows(step: Rows) -> pa.Table:
    """Return the log's rows for a run of changes."""
    changes = step.changes
    schema = log_schema(step.relation, changes.schema.field(AFTER).type)
    columns = lake_columns(step.relation)
    meta = {name: changes.column(name) for name in META.names if name in changes.schema.names}
    meta["_seq"] = pa.array(step.sequences)
    meta[UNCHANGED] = unchanged_names(changes, columns)
    new = changes.column(AFTER).combine_chunks().flatten()
    arrays = [*(meta[name] for name in META.names), *(new[column.index] for column in columns)]
    if columns:
        before = changes.column(BEFORE).combine_chunks()
        old = before.flatten()
        fields = list(schema.field(OLD).type)
        arrays.append(pa.StructArray.from_arrays([old[c.index] for c in columns], fields=fields, mask=before.is_null()))
    return pa.table(arrays, schema=schema)


def spelled(rows: pa.Table, stored: pa.Schema) -> pa.Table:
    """Return `rows` with the log's spelling of the column names."""
    if set(stored.names).issuperset(rows.schema.names):
        return rows
    first = {name.lower(): name for name in stored.names}
    names = {name: first.get(name.lower(), name) for name in rows.schema.names}
    if all(name == stored_name for name, stored_name in names.items()):
        return rows
    columns = []
    for field, values in zip(rows.schema, rows.columns, strict=True):
        if field.name == OLD:
            old = values.combine_chunks()
            columns.append(
                pa.StructArray.from_arrays(old.flatten(), [names[part.name] for part in field.type], mask=old.is_null())
            )
        elif field.name == UNCHANGED:
            spelled_names = [kept and [names[name] for name in kept] for kept in values.to_pylist()]
            columns.append(pa.array(spelled_names, field.type))
        else:
            columns.append(values)
    return pa.table(columns, names=list(names.values()))


def convert_types(table: LakeTable, wanted: pa.Schema) -> None:
    """Rewrite the log if a column of `wanted` has another type there; its values do not change."""
    stored = table.schema
    changed = {
        name: wanted.field(name).type
        for name in wanted.names
        if name != OLD and name in stored.names and stored.field(name).type != wanted.field(name).type
    }
    if not changed:
        return
    rows = _Retyped(stored, wanted, _moves(stored, wanted, changed))
    table.overwrite(pa.RecordBatchReader.from_batches(rows.schema, rows.batches(table.scan())), table.applied)
    passed(Failpoint.LOG_RESHAPED)


class _Retyped:
    """The log's rows with some columns converted or moved to another column, at the top level and inside `_old`."""

    def __init__(self, stored: pa.Schema, wanted: pa.Schema, moves: _Moves) -> None:
        self._moves = moves
        top = [_declared(field, wanted) for field in self._fields([field for field in stored if field.name != OLD])]
        nested = self._fields(list(stored.field(OLD).type))
        self._top, self._nested = top, nested
        self.schema = pa.schema([*top, pa.field(OLD, pa.struct(nested))])

    def batches(self, rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            old = batch.column(OLD)
            nested = dict(zip((field.name for field in old.type), old.flatten(), strict=True))
            columns = self._columns({name: batch.column(name) for name in batch.schema.names}, self._top)
            columns.append(
                pa.StructArray.from_arrays(self._columns(nested, self._nested), fields=self._nested, mask=old.is_null())
            )
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _fields(self, stored: list[pa.Field]) -> list[pa.Field]:
        fields = {field.name: field for field in stored}
        for name, (aside, new) in self._moves.items():
            if name in fields:
                if aside != name:
                    fields.setdefault(aside, fields[name].with_name(aside))
                fields[name] = fields[name].with_type(new)
        return list(fields.values())

    def _columns(self, stored: dict[str, pa.Array], wanted: list[pa.Field]) -> list[pa.Array]:
        origins = {aside: name for name, (aside, _) in self._moves.items() if aside != name}
        columns = []
        for field in wanted:
            moved = origins.get(field.name)
            if moved is not None and moved in stored:
                there = [stored[field.name]] if field.name in stored else []
                columns.append(pc.coalesce(stored[moved], *there))
            elif field.name in origins.values():
                columns.append(pa.nulls(len(next(iter(stored.values()))), field.type))
            else:
                columns.append(convert(stored[field.name], field))
        return columns


def _declared(field: pa.Field, wanted: pa.Schema) -> pa.Field:
    """Return a column with the declared type that it has in `wanted`, and with its own comment."""
    if field.name not in wanted.names:
        return field
    comment = (field.metadata or {}).get(COMMENT)
    metadata = wanted.field(field.name).metadata or {}
    return field.with_metadata({**metadata, COMMENT: comment} if comment else metadata)


def _moves(stored: pa.Schema, wanted: pa.Schema, changed: Mapping[str, pa.DataType]) -> _Moves:
    """Return for each changed column the target of its older values, and its new type."""
    moves = {}
    for name, new in changed.items():
        old = stored.field(name).type
        moves[name] = (name if loses_nothing(old, new) else aside_name(name, old, stored, wanted), new)
    return moves


def aside_name(name: str, old: pa.DataType, stored: pa.Schema, wanted: pa.Schema) -> str:
    """Return the column for values of type `old`, which must not be a column of the table, now or with another type."""
    aside = f"{name}__{re.sub(r'[^a-z0-9]+', '_', str(old)).strip('_')}"
    used = {column.lower() for column in wanted.names}
    used.update(field.name.lower() for field in stored if field.name != aside or field.type != old)
    while aside.lower() in used:
        aside += "_"
    return aside


def loses_nothing(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether every value of `old` converts to `new` and back without a difference."""
    integers = pa.types.is_signed_integer(old)
    if pa.types.is_signed_integer(new):
        return bool(integers and old.bit_width < new.bit_width)
    if pa.types.is_decimal(new):
        integer_digits = new.precision - new.scale
        if integers:
            return bool(integer_digits >= _INTEGER_DIGITS[old.bit_width])
        return bool(pa.types.is_decimal(old) and old.scale <= new.scale and old.precision - old.scale <= integer_digits)
    if pa.types.is_string(new):
        return bool(integers or pa.types.is_decimal(old))
    return bool(old == pa.float32() and new == pa.float64())
