"""Converts the changes of a table to rows with the columns of a query."""

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidemark.model.change import ChangeBatch, Truncation
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation
from tidemark.pipeline.lake.layout import LakeColumn, lake_columns
from tidemark.pipeline.source.rows.exact_values import exactly
from tidemark.pipeline.source.rows.query_table import QueryTable


class RowForm(Protocol):
    """Converts change batches to record batches with the columns `wanted`, in that order."""

    @property
    def table(self) -> QueryTable:
        """Return the table."""

    @property
    def wanted(self) -> pa.Schema:
        """Return the columns of the query."""

    def fields_of(self, table: QueryTable) -> list[pa.Field]:
        """Return all columns that the form has for a table."""

    def rows(self, batch: ChangeBatch, sequence: int) -> pa.RecordBatch:
        """Return the rows of a batch; raise `UnfitValues` if a value does not fit the type of its column."""

    @property
    def is_complete(self) -> bool:
        """Return whether the query has the rows that DDL rewrote, and the timeline of each row."""

    def truncation(self, event: Truncation, sequence: int) -> pa.RecordBatch:
        """Return the row of a TRUNCATE, of the table or of one of its partitions."""


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Finds the columns of a table in the rows of its versions, and converts them."""

    table: QueryTable

    def struct(self, batch: ChangeBatch, side: str, taken: pa.Array | None = None) -> pa.Array:
        """Return the old or the new rows as a struct; `taken` are the indices of rows, NULL for none."""
        rows = batch.rows.column(side)
        if taken is not None:
            rows = rows.take(taken)
        values = []
        for field, origin in self.origins(batch.database, batch.relation):
            column = pa.nulls(len(rows), field.type) if origin is None else rows.field(origin.index)
            values.append(exactly(column, field))
        return pa.StructArray.from_arrays(values, fields=self.table.fields, mask=rows.is_null())

    def partition(self, event: Truncation) -> dict[str, int]:
        """Return the column that names the partition of a TRUNCATE, with its value; {} for the whole table."""
        name = self.table.partition_column
        return {name: event.partition} if event.partition and name is not None else {}

    def origins(self, database: Oid, relation: Relation) -> list[tuple[pa.Field, LakeColumn | None]]:
        """Return for each column of the table the column of a version: after a rename the one with its number."""
        theirs = lake_columns(relation)
        if (database, relation.oid) == self.table.described_by:
            by_number = {column.number: column for column in theirs}
            found = [by_number.get(column.number) for column in self.table.columns]
        else:
            by_name = {column.name: column for column in theirs}
            found = [by_name.get(column.name) for column in self.table.columns]
        return list(zip(self.table.fields, found, strict=True))
