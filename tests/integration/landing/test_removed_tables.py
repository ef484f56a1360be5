"""Dropped tables are removed after `dropped_keep_days`: never one that exists, lacks changes or is foreign."""

import errno
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from structlog.testing import capture_logs

from tests.support.lakes.lakes import IDENTITY, Crash, batch, log_rows, replica_rows
from tests.support.lakes.removing import KEEPS_A_DAY, Removing
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable
from tests.support.lakes.swapped_tables import SwappedTables
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.failpoints import arm
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig, Written
from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import SchemaChange, SchemaEffect, SchemaEvent
from tidemark.model.lsn import Oid
from tidemark.pipeline.earlier.new_log import new_log
from tidemark.pipeline.failpoints import Failpoint, MaintenanceFailpoint
from tidemark.pipeline.lake.faults import Fault, FaultKind
from tidemark.pipeline.lake.layout import shape_of
from tidemark.pipeline.lake.positions.positions import FOLDER as POSITIONS
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TablePosition
from tidemark.pipeline.landing import dropped_tables, maintenance
from tidemark.pipeline.landing.metrics import MAINTENANCE_FAILURES
from tidemark.pipeline.sinks.log import event_record
from tidemark.pipeline.storage.local_store import LocalStore

pytestmark = pytest.mark.feature("L15")
POINTS = (
    MaintenanceFailpoint.DROPPED_CHECKED,
    MaintenanceFailpoint.DROPPED_FILES_DELETED,
    MaintenanceFailpoint.DROPPED_DELETED,
    Failpoint.TABLES_DONE,
    Failpoint.POSITIONS_WRITTEN,
)


@pytest.fixture(autouse=True)
def each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search for tables that are due each time."""
    monkeypatch.setattr(dropped_tables, "OFFER_S", 0.0)


class KillAtNth:
    """Raises `Crash` at the nth time of a failpoint, and at every failpoint after it."""

    def __init__(self, point: Enum, nth: int = 1) -> None:
        self._point, self._left = point, nth

    def __call__(self, point: Enum) -> None:
        self._left -= point is self._point and self._left > 0
        if not self._left:
            raise Crash(point)


def lake_of(root: Path | str, count: int = 3, config: LakeConfig = KEEPS_A_DAY) -> SwappedTables:
    swapped = SwappedTables(root, config, is_dated=True)
    swapped.swap(count)
    return swapped


def folders_of(lake: SwappedTables) -> list[str]:
    return [lake.folder(table) for table in lake.dropped]


def test_a_dropped_table_is_removed_with_its_folder_and_its_row(tmp_path: Path) -> None:
    lake = lake_of(tmp_path)
    folders = folders_of(lake)
    Removing(lake).run()
    assert lake.states() == {"live": 1}
    assert not any((tmp_path / folder).exists() for folder in folders)
    assert replica_rows(tmp_path, lake.folder(lake.live)) == lake.live.expected()
    rows = DeltaTable(str(tmp_path / POSITIONS)).to_pyarrow_table().to_pylist()
    assert [row["leaving"] for row in rows] == [None, None]
    lake.reopen()
    lake.change()
    assert lake.states() == {"live": 1}


def test_a_new_table_gets_the_folder_of_a_removed_one_and_keeps_it(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, 1)
    (folder,) = folders_of(lake)
    removing = Removing(lake)
    removing.run()
    lake.swap(1)
    assert lake.folder(lake.dropped[-1]) == folder
    lake.lake.apply(batch(lake.create_again(lake.dropped[-1])))
    removing.run()
    removing.run()
    assert [row["id"] for row in log_rows(tmp_path, folder)][-1] == 2


def of_event(table: ScriptedTable, **changes: object) -> None:
    event = table.items[-1]
    assert isinstance(event, SchemaEvent)
    table.items[-1] = replace(event, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "config"),
    [
        ({}, LakeConfig()),
        ({}, LakeConfig((LakeTableConfig("public.other", dropped_keep_days=1),))),
        ({"commit_time_us": SystemClock().wall_us() - 80_000_000_000}, KEEPS_A_DAY),
        ({"commit_time_us": 0}, KEEPS_A_DAY),
        ({"still_exists": True}, KEEPS_A_DAY),
        ({"capture": CaptureChange.ENDS}, KEEPS_A_DAY),
    ],
    ids=["no rule", "another pattern", "too early", "time not known", "exists unlogged", "database left the selection"],
)
def test_other_dropped_tables_are_kept(tmp_path: Path, changes: dict[str, object], config: LakeConfig) -> None:
    lake = SwappedTables(tmp_path, config, is_dated=True)
    table = ScriptedTable(name="stage", lsn=50_000, is_dated=True)
    table.insert({1: 1, 2: "a", 3: None})
    table.cut()
    table.schema_event(SchemaChange.DROP, SchemaEffect.METADATA, table.relation, None)
    of_event(table, **changes)
    lake.lake.apply(batch(lake.numbered(table.items)))
    Removing(lake).run()
    assert lake.states() == {"live": 1, "dropped": 1}
    assert len(log_rows(tmp_path, lake.folder(table))) == 1


def paused(lake: SwappedTables, kind: FaultKind) -> None:
    """Let the replica of the first dropped table have a fault."""
    of, tables = (DATABASE, lake.dropped[0].oid), lake.lake.positions.tables
    fault = Fault(kind, "a reason", tables[of].position, tables[of].sequence)
    behind = replace(tables[of], replica=replace(tables[of].replica, fault=fault))
    lake.lake.positions.tables = {**tables, of: behind}


@pytest.mark.parametrize("kind", [FaultKind.PAUSED, FaultKind.DEFERRED, FaultKind.STOPPED, FaultKind.DIVERGED])
def test_a_dropped_table_that_lacks_changes_is_kept(tmp_path: Path, kind: FaultKind) -> None:
    lake = lake_of(tmp_path, 2)
    folders = folders_of(lake)
    paused(lake, kind)
    Removing(lake).run()
    assert [(tmp_path / folder).exists() for folder in folders] == [True, False]


def append(root: Path, folder: str) -> None:
    rows = pa.table({"id": pa.array([99], pa.int32()), "note": ["foreign"], "big": pa.array([None], pa.string())})
    write_deltalake(str(root / folder / "replica"), rows, mode="append")


def add_file(root: Path, folder: str) -> None:
    (root / folder / "README").write_text("ours")


def add_table(root: Path, folder: str) -> None:
    write_deltalake(str(root / folder / "report"), pa.table({"a": [1]}))


def restrict(root: Path, folder: str) -> None:
    DeltaTable(str(root / folder / "replica")).alter.set_table_properties({"delta.appendOnly": "true"})


@pytest.mark.parametrize("change", [append, add_file, add_table, restrict], ids=lambda one: one.__name__)
def test_a_folder_with_anything_of_another_writer_is_kept_and_reported(
    tmp_path: Path, change: Callable[[Path, str], None]
) -> None:
    lake = lake_of(tmp_path, 2)
    folders = folders_of(lake)
    change(tmp_path, folders[0])
    before = sorted((tmp_path / folders[0]).rglob("*"))
    removing = Removing(lake)
    with capture_logs() as logs:
        removing.run()
        removing.run()
    assert sorted((tmp_path / folders[0]).rglob("*")) == before
    assert not (tmp_path / folders[1]).exists()
    assert lake.states() == {"live": 1, "dropped": 1}
    (kept,) = [entry for entry in logs if entry["event"] == "a dropped table is kept"]
    assert kept["folder"] == folders[0]


def test_files_in_the_place_of_a_replica_that_was_never_written_are_kept(tmp_path: Path) -> None:
    settings = LakeTableConfig("*.*", write=Written.LOG, dropped_keep_days=1)
    lake = lake_of(tmp_path, 1, LakeConfig((settings,)))
    (folder,) = folders_of(lake)
    export = tmp_path / folder / "replica" / "export.csv"
    export.parent.mkdir()
    export.write_text("ours")
    Removing(lake).run()
    assert export.read_text() == "ours"
    assert lake.states() == {"live": 1, "dropped": 1}


def test_what_another_writer_commits_during_the_removal_is_left(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, 1)
    (folder,) = folders_of(lake)
    removing = Removing(lake)
    removing.record()
    removing.work()
    append(tmp_path, folder)
    removing.record()
    with capture_logs() as logs:
        removing.work()
        removing.record()
    assert "the folder of a dropped table is left" in [entry["event"] for entry in logs]
    assert {"note": "foreign"}.items() <= replica_rows(tmp_path, folder)[-1].items()
    lake.swap(1)
    assert lake.folder(lake.dropped[-1]) != folder, "it has a table of another writer"


@pytest.mark.parametrize("is_checked", [False, True])
def test_a_table_that_exists_again_is_not_removed(tmp_path: Path, *, is_checked: bool) -> None:
    lake = lake_of(tmp_path, 2)
    folders = folders_of(lake)
    removing = Removing(lake)
    removing.record()
    if is_checked:
        removing.work()
    lake.lake.apply(batch(lake.create_again(lake.dropped[0])))
    removing.run()
    assert lake.states() == {"live": 2}
    assert [row["id"] for row in replica_rows(tmp_path, folders[0])] == [2]


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", POINTS, ids=lambda point: str(point.value))
def test_a_kill_during_a_removal_is_completed_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: Enum, nth: int
) -> None:
    monkeypatch.setattr(LocalStore, "deletes_at_once", 1)
    lake = lake_of(tmp_path, 2)
    folders = folders_of(lake)
    arm(KillAtNth(point, nth))
    try:
        Removing(lake).run()
    except Crash:
        pass
    finally:
        arm(None)
    lake.reopen()
    lake.change()
    lake.swap(1)
    Removing(lake).run()
    Removing(lake).run()
    assert lake.states() == {"live": 1}
    assert not any((tmp_path / folder).exists() for folder in folders)
    assert replica_rows(tmp_path, lake.folder(lake.live)) == lake.live.expected()


def test_a_failure_is_reported_and_the_removal_is_repeated_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = lake_of(tmp_path, 1)
    (folder,) = folders_of(lake)
    removing = Removing(lake)

    def refuse(_self: LocalStore, _paths: Sequence[str]) -> int:
        raise OSError(errno.EROFS, "read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "delete", refuse)
        removing.run()
    assert removing.metrics.registry.get_sample_value(MAINTENANCE_FAILURES, {"capture": "test"}) == 1
    assert (tmp_path / folder).exists()
    assert lake.states() == {"live": 1}, "its folder is still named"
    assert not removing.maintenance.step(), "it waits"
    Removing(lake).run()
    assert not (tmp_path / folder).exists()


def test_maintenance_commits_to_no_table_whose_removal_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = lake_of(tmp_path, 1)
    ((folder,), (table,)) = folders_of(lake), lake.dropped
    for _ in range(3):  # files that maintenance would combine
        lake.lake.apply(batch(lake.create_again(table)))
    table.schema_event(SchemaChange.DROP, SchemaEffect.METADATA, table.relation, None)
    lake.lake.apply(batch(lake.numbered(table.items[-1:])))
    removing = Removing(lake)
    removing.maintenance.report(lake.lake.written, lake.lake.upkeep)
    removing.record()
    removing.work()
    late_s = time.monotonic() + 1e7  # when unused files are looked for
    monkeypatch.setattr(time, "monotonic", lambda: late_s)
    removing.work()
    removing.record()
    with capture_logs() as logs:
        removing.work()
        removing.record()
    assert not logs
    assert not (tmp_path / folder).exists()


def test_a_folder_that_cannot_be_deleted_delays_no_other_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with an object that a store retains."""
    monkeypatch.setattr(maintenance, "RETRY_FIRST_S", 0.0)
    monkeypatch.setattr(maintenance, "RETRY_MAX_S", 0.0)
    lake = lake_of(tmp_path, 2)
    folders = folders_of(lake)
    removing, delete, refused = Removing(lake), LocalStore.delete, []

    def refuse(store: LocalStore, paths: Sequence[str]) -> int:
        if any(f"/{folders[0]}/" in path for path in paths):
            refused.append(1)
            raise PermissionError(errno.EACCES, "it is retained")
        return delete(store, paths)

    monkeypatch.setattr(LocalStore, "delete", refuse)
    removing.record()
    for _ in range(10):
        removing.maintenance.step()
        removing.record()
    lake.swap(1)
    later = lake.folder(lake.dropped[-1])
    for _ in range(10):
        removing.maintenance.step()
        removing.record()
    assert [(tmp_path / folder).exists() for folder in (*folders, later)] == [True, False, False]
    assert list(lake.lake.positions.leaving) == [folders[0]]
    assert len(refused) > 1, "it is tried again"


def test_changes_that_an_outbox_delivers_again_create_no_removed_table(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, 2)
    folders, tables = folders_of(lake), list(lake.dropped)
    Removing(lake).run()
    lake.reopen()
    items = lake.numbered([item for table in tables for item in table.items])
    lake.lake.apply(batch(items, "outbox-2"))
    assert lake.states() == {"live": 1}
    assert not any((tmp_path / folder).exists() for folder in folders)
    copied = ScriptedTable(oid=tables[0].oid, name="stage", lsn=900)  # the copy of a table that exists again
    copied.copy(1, [{1: 5, 2: "copied", 3: None}])
    lake.lake.apply(batch(lake.numbered(copied.items), "outbox-2"))
    assert [row["id"] for row in replica_rows(tmp_path, lake.folder(copied))] == [5]


def test_a_log_that_a_command_creates_gets_no_folder_that_is_being_deleted(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, 1)
    (folder,) = folders_of(lake)
    removing = Removing(lake)
    removing.record()
    removing.work()
    removing.record()
    shutil.rmtree(tmp_path / folder)  # a kill before `_positions` names it no longer
    positions = Positions(lake.root, IDENTITY)
    assert list(positions.leaving) == [folder]
    relation = ScriptedTable(oid=Oid(30_000), name="stage").relation
    made = new_log(
        lake.root,
        positions,
        (DATABASE, relation.oid),
        relation,
        positions.applied,
        identity=IDENTITY,
        databases={},
        shapes=shape_of,
        config=KEEPS_A_DAY,
    )
    assert made.table.folder == f"{folder}-{relation.oid}"


@pytest.mark.parametrize("is_open", [False, True], ids=["before it knows", "after it opened the lake again"])
def test_a_pipeline_that_was_overtaken_deletes_nothing_of_the_next_table_in_a_folder(
    tmp_path: Path, *, is_open: bool
) -> None:
    lake = lake_of(tmp_path, 1)
    ((folder,), (table,)) = folders_of(lake), lake.dropped
    for _ in range(3):  # so that the next table has a smaller version
        lake.lake.apply(batch(lake.create_again(table)))
    table.schema_event(SchemaChange.DROP, SchemaEffect.METADATA, table.relation, None)
    lake.lake.apply(batch(lake.numbered(table.items[-1:])))
    late = Removing(lake)
    late.record()
    late.work()
    late.record()  # its files are handed to maintenance, which deletes none yet
    overtaken = lake.lake
    lake.reopen()  # the pipeline of another host
    Removing(lake).run()
    lake.swap(1)
    assert lake.folder(lake.dropped[-1]) == folder
    lake.lake.apply(batch(lake.create_again(lake.dropped[-1])))
    before = sorted((tmp_path / folder).rglob("*"))
    if is_open:
        late.dropped.offer(lake.opened())
    late.work()
    late.dropped.record(overtaken)
    assert sorted((tmp_path / folder).rglob("*")) == before
    assert [row["id"] for row in replica_rows(tmp_path, folder)] == [2]


def test_events_of_a_removed_table_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = lake_of(tmp_path, 2)
    Removing(lake).run()
    monkeypatch.setattr(event_record, "COMPACT_EVERY", 1)
    lake.swap(1)
    events = DeltaTable(str(tmp_path / "_events")).to_pyarrow_table().column("relation").to_pylist()
    assert set(events) == {lake.live.oid, lake.dropped[-1].oid}


def test_a_removed_table_that_exists_again_has_no_earlier_events(tmp_path: Path) -> None:
    """A replay to a moment before the removal would begin with them, and find no row in the new log."""
    lake = lake_of(tmp_path, 2)
    (table, other), end = lake.dropped, lake.dropped[-1].lsn
    Removing(lake).run()
    lake.lake.apply(batch(lake.create_again(table)))
    lake.reopen()
    lake.lake.apply(batch(lake.create_again(table)))
    events = DeltaTable(str(tmp_path / "_events")).to_pyarrow_table().to_pylist()
    again = [event for event in events if event["relation"] == table.oid]
    assert len({event["_commit_lsn"] for event in again}) == 2, "its later events are kept"
    assert all(event["_commit_lsn"] > end for event in again)
    assert {event["relation"] for event in events} == {lake.live.oid, table.oid, other.oid}


def test_a_lake_without_a_rule_for_dropped_tables_looks_at_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, looked = lake_of(tmp_path, 1, LakeConfig()), []

    def at_rest(_self: Positions) -> list[TablePosition]:
        looked.append(1)
        return []

    monkeypatch.setattr(Positions, "at_rest", at_rest)
    Removing(lake).run()
    assert not looked
    Removing(lake, KEEPS_A_DAY).run()
    assert looked
