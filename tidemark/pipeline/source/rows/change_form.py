"""Rows with the columns of the change log: the table's columns, or the old and the new row, and those of the change."""

from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model.change import AFTER, BEFORE, UNCHANGED, ChangeBatch, Truncation
from tidemark.pipeline.lake.layout import META, lake_columns, truncation_meta, unchanged_names
from tidemark.pipeline.source.options import RowColumns
from tidemark.pipeline.source.rows.exact_values import exactly
from tidemark.pipeline.source.rows.query_table import QueryTable
from tidemark.pipeline.source.rows.row_form import TableColumns

SEQUENCE = "_seq"
TABLE = "_table"


def change_fields(table: QueryTable, columns: RowColumns) -> list[pa.Field]:
    """Return all columns of the form."""
    row = pa.struct(table.fields)
    sides = [pa.field(BEFORE, row), pa.field(AFTER, row)] if columns is RowColumns.BEFORE_AFTER else table.fields
    names = [pa.field(TABLE, pa.string())] if table.names_tables else []
    return [*sides, *META, *names]


@dataclass(frozen=True)
class ChangeForm:
    """The form of `RowColumns.AFTER` and `RowColumns.BEFORE_AFTER`: the names of their columns do not overlap.

    A deleted row has the known part of its old values in the table's columns.
    """

    table: QueryTable
    wanted: pa.Schema
    _columns: TableColumns = field(init=False)
    is_complete: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "_columns", TableColumns(self.table))

    def fields_of(self, table: QueryTable) -> list[pa.Field]:
        """Return all columns that the form has for a table."""
        return change_fields(table, RowColumns.BEFORE_AFTER if self._has_sides else RowColumns.AFTER)

    def rows(self, batch: ChangeBatch, sequence: int) -> pa.RecordBatch:
        """Return the rows of a batch; raise `UnfitValues` if a value does not fit the type of its column."""
        rows, values = batch.rows, self._values(batch)
        arrays = []
        for name in self.wanted.names:
            if name in values:
                arrays.append(values[name])
            elif name in (BEFORE, AFTER):
                arrays.append(self._columns.struct(batch, name))
            elif name == SEQUENCE:
                arrays.append(pa.repeat(pa.scalar(sequence, pa.int64()), len(rows)))
            elif name == UNCHANGED:
                arrays.append(unchanged_names(pa.table(rows), lake_columns(batch.relation)))
            elif name == TABLE:
                arrays.append(pa.repeat(batch.relation.qualified_name, len(rows)))
            else:
                arrays.append(rows.column(name))
        return pa.RecordBatch.from_arrays(arrays, schema=self.wanted)

    def truncation(self, event: Truncation, sequence: int) -> pa.RecordBatch:
        """Return the row of a TRUNCATE, which has no values of the table; that of a partition has its `tableoid`."""
        row: dict[str, object] = {**truncation_meta(event, sequence), TABLE: event.relation.qualified_name}
        partition = self._columns.partition(event)
        row |= {BEFORE: partition or None} if self._has_sides else partition
        return pa.RecordBatch.from_pylist([row], schema=self.wanted)

    @property
    def _has_sides(self) -> bool:
        """Return whether the columns are those of `RowColumns.BEFORE_AFTER`; no column of a table is a struct."""
        return any(pa.types.is_struct(one.type) for one in self.wanted)

    def _values(self, batch: ChangeBatch) -> dict[str, pa.Array]:
        """Return the wanted columns of the table."""
        old, new = batch.rows.column(BEFORE), batch.rows.column(AFTER)
        is_deleted = new.is_null() if new.null_count else None
        found = {}
        for column, origin in self._columns.origins(batch.database, batch.relation):
            if column.name not in self.wanted.names:
                continue
            if origin is None:
                found[column.name] = pa.nulls(len(new), column.type)
                continue
            values = pc.struct_field(new, [origin.index])
            if is_deleted is not None:
                values = pc.if_else(is_deleted, pc.struct_field(old, [origin.index]), values)
            found[column.name] = exactly(values, column)
        return found
