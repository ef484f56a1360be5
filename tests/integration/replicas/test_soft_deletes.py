"""A replica that keeps deleted rows, compared with a table of SQLite whose triggers keep them."""

import random
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.lakes.lakes import IDENTITY, Crash, CrashAt, CrashingFeed, batch, replica_rows
from tests.support.lakes.scripted_table import DATABASE, Row, ScriptedTable, Value, act
from tidemark.io.host.failpoints import arm
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig
from tidemark.model.relation import ReplicaIdentity
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState
from tidemark.pipeline.landing.table_overview import faults_of
from tidemark.pipeline.sinks import table_writes
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.targets import targets

pytestmark = pytest.mark.feature("L15")
FOLDER = f"{DATABASE}/public/Orders"
SOFT = LakeTableConfig("Order*", soft_deletes=True)
HARD = LakeTableConfig("Order*")
SCHEMA = """
CREATE TABLE clock (lsn INTEGER);
INSERT INTO clock VALUES (0);
CREATE TABLE source (id INTEGER PRIMARY KEY, note TEXT, big TEXT);
CREATE TABLE kept (id INTEGER PRIMARY KEY, note TEXT, big TEXT, deleted INTEGER, lsn INTEGER);
CREATE TRIGGER inserted AFTER INSERT ON source BEGIN
  INSERT OR REPLACE INTO kept VALUES (NEW.id, NEW.note, NEW.big, 0, NULL);
END;
CREATE TRIGGER deleted AFTER DELETE ON source BEGIN
  UPDATE kept SET deleted = 1, lsn = (SELECT lsn FROM clock) WHERE id = OLD.id;
END;
CREATE TRIGGER updated AFTER UPDATE ON source BEGIN
  UPDATE kept SET deleted = 1, lsn = (SELECT lsn FROM clock) WHERE id = OLD.id AND OLD.id <> NEW.id;
  INSERT OR REPLACE INTO kept VALUES (NEW.id, NEW.note, NEW.big, 0, NULL);
END;
"""


@dataclass
class TriggeredTable(ScriptedTable):
    """A scripted table whose changes SQLite makes as well."""

    database: sqlite3.Connection = field(default_factory=lambda: sqlite3.connect(":memory:"))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.database.executescript(SCHEMA)

    def insert(self, row: Row, op: str = "i") -> None:
        super().insert(row, op)
        self._make("INSERT INTO source VALUES (?, ?, ?)", row[1], row[2], row[3])

    def update(self, key: tuple[Value, ...], changes: Row, unchanged: tuple[int, ...] = ()) -> None:
        row = {**self.rows[key], **changes}
        super().update(key, changes, unchanged)
        self._make("UPDATE source SET id = ?, note = ?, big = ? WHERE id = ?", row[1], row[2], row[3], key[0])

    def delete(self, key: tuple[Value, ...]) -> None:
        super().delete(key)
        self._make("DELETE FROM source WHERE id = ?", key[0])

    def truncate(self) -> None:
        super().truncate()
        self._make("DELETE FROM source")

    def _make(self, statement: str, *values: Value) -> None:
        self.database.execute("UPDATE clock SET lsn = ?", (self.lsn,))
        self.database.execute(statement, values)

    def kept(self) -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = self.database.execute("SELECT * FROM kept ORDER BY id").fetchall()
        return found


def rows(root: Path) -> list[tuple[object, ...]]:
    found = replica_rows(root, FOLDER)
    return sorted(
        (row["id"], row["note"], row["big"], int(bool(row["_deleted"])), row["_deleted_lsn"]) for row in found
    )


class SoftLake:
    """A lake of one table; each landing opens it again."""

    def __init__(self, root: Path, table: ScriptedTable | None = None) -> None:
        self.root, self.table = root, table or TriggeredTable()
        self._landed = 0

    def land(self, of: LakeTableConfig = SOFT) -> TablePosition:
        """Write the new changes, then all of them again, which changes nothing."""
        items = self.table.delivered()
        new, self._landed = items[self._landed :], len(items)
        for _ in range(2):
            lake = Lake(str(self.root), IDENTITY, shape_of, constants_of, config=LakeConfig((of,)))
            lake.apply(batch(new))
        return lake.positions.tables[DATABASE, self.table.oid]

    def assert_equal(self) -> None:
        assert isinstance(self.table, TriggeredTable)
        assert rows(self.root) == self.table.kept()


@pytest.fixture
def soft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SoftLake:
    monkeypatch.setattr(targets, "RETRY_WAITS_S", ())
    lake = SoftLake(tmp_path)
    for key in range(4):
        lake.table.insert({1: key, 2: f"note {key}", 3: f"big {key}"})
    lake.table.commit()
    return lake


ACTIONS = (
    *("insert", "insert", "insert", "update", "keep", "delete", "delete", "move", "move and keep"),
    *("cut", "commit", "commit", "truncate"),
)


class SoftFeed(CrashingFeed):
    """Feeds a lake whose replicas keep deleted rows."""

    config = LakeConfig((SOFT,))


@settings(max_examples=20)
@given(
    st.sampled_from([ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL]),
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5)), min_size=4, max_size=30),
    st.integers(0, 1 << 32),
)
def test_the_replica_keeps_the_rows_that_triggers_keep_after_any_crashes(
    identity: ReplicaIdentity, script: Sequence[tuple[str, int]], seed: int
) -> None:
    table = TriggeredTable(identity=identity)
    for step, (action, key) in enumerate(script):
        act(table, action, key, step)
    table.commit()
    table.insert({1: 99, 2: "last", 3: None})
    with TemporaryDirectory() as folder:
        SoftFeed(Path(folder), random.Random(seed)).feed(table.delivered())
        assert rows(Path(folder)) == table.kept()


def test_a_deleted_row_stays_with_its_last_values_and_the_commit_of_its_deletion(soft: SoftLake) -> None:
    soft.land()
    soft.table.update((1,), {2: "last"}, unchanged=(3,))
    soft.table.delete((1,))
    soft.table.update((2,), {1: 12}, unchanged=(3,))
    soft.table.delete((3,))
    assert soft.land().state is TableState.LIVE
    soft.assert_equal()
    found = {row["id"]: row for row in replica_rows(soft.root, FOLDER)}
    assert (found[1]["note"], found[1]["big"], found[1]["_deleted"]) == ("last", "big 1", True)
    assert (found[2]["big"], found[12]["big"]) == ("big 2", "big 2")
    times = {key: row["_deleted_at"] for key, row in found.items()}
    assert [key for key, time in times.items() if time is not None] == [1, 2, 3]


def test_a_key_that_is_inserted_again_is_not_deleted_any_more(soft: SoftLake) -> None:
    soft.table.delete((0,))
    soft.land()
    soft.table.commit()
    soft.table.insert({1: 0, 2: "again", 3: None})
    soft.land()
    soft.assert_equal()
    assert [row["_deleted_at"] for row in replica_rows(soft.root, FOLDER) if row["id"] == 0] == [None]


def test_truncate_marks_the_rows_that_are_not_deleted_yet(soft: SoftLake) -> None:
    soft.table.delete((0,))
    soft.table.commit()
    soft.table.truncate()
    soft.table.insert({1: 2, 2: "new", 3: None})
    soft.land()
    soft.assert_equal()


def test_a_rewrite_of_the_table_keeps_deleted_rows_in_the_new_layout(soft: SoftLake) -> None:
    soft.table.delete((0,))
    soft.land()
    table = ScriptedTable.rewrite
    soft.table.commit()
    soft.table.__class__ = ScriptedTable  # SQLite has no part in the rewrite
    table(soft.table, 1, "text", {key: str(key[0]) for key in soft.table.rows})
    soft.table.commit()
    soft.table.delete(("3",))
    assert soft.land().state is TableState.LIVE
    found = {row["id"]: row["_deleted"] for row in replica_rows(soft.root, FOLDER)}
    assert found == {"0": True, "1": False, "2": False, "3": True}


def test_rows_of_an_existing_replica_are_not_deleted_and_without_the_setting_no_deleted_row_is_left(
    soft: SoftLake,
) -> None:
    soft.land(HARD)
    soft.table.delete((1,))
    soft.land()
    soft.assert_equal()
    soft.table.commit()
    soft.table.update((2,), {2: "changed"})
    soft.land(HARD)
    assert [list(row) for row in replica_rows(soft.root, FOLDER)] == [["id", "note", "big"]] * 3
    assert replica_rows(soft.root, FOLDER) == soft.table.expected()


def test_a_copy_begins_with_an_empty_replica(soft: SoftLake) -> None:
    soft.table.delete((1,))
    soft.land()
    soft.table.commit()
    soft.table.__class__ = ScriptedTable  # the copied rows are in SQLite already
    soft.table.copy(1, list(soft.table.rows.values()))
    soft.land()
    assert [(row["id"], row["_deleted"]) for row in replica_rows(soft.root, FOLDER)] == [
        (0, False),
        (2, False),
        (3, False),
    ]
    history = DeltaTable(str(soft.root / FOLDER / "replica")).history()
    assert history[1]["operationParameters"]["mode"] == "Append", "a copy is appended, not merged"


def test_deleted_rows_expire_after_their_time(soft: SoftLake, monkeypatch: pytest.MonkeyPatch) -> None:
    soft.table.delete((1,))
    soft.land()
    soft.table.commit()
    soft.table.truncate()
    monkeypatch.setattr(table_writes, "EXPIRE_EVERY", 1)
    soft.land(LakeTableConfig("Order*", soft_deletes=True, deleted_keep_days=1))
    found = [row["id"] for row in replica_rows(soft.root, FOLDER)]
    assert found == [0, 2, 3], "rows that TRUNCATE deleted have no time"


@pytest.mark.parametrize("fault", ["whole rows", "column"])
def test_a_table_that_does_not_permit_the_setting_is_paused(soft: SoftLake, fault: str) -> None:
    if fault == "whole rows":
        table = ScriptedTable(identity=ReplicaIdentity.FULL)
        table.relation = replace(table.relation, primary_key=())
        soft.table = table
        table.insert({1: 1, 2: "a", 3: None})
    else:
        soft.table.rename_column(2, "_deleted_at")
    table_position = soft.land()
    assert table_position.state is TableState.PAUSED
    reported = {reason.reason for _, reason in faults_of(table_position)}
    expected = "soft_deletes needs a key" if fault == "whole rows" else "soft_deletes adds the column _deleted_at"
    assert any(expected in reason for reason in reported)


def test_a_crash_at_any_point_marks_the_same_rows(tmp_path: Path) -> None:
    def changed() -> TriggeredTable:
        table = TriggeredTable()
        for key in range(3):
            table.insert({1: key, 2: "new", 3: "big"})
        table.commit()
        table.delete((0,))
        table.update((1,), {1: 11}, unchanged=(3,))
        table.commit()
        table.truncate()
        table.insert({1: 0, 2: "again", 3: None})
        return table

    def land(root: Path, crash: CrashAt) -> None:
        arm(crash)
        try:
            lake = Lake(str(root), IDENTITY, shape_of, constants_of, config=LakeConfig((SOFT,)))
            lake.apply(batch(changed().delivered()))
        finally:
            arm(None)

    observed = CrashAt(0)
    land(tmp_path / "0", observed)
    for nth in range(1, len(observed.passed) + 1):
        root = tmp_path / str(nth)
        with pytest.raises(Crash):
            land(root, CrashAt(nth))
        land(root, CrashAt(0))
        assert rows(root) == changed().kept()
