"""A lake that is created after the outbox lost its first values begins with the oldest one, and says what it lacks."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.support.lakes.lakes import IDENTITY, log_rows, replica_rows
from tests.support.lakes.scripted_table import DATABASE, RELATION, ScriptedTable
from tests.support.processes.spark import land
from tests.support.workloads.feeder import feed, group_of, make_state
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import SchemaChange, SchemaEffect
from tidemark.model.lsn import Oid
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState


class LateLake:
    """Two lakes of one state: the second one is created when the outbox lacks the values of the first batch."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self._spark = spark
        self._root = root
        self.state = root / "state"
        make_state(self.state)
        self.table = ScriptedTable(name="early")
        self.other = ScriptedTable(name="quiet", oid=Oid(RELATION + 1))
        self._fed: dict[Oid, int] = {}
        self._lsn = 1000

    def feed(self, table: ScriptedTable) -> None:
        """Deliver the new changes of a table as one transaction."""
        table.cut()
        feed(self.state, [group_of(table.items[self._fed.get(table.oid, 0) :])])
        self._fed[table.oid] = len(table.items)
        self._lsn += 100
        for one in (self.table, self.other):
            one.commit(self._lsn)

    def land(self, name: str) -> None:
        """Write all values into a lake, which has its own reader."""
        land(self._spark, StateFolder(self.state), self.lake(name), self._root / f"spark {name}", reader=name)

    def lake(self, name: str) -> Path:
        return self._root / f"lake {name}"

    def position(self, name: str, table: ScriptedTable) -> TablePosition:
        return Positions(str(self.lake(name)), IDENTITY).tables[DATABASE, table.oid]


@pytest.fixture
def late(spark: SparkSession, tmp_path: Path) -> LateLake:
    made = LateLake(spark, tmp_path)
    for table in (made.table, made.other):
        table.copy(1, [{1: key, 2: "copied", 3: None} for key in range(3)])
        made.feed(table)
    made.land("first")
    made.table.update((1,), {2: "trimmed"})
    made.feed(made.table)
    made.land("first")
    made.table.update((1,), {2: "kept"})  # to apply the confirmations, which trims the outbox
    made.feed(made.table)
    return made


def test_a_table_without_its_beginning_has_a_log_with_a_break_and_a_replica_after_its_next_copy(late: LateLake) -> None:
    late.land("late")
    with OutboxReader.open(StateFolder(late.state)) as outbox:
        registered = outbox.registered("late")
        assert registered is not None
        assert registered.trimmable == outbox.head() > outbox.ledger().trimmed > 0
    table = late.position("late", late.table)
    assert table.state is TableState.DIVERGED
    assert table.replica.fault is not None
    assert "the lake begins with value" in table.replica.fault.reason
    (gap,) = table.breaks
    (row,) = log_rows(late.lake("late"), table.folder)
    assert (row["note"], gap.to.commit_lsn) == ("kept", row["_commit_lsn"])
    late.table.insert({1: 9, 2: "later", 3: None})
    late.feed(late.table)
    late.land("late")
    assert [row["note"] for row in log_rows(late.lake("late"), table.folder)] == ["kept", "later"]
    assert late.position("late", late.table).breaks == (gap,)
    late.table.copy(2, [{1: key, 2: "copied again", 3: None} for key in range(4)])
    late.feed(late.table)
    late.land("late")
    assert late.position("late", late.table).state is TableState.LIVE
    assert replica_rows(late.lake("late"), table.folder) == late.table.expected()


def test_each_table_that_changes_later_lacks_what_was_before_unless_it_begins_then(late: LateLake) -> None:
    late.land("late")
    created, emptied, copied = (
        ScriptedTable(name=name, oid=Oid(RELATION + 2 + at), lsn=late.table.lsn)
        for at, name in enumerate(("created", "emptied", "copied"))
    )
    created.schema_event(SchemaChange.CREATE, SchemaEffect.METADATA, None, created.relation)
    emptied.truncate()
    copied.copy(1, [{1: 1, 2: "copied", 3: None}])
    for table in (created, emptied, copied):
        table.insert({1: 5, 2: "x", 3: None})
        late.feed(table)
    late.other.update((2,), {2: "first change in this lake"})
    late.feed(late.other)
    late.land("late")
    quiet = late.position("late", late.other)
    assert (quiet.state, len(quiet.breaks)) == (TableState.DIVERGED, 1)
    assert not DeltaTable.is_deltatable(str(late.lake("late") / quiet.folder / "replica"))
    for table in (created, emptied, copied):
        found = late.position("late", table)
        assert (found.state, found.breaks) == (TableState.LIVE, ())
        assert replica_rows(late.lake("late"), found.folder) == table.expected()
