"""Opens a Delta table for its pipeline, which continues after a loss of power."""

from collections.abc import Mapping
from contextlib import suppress

from tidemark.model.errors import ConsumerFailed
from tidemark.pipeline.delta_log.lineage import Recorded
from tidemark.pipeline.delta_log.torn_files import set_torn_checkpoint_aside, set_torn_commit_aside
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.lake.tables.table_properties import NO_PROPERTIES


def writable_table(
    uri: str,
    app: str,
    recorded: Recorded | None = None,
    *,
    properties: Mapping[str, str] = NO_PROPERTIES,
    checkpoint_every: int | None = None,
) -> LakeTable:
    """Open a table as `LakeTable` does, without what a loss of power left incomplete (`delta_log.torn_files`)."""
    with suppress(OSError):  # opening the table reports them
        set_torn_commit_aside(uri, app, None if recorded is None else recorded.version)
    try:
        return LakeTable(uri, app, recorded, properties=properties, checkpoint_every=checkpoint_every)
    except ConsumerFailed:
        if not set_torn_checkpoint_aside(uri):
            raise
        return LakeTable(uri, app, recorded, properties=properties, checkpoint_every=checkpoint_every)
