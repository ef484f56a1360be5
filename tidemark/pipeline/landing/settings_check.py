"""Checks the settings of tables, at the start of a pipeline, against the lake, and for other tables the source."""

from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa

from tidemark.io.host.logs import Log, describe_error
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig
from tidemark.model.errors import ConfigError, StateError, TidemarkError
from tidemark.model.lsn import INVALID_OID
from tidemark.model.relation import Relation
from tidemark.pipeline.lake.deletion_marks import MARK_NAMES
from tidemark.pipeline.lake.files.partitions import partition_fault
from tidemark.pipeline.lake.folders import REPLICA
from tidemark.pipeline.lake.layout import lake_columns, shape_of
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition, TableState
from tidemark.pipeline.lake.row_identity import has_order, row_identity
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.landing.capture_port import CapturePort
from tidemark.pipeline.storage.store_errors import StoreUnavailable


class BadTableSettings(ConfigError):
    """Settings that do not fit the table that they apply to."""

    hint = "correct the setting in [[lake.tables]], or write an entry for this table before it; nothing was changed"


def check_settings(config: LakeConfig, root: str, tables: Collection[TablePosition]) -> None:
    """Raise `BadTableSettings` if a table of the lake at `root` does not fit its settings."""
    _refuse(
        (table.qualified_name, settings, _replica_faults(settings, f"{root}/{table.folder}/{REPLICA}"))
        for table in tables
        if table.relation != INVALID_OID and table.state is not TableState.DROPPED and table.replica.fault is None
        for settings in [config.settings_of(table.qualified_name)]
    )


def check_source(config: LakeConfig, capture: CapturePort, known: Collection[TableId], log: Log) -> None:
    """Raise `BadTableSettings` if a captured table that the lake does not know yet does not fit its settings."""
    if not _names_columns(config):
        return  # reading the catalog history takes time and memory
    try:
        source = capture.captured_tables()
    except StateError as error:
        log.warning("the settings of tables that are new to the lake are not checked", **describe_error(error))
        return
    _refuse(
        (relation.qualified_name, settings, _source_faults(settings, relation))
        for of, relation in source.items()
        if of not in known
        for settings in [config.settings_of(relation.qualified_name)]
    )


def _names_columns(config: LakeConfig) -> bool:
    """Return whether a setting depends on the columns of a table."""
    return any(one.cluster or one.partition or one.soft_deletes for one in config.tables)


def _refuse(checks: Iterator[tuple[str, LakeTableConfig, Iterator[str]]]) -> None:
    faults = [f"{name}: {fault} (pattern {settings.pattern})" for name, settings, found in checks for fault in found]
    if faults:
        raise BadTableSettings("; ".join(faults))


def _replica_faults(settings: LakeTableConfig, uri: str) -> Iterator[str]:
    if not settings.cluster and not settings.partition:
        return
    try:
        replica = LakeTable(uri, "")
    except StoreUnavailable:
        raise  # the start waits, and checks again
    except TidemarkError:
        return  # a damaged table must not stop the others; its next change reports it
    if replica.exists:
        yield from _column_faults(settings, {field.name: field.type for field in replica.schema})


def _source_faults(settings: LakeTableConfig, relation: Relation) -> Iterator[str]:
    shape, live = shape_of(relation), relation.live_columns
    columns = {live[column.index].name: shape.field(column.index).type for column in lake_columns(relation)}
    yield from _column_faults(settings, columns)
    if settings.soft_deletes:
        identity = row_identity(relation)
        if identity is not None and identity.is_whole_row:
            yield "soft_deletes needs a key, and it has none"
        yield from (f"soft_deletes adds the column {name}, which it has" for name in columns if name in MARK_NAMES)


def _column_faults(settings: LakeTableConfig, columns: Mapping[str, pa.DataType]) -> Iterator[str]:
    for name in settings.cluster:
        if name not in columns:
            yield f"cluster names the column {name}, which it does not have; it has {', '.join(columns)}"
        elif not has_order(columns[name]):
            yield f"cluster names the column {name}, whose type {columns[name]} has no order"
    yield from filter(None, (partition_fault(name, columns) for name in settings.partition))


def unmatched_patterns(config: LakeConfig, tables: Collection[TablePosition]) -> list[str]:
    """Return the patterns that apply to no table, as an earlier one matches first; none for a lake without tables."""
    used = {config.settings_of(table.qualified_name) for table in tables}
    return [one.pattern for one in config.tables if tables and one not in used]
