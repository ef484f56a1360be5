"""Other writers in the lake: maintenance has no effect, and a table with changed rows is not written to."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from tests.support.lakes.lakes import CAPTURE, IDENTITY, Crash, CrashAt, batch, log_rows, replica_rows
from tests.support.lakes.scripted_table import DATABASE, RELATION, ScriptedTable
from tidemark.io.host.failpoints import arm
from tidemark.model.lsn import Lsn, Oid, TimelineId
from tidemark.model.position import Position, Sequence
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.position_rows import SCHEMA
from tidemark.pipeline.lake.positions.positions import FOLDER as POSITIONS
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.lake.tables.table_errors import LakeFailed
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.lake_batch import LakeBatch
from tidemark.pipeline.sinks.steps import Delivered

FOLDER = f"{DATABASE}/public/Orders"
OTHER = Oid(20001)
ROWS = 20
Changed = Callable[["ScriptedLake", str], None]


def new_lake(root: Path, accepted: Mapping[str, str] | None = None) -> Lake:
    return Lake(str(root), IDENTITY, shape_of, constants_of, accepted=lambda: accepted or {})


class ScriptedLake:
    """A lake with a table that is fed in steps; each step is a batch.

    The lake is opened for each batch, as after a restart, or stays open, and its tables with it.
    """

    def __init__(self, root: Path, *, stays_open: bool = False) -> None:
        self.root = root
        self._lake = None if not stays_open else Lake(str(root), IDENTITY, shape_of, constants_of)
        self.table = ScriptedTable()
        self.accepted: dict[str, str] = {}
        self._applied = 0
        self.table.copy(1, [{1: key, 2: "old", 3: None} for key in range(ROWS)])
        self.apply_pending()
        self.update(0, "first")
        self.update(1, "second")

    def update(self, key: int, note: str, lake: Lake | None = None) -> None:
        self.table.commit()
        self.table.update((key,), {2: note})
        self.apply_pending(lake)

    def recopy(self, generation: int = 2) -> None:
        """Copy the source's rows as another generation."""
        self.table.commit()
        self.table.copy(generation, list(self.table.rows.values()))

    def accept_break(self) -> None:
        """Accept the present break of the log."""
        fault = self.position().log.fault
        assert fault is not None
        self.accepted[f"{DATABASE}.{RELATION}"] = str(fault.position)

    def apply_pending(self, lake: Lake | None = None) -> None:
        (lake or self._lake or new_lake(self.root, self.accepted)).apply(batch(self.pending()))
        self.applied()

    def pending(self) -> list[Delivered]:
        return self.table.delivered()[self._applied :]

    def applied(self) -> None:
        self._applied = len(self.table.delivered())

    def state(self) -> TableState:
        return self.position().state

    def position(self) -> TablePosition:
        return new_lake(self.root).positions.tables[DATABASE, RELATION]

    @property
    def notes(self) -> list[object]:
        """Return the notes of the log's rows in order, without those of the copies."""
        return [row["note"] for row in log_rows(self.root, FOLDER) if row["_op"] != "c"]

    def path(self, name: str) -> str:
        return str(self.root / FOLDER / name)

    def delta(self, name: str) -> DeltaTable:
        return DeltaTable(self.path(name))


# Actions of other writers


def remove(fed: ScriptedLake, name: str) -> None:
    shutil.rmtree(fed.path(name))


def restore(fed: ScriptedLake, name: str) -> None:
    fed.delta(name).restore(fed.delta(name).version() - 1)


def delete(fed: ScriptedLake, name: str) -> None:
    fed.delta(name).delete("id >= 10")


def put_back(fed: ScriptedLake, name: str) -> None:
    _put_back(fed, name, maintained=0)


def put_back_and_maintain(fed: ScriptedLake, name: str) -> None:
    _put_back(fed, name, maintained=3)


def _put_back(fed: ScriptedLake, name: str, maintained: int) -> None:
    shutil.copytree(fed.path(name), fed.path(f"{name}-copy"))
    fed.update(2, "after the copy was made")
    shutil.rmtree(fed.path(name))
    Path(fed.path(f"{name}-copy")).rename(fed.path(name))
    for number in range(maintained):
        fed.delta(name).alter.set_table_properties({"delta.checkpointInterval": str(50 + number)})


def recreate(fed: ScriptedLake, name: str) -> None:
    rows = fed.delta(name).to_pyarrow_table()
    shutil.rmtree(fed.path(name))
    for _ in range(fed.position().log.recorded.version + 3):
        write_deltalake(fed.path(name), rows, mode="overwrite")


def clone_over(fed: ScriptedLake, name: str) -> None:
    """Imitate CLONE: rows change, and the source's application transactions are cloned as well."""
    transactions = {f"tidemark:{CAPTURE}:{DATABASE}.{RELATION}:{name}:sequence": 99}
    table = fed.delta(name)
    first = Path(table.file_uris()[0]).name
    actions = [
        {"commitInfo": {"timestamp": 1, "operation": "CLONE"}},
        *({"txn": {"appId": app, "version": version}} for app, version in transactions.items()),
        {"remove": {"path": first, "deletionTimestamp": 1, "dataChange": True}},
    ]
    commit(fed, name, actions)


def add_column(fed: ScriptedLake, name: str) -> None:
    fed.delta(name).alter.add_columns([Field("extra", PrimitiveType("string"))])


def lose_commits(fed: ScriptedLake, name: str) -> None:
    """Remove the commits of maintenance, so that they cannot be checked."""
    fed.delta(name).optimize.compact()
    fed.delta(name).alter.set_table_properties({"delta.checkpointInterval": "50"})
    fed.delta(name).create_checkpoint()
    for version in range(fed.delta(name).version()):
        (Path(fed.path(name)) / "_delta_log" / f"{version:020d}.json").unlink()


def damage(fed: ScriptedLake, name: str) -> None:
    version = fed.delta(name).version()
    (Path(fed.path(name)) / "_delta_log" / f"{version - 1:020d}.json").unlink()


def commit(fed: ScriptedLake, name: str, actions: Iterable[Mapping[str, object]]) -> None:
    version = fed.delta(name).version() + 1
    file = Path(fed.path(name)) / "_delta_log" / f"{version:020d}.json"
    file.write_text("".join(json.dumps(action) + "\n" for action in actions))


LOST = [
    remove,
    restore,
    delete,
    put_back,
    put_back_and_maintain,
    recreate,
    clone_over,
    add_column,
    lose_commits,
    damage,
]


def id_of(change: object) -> str:
    return getattr(change, "__name__", str(change))


@pytest.mark.feature("L01")
@pytest.mark.parametrize("change", LOST, ids=id_of)
@pytest.mark.parametrize("stays_open", [False, True], ids=["opened", "open"])
def test_a_replica_that_another_writer_changed_is_not_written_until_a_new_copy(
    tmp_path: Path, change: Changed, *, stays_open: bool
) -> None:
    fed = ScriptedLake(tmp_path, stays_open=stays_open)
    change(fed, "replica")
    before = files(fed, "replica")
    fed.update(5, "after")
    fed.update(6, "later")
    assert fed.state() is TableState.DIVERGED
    fault = fed.position().replica.fault
    assert fault is not None
    assert fed.path("replica") in fault.reason
    assert files(fed, "replica") == before
    assert fed.notes[-2:] == ["after", "later"]
    fed.recopy()
    fed.update(7, "live again")
    assert fed.state() is TableState.LIVE
    assert replica_rows(tmp_path, FOLDER) == fed.table.expected()
    assert len(log_rows(tmp_path, FOLDER)) == fed.table.changes
    assert fed.position().breaks == ()


def files(fed: ScriptedLake, name: str) -> set[str]:
    return {str(path) for path in Path(fed.path(name)).rglob("*")}


@pytest.mark.feature("L01")
def test_another_table_and_the_position_of_the_lake_continue_beside_a_diverged_table(tmp_path: Path) -> None:
    fed, other = ScriptedLake(tmp_path), ScriptedTable(oid=OTHER, name="other")
    delete(fed, "replica")
    other.insert({1: 1, 2: "a", 3: None})
    fed.table.commit()
    fed.table.update((3,), {2: "after"})
    items = [*fed.pending(), *other.delivered(start=50)]
    new_lake(tmp_path).apply(batch(items))
    positions = new_lake(tmp_path).positions
    states = {name: table.state for (_, name), table in positions.tables.items()}
    assert states == {RELATION: TableState.DIVERGED, OTHER: TableState.LIVE}
    assert positions.applied.sequence == items[-1].sequence
    assert replica_rows(tmp_path, f"{DATABASE}/public/other") == other.expected()


# Maintenance


def optimize(fed: ScriptedLake, name: str) -> None:
    fed.delta(name).optimize.compact()
    fed.delta(name).optimize.z_order(["id"])


def vacuum(fed: ScriptedLake, name: str) -> None:
    fed.delta(name).optimize.compact()
    fed.delta(name).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def checkpoint(fed: ScriptedLake, name: str) -> None:
    """Remove all commits but the last one: nothing before the recorded version is needed."""
    fed.delta(name).create_checkpoint()
    for version in range(fed.delta(name).version()):
        (Path(fed.path(name)) / "_delta_log" / f"{version:020d}.json").unlink()


def describe(fed: ScriptedLake, name: str) -> None:
    fed.delta(name).alter.set_table_properties({"delta.checkpointInterval": "50"})
    fed.delta(name).alter.set_table_description("orders of the shop")
    fed.delta(name).alter.set_column_metadata("note", {"comment": "what the customer wrote"})


MAINTENANCE = [optimize, vacuum, checkpoint, describe]


@pytest.mark.feature("L02")
@pytest.mark.parametrize("maintain", MAINTENANCE, ids=id_of)
@pytest.mark.parametrize("stays_open", [False, True], ids=["opened", "open"])
def test_maintenance_between_batches_changes_nothing(tmp_path: Path, maintain: Changed, *, stays_open: bool) -> None:
    fed = ScriptedLake(tmp_path, stays_open=stays_open)
    for name in ("log", "replica"):
        maintain(fed, name)
    fed.update(5, "after")
    assert_exact(fed)


class Meanwhile:
    """Runs an action at each hit of a failpoint, which is between two commits of one table."""

    def __init__(self, point: Failpoint, act: Callable[[], None]) -> None:
        self._point = point
        self._act = act

    def __call__(self, point: Enum) -> None:
        if point is self._point:
            self._act()


@pytest.mark.feature("L02")
@pytest.mark.parametrize("maintain", [optimize, vacuum, describe], ids=id_of)
@pytest.mark.parametrize(("name", "point"), [("log", Failpoint.LOG_APPENDED), ("replica", Failpoint.REPLICA_CHANGED)])
def test_maintenance_between_opening_and_commit_changes_nothing(
    tmp_path: Path, maintain: Changed, name: str, point: Failpoint
) -> None:
    fed = ScriptedLake(tmp_path)
    for key in (5, 6):
        fed.table.commit()
        fed.table.update((key,), {2: "with a copy in between"})
        fed.recopy()
    arm(Meanwhile(point, lambda: maintain(fed, name)))
    try:
        fed.apply_pending()
    finally:
        arm(None)
    assert_exact(fed)


@pytest.mark.feature("L01")
@pytest.mark.parametrize("point", [Failpoint.REPLICA_CHANGED, Failpoint.FILES_WRITTEN])
def test_a_change_of_data_between_opening_and_commit_is_found(tmp_path: Path, point: Failpoint) -> None:
    fed = ScriptedLake(tmp_path)
    fed.table.commit()
    fed.table.truncate()
    fed.table.insert({1: 1, 2: "after", 3: None})
    arm(Meanwhile(point, lambda: write_deltalake(fed.path("replica"), foreign_row(), mode="append")))
    try:
        fed.apply_pending()
    finally:
        arm(None)
    assert fed.state() is TableState.DIVERGED
    assert replica_rows(tmp_path, FOLDER) == foreign_row().to_pylist()


def foreign_row() -> pa.Table:
    return pa.table({"id": pa.array([99], pa.int32()), "note": ["foreign"], "big": pa.array([None], pa.string())})


@pytest.mark.feature("L02")
def test_the_positions_table_survives_maintenance_and_foreign_changes(tmp_path: Path) -> None:
    fed = ScriptedLake(tmp_path)
    positions = str(tmp_path / POSITIONS)
    lake, known = new_lake(tmp_path), fed.position()
    DeltaTable(positions).optimize.compact()
    fed.table.commit()
    fed.table.update((5,), {2: "behind an OPTIMIZE"})
    lake.apply(batch(fed.pending()))
    fed.applied()
    DeltaTable(positions).delete("relation > 0")
    assert fed.position().position > known.position
    fed.update(6, "behind a DELETE")
    assert DeltaTable(positions).to_pyarrow_table().num_rows == 2
    assert_exact(fed)


@pytest.mark.feature("L01")
def test_a_lake_that_was_restored_completely_while_its_pipeline_runs_is_opened_again(tmp_path: Path) -> None:
    fed = ScriptedLake(tmp_path / "lake")
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    fed.update(5, "after the copy was made")
    lake = new_lake(fed.root)
    fed.table.commit()
    fed.table.update((6,), {2: "after the lake was put back"})
    last = fed.pending()
    fed.applied()
    shutil.rmtree(fed.root)
    with pytest.raises(LakeFailed, match="restored from a copy as a whole"):
        lake.apply(batch(last))
    (tmp_path / "copy").rename(fed.root)
    with pytest.raises(LakeFailed, match="restored from a copy as a whole"):
        lake.apply(batch(last))
    new_lake(fed.root).apply(batch(fed.table.delivered()))  # from the content of the copy
    assert_exact(fed)


def test_a_lake_that_was_written_before_ids_were_recorded_continues(tmp_path: Path) -> None:
    fed = ScriptedLake(tmp_path)
    write_as_before(tmp_path, "live")
    assert fed.position().log.recorded.id == ""
    fed.update(5, "after")
    assert_exact(fed)
    assert fed.position().log.recorded.id == str(fed.delta("log").metadata().id)


@pytest.mark.feature("P06")
def test_a_replica_that_was_created_for_a_table_without_a_key_is_stale(tmp_path: Path) -> None:
    fed = ScriptedLake(tmp_path)
    write_as_before(tmp_path, "blocked")
    assert fed.state() is TableState.STALE


def write_as_before(root: Path, state: str) -> None:
    """Write the positions in the format without ids, with the state of the one table."""
    table = LakeTable(str(root / POSITIONS), f"tidemark:{CAPTURE}:positions")
    new = {"log_id", "replica_id", "log_token", "replica_token", "log_fault", "replica_fault", "log_breaks"}
    names = [name for name in SCHEMA.names if name not in new]
    rows = table.scan(names).read_all().to_pylist()
    for row in rows:
        row["state"] = state if row["relation"] else "live"
    table.overwrite(pa.Table.from_pylist(rows, pa.schema([SCHEMA.field(name) for name in names])), table.applied)


def assert_exact(fed: ScriptedLake) -> None:
    assert fed.state() is TableState.LIVE
    assert rows_of(fed, "replica") == fed.table.expected()
    rows = rows_of(fed, "log")
    assert len(rows) == fed.table.changes
    assert len({(row["_commit_lsn"], row["_ordinal"]) for row in rows}) == len(rows)


def rows_of(fed: ScriptedLake, name: str) -> list[dict[str, object]]:
    """Read a table as Tidemark does: delta-rs reads no table with deletion vectors into Arrow."""
    rows: list[dict[str, object]] = LakeTable(fed.path(name), "").scan().read_all().to_pylist()
    return sorted(rows, key=repr)


# Properties


def set_property(name: str, value: str) -> Changed:
    return lambda fed, table: fed.delta(table).alter.set_table_properties({name: value})


def map_columns(fed: ScriptedLake, name: str) -> None:
    """Write the properties that Spark writes for column mapping: delta-rs refuses to."""
    _set_mapping(fed, name, "name")


def unmap_columns(fed: ScriptedLake, name: str) -> None:
    _set_mapping(fed, name, "none")


def _set_mapping(fed: ScriptedLake, name: str, mode: str) -> None:
    table = fed.delta(name)
    present = table.metadata()
    fields = json.loads(table.schema().to_json())
    for number, field in enumerate(fields["fields"], 1):
        mapping = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
        kept = {key: value for key, value in field["metadata"].items() if key not in mapping}
        field["metadata"] = {**kept, **(mapping if mode == "name" else {})}
    metadata = {
        "id": str(present.id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(fields),
        "partitionColumns": [],
        "configuration": {**present.configuration, "delta.columnMapping.mode": mode},
    }
    protocol = {"minReaderVersion": 2, "minWriterVersion": 5}
    commit(
        fed, name, [{"commitInfo": {"operation": "SET TBLPROPERTIES"}}, {"protocol": protocol}, {"metaData": metadata}]
    )


def use_feature(fed: ScriptedLake, name: str) -> None:
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly", "rowTracking"]}
    commit(fed, name, [{"commitInfo": {"operation": "UPGRADE PROTOCOL"}}, {"protocol": protocol}])


def drop_feature(fed: ScriptedLake, name: str) -> None:
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly"]}
    commit(fed, name, [{"commitInfo": {"operation": "DROP FEATURE"}}, {"protocol": protocol}])


def add_check(fed: ScriptedLake, name: str) -> None:
    fed.delta(name).alter.add_constraint({"small": "id < 1000"})


def drop_check(fed: ScriptedLake, name: str) -> None:
    fed.delta(name).alter.drop_constraint("small")


RESTRICTIONS = [
    (
        set_property("delta.appendOnly", "true"),
        set_property("delta.appendOnly", "false"),
        "'delta.appendOnly' = 'false'",
    ),
    (
        set_property("delta.enableDeletionVectors", "true"),
        set_property("delta.enableDeletionVectors", "false"),
        "SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')",
    ),
    (map_columns, unmap_columns, "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'none')"),
    (use_feature, drop_feature, "DROP FEATURE rowTracking"),
    (add_check, drop_check, "DROP CONSTRAINT small"),
]


@pytest.mark.feature("L02")
@pytest.mark.parametrize(("restrict", "undo", "command"), RESTRICTIONS, ids=[command for *_, command in RESTRICTIONS])
def test_a_property_that_restricts_writes_stops_its_table_until_it_is_undone(
    tmp_path: Path, restrict: Changed, undo: Changed, command: str
) -> None:
    fed = ScriptedLake(tmp_path)
    names = ("replica",) if restrict is map_columns else ("log", "replica")
    for name in names:
        restrict(fed, name)
    applied = rows_of(fed, "replica")
    fed.update(5, "while stopped")
    fed.table.add_column("extra", "constant")
    fed.update(6, "while stopped, too")
    assert fed.state() is TableState.STOPPED
    for name in names:
        target = fed.position().log if name == "log" else fed.position().replica
        assert target.fault is not None
        assert f"ALTER TABLE delta.`{fed.path(name)}` " in target.fault.reason
        assert command in target.fault.reason
    assert rows_of(fed, "replica") == applied
    for name in names:
        undo(fed, name)
    later = Position(TimelineId(1), Lsn(900_000), 1)
    new_lake(tmp_path).apply(LakeBatch("outbox-1", Sequence(99), later, []))  # the batch has nothing for the table
    assert_exact(fed)
    fed.update(7, "after")
    assert_exact(fed)


@pytest.mark.feature("L02")
def test_changes_that_wait_for_a_stopped_table_are_applied_once_after_crashes_and_repeats(tmp_path: Path) -> None:
    fed = ScriptedLake(tmp_path)
    set_property("delta.appendOnly", "true")(fed, "replica")
    for key in range(5, 9):
        fed.table.commit()
        fed.table.update((key,), {2: "while stopped"})
        crash = CrashAt(key - 5)  # the item is repeated, with the next one
        arm(crash)
        try:
            fed.apply_pending()
        except Crash:
            pass
        finally:
            arm(None)
    assert fed.state() is TableState.STOPPED
    set_property("delta.appendOnly", "false")(fed, "replica")
    fed.table.commit()
    fed.table.update((9,), {2: "after"})
    arm(CrashAt(3))
    try:
        with pytest.raises(Crash):
            fed.apply_pending()
    finally:
        arm(None)
    fed.apply_pending()
    assert_exact(fed)
