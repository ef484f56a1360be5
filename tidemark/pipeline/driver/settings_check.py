"""Checks the settings of tables, at the start of a pipeline, against the tables that the lake contains."""

from collections.abc import Collection, Iterator

from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig
from tidemark.model.errors import ConfigError, TidemarkError
from tidemark.model.lsn import INVALID_OID
from tidemark.pipeline.lake.folders import REPLICA
from tidemark.pipeline.lake.lake_table import LakeTable
from tidemark.pipeline.lake.positions import TablePosition, TableState
from tidemark.pipeline.lake.row_identity import has_order


class BadTableSettings(ConfigError):
    """Settings that do not fit the table that they apply to."""

    hint = "correct the setting in [[lake.tables]], or write an entry for this table before it; nothing was changed"


def check_settings(config: LakeConfig, root: str, tables: Collection[TablePosition]) -> None:
    """Raise `BadTableSettings` if a table of the lake at `root` lacks a column that its settings name."""
    faults = [
        f"{table.qualified_name}: {fault} (pattern {settings.pattern})"
        for table in tables
        if table.relation != INVALID_OID and table.state is not TableState.DROPPED and table.replica.fault is None
        for settings in [config.settings_of(table.qualified_name)]
        if settings.cluster
        for fault in _faults(settings, f"{root}/{table.folder}/{REPLICA}")
    ]
    if faults:
        raise BadTableSettings("; ".join(faults))


def _faults(settings: LakeTableConfig, uri: str) -> Iterator[str]:
    try:
        replica = LakeTable(uri, "")
    except TidemarkError:
        return  # a damaged table must not stop the others; its next change reports it
    if not replica.exists:
        return
    schema = replica.schema
    for name in settings.cluster:
        if name not in schema.names:
            yield f"cluster names the column {name}, which it does not have; it has {', '.join(schema.names)}"
        elif not has_order(schema.field(name).type):
            yield f"cluster names the column {name}, whose type {schema.field(name).type} has no order"


def unmatched_patterns(config: LakeConfig, tables: Collection[TablePosition]) -> list[str]:
    """Return the patterns that apply to no table, as an earlier one matches first; none for a lake without tables."""
    used = {config.settings_of(table.qualified_name) for table in tables}
    return [one.pattern for one in config.tables if tables and one not in used]
