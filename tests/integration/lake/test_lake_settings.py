"""Settings of the lake's tables by pattern: what is written, what a change of columns does, and the size of a merge."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.support.lakes.lakes import IDENTITY, batch, log_rows, replica_rows
from tests.support.lakes.maintained import maintain
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig, SchemaPolicy, Written
from tidemark.io.readers.accepted_breaks import log_key
from tidemark.pipeline.lake.faults import FaultKind
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState
from tidemark.pipeline.landing.settings_check import BadTableSettings, check_settings
from tidemark.pipeline.landing.table_overview import faults_of
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.steps import Delivered
from tidemark.pipeline.sinks.targets import targets
from tidemark.pipeline.sinks.targets.schema_policy import SchemaChangeRefused

pytestmark = pytest.mark.feature("L15")
FOLDER = f"{DATABASE}/public/Orders"
PATTERN = "Order*"


@dataclass
class SettledLake:
    """A lake of one table, opened for each batch with its own settings."""

    root: Path
    table: ScriptedTable = field(default_factory=ScriptedTable)
    accepted: dict[str, str] = field(default_factory=dict)
    _landed: int = 0

    def land(self, settings: LakeTableConfig, *, maintained: bool = False) -> TablePosition:
        """Write the new changes, then all of them again, which changes nothing; return the table's position."""
        new = self.news()
        for _ in range(2):
            lake = self.open(settings)
            lake.apply(batch(new))
            if maintained:
                maintain(lake)
        return lake.positions.tables[DATABASE, self.table.oid]

    def news(self) -> Items[Delivered]:
        items, landed = self.table.delivered(), self._landed
        self._landed = len(items)
        return items[landed:]

    def open(self, settings: LakeTableConfig) -> Lake:
        config = LakeConfig((settings,))
        return Lake(str(self.root), IDENTITY, shape_of, constants_of, accepted=lambda: self.accepted, config=config)

    @property
    def logged(self) -> list[object]:
        return [row["id"] for row in log_rows(self.root, FOLDER)]

    def assert_replica_equals_table(self) -> None:
        assert replica_rows(self.root, FOLDER) == self.table.expected()


@pytest.fixture
def settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SettledLake:
    monkeypatch.setattr(targets, "RETRY_WAITS_S", ())
    return SettledLake(tmp_path)


def insert(settled: SettledLake, *keys: int) -> None:
    for key in keys:
        settled.table.insert({number: key if number == 1 else f"row {key}" for number in live(settled)})
    settled.table.commit()


def live(settled: SettledLake) -> list[int]:
    return [column.number for column in settled.table.relation.live_columns]


def writing(written: Written) -> LakeTableConfig:
    return LakeTableConfig(PATTERN, write=written)


def test_of_a_table_with_only_a_log_no_replica_is_written_until_it_is_copied_again(settled: SettledLake) -> None:
    insert(settled, 1)
    settled.table.update((1,), {2: "changed"})
    table = settled.land(writing(Written.LOG))
    assert (table.state, list(faults_of(table)), settled.logged) == (TableState.LIVE, [], [1, 1])
    assert not (settled.root / FOLDER / "replica").exists()
    settled.table.commit()
    insert(settled, 2)
    table = settled.land(writing(Written.BOTH))
    assert table.replica.is_faulty(FaultKind.DIVERGED), "rows that it never had are missing"
    assert not (settled.root / FOLDER / "replica").exists()
    settled.table.copy(1, [{1: 1, 2: "changed", 3: "row 1"}, {1: 2, 2: "row 2", 3: "row 2"}])
    settled.table.commit()
    insert(settled, 3)
    assert settled.land(writing(Written.BOTH)).state is TableState.LIVE
    settled.assert_replica_equals_table()


def test_of_a_table_with_only_a_replica_the_log_stays_and_continues_with_a_break(settled: SettledLake) -> None:
    insert(settled, 1)
    settled.land(writing(Written.BOTH))
    version = DeltaTable(str(settled.root / FOLDER / "log")).version()
    insert(settled, 2)
    table = settled.land(writing(Written.REPLICA))
    settled.assert_replica_equals_table()
    assert (table.state, list(faults_of(table)), table.log_version) == (TableState.LIVE, [], version)
    assert settled.logged == [1]
    insert(settled, 3)
    table = settled.land(writing(Written.BOTH))
    fault = table.log.fault
    assert fault is not None
    assert fault.kind is FaultKind.DIVERGED
    assert "write = 'replica' in [[lake.tables]], pattern Order*" in fault.reason
    settled.accepted[log_key(DATABASE, settled.table.oid)] = str(fault.position)
    settled.table.copy(1, list(settled.table.rows.values()))
    table = settled.land(writing(Written.BOTH))
    assert [gap.after for gap in table.breaks] == [fault.position]
    assert settled.logged == [1, 1, 2, 3]
    settled.assert_replica_equals_table()


@pytest.mark.feature("P25")
def test_a_table_is_paused_before_a_change_of_its_columns_and_continues_with_another_policy(
    settled: SettledLake,
) -> None:
    policy = LakeTableConfig(PATTERN, schema_policy=SchemaPolicy.FAIL)
    insert(settled, 1)
    settled.land(policy)
    insert(settled, 2)
    settled.table.add_column("extra")
    insert(settled, 3)
    lake, items = settled.open(policy), settled.news()
    since = lake.positions.applied.sequence
    lake.apply(batch(items))
    table = lake.positions.tables[DATABASE, settled.table.oid]
    assert table.state is TableState.PAUSED
    assert {fault.reason for _, fault in faults_of(table)} == {
        "public.Orders: column extra is added, and schema_policy = 'fail' in [[lake.tables]], pattern Order*"
    }
    assert "schema_policy = 'evolve'" in str(SchemaChangeRefused.hint)
    assert lake.paused == {(DATABASE, settled.table.oid): since}, "the outbox keeps its changes"
    assert settled.logged == [1, 2]
    assert [row["id"] for row in replica_rows(settled.root, FOLDER)] == [1, 2]
    lake = settled.open(LakeTableConfig(PATTERN))
    stored = [(delivered.sequence, delivered.item) for delivered in items]
    lake.catch_up((DATABASE, settled.table.oid), stored, items[-1].sequence)
    assert lake.positions.tables[DATABASE, settled.table.oid].state is TableState.LIVE
    settled.assert_replica_equals_table()
    insert(settled, 4)
    settled.land(policy)
    settled.assert_replica_equals_table()


@pytest.mark.parametrize(("change", "reported"), [("drop", "column big is dropped"), ("rename", "becomes remark")])
def test_the_reason_of_a_pause_names_the_change(settled: SettledLake, change: str, reported: str) -> None:
    insert(settled, 1)
    settled.table.drop_column(3) if change == "drop" else settled.table.rename_column(2, "remark")
    table = settled.land(LakeTableConfig(PATTERN, schema_policy=SchemaPolicy.FAIL))
    assert all(reported in fault.reason for _, fault in faults_of(table))
    assert table.state is TableState.PAUSED


@pytest.mark.feature("P25")
def test_a_change_that_leaves_the_columns_as_they_are_is_followed(settled: SettledLake) -> None:
    insert(settled, 1)
    settled.table.alter(settled.table.relation.columns)
    insert(settled, 2)
    assert settled.land(LakeTableConfig(PATTERN, schema_policy=SchemaPolicy.FAIL)).state is TableState.LIVE
    settled.assert_replica_equals_table()


def test_a_large_transaction_is_one_merge_for_each_bound_of_rows(settled: SettledLake) -> None:
    for key in range(10):
        settled.table.insert({1: key, 2: "new", 3: None})
        settled.table.cut()
    settled.land(LakeTableConfig(PATTERN, merge_rows=4))
    history = DeltaTable(str(settled.root / FOLDER / "replica")).history()
    assert len([commit for commit in history if commit["operation"] == "WRITE"]) == 3
    settled.assert_replica_equals_table()


def clustered(*columns: str) -> LakeTableConfig:
    return LakeTableConfig(PATTERN, cluster=columns)


def notes_by_file(settled: SettledLake) -> list[list[object]]:
    files = DeltaTable(str(settled.root / FOLDER / "replica")).file_uris()
    return [pq.read_table(file).column("note").to_pylist() for file in files]


def test_files_of_a_replica_are_sorted_by_the_cluster_columns(settled: SettledLake) -> None:
    for key, note in enumerate("cab"):
        settled.table.insert({1: key, 2: note, 3: None})
    settled.land(clustered("note"))
    assert notes_by_file(settled) == [["a", "b", "c"]]
    settled.table.commit()
    settled.table.update((1,), {2: "z"})
    settled.table.delete((2,))
    settled.land(clustered("note"))
    assert notes_by_file(settled) == [["c", "z"]]
    settled.assert_replica_equals_table()


def test_maintenance_sorts_files_by_the_cluster_columns(settled: SettledLake) -> None:
    for key, note in ((1, "b"), (2, "c"), (3, "a")):
        settled.table.insert({1: key, 2: note, 3: None})
        settled.table.commit()
        settled.land(clustered("note"), maintained=key == 3)
    assert notes_by_file(settled) == [["a", "b", "c"]]
    settled.assert_replica_equals_table()


def test_a_cluster_column_that_the_source_drops_is_left_out(settled: SettledLake) -> None:
    insert(settled, 2, 1)
    settled.land(clustered("big"))
    settled.table.drop_column(3)
    settled.table.insert({1: 0, 2: "z"})
    settled.table.update((2,), {2: "y"})
    assert settled.land(clustered("big")).state is TableState.LIVE
    settled.assert_replica_equals_table()
    with pytest.raises(BadTableSettings, match="cluster names the column big, which"):
        check(settled, clustered("big"))


def check(settled: SettledLake, settings: LakeTableConfig) -> None:
    lake = settled.open(settings)
    check_settings(LakeConfig((settings,)), str(settled.root), lake.positions.tables.values())


def test_the_first_batch_of_a_pipeline_records_the_settings_of_all_tables(settled: SettledLake) -> None:
    insert(settled, 1)
    recorded = settled.land(LakeTableConfig(PATTERN)).settings
    assert recorded == LakeTableConfig(PATTERN).contents
    changed = LakeTableConfig(PATTERN, write=Written.LOG, merge_rows=5000)
    lake = settled.open(changed)
    lake.refresh()
    (idle,) = settled.open(changed).positions.tables.values()
    assert idle.settings == changed.contents
    assert idle.settings != recorded
    assert idle.settings == LakeTableConfig(PATTERN, write=Written.LOG).contents


def test_settings_that_do_not_fit_a_table_are_refused_by_table_setting_and_column(settled: SettledLake) -> None:
    insert(settled, 1)
    settled.land(LakeTableConfig(PATTERN))
    check(settled, clustered("note", "id"))
    with pytest.raises(BadTableSettings) as raised:
        check(settled, clustered("Note"))
    assert str(raised.value) == (
        "public.Orders: cluster names the column Note, which it does not have; it has id, note, big (pattern Order*)"
    )
    assert "correct the setting in [[lake.tables]]" in str(raised.value.hint)
    (settled.root / FOLDER / "replica" / "_delta_log" / f"{0:020}.json").write_text("{")
    check(settled, clustered("Note"))  # a damaged table is found at its next change
