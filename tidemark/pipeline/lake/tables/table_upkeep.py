"""Changes of one Delta table that leave its rows and its position: properties and files."""

from itertools import islice

import pyarrow as pa

from tidemark.pipeline.lake.files.file_format import FILE_BYTES, SAMPLE_ROWS, properties_for
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.lake.tables.table_properties import table_properties


def forget_files(table: LakeTable, hours: int = 0) -> None:
    """Delete the files that no row has needed for `hours`; use 0 only for tables without other readers."""
    with table.reading():
        table.delta.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False)
        table.make_durable()


def compact(table: LakeTable, keep_hours: int) -> None:
    """Combine small files, and delete those that no row has needed for `keep_hours`."""
    with table.reading():
        sample = pa.Table.from_batches(islice(table.scan(), 1), table.schema).slice(0, SAMPLE_ROWS)
        table.delta.optimize.compact(target_size=FILE_BYTES, writer_properties=properties_for(sample))
    set_properties(table, keep_hours)
    forget_files(table, keep_hours)


def set_properties(table: LakeTable, keep_hours: int) -> None:
    """Set differing properties: another version of Tidemark may have created the table."""
    wanted = {**table_properties(keep_hours), **table.properties}
    configuration = table.delta.metadata().configuration
    changed = {name: value for name, value in wanted.items() if configuration.get(name) != value}
    if changed:
        with table.committing(table.applied) as properties:
            table.delta.alter.set_table_properties(changed, raise_if_not_exists=False, commit_properties=properties)


def record_property(table: LakeTable, name: str, value: str) -> None:
    """Set one property; the position remains."""
    with table.committing(table.applied) as properties:
        table.delta.alter.set_table_properties({name: value}, raise_if_not_exists=False, commit_properties=properties)
