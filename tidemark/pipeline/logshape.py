"""The columns of a change log through the life of its table.

A log only gains columns: one that was renamed or dropped stays, for the rows that have it. Where a type changes, older
values are converted if nothing can be lost by it, and else moved aside, to a column whose name ends in their type
(`price__decimal128_10_2`): what was written is never read as something that it was not.
"""

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model.relation import Relation
from tidemark.pipeline.failpoints import Failpoint, passed
from tidemark.pipeline.lake import LakeTable
from tidemark.pipeline.layout import convert, lake_columns

OLD = "_old"
META = pa.schema(
    [
        pa.field("_op", pa.string()),
        pa.field("_seq", pa.int64()),
        pa.field("_tli", pa.int32()),
        pa.field("_commit_lsn", pa.int64()),
        pa.field("_ordinal", pa.int64()),
        pa.field("_lsn", pa.int64()),
        pa.field("_xid", pa.int64()),
        pa.field("_commit_time", pa.timestamp("us", tz="UTC")),
        pa.field("_before_kind", pa.int8()),
        pa.field("_unchanged", pa.list_(pa.string())),
    ]
)
_INTEGER_DIGITS = {16: 5, 32: 10, 64: 19}


def log_schema(relation: Relation, columns: pa.StructType) -> pa.Schema:
    """Return the schema of log rows for `relation`, whose live columns are `columns` in Arrow."""
    fields = [pa.field(column.name, columns.field(column.place).type) for column in lake_columns(relation)]
    old = [pa.field(OLD, pa.struct(fields))] if fields else []  # Parquet has no empty struct
    return pa.schema([*META, *fields, *old])


def settle_types(table: LakeTable, wanted: pa.Schema) -> None:
    """Rewrite the log if a column of `wanted` has another type there; what it holds stays the same."""
    held = table.schema
    changed = {
        name: wanted.field(name).type
        for name in wanted.names
        if name != OLD and name in held.names and held.field(name).type != wanted.field(name).type
    }
    if not changed:
        return
    rows = _Retyped(held, changed)
    table.overwrite(pa.RecordBatchReader.from_batches(rows.schema, rows.batches(table.scan())), table.held)
    passed(Failpoint.LOG_RESHAPED)


class _Retyped:
    """The log's rows with some columns converted or moved aside, at the top and inside `_old` alike."""

    def __init__(self, held: pa.Schema, changed: dict[str, pa.DataType]) -> None:
        self._moves = _moves(held, changed)
        top = self._fields([field for field in held if field.name != OLD])
        nested = self._fields(list(held.field(OLD).type))
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

    def _fields(self, held: list[pa.Field]) -> list[pa.Field]:
        fields = {field.name: field for field in held}
        for name, (aside, new) in self._moves.items():
            if name in fields:
                if aside != name:
                    fields.setdefault(aside, pa.field(aside, fields[name].type))
                fields[name] = pa.field(name, new)
        return list(fields.values())

    def _columns(self, held: dict[str, pa.Array], wanted: list[pa.Field]) -> list[pa.Array]:
        origins = {aside: name for name, (aside, _) in self._moves.items() if aside != name}
        columns = []
        for field in wanted:
            moved = origins.get(field.name)
            if moved is not None and moved in held:
                there = [held[field.name]] if field.name in held else []
                columns.append(pc.coalesce(held[moved], *there))
            elif field.name in origins.values():
                columns.append(pa.nulls(len(next(iter(held.values()))), field.type))
            else:
                columns.append(convert(held[field.name], field))
        return columns


def _moves(held: pa.Schema, changed: dict[str, pa.DataType]) -> dict[str, tuple[str, pa.DataType]]:
    """Return for each changed column where its older values go, and its new type."""
    moves = {}
    for name, new in changed.items():
        old = held.field(name).type
        aside = name if loses_nothing(old, new) else f"{name}__{re.sub(r'[^a-z0-9]+', '_', str(old)).strip('_')}"
        moves[name] = (aside, new)
    return moves


def loses_nothing(old: pa.DataType, new: pa.DataType) -> bool:
    """Tell if every value of `old` is one of `new`, read back the same."""
    integers = pa.types.is_signed_integer(old)
    if pa.types.is_signed_integer(new):
        return bool(integers and old.bit_width < new.bit_width)
    if pa.types.is_decimal(new):
        whole = new.precision - new.scale
        if integers:
            return bool(whole >= _INTEGER_DIGITS[old.bit_width])
        return bool(pa.types.is_decimal(old) and old.scale <= new.scale and old.precision - old.scale <= whole)
    if pa.types.is_string(new):
        return bool(integers or pa.types.is_decimal(old))
    return bool(old == pa.float32() and new == pa.float64())
