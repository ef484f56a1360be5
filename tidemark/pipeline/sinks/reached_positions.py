"""The positions that tables have reached with a batch, from the outcomes of their writes."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tidemark.io.process.lake_config import LakeConfig
from tidemark.model.lsn import INVALID_OID, Oid
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.lake.folders import MESSAGES, LakeFolders
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition, TableState
from tidemark.pipeline.sinks.batch_writes import BatchOutcomes
from tidemark.pipeline.sinks.lake_batch import SplitBatch, latest_relation
from tidemark.pipeline.sinks.steps import Delivered
from tidemark.pipeline.sinks.table_writes import TableWrites
from tidemark.pipeline.sinks.targets.table_states import breaks_after, dropped_us, fault_state, state_after
from tidemark.pipeline.sinks.targets.targets import Outcome


class ReachedPositions:
    """The positions of one lake's tables, as the next write of `_positions` records them."""

    def __init__(self, positions: Positions, folders: LakeFolders, writes: TableWrites, config: LakeConfig) -> None:
        self._positions = positions
        self._folders = folders
        self._writes = writes
        self._config = config

    def of_batch(
        self, split: SplitBatch, outcomes: BatchOutcomes, whole: SplitBatch, applied: Applied
    ) -> list[TablePosition]:
        """Return the positions after the `outcomes` of a batch with which the lake reaches `applied`.

        `whole`: the batch with the items that only report the capture of a table.
        """
        reached = [
            self.of_table(of, items, *outcomes.tables[of], whole.tables.get(of, ()))
            for of, items in split.tables.items()
        ]
        reached += [self.of_messages(of, outcome) for of, outcome in outcomes.messages.items()]
        # NB: after a crash, a table without items may be ahead; it is recorded with its next changes. All recorded
        # positions belong to one moment of the source.
        idle = {of for of, items in split.tables.items() if not items}
        idle |= {(of, INVALID_OID) for of, items in split.messages.items() if not items}
        ahead = {of for of in idle if of in whole.tables}
        return [
            table if of not in ahead else replace(self._positions.tables[of], breaks=table.breaks)
            for table in reached
            if (of := (table.database, table.relation)) not in idle or of in ahead or table.position <= applied.position
        ]

    def of_table(
        self,
        table: TableId,
        items: Sequence[Delivered],
        log: Outcome,
        replica: Outcome,
        reported: Sequence[Delivered],
    ) -> TablePosition:
        """Return the position of a table after its `items`; `reported`: with those that only report its capture."""
        known = self._positions.tables.get(table)
        applied = max(log.applied, replica.applied, key=lambda applied: applied.position)
        state = state_after(items, log, replica, known)
        reached = TablePosition(
            database=table[0],
            relation=table[1],
            namespace=known.namespace if known else "",
            name=known.name if known else "",
            folder=self._folders[table],
            state=state,
            sequence=applied.sequence,
            position=applied.position,
            generation=applied.generation,
            log=log.target,
            replica=replica.target,
            breaks=breaks_after(known, log, reported),
            dropped_us=dropped_us(items, state, known),
            pinned=self._writes.pinned(table, items, (log, replica)),
        )
        if not items:
            return reached
        relation = latest_relation(items)
        return replace(reached, namespace=relation.namespace, name=relation.name)

    def of_messages(self, database: Oid, log: Outcome) -> TablePosition:
        """Return the position of the messages of a database."""
        return TablePosition(
            database=database,
            relation=INVALID_OID,
            namespace="",
            name=MESSAGES,
            folder=self._folders[database, INVALID_OID],
            state=fault_state(log) or TableState.LIVE,
            sequence=log.applied.sequence,
            position=log.applied.position,
            log=log.target,
            breaks=breaks_after(self._positions.tables.get((database, INVALID_OID)), log),
        )

    def with_settings(self, tables: Iterable[TablePosition]) -> list[TablePosition]:
        """Return tables with their present settings, which a command compares with its own."""
        return [self._with_settings(table) for table in tables]

    def _with_settings(self, table: TablePosition) -> TablePosition:
        if table.relation == INVALID_OID:
            return table
        settings = self._config.settings_of(table.qualified_name).contents
        return table if table.settings == settings else replace(table, settings=settings)
