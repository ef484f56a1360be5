"""Replicas that are merged at intervals: the log is never behind, the outbox keeps what a replica lacks."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest
from deltalake import DeltaTable

from tests.support.lakes.lakes import Crash, CrashAt, batch, log_rows, replica_rows
from tests.support.lakes.maintained import maintain
from tests.support.lakes.paused_lake import PausedLake
from tests.support.lakes.scripted_table import DATABASE, RELATION, ScriptedTable, column
from tests.support.servers.small_disk import needs_mount
from tests.support.workloads.feeder import RandomTables, group_of
from tidemark.io.host.failpoints import arm
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig, SchemaPolicy
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.position import Sequence
from tidemark.pipeline.lake.faults import FaultKind
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.lake.report import OpenedLake, checked, listed
from tidemark.pipeline.landing.behind import slices
from tidemark.pipeline.landing.behind.deferred_replicas import DeferredReplicas
from tidemark.pipeline.landing.table_overview import faults_of
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.steps import Delivered
from tidemark.pipeline.sinks.targets import targets
from tidemark.pipeline.sinks.targets.merge_intervals import MergeIntervals

pytestmark = pytest.mark.feature("L15")
DAILY = LakeConfig((LakeTableConfig("table*", merge_interval_s=86_400),))
SEED = 7
ResultT = TypeVar("ResultT")


class DailyLake(PausedLake):
    """A lake whose replicas are merged once a day; it stays open until `restart`."""

    config = DAILY

    def __init__(self, root: Path, *, bytes_max: int = 1 << 22) -> None:
        super().__init__(root, bytes_max=bytes_max)
        self._open: Lake | None = None

    def open(self) -> Lake:
        self._open = self._open or super().open()
        return self._open

    def restart(self) -> None:
        """Restart the pipeline: every replica is due."""
        self._open = None

    def merge(self, *, all_of_them: bool = False) -> int:
        """Merge the replicas that are due; return the number of slices."""
        with OutboxReader.open(StateFolder(self.state)) as outbox:
            lake, number = self.open(), 0
            deferred = DeferredReplicas(outbox, self.bytes_max)
            while deferred.merge(lake, all_of_them=all_of_them):
                number += 1
            outbox.confirm("spark", lake.contained, lake.contained)
            return number

    def logged(self, table: ScriptedTable) -> int:
        rows = log_rows(self.lake, self.position(table).folder)
        assert len(rows) == len({(row["_commit_lsn"], row["_ordinal"]) for row in rows})
        return len(rows)

    def replica(self, table: ScriptedTable) -> list[dict[str, object]]:
        return replica_rows(self.lake, self.position(table).folder)

    def assert_exact(self, *tables: ScriptedTable) -> None:
        for table in tables:
            assert self.replica(table) == table.expected()
            assert self.logged(table) == table.changes

    def deferred_after(self, table: ScriptedTable) -> Sequence:
        fault = self.position(table).replica.fault
        assert fault is not None
        assert fault.kind is FaultKind.DEFERRED
        return fault.sequence


class CrashingLake(DailyLake):
    """Crashes once, restarts, and tries again."""

    def __init__(self, root: Path, crash: CrashAt) -> None:
        super().__init__(root)
        self._crash: CrashAt | None = crash

    def land(self) -> None:
        self._with_crash(super().land)

    def merge(self, *, all_of_them: bool = False) -> int:
        return self._with_crash(partial(super().merge, all_of_them=all_of_them))

    def _with_crash(self, act: Callable[[], ResultT]) -> ResultT:
        arm(self._crash)
        try:
            return act()
        except Crash:
            arm(None)
            self._crash = None
            self.restart()
            assert self.held <= min(self.open().deferred.values(), default=self.head)
            return act()
        finally:
            arm(None)


@pytest.fixture
def daily(tmp_path: Path) -> DailyLake:
    return DailyLake(tmp_path)


def test_the_log_is_written_at_once_and_the_replica_when_its_interval_has_passed(
    daily: DailyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = RandomTables(SEED)
    daily.feed(world.groups(8))
    daily.land()
    daily.assert_exact(*world.tables)
    before = {table.oid: table.expected() for table in world.tables}
    merged = daily.head
    for _ in range(3):
        daily.feed(world.groups(8))
        daily.land()
        assert daily.merge() == 0, "it is not due"
    for table in world.tables:
        assert daily.logged(table) == table.changes
        assert daily.replica(table) == before[table.oid]
        assert daily.position(table).state is TableState.LIVE
        assert daily.deferred_after(table) == merged
        assert list(faults_of(daily.position(table))) == []
    assert daily.held == merged < daily.head, "the outbox keeps the changes of the replicas"
    monkeypatch.setattr(slices, "PORTION_BYTES", 1)
    assert daily.merge(all_of_them=True) > 3, "in slices"
    assert daily.held == daily.head
    daily.assert_exact(*world.tables)


def test_a_replica_is_due_after_its_interval_and_after_a_restart(daily: DailyLake) -> None:
    now_s = 0.0
    intervals = MergeIntervals(lambda: now_s)
    of, settings = (DATABASE, RELATION), LakeTableConfig("a", merge_interval_s=60)
    assert intervals.is_due(of, settings)
    intervals.record_merge(of)
    now_s = 59.9
    assert not intervals.is_due(of, settings)
    now_s = 60.0
    assert intervals.is_due(of, settings)
    world = RandomTables(SEED)
    for _ in range(2):
        daily.feed(world.groups(4))
        daily.land()
    assert daily.merge() == 0
    daily.restart()
    behind = len(daily.open().deferred)
    assert daily.merge() == behind > 1, "one replica in each hold of the lock"
    daily.assert_exact(*world.tables)


def test_a_call_merges_one_slice_of_the_replica_that_is_furthest_behind(
    daily: DailyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = RandomTables(SEED)
    for _ in range(3):
        daily.feed(world.groups(4))
        daily.land()
    monkeypatch.setattr(slices, "PORTION_BYTES", 1)
    lake = daily.open()
    with OutboxReader.open(StateFolder(daily.state)) as outbox:
        before = dict(lake.deferred)
        assert DeferredReplicas(outbox, daily.bytes_max).merge(lake, all_of_them=True)
    moved = {of for of, after in before.items() if lake.deferred.get(of) != after}
    assert len(before) > len(moved) == 1
    assert before[moved.pop()] == min(before.values())


def test_a_deferred_replica_that_maintenance_rewrote_is_recorded_once(daily: DailyLake) -> None:
    fed = IntervalTable(daily)
    daily.config = LakeConfig()
    for key in (2, 3, 4):
        fed.land()
        fed.table.insert({1: key, 2: "b", 3: None})
        if key == 3:
            daily.config = DAILY
            daily.restart()
    fed.land()
    lake, folder, needed = daily.open(), daily.position(fed.table).folder, daily.deferred_after(fed.table)
    merged = daily.position(fed.table).replica.recorded.version
    maintain(lake)
    before = lake.positions.tables[DATABASE, RELATION]
    assert merged < before.replica.recorded.version == DeltaTable(f"{daily.lake}/{folder}/replica").version()
    assert (daily.deferred_after(fed.table), daily.held) == (needed, needed)
    lake.refresh()
    assert lake.positions.tables[DATABASE, RELATION] is before
    fed.table.insert({1: 9, 2: "c", 3: None})
    fed.land()
    daily.merge(all_of_them=True)
    daily.assert_exact(fed.table)


def scenario(lake: DailyLake) -> ScriptedTable:
    """Land three batches, and merge the last two; then land a change and a copy."""
    fed = IntervalTable(lake)
    fed.land()
    fed.table.update((1,), {2: "b"})
    fed.table.insert({1: 2, 2: "b", 3: None})
    fed.land()
    fed.table.delete((1,))
    fed.land()
    lake.merge(all_of_them=True)
    fed.table.insert({1: 3, 2: "c", 3: None})
    fed.land()
    fed.table.copy(1, [{1: 4, 2: "copied", 3: None}])
    fed.land()
    return fed.table


def test_a_crash_at_any_point_loses_and_doubles_nothing_and_the_outbox_keeps_what_a_replica_lacks(
    tmp_path: Path,
) -> None:
    points: list[str] = []
    for nth in count():
        root, crash = tmp_path / str(nth), CrashAt(nth)
        root.mkdir()
        daily = CrashingLake(root, crash)
        table = scenario(daily)
        daily.merge(all_of_them=True)
        daily.assert_exact(table)
        assert daily.held == daily.head
        if nth == 0:
            points = [point.value for point in crash.passed]
        if nth == len(points):
            break
    assert {*points} >= {"tables-done", "positions-written", "table-caught-up"}


def test_a_replica_for_which_the_outbox_keeps_too_much_is_merged_at_once(tmp_path: Path) -> None:
    daily, world = DailyLake(tmp_path, bytes_max=1), RandomTables(SEED)
    for _ in range(2):
        daily.feed(world.groups(4))
        daily.land()
    assert daily.held < daily.head
    behind = len(daily.open().deferred)
    assert daily.merge() == behind > 1, "one after the other: the one that is furthest behind"
    assert daily.held == daily.head
    daily.assert_exact(*world.tables)


def one_table() -> ScriptedTable:
    table = ScriptedTable(name="table")
    table.insert({1: 1, 2: "a", 3: None})
    table.commit()
    return table


class IntervalTable:
    """One table of a lake, fed in steps."""

    def __init__(self, lake: DailyLake) -> None:
        self.lake, self.table, self._fed = lake, one_table(), 0

    def land(self) -> None:
        self.table.cut()
        new, self._fed = self.table.items[self._fed :], len(self.table.items)
        self.lake.feed([group_of(new)])
        self.lake.land()
        self.table.commit()


def test_a_deferred_replica_follows_ddl_in_its_order_and_a_copy_replaces_it_at_once(daily: DailyLake) -> None:
    fed = IntervalTable(daily)
    fed.land()
    fed.table.update((1,), {2: "b"})
    fed.table.add_column("extra", "constant")
    fed.land()
    fed.table.rewrite(1, "text", {(1,): "1"})
    fed.land()
    assert [row["note"] for row in daily.replica(fed.table)] == ["a"]
    daily.merge(all_of_them=True)
    daily.assert_exact(fed.table)
    fed.table.update(("1",), {2: "c"})
    fed.land()
    daily.deferred_after(fed.table)
    fed.table.copy(1, [{1: "1", 2: "copied", 3: None, 4: "x"}])
    fed.table.commit()
    fed.table.delete(("1",))
    fed.table.insert({1: "2", 2: "last", 3: None, 4: "y"})
    fed.land()
    daily.assert_exact(fed.table)


def test_a_copy_is_not_deferred(daily: DailyLake) -> None:
    fed = IntervalTable(daily)
    fed.land()
    fed.table.copy(1, [{1: 5, 2: "copied", 3: None}])
    fed.land()
    daily.assert_exact(fed.table)


def test_a_copy_replaces_a_deferred_replica_at_once_although_it_takes_narrower_columns(tmp_path: Path) -> None:
    daily = DailyLake(tmp_path)
    ignoring = LakeTableConfig("table*", merge_interval_s=86_400, schema_policy=SchemaPolicy.IGNORE)
    daily.config = LakeConfig((ignoring,))
    fed = IntervalTable(daily)
    key, note, _ = fed.table.relation.columns
    fed.table.relation = replace(fed.table.relation, columns=(key, note, column(3, "size", "int8")))
    fed.land()
    fed.table.insert({1: 2, 2: "b", 3: 1 << 40})
    fed.land()
    fed.table.delete((2,))
    fed.table.rewrite(3, "int4", {(1,): None})
    fed.land()
    daily.deferred_after(fed.table)
    fed.table.copy(1, [{1: 5, 2: "copied", 3: 7}])
    fed.land()
    daily.assert_exact(fed.table)
    assert daily.held == daily.head
    fed.table.insert({1: 6, 2: "later", 3: None})
    fed.land()
    daily.deferred_after(fed.table)
    daily.merge(all_of_them=True)
    daily.assert_exact(fed.table)


def test_a_change_that_the_schema_policy_refuses_pauses_log_and_deferred_replica_before_it(tmp_path: Path) -> None:
    daily = DailyLake(tmp_path)
    setting = LakeTableConfig("table*", merge_interval_s=86_400, schema_policy=SchemaPolicy.FAIL)
    daily.config = LakeConfig((setting,))
    fed = IntervalTable(daily)
    fed.land()
    fed.table.insert({1: 2, 2: "b", 3: None})
    fed.land()
    fed.table.add_column("extra")
    fed.table.insert({1: 3, 2: "c", 3: None, 4: "d"})
    fed.land()
    daily.merge(all_of_them=True)
    kinds = {fault.kind for _, fault in faults_of(daily.position(fed.table))}
    assert kinds == {FaultKind.PAUSED}
    assert [row["id"] for row in daily.replica(fed.table)] == [1, 2]


def test_a_new_outbox_continues_a_deferred_replica_only_if_it_has_all_its_changes(tmp_path: Path) -> None:
    for repeats in (True, False):
        root = tmp_path / str(repeats)
        root.mkdir()
        daily = DailyLake(root)
        fed = IntervalTable(daily)
        fed.land()
        fed.table.insert({1: 2, 2: "b", 3: None})
        fed.land()
        fed.table.insert({1: 3, 2: "c", 3: None})
        fed.table.cut()
        after = daily.head
        items = fed.table.items if repeats else fed.table.items[2:]
        numbered = [Delivered(Sequence(after + 1 + at), item) for at, item in enumerate(items)]
        daily.open().apply(batch(numbered, "another outbox"))
        entry = daily.position(fed.table).replica
        if repeats:
            assert daily.deferred_after(fed.table) == after
        else:
            assert entry.is_faulty(FaultKind.DIVERGED)
            assert "another outbox continues the lake" in str(entry.fault)


def test_the_commands_name_the_position_of_a_deferred_replica_and_find_no_fault(daily: DailyLake) -> None:
    fed = IntervalTable(daily)
    fed.land()
    position = daily.position(fed.table).position
    fed.table.insert({1: 2, 2: "b", 3: None})
    fed.land()
    lake = OpenedLake(str(daily.lake))
    reason = "merge_interval_s = 86400 in [[lake.tables]], pattern table*"
    assert f"replica: deferred after {position}: {reason}" in json.dumps(listed(lake))
    assert checked(lake, reads_files=False)["faults"] == 0


@needs_mount
def test_a_copy_that_cannot_replace_a_deferred_replica_pauses_it_and_all_its_changes_are_kept(
    daily: DailyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "RETRY_WAITS_S", ())
    fed = IntervalTable(daily)
    fed.land()
    fed.table.insert({1: 2, 2: "b", 3: None})
    fed.land()
    deferred = daily.position(fed.table).replica.fault
    assert deferred is not None
    fed.table.insert({1: 3, 2: "c", 3: None})
    fed.table.copy(1, [{1: 5, 2: "copied", 3: None}])
    with daily.unwritable(fed.table, ["replica"]):
        fed.land()
    paused = daily.position(fed.table).replica.fault
    assert paused is not None
    assert paused.kind is FaultKind.PAUSED
    assert (paused.position, paused.sequence) == (deferred.position, deferred.sequence)
    assert daily.held == deferred.sequence
    assert daily.resume(fed.table.oid) > 0
    daily.assert_exact(fed.table)


def test_without_the_setting_a_deferred_replica_is_due(daily: DailyLake) -> None:
    fed = IntervalTable(daily)
    for key in (2, 3):
        fed.land()
        fed.table.insert({1: key, 2: "b", 3: None})
    fed.land()
    daily.config = LakeConfig()
    daily.restart()
    assert daily.merge() == 1
    fed.table.insert({1: 9, 2: "b", 3: None})
    fed.land()
    daily.assert_exact(fed.table)
    assert replace(daily.position(fed.table)).replica.fault is None
