"""The format `tidemark` of Spark, for streams (`readStream`) and for the present contents of the outbox (`read`).

With the option `table`, a row is a change of the table with the table's own types; without it, a value of the outbox.
"""

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StructField, StructType

from tidemark.model.errors import ConfigError
from tidemark.pipeline.source.batch import OutboxBatchReader
from tidemark.pipeline.source.captured_databases import CapturedDatabases
from tidemark.pipeline.source.contents import Contents
from tidemark.pipeline.source.opened_outbox import open_outbox
from tidemark.pipeline.source.options import FORMAT, Evolution, RowColumns, SourceOptions
from tidemark.pipeline.source.remedies import stating_remedies
from tidemark.pipeline.source.rows.change_form import ChangeForm, change_fields
from tidemark.pipeline.source.rows.envelope_form import EnvelopeForm, envelope_fields
from tidemark.pipeline.source.rows.query_table import QueryTable, find_table
from tidemark.pipeline.source.rows.row_contents import RowContents
from tidemark.pipeline.source.rows.row_form import RowForm
from tidemark.pipeline.source.rows.unread_columns import fit_to_unread
from tidemark.pipeline.source.stream import OutboxStreamReader
from tidemark.pipeline.source.value_contents import SCHEMA, ValueContents


class OutboxSource(DataSource):
    """The data source `tidemark`."""

    _table: QueryTable | None = None  # as it was when Spark asked for the columns
    _is_behind = False  # its columns are not the newest ones

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    @stating_remedies()
    def schema(self) -> StructType:
        """Return the columns. Spark does not ask if the caller gave them (`.schema(...)`)."""
        options = self._options()
        if options.table is None or options.columns is RowColumns.RAW:
            return spark_schema(SCHEMA)
        self._table = self._find(options)
        if options.evolution is Evolution.RESTART and options.reader is not None:
            self._table = self._fit_to_unread(self._table, options, options.reader)
        return spark_schema(pa.schema(fields_of(self._table, options.columns)))

    @stating_remedies()
    def reader(self, schema: StructType) -> OutboxBatchReader:
        """Return the reader of one batch query."""
        options = self._options()
        if self._is_behind:
            raise ConfigError(
                f"with schemaEvolution=restart, table {options.table!r} has the columns of the rows that reader "
                f"{options.reader!r} has not read, and later rows have others: only a stream continues with these",
                hint="leave schemaEvolution=restart out, or read a stream",
            )
        return OutboxBatchReader(options, self._contents(options, schema))

    @stating_remedies()
    def streamReader(self, schema: StructType) -> OutboxStreamReader:  # noqa: N802 - Spark's name, by keyword
        """Return the reader of one streaming query."""
        options = self._options()
        if options.table is not None and options.reader is None:
            raise ConfigError(
                f"a stream of table {options.table!r} requires the option reader",
                hint="name the query: the outbox keeps what its reader has not confirmed (`cdcctl reader list`)",
            )
        return OutboxStreamReader(options, self._contents(options, schema))

    def _options(self) -> SourceOptions:
        return SourceOptions.parse(dict(self.options))

    def _contents(self, options: SourceOptions, schema: StructType) -> Contents:
        if options.table is None:
            return ValueContents()
        table = self._table or self._find(options)
        if options.columns is RowColumns.RAW:
            return ValueContents(table=table)
        fields = {field.name: field for field in fields_of(table, options.columns)}
        for column in schema.fields:
            found = fields.get(column.name)
            wanted = column.dataType.simpleString()
            if found is None or spark_type(found) != wanted:
                has = f"is {spark_type(found)}" if found is not None else "does not exist"
                raise ConfigError(
                    f"column {column.name} of table {options.table!r} {has}, but the query requires {wanted}",
                    hint=f"the columns are {', '.join(fields)}",
                )
        chosen = pa.schema([fields[name] for name in schema.names])
        form = self._form(options, table, chosen)
        is_chosen = self._table is None and options.columns is RowColumns.AFTER  # other forms have the table in structs
        return RowContents(form, options.evolution, frozenset(schema.names) if is_chosen else None)

    @staticmethod
    def _form(options: SourceOptions, table: QueryTable, chosen: pa.Schema) -> RowForm:
        if options.columns is not RowColumns.DEBEZIUM:
            return ChangeForm(table, chosen)
        from importlib.metadata import version  # noqa: PLC0415 - no other query needs it

        outbox = open_outbox(options)
        return EnvelopeForm(
            table, chosen, outbox.identity.capture, version("tidemark"), dict(CapturedDatabases(outbox))
        )

    def _fit_to_unread(self, table: QueryTable, options: SourceOptions, reader: str) -> QueryTable:
        outbox = open_outbox(options)
        registered = outbox.registered(reader)
        after = options.start.find(outbox) if registered is None else registered.start(registered.applied)
        fit = fit_to_unread(table, outbox, after)
        self._is_behind = fit is not table
        return fit

    @staticmethod
    def _find(options: SourceOptions) -> QueryTable:
        assert options.table is not None
        outbox = open_outbox(options)
        databases = CapturedDatabases(outbox)
        return find_table(options.table, outbox.relations(), databases, databases.types)


def fields_of(table: QueryTable, columns: RowColumns) -> list[pa.Field]:
    """Return all columns that a query of a table can have."""
    return envelope_fields(table) if columns is RowColumns.DEBEZIUM else change_fields(table, columns)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the columns in Spark's types, as `docs/types.md` has them."""
    return StructType([StructField(field.name, _type(field), nullable=True) for field in schema])


def spark_type(field: pa.Field) -> str:
    """Return the type of a column as Spark prints it."""
    return _type(field).simpleString()


def _type(field: pa.Field) -> DataType:
    return from_arrow_type(field.type, prefer_timestamp_ntz=True)
