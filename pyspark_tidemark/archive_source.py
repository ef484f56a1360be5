"""The format `tidemark.archive` of Spark: the changes of a table in archived WAL, as the table was at the end.

spark.read.format("tidemark.archive").options(archive=FOLDER, state=FOLDER, table="public.account")
"""

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_tidemark.archive_options import ARCHIVE_FORMAT, ArchiveOptions
from pyspark_tidemark.archive_reader import ArchiveReader, PlannedArchive
from pyspark_tidemark.backup_state import with_state
from tidemark.decode.transactions.schema_changes import is_captured
from tidemark.io.state.history_files import ignore_damaged_base
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError, StateError
from tidemark.pipeline.source.format import spark_schema, spark_type
from tidemark.pipeline.source.options import RowColumns
from tidemark.pipeline.source.remedies import stating_remedies
from tidemark.pipeline.source.rows.change_form import SEQUENCE, change_fields
from tidemark.pipeline.source.rows.query_table import QueryTable, find_table
from tidemark.runtime.replay.range_start import catalogs_at
from tidemark.wire.relations import SchemaVersion


class ArchiveSource(DataSource):
    """The data source `tidemark.archive`."""

    _planned: tuple[PlannedArchive, QueryTable] | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return ARCHIVE_FORMAT

    @stating_remedies()
    def schema(self) -> StructType:
        """Return the columns of the table at the end of the WAL, and those of the change."""
        _, table = self._plan(self._parsed())
        return spark_schema(pa.schema(_fields(table)))

    @stating_remedies()
    def reader(self, schema: StructType) -> ArchiveReader:
        """Return the reader of one query."""
        options = self._parsed()
        planned, table = self._plan(options)
        fields = {field.name: field for field in _fields(table)}
        for column in schema.fields:
            found = fields.get(column.name)
            if found is None or spark_type(found) != column.dataType.simpleString():
                raise ConfigError(
                    f"table {options.table!r} has no column {column.name} of type {column.dataType.simpleString()}",
                    hint=f"the columns are {', '.join(fields)}",
                )
        return ArchiveReader(options, planned, table, pa.schema([fields[name] for name in schema.names]))

    def _parsed(self) -> ArchiveOptions:
        return with_state(ArchiveOptions.parse(dict(self.options)))

    def _plan(self, options: ArchiveOptions) -> tuple[PlannedArchive, QueryTable]:
        planned = PlannedArchive.open(options)
        return planned, _table_of(options, planned)


def _fields(table: QueryTable) -> list[pa.Field]:
    """Return the columns of a query: those of the format `tidemark`, without the place in an outbox."""
    return [field for field in change_fields(table, RowColumns.AFTER) if field.name != SEQUENCE]


def _table_of(options: ArchiveOptions, planned: PlannedArchive) -> QueryTable:
    """Return the table as it was at the end of the mapped WAL."""
    kept, view = planned.mapped.kept, planned.view
    end_lsn = kept.transactions.end_lsn if planned.to_lsn is None else min(planned.to_lsn, kept.transactions.end_lsn)
    base = catalogs_at(view, StateFolder(options.state_folder).history, kept, end_lsn, ignore_damaged_base)
    if view.beginning is None:
        raise StateError("the state has no catalog base", hint="complete it with cdcctl init")
    found = [(oid, relation) for oid, mirror in base.mirrors.items() for relation in mirror.relations()]
    captured = [each for each in found if is_captured(each[1])]
    versions = {SchemaVersion(number): each for number, each in enumerate(captured, 1)}
    return find_table(options.table, versions, view.beginning.databases, view.beginning.types)
