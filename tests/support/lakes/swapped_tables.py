"""A lake of one table that changes, and of others that are created, filled and dropped."""

from collections.abc import Sequence
from pathlib import Path

from deltalake import DeltaTable

from tests.support.lakes.lakes import IDENTITY, batch
from tests.support.lakes.scripted_table import DATABASE, RELATION, ScriptedTable
from tidemark.io.process.lake_config import DEFAULT_LAKE, LakeConfig
from tidemark.model.change import SchemaChange, SchemaEffect
from tidemark.model.lsn import Oid
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.positions import FOLDER as POSITIONS
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.steps import Delivered, TableItem


class SwappedTables:
    """A lake of one table that changes, and of others that are created and dropped."""

    def __init__(self, root: Path | str, config: LakeConfig = DEFAULT_LAKE, *, is_dated: bool = False) -> None:
        """With `is_dated` the tables were dropped in 1970."""
        self.root, self.config, self._is_dated = str(root), config, is_dated
        self.live = ScriptedTable(oid=Oid(RELATION + 100_000), name="live", lsn=10_000)
        self._sequence = self._reported = 0
        self._lsn = 10_000
        self.dropped: list[ScriptedTable] = []
        self.lake = self.opened()
        self.change()

    def opened(self) -> Lake:
        return Lake(self.root, IDENTITY, shape_of, constants_of, config=self.config)

    def reopen(self) -> None:
        """Open the lake as after a restart."""
        self.lake = self.opened()

    def numbered(self, items: Sequence[TableItem]) -> list[Delivered]:
        """Return items with the next numbers of the outbox."""
        found = [Delivered(OutboxSequence(self._sequence + at), item) for at, item in enumerate(items, 1)]
        self._sequence += len(items)
        return found

    def change(self) -> None:
        """Write a batch with one change."""
        self._lsn += 100
        self.live.commit(self._lsn)
        self.live.insert({1: self._lsn, 2: "new", 3: None})
        self.live.cut()
        self.lake.apply(batch(self.numbered(self.live.items[self._reported :])))
        self._reported = len(self.live.items)

    def swap(self, count: int) -> None:
        """Write a batch with tables that are created and dropped."""
        items: list[TableItem] = []
        for _ in range(count):
            self._lsn += 100
            table = ScriptedTable(
                oid=Oid(RELATION + len(self.dropped)), name="stage", lsn=self._lsn, is_dated=self._is_dated
            )
            table.insert({1: 1, 2: "a", 3: None})
            table.cut()
            table.schema_event(SchemaChange.DROP, SchemaEffect.METADATA, table.relation, None)
            items += table.items
            self.dropped.append(table)
        self.lake.apply(batch(self.numbered(items)))

    def folder(self, table: ScriptedTable) -> str:
        """Return the folder of a table below the lake's root."""
        return self.lake.positions.recorded[DATABASE, table.oid].folder

    def create_again(self, table: ScriptedTable) -> list[Delivered]:
        """Return the items with which a dropped table exists again, under its OID, with one more row."""
        self._lsn += 100
        table.commit(self._lsn)
        table.schema_event(SchemaChange.CREATE, SchemaEffect.METADATA, None, table.relation)
        table.insert({1: 2, 2: "again", 3: None})
        table.cut()
        return self.numbered(table.items[-2:])

    def states(self) -> dict[str, int]:
        """Return how many tables are in which state, as another program reads `_positions`."""
        rows = DeltaTable(f"{self.root}/{POSITIONS}").to_pyarrow_table().to_pylist()
        assert len({(row["database"], row["relation"]) for row in rows}) == len(rows), "a table is there twice"
        states = [row["state"] for row in rows if row["database"]]
        return {state: states.count(state) for state in states}

    def files(self) -> dict[str, int]:
        """Return the files of `_positions`, with their sizes."""
        paths = DeltaTable(f"{self.root}/{POSITIONS}").file_uris()
        return {path: Path(path).stat().st_size for path in paths}
