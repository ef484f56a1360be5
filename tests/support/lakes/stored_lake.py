"""A lake in an object store, fed without Spark, and read by another program than ours."""

from collections.abc import Sequence
from contextlib import ExitStack

import pyarrow as pa
from deltalake import DeltaTable

from tests.support.lakes.lakes import IDENTITY, batch
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable
from tests.support.servers.object_store import ENVIRONMENT, QUICK, FaultyStore
from tidemark.io.process.lake_config import LakeConfig
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.steps import Delivered
from tidemark.pipeline.storage.stores import open_lake

FOLDER = f"{DATABASE}/public/Orders"


class StoredLake:
    """A lake at `root`, and the store that it is in; what runs with it and a test does not end is in `running`."""

    def __init__(self, server: FaultyStore, root: str) -> None:
        self.server = server
        self.root = root
        self.running = ExitStack()
        open_lake(root, server.config, ENVIRONMENT, QUICK)

    def opened(self, config: LakeConfig | None = None) -> Lake:
        """Open the lake as a pipeline does."""
        return Lake(self.root, IDENTITY, shape_of, constants_of, config=config or self.server.config)

    def feed(self, items: Sequence[Delivered], lake: Lake | None = None) -> Lake:
        """Write the items that the lake lacks in one batch."""
        lake = lake or self.opened()
        later = [item for item in items if item.sequence > lake.positions.applied.sequence]
        if later:
            lake.apply(batch(later))
        return lake

    @property
    def options(self) -> dict[str, str]:
        """Return the options with which a program reads the lake."""
        return {
            "aws_endpoint": self.server.endpoint,
            "aws_region": "us-east-1",
            "aws_access_key_id": "reader",
            "aws_secret_access_key": "reader",
            "allow_http": "true",
        }

    def delta(self, folder: str) -> DeltaTable:
        """Open a Delta table of the lake."""
        return DeltaTable(f"{self.root}/{folder}", storage_options=self.options)

    def rows(self, folder: str) -> pa.Table:
        """Read a Delta table of the lake."""
        return pa.table(self.delta(folder).to_pyarrow_table())

    def check(self, table: ScriptedTable) -> None:
        """Check that the replica equals the source, and that the log has each change once."""
        replica = sorted(self.rows(f"{FOLDER}/replica").to_pylist(), key=repr)
        assert replica == table.expected()
        positions = self.rows(f"{FOLDER}/log").select(["_commit_lsn", "_ordinal"]).to_pylist()
        assert len(positions) == table.changes
        assert len({tuple(one.values()) for one in positions}) == table.changes


def changes(table: ScriptedTable, key: int) -> list[Delivered]:
    """Insert a row into the table and change it in one transaction; return the items."""
    begun = len(table.items)
    table.commit()
    table.insert({1: key, 2: "new", 3: None})
    table.update((key,), {2: f"changed {key}"})
    table.cut()
    return table.delivered()[begun:]
