"""Makes the replica of a table whole that was never copied: it has only the rows that changed since it was selected.

The rows come from the log, if that shows the table from its creation or a TRUNCATE on, or from a base backup. They
replace those of the replica in one commit.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tidemark.io.process.lake_config import LakeTableConfig, Written
from tidemark.model.position import Position
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.lake.faults import FaultKind, LakeEntry
from tidemark.pipeline.lake.folders import REPLICA, table_app
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.lake.tables.table_properties import source_properties
from tidemark.pipeline.lake.tables.writable_table import writable_table
from tidemark.pipeline.replay.moment import EndOfLake
from tidemark.pipeline.replay.replaying import replay
from tidemark.pipeline.replay.result_target import FolderTarget
from tidemark.wire.state.values import Identity

LAST_ORDINAL = (1 << 63) - 1  # of a position after everything in its transaction: as stored, 64 bits with a sign

MakeRows = Callable[[FolderTarget], int]
"""Writes all rows of the table to a target, and returns their number; raises `ConfigError` if it cannot tell them."""


@dataclass(frozen=True, slots=True, eq=False)
class WholeReplica:
    """The replica of a table, whose log contains all changes of the table in the lake."""

    root: str
    identity: Identity
    database: str  # its name
    positions: Positions
    table: TablePosition
    settings: LakeTableConfig

    def obstacle(self) -> str:
        """Return why the replica stays as it is; "" if it may be replaced."""
        fault = self.table.replica.fault
        if self.settings.write is Written.LOG:
            return "write = 'log' in [[lake.tables]]"
        if self.table.generation:
            return f"it comes from the first copy of the table (generation {self.table.generation})"
        if self.table.state is TableState.DROPPED:
            return "the table was dropped"
        if fault is not None and fault.kind is not FaultKind.DEFERRED:
            return f"it is {fault.kind.value}: {fault.reason}"
        if self.settings.soft_deletes:
            return "soft_deletes keeps deleted rows in it, and their times of deletion are unknown"
        return ""

    def from_log(self, to: FolderTarget) -> int:
        """Write the rows that follow from the log; raise `ReplayRefused`. See `MakeRows`."""
        return replay(OpenedLake(self.root), self.table, EndOfLake(), to, self.settings.merge_rows).rows

    def replaced(self, make: MakeRows, through: Position | None = None) -> tuple[TablePosition, int]:
        """Replace the rows of the replica by those that `make` writes; return the table's position, and their number.

        They are first in a folder of temporary files. They contain everything up to `through`; None: what the log has.
        """
        with TemporaryDirectory(prefix="tidemark-replica-") as folder:
            result = Path(folder) / REPLICA
            rows = make(FolderTarget(result))
            return self._put(LakeTable(str(result), ""), through), rows

    def _put(self, made: LakeTable, through: Position | None) -> TablePosition:
        of = (self.table.database, self.table.relation)
        uri, app = f"{self.root}/{self.table.folder}/{REPLICA}", table_app(self.identity.capture, of, REPLICA)
        source = source_properties(
            self.identity.capture, self.identity.system_identifier, self.database, self.table.qualified_name
        )
        replica = writable_table(uri, app, self.table.replica.recorded, properties=source)
        reached = max(self.table.position, replica.applied.position)
        applied = Applied(self.positions.applied.sequence, reached if through is None else max(reached, through))
        if not replica.exists:
            named = [name for name in self.settings.partition if name in made.schema.names]
            replica.create(made.schema, applied, partition=named)
        replica.overwrite(made.scan(), applied)
        return replace(self.table, replica=LakeEntry(replica.recorded), state=TableState.LIVE, position=reached)
