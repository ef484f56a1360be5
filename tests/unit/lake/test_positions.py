"""The positions table alone: its content, its owner, and the permitted changes by other writers."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.lakes.lakes import IDENTITY
from tests.support.processes.python_calls import counted_calls
from tidemark.model.lsn import Lsn, Oid, SystemIdentifier, TimelineId
from tidemark.model.position import Position, Sequence
from tidemark.pipeline.delta_log.applied import NOTHING, Applied
from tidemark.pipeline.delta_log.commit_files import write_commit
from tidemark.pipeline.delta_log.lineage import Recorded
from tidemark.pipeline.lake.faults import Fault, FaultKind, LakeEntry, LogBreak
from tidemark.pipeline.lake.positions.positions import FOLDER, LakeOfAnother, Positions
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState
from tidemark.pipeline.lake.tables.lake_table import REOPENED_MAX
from tidemark.pipeline.lake.tables.table_errors import LakeFailed, TableFenced, TableMoved
from tidemark.pipeline.storage.lake_store import Stamp

QUIET_CALLS_MAX = 2  # for a table that a batch did not change
DATABASE = Oid(5)
AT = Position(TimelineId(1), Lsn(1000), 3)
APPLIED = Applied(Sequence(9), AT)
OUTBOX = "outbox-1"
LOG = LakeEntry(Recorded(4, "log-id", 17), Fault(FaultKind.STOPPED, "a property", AT))
REPLICA = LakeEntry(Recorded(2, "replica-id", 18))


def table(relation: int, name: str = "orders", **more: object) -> TablePosition:
    at = TablePosition(
        DATABASE, Oid(relation), "public", name, f"5/{relation}", TableState.LIVE, Sequence(7), AT, log=LOG
    )
    return replace(at, **more)  # type: ignore[arg-type]


ORDERS, ITEMS = table(1), table(2, "items", replica=REPLICA, breaks=(LogBreak("confirmed", AT, AT),))


def opened(root: Path, **other: object) -> Positions:
    return Positions(str(root), replace(IDENTITY, **other))  # type: ignore[arg-type]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Return the folder of a lake with two tables, whose positions were written twice."""
    written = opened(tmp_path)
    written.write("outbox-0", [ORDERS], NOTHING)
    written.write(OUTBOX, [ITEMS], APPLIED)
    return tmp_path


def delta(lake: Path) -> DeltaTable:
    return DeltaTable(str(lake / FOLDER))


def assert_as_written(lake: Path) -> None:
    found = opened(lake)
    assert list(found.tables.values()) == [ORDERS, ITEMS]
    assert (found.outbox, found.applied) == (OUTBOX, APPLIED)


def describe(lake: Path) -> None:
    """Imitate maintenance: a commit of another writer that changes no row."""
    delta(lake).alter.set_table_properties({"delta.checkpointInterval": str(50 + delta(lake).version())})


def delete(lake: Path) -> None:
    delta(lake).delete("relation > 0")


def test_positions_are_read_as_they_were_written_in_one_commit_each(lake: Path) -> None:
    assert_as_written(lake)
    found = opened(lake)
    assert found.version == 2, "one that made the table, and one for each time"
    assert not found.foreign_change
    assert opened(lake / "another").tables == {}


def test_messages_and_tables_have_qualified_names() -> None:
    assert [ORDERS.qualified_name, replace(ORDERS, namespace="").qualified_name] == ["public.orders", "orders"]


def test_a_blocked_table_with_an_earlier_replica_is_stale(tmp_path: Path) -> None:
    wanted = {
        1: (table(1, state=TableState.BLOCKED), TableState.BLOCKED),
        2: (table(2, state=TableState.BLOCKED, replica=REPLICA), TableState.STALE),
        3: (table(3, state=TableState.DROPPED, replica=REPLICA), TableState.DROPPED),
    }
    opened(tmp_path).write(OUTBOX, [written for written, _ in wanted.values()], APPLIED)
    assert {key[1]: found.state for key, found in opened(tmp_path).tables.items()} == {
        relation: state for relation, (_, state) in wanted.items()
    }


@pytest.mark.feature("L01")
def test_a_lake_that_was_removed_or_replaced_while_its_pipeline_runs_is_detected(lake: Path) -> None:
    opened(lake / "new").check_present()
    found = opened(lake)
    found.check_present()
    shutil.rmtree(lake / FOLDER)
    with pytest.raises(LakeFailed, match=r"version 2 of .* is missing: the lake is not mounted, or was removed"):
        found.check_present()


@pytest.mark.feature("L01")
def test_a_change_by_another_writer_is_omitted_and_named_until_it_is_overwritten(lake: Path) -> None:
    describe(lake)
    delete(lake)
    describe(lake)
    found = opened(lake)
    assert_as_written(lake)
    assert "DELETE at version 4" in found.foreign_change
    found.write(OUTBOX, [ORDERS], APPLIED)
    assert_as_written(lake)
    assert not opened(lake).foreign_change


@pytest.mark.feature("L02")
def test_positions_are_read_although_earlier_commits_were_removed(lake: Path) -> None:
    delta(lake).create_checkpoint()
    for commit in (lake / FOLDER / "_delta_log").glob("*.json"):
        commit.unlink()
    assert_as_written(lake)
    assert not opened(lake).foreign_change


@pytest.mark.feature("L02")
def test_positions_are_read_although_maintenance_removed_earlier_files(lake: Path) -> None:
    delta(lake).optimize.z_order(["relation"])
    assert delta(lake).version() == 3
    delta(lake).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert_as_written(lake)


def test_a_positions_table_that_another_writer_created_is_read_unchanged(lake: Path, tmp_path: Path) -> None:
    """As in a copy of a lake, table by table."""
    copy = tmp_path / "copy"
    write_deltalake(str(copy / FOLDER), delta(lake).to_pyarrow_table())
    assert list(opened(copy).tables.values()) == [ORDERS, ITEMS]
    assert opened(copy).applied == NOTHING


def test_faults_are_read_as_they_were_written_also_those_of_an_earlier_version(tmp_path: Path) -> None:
    """That recorded only in the reason that the changes of a table were given up."""
    paused = Fault(FaultKind.PAUSED, "a full disk", AT, Sequence(3), replace(AT, ordinal=9))
    deferred, damaged = replace(paused, kind=FaultKind.DEFERRED), Fault(FaultKind.DIVERGED, "damaged", AT)
    faults = [paused, paused.given_up("no room"), deferred.given_up("no room"), damaged]
    assert [fault.is_given_up for fault in faults] == [False, True, True, False]
    written = [table(number, log=replace(LOG, fault=fault)) for number, fault in enumerate(faults, 1)]
    opened(tmp_path / "lake").write(OUTBOX, written, APPLIED)
    assert list(opened(tmp_path / "lake").tables.values()) == written
    rows = delta(tmp_path / "lake").to_pyarrow_table()
    names = ("kind", "reason", "timeline", "commit_lsn", "ordinal", "sequence")
    for column in ("log_fault", "replica_fault"):
        earlier = [fault and {name: fault[name] for name in names} for fault in rows.column(column).to_pylist()]
        kept = pa.struct([rows.schema.field(column).type.field(name) for name in names])
        rows = rows.set_column(rows.schema.get_field_index(column), column, pa.array(earlier, kept))
    write_deltalake(str(tmp_path / "earlier" / FOLDER), rows)
    found = opened(tmp_path / "earlier")
    read = [one.log.fault for one in found.tables.values()]
    assert read == [replace(fault, complete_to=None) for fault in faults]
    found.write(OUTBOX, found.tables.values(), APPLIED)
    assert [one.log.fault for one in opened(tmp_path / "earlier").tables.values()] == read


@pytest.mark.feature("X11")
@pytest.mark.parametrize("other", [{"capture": "other"}, {"system_identifier": SystemIdentifier(78)}])
@pytest.mark.parametrize("open_second", [True, False])
def test_a_lake_belongs_to_its_first_capture_also_if_another_opened_it_before(
    tmp_path: Path,
    other: dict[str, object],
    *,
    open_second: bool,
) -> None:
    raced = None if open_second else opened(tmp_path, **other)
    opened(tmp_path).lake_id()
    with pytest.raises(LakeOfAnother, match=r"contains the tables of capture 'test' of the cluster 77, not of "):
        (raced or opened(tmp_path, **other)).lake_id()


@pytest.mark.feature("X11")
def test_a_second_pipeline_that_created_the_table_first_fences_the_first_pipeline(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    second.lake_id()
    with pytest.raises(TableFenced):
        first.write(OUTBOX, [ORDERS], APPLIED)
    assert opened(tmp_path).tables == {}


def disturbed(monkeypatch: pytest.MonkeyPatch, times: int, act: Callable[[], None]) -> None:
    """Let another writer commit right before each of our next commits, so many times."""
    left = iter(range(times))

    def disturbed_write(*arguments: object) -> Stamp:
        if next(left, None) is not None:
            act()
        return write_commit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("tidemark.pipeline.lake.tables.lake_table.write_commit", disturbed_write)


@pytest.mark.feature("L02")
def test_a_commit_is_repeated_a_bounded_number_of_times_after_maintenance(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbed(monkeypatch, REOPENED_MAX, lambda: describe(lake))
    found = opened(lake)
    found.write("outbox-2", [], APPLIED)
    assert found.version == 2 + REOPENED_MAX + 1
    assert opened(lake).outbox == "outbox-2"
    disturbed(monkeypatch, REOPENED_MAX + 1, lambda: describe(lake))
    with pytest.raises(TableMoved):
        found.write("outbox-3", [], APPLIED)
    assert opened(lake).outbox == "outbox-2"


@pytest.mark.feature("L01")
def test_a_change_by_another_writer_before_a_commit_is_overwritten(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disturbed(monkeypatch, 1, lambda: delete(lake))
    opened(lake).write(OUTBOX, [ORDERS], APPLIED)
    assert_as_written(lake)


def test_the_rows_of_quiet_tables_are_not_built_again(tmp_path: Path) -> None:
    def calls(count: int) -> float:
        lake = opened(tmp_path / str(count))
        lake.write(OUTBOX, [table(number) for number in range(1, count + 1)], NOTHING)
        with counted_calls() as counted:
            lake.write(OUTBOX, [table(1, "renamed")], APPLIED)
        names = [one.name for one in opened(tmp_path / str(count)).tables.values()]
        assert sorted(names) == ["orders"] * (count - 1) + ["renamed"]
        return counted.total

    few, many = 100, 600  # both more than are listed for statistics
    calls(few)  # modules and properties that are loaded once
    assert (calls(many) - calls(few)) / (many - few) <= QUIET_CALLS_MAX, "calls of a further table"


def test_another_outbox_and_tables_that_changed_between_two_writes_are_recorded(tmp_path: Path) -> None:
    lake = opened(tmp_path)
    lake.write("outbox-0", [ORDERS, ITEMS], NOTHING)
    diverged = replace(ORDERS, state=TableState.DIVERGED)
    lake.tables = {**lake.tables, (DATABASE, ORDERS.relation): diverged}
    lake.write("outbox-0", [], NOTHING)
    assert sorted(opened(tmp_path).tables.values(), key=lambda one: one.relation) == [diverged, ITEMS]
    del lake.tables[DATABASE, ITEMS.relation]
    lake.write(OUTBOX, [], APPLIED)
    found = opened(tmp_path)
    assert list(found.tables.values()) == [diverged]
    assert set(delta(tmp_path).to_pyarrow_table().column("outbox").to_pylist()) == {OUTBOX}
    assert found.outbox == OUTBOX
