"""Creates the log of a table that has no change in the lake yet, so that earlier changes can be added to it.

It is created with the first of them, or with the report that there is none: a command that is refused leaves nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tidemark.io.process.lake_config import LakeConfig
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.lake.faults import LakeEntry
from tidemark.pipeline.lake.files.partitions import partition_columns
from tidemark.pipeline.lake.folders import LOG, LakeFolders, table_app
from tidemark.pipeline.lake.layout import Shapes
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition, TableState
from tidemark.pipeline.lake.tables.table_properties import source_properties
from tidemark.pipeline.lake.tables.writable_table import writable_table
from tidemark.pipeline.sinks.rows.logshape import log_schema
from tidemark.wire.state.values import Identity


@dataclass(frozen=True, slots=True, eq=False)
class NewLog:
    """A log that does not exist yet: `create` makes it, empty, and records the table."""

    table: TablePosition  # as long as there is no log
    create: Callable[[], TablePosition]


def new_log(
    root: str,
    positions: Positions,
    of: TableId,
    relation: Relation,
    applied: Applied,
    *,
    identity: Identity,
    databases: Mapping[Oid, str],
    shapes: Shapes,
    config: LakeConfig,
) -> NewLog:
    """Return the log of a table of which the lake has nothing; the lake has all changes up to `applied`."""
    capture, database = identity.capture, databases.get(of[0], str(of[0]))
    properties = source_properties(capture, identity.system_identifier, database, relation.qualified_name)
    folders = LakeFolders(root, capture, databases, positions.recorded, leaving=positions.leaving)
    folders.choose(of, relation)
    folder, partition = folders[of], config.settings_of(relation.qualified_name).partition
    table = TablePosition(
        database=of[0],
        relation=of[1],
        namespace=relation.namespace,
        name=relation.name,
        folder=folder,
        state=TableState.LIVE,
        sequence=applied.sequence,
        position=applied.position,
    )

    def create() -> TablePosition:
        log = writable_table(f"{root}/{folder}/{LOG}", table_app(capture, of, LOG), properties=properties)
        if not log.exists:
            schema = log_schema(relation, shapes(relation))
            log.create(schema, applied, partition=partition_columns(relation, partition))
        created = replace(table, log=LakeEntry(log.recorded))
        positions.write(positions.outbox, [created], applied)
        return created

    return NewLog(table, create)
