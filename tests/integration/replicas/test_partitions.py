"""Partitioned logs and replicas: equal to the source, with each row in the files of its partition."""

import json
import random
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.lakes.lakes import IDENTITY, CrashingFeed, batch, log_rows, replica_rows
from tests.support.lakes.maintained import maintain
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable, Value, act, column
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig, SchemaPolicy
from tidemark.model.relation import ReplicaIdentity
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState
from tidemark.pipeline.lake.report import reading_lines
from tidemark.pipeline.landing.table_overview import faults_of
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.targets import targets

pytestmark = pytest.mark.feature("L15")
FOLDER = f"{DATABASE}/public/Orders"
BY_NOTE = LakeTableConfig("Order*", partition=("note",))
ODD = ("a/b", "ü %", "x=y", "a\\b:c", "  ", "'\"", "__HIVE_DEFAULT_PARTITION__", "NULL")


class PartitionedLake:
    """A lake of one table; each landing opens it again."""

    def __init__(self, root: Path, table: ScriptedTable | None = None) -> None:
        self.root, self.table = root, table or ScriptedTable()
        self._landed = 0

    def land(self, of: LakeTableConfig = BY_NOTE) -> TablePosition:
        """Write the new changes, then all of them again, which changes nothing."""
        items = self.table.delivered()
        new, self._landed = items[self._landed :], len(items)
        for _ in range(2):
            lake = self.open(of)
            lake.apply(batch(new))
        self.table.commit()
        return lake.positions.tables[DATABASE, self.table.oid]

    def open(self, of: LakeTableConfig) -> Lake:
        return Lake(str(self.root), IDENTITY, shape_of, constants_of, config=LakeConfig((of,)))

    def insert(self, *rows: tuple[Value, Value]) -> None:
        live = [column.number for column in self.table.relation.live_columns]
        for key, note in rows:
            self.table.insert({number: {1: key, 2: note}.get(number) for number in live})

    def delta(self, name: str = "replica") -> DeltaTable:
        return DeltaTable(str(self.root / FOLDER / name))

    def last_commit(self) -> tuple[set[str | None], set[str | None]]:
        """Return the partitions from which the last commit of the replica removed files, and those it added to."""
        delta = self.delta()
        path = self.root / FOLDER / "replica" / "_delta_log" / f"{delta.version():020}.json"
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        removed = {one["remove"]["partitionValues"]["note"] for one in actions if "remove" in one}
        return removed, {one["add"]["partitionValues"]["note"] for one in actions if "add" in one}

    def assert_equal(self) -> None:
        assert replica_rows(self.root, FOLDER) == self.table.expected()
        log = log_rows(self.root, FOLDER)
        assert len(log) == len({(row["_commit_lsn"], row["_ordinal"]) for row in log}) == self.table.changes


@pytest.fixture
def parted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PartitionedLake:
    monkeypatch.setattr(targets, "RETRY_WAITS_S", ())
    return PartitionedLake(tmp_path)


def test_rows_are_in_the_files_of_their_partition_in_log_and_replica(parted: PartitionedLake) -> None:
    parted.insert((1, "a"), (2, "b"), (3, None), (4, "a"))
    parted.land()
    parted.assert_equal()
    for name in ("log", "replica"):
        delta = parted.delta(name)
        assert delta.metadata().partition_columns == ["note"]
        found = {row["partition"]["note"]: row["num_records"] for row in pa.table(delta.get_add_actions()).to_pylist()}
        assert found == {"a": 2, "b": 1, None: 1}
        folders = {Path(uri).parent.name for uri in delta.file_uris()}
        assert folders == {"note=a", "note=b", "note=__HIVE_DEFAULT_PARTITION__"}


def test_a_merge_touches_only_the_partitions_of_its_rows(parted: PartitionedLake) -> None:
    parted.insert((1, "a"), (2, "b"), (3, "c"))
    parted.land()
    parted.table.update((2,), {3: "changed"})
    parted.land()
    assert parted.last_commit() == ({"b"}, {"b"})
    parted.insert((4, "c"), (5, "new"))
    parted.table.delete((1,))
    parted.land()
    assert parted.last_commit() == ({"a", "c"}, {"c", "new"})
    parted.assert_equal()


def test_an_update_moves_a_row_with_its_unchanged_values_to_another_partition(parted: PartitionedLake) -> None:
    parted.table.insert({1: 1, 2: "a", 3: "large"})
    parted.insert((2, "a"))
    parted.land()
    parted.table.update((1,), {2: "b"}, unchanged=(3,))
    parted.land()
    assert parted.last_commit() == ({"a"}, {"a", "b"})
    parted.table.update((2,), {2: None})
    parted.land()
    assert parted.last_commit() == ({"a"}, {None})
    parted.table.update((1,), {1: 7, 2: None}, unchanged=(3,))
    parted.land()
    parted.assert_equal()


def test_values_with_any_characters_are_read_as_they_are(parted: PartitionedLake) -> None:
    for step in range(2):
        parted.insert(*((10 * step + key, note) for key, note in enumerate(ODD)))
        parted.land()
        parted.assert_equal()
    assert all(Path(uri).as_posix().isascii() for uri in parted.delta().file_uris())


def test_maintenance_combines_the_files_of_each_partition(parted: PartitionedLake) -> None:
    for key in range(4):
        parted.insert((key, "a"), (10 + key, "b"), (20 + key, None))
        parted.land()
    lake = parted.open(BY_NOTE)
    parted.insert((9, "b"))
    lake.apply(batch(parted.table.delivered()[-1:]))
    maintain(lake)
    parted.assert_equal()
    for name in ("log", "replica"):
        folders = [Path(uri).parent.name for uri in parted.delta(name).file_uris()]
        assert sorted(folders) == ["note=__HIVE_DEFAULT_PARTITION__", "note=a", "note=b"]
    maintained = parted.delta().version()
    maintain(lake)
    assert parted.delta().version() == maintained, "there is nothing left to do"


def test_a_partition_column_that_the_source_drops_pauses_the_table_until_the_setting_is_corrected(
    parted: PartitionedLake,
) -> None:
    parted.insert((1, "a"))
    parted.land()
    parted.insert((2, "b"))
    parted.table.drop_column(2)
    parted.insert((3, None))
    items = parted.table.delivered()
    table = parted.land()
    assert table.state is TableState.PAUSED
    reason = "public.Orders: partition names the column note, which it does not have; it has id, big"
    assert {fault.reason for _, fault in faults_of(table)} == {reason}
    assert [row["id"] for row in replica_rows(parted.root, FOLDER)] == [1, 2], "it contains all changes before"
    assert [row["id"] for row in log_rows(parted.root, FOLDER)] == [1, 2]
    lake = parted.open(LakeTableConfig("Order*"))
    lake.catch_up((DATABASE, parted.table.oid), [(one.sequence, one.item) for one in items], items[-1].sequence)
    parted.assert_equal()
    assert parted.delta().metadata().partition_columns == []
    assert parted.delta("log").metadata().partition_columns == ["note"], "a log keeps its columns"
    parted.table.add_column("later")
    parted.insert((4, None))
    parted.land(LakeTableConfig("Order*"))
    parted.assert_equal()


@pytest.mark.parametrize("value", ["", "of the first batch"])
def test_an_empty_text_is_refused_because_readers_take_it_for_null(parted: PartitionedLake, value: str) -> None:
    if value:
        parted.insert((1, "a"))
        parted.land()
    parted.insert((2, ""))
    table = parted.land()
    assert {fault.reason for _, fault in faults_of(table)} == {
        "partition: the column note has an empty text, which a partition cannot have"
    }


@pytest.mark.parametrize(("character", "most"), [("a", 250), ("岸", 27)])
def test_a_text_too_long_for_the_name_of_a_folder_pauses_the_table_and_is_in_no_message(
    parted: PartitionedLake, character: str, most: int
) -> None:
    parted.insert((1, character * most))
    assert parted.land().state is TableState.LIVE
    parted.insert((2, character * (most + 1)))
    assert {fault.reason for _, fault in faults_of(parted.land())} == {
        "partition: the column note has a text too long for the name of a folder, which a partition cannot have"
    }


def test_with_ignored_changes_of_columns_a_dropped_partition_column_is_null(parted: PartitionedLake) -> None:
    ignoring = LakeTableConfig("Order*", partition=("note",), schema_policy=SchemaPolicy.IGNORE)
    parted.insert((1, "a"), (2, "b"))
    parted.land(ignoring)
    parted.table.rename_column(2, "remark")
    parted.table.update((1,), {2: "b"})
    assert parted.land(ignoring).state is TableState.LIVE
    assert sorted((row["id"], row["note"]) for row in replica_rows(parted.root, FOLDER)) == [(1, "b"), (2, "b")]


def test_deleted_rows_that_stay_stay_in_their_partition(parted: PartitionedLake) -> None:
    keeping = LakeTableConfig("Order*", partition=("note",), soft_deletes=True)
    parted.insert((1, "a"), (2, "b"))
    parted.land(keeping)
    parted.table.delete((1,))
    parted.land(keeping)
    assert parted.last_commit() == ({"a"}, {"a"})
    parted.table.truncate()
    parted.insert((1, "c"))
    parted.land(keeping)
    found = [(row["id"], row["note"], row["_deleted"]) for row in replica_rows(parted.root, FOLDER)]
    assert sorted(found) == [(1, "c", False), (2, "b", True)]


def test_a_copy_partitions_the_replica_by_the_present_setting(parted: PartitionedLake) -> None:
    parted.insert((1, "a"))
    parted.land(LakeTableConfig("Order*"))
    parted.table.copy(1, [{1: 1, 2: "a", 3: None}, {1: 2, 2: None, 3: "x"}])
    parted.land()
    assert parted.delta().metadata().partition_columns == ["note"]
    parted.assert_equal()


def test_a_partitioned_table_has_a_line_for_spark_that_reads_its_partition_columns() -> None:
    lines = reading_lines("/lake/orders", is_partitioned=True)
    assert "to_pyarrow_table()" in str(lines["spark_without_connector"])


ACTIONS = (
    *("insert", "insert", "update", "update", "keep", "delete", "move", "move and keep"),
    *("cut", "commit", "truncate", "add", "add constant", "drop", "retype", "widen"),
)


class PartitioningFeed(CrashingFeed):
    """Feeds a lake whose tables have partitions."""

    config = LakeConfig((BY_NOTE,))


@settings(max_examples=12)
@given(
    st.sampled_from([ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL, None]),
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5)), min_size=4, max_size=22),
    st.integers(0, 1 << 32),
)
def test_log_and_replica_equal_the_source_after_any_crashes(
    identity: ReplicaIdentity | None, script: list[tuple[str, int]], seed: int
) -> None:
    table = ScriptedTable(identity=identity or ReplicaIdentity.FULL)
    if identity is None:
        table.relation = replace(table.relation, primary_key=())
    for step, (action, key) in enumerate(script):
        act(table, action, key, step)
    table.commit()
    table.insert({c.number: "99" if c.type and c.type.name == "text" else 99 for c in table.relation.live_columns})
    with TemporaryDirectory() as folder:
        PartitioningFeed(Path(folder), random.Random(seed)).feed(table.delivered())
        lake = PartitionedLake(Path(folder), table)
        lake.assert_equal()
        assert lake.delta().metadata().partition_columns == ["note"]


def test_a_partition_column_may_be_a_number_and_a_part_of_the_key(parted: PartitionedLake) -> None:
    parted.table.key = (1, 2)
    parted.table.relation = replace(
        parted.table.relation,
        columns=(column(1, "id", "int4"), column(2, "note", "int8"), column(3, "big", "text")),
        identity_columns=(1, 2),
        primary_key=(1, 2),
    )
    parted.insert((1, 5), (2, 6), (3, -7))
    parted.land()
    parted.table.update((1, 5), {3: "changed"})
    parted.land()
    assert parted.last_commit() == ({"5"}, {"5"})
    parted.table.delete((3, -7))
    parted.land()
    parted.assert_equal()
