"""A replica in a folder beside the scripted table that it follows, fed in pieces."""

from pathlib import Path

from deltalake import DeltaTable

from tests.support.lakes.scripted_table import DATABASE, ScriptedTable, Value
from tidemark.decode.types.registry import UTF8
from tidemark.model.change import RewriteBoundary, SchemaChange, SchemaEffect, SchemaEvent
from tidemark.model.lsn import INVALID_OID, Lsn, Oid, Xid
from tidemark.model.relation import Relation
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.sinks.replica.replica import UNKEYED, Replica
from tidemark.pipeline.sinks.steps import TableItem

APP = "tidemark:test:replica"
AT, XID = Lsn(950), Xid(7)
Rows = list[dict[str, Value]]


class ScriptedReplica:
    """A replica and its source table."""

    def __init__(self, root: Path, table: ScriptedTable) -> None:
        self.table = table
        self.uri = str(root / "replica")
        self.replica = Replica(self.uri, APP, shape_of, constants_of, UTF8)
        self._applied = 0

    def feed(self) -> LakeTable:
        """Apply the new changes, and then all of them again."""
        found = self.apply()
        version = found.version
        again = self.replica.apply(self.table.delivered())
        assert again.version == version, "applied changes make no commit"
        return again

    def apply(self) -> LakeTable:
        items = self.table.delivered()
        applied, self._applied = self._applied, len(items)
        return self.replica.apply(items[applied:])

    def happens(self, event: TableItem) -> None:
        self.table.add_event(event)

    @property
    def exists(self) -> bool:
        return DeltaTable.is_deltatable(self.uri)

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(self.uri)

    @property
    def rows(self) -> Rows:
        return sorted(self.delta.to_pyarrow_table().to_pylist(), key=repr)

    def assert_equal(self) -> None:
        assert self.rows == self.table.expected()


def boundary(fed: ScriptedReplica, *, begin: bool, partition: Oid = INVALID_OID) -> None:
    at = fed.table.next_position()
    fed.happens(RewriteBoundary(at, AT, DATABASE, XID, fed.table.relation, begin, partition))


def schema_event(
    fed: ScriptedReplica,
    before: Relation | None,
    after: Relation | None,
    effect: SchemaEffect = SchemaEffect.METADATA,
    *,
    brings_rows: bool = False,
) -> None:
    change = SchemaChange.CREATE if before is None else SchemaChange.DROP if after is None else SchemaChange.ALTER
    at = fed.table.next_position()
    fed.happens(SchemaEvent(at, AT, DATABASE, XID, change, effect, before, after, brings_rows))


def unkeyed_table(fed: ScriptedReplica) -> LakeTable:
    return LakeTable(f"{fed.uri}-{UNKEYED}", f"{APP}-{UNKEYED}")
