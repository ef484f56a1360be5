"""The lake's tables, written by delta-rs: exactly once and equal to the source, with any interruption and repeat."""

import os
import random
import subprocess
import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.lakes.lakes import CAPTURE, IDENTITY, Crash, CrashAt, CrashingFeed, batch, log_rows, replica_rows
from tests.support.lakes.scripted_table import DATABASE, RELATION, Row, ScriptedTable, act
from tests.support.workloads.feeder import make_state
from tidemark.io.host.failpoints import arm
from tidemark.model.change import ChangeBatch, LogicalMessage, SchemaChange, SchemaEffect, SchemaEvent
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, Oid, SystemIdentifier, TimelineId, Xid
from tidemark.model.position import Position, Sequence
from tidemark.model.relation import ReplicaIdentity
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.lake_lock import LakeInUse, LakeLock
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.positions import LakeOfAnother, Positions
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.lake.tables.table_errors import TableFenced
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.lake_batch import LakeBatch
from tidemark.pipeline.sinks.steps import Delivered

FOLDER = f"{DATABASE}/public/Orders"
KEYS = st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["insert", "update", "keep", "delete"]), KEYS),
    st.tuples(st.sampled_from(["insert", "update", "keep", "delete"]), KEYS),
    st.tuples(st.sampled_from(["move", "move and keep", "cut", "commit"]), KEYS),
    st.tuples(st.sampled_from(["truncate", "add", "add constant", "drop", "rename", "retype", "widen"]), KEYS),
)


def new_lake(root: Path) -> Lake:
    return Lake(str(root), IDENTITY, shape_of, constants_of)


def without_key(table: ScriptedTable) -> ScriptedTable:
    """Return the table without its key: whole rows identify its rows, while the oracle still has the key."""
    table.relation = replace(table.relation, primary_key=())
    return table


@pytest.mark.feature("P27")
@settings(max_examples=30)
@given(
    st.sampled_from([ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL, None]),
    st.lists(STEPS, min_size=4, max_size=22),
    st.integers(0, 1 << 32),
)
def test_log_and_replica_equal_the_source_after_any_crashes_repeats_and_new_outboxes(
    identity: ReplicaIdentity | None, script: list[tuple[str, int]], seed: int
) -> None:
    table = ScriptedTable(identity=identity) if identity else without_key(ScriptedTable(identity=ReplicaIdentity.FULL))
    for step, (action, key) in enumerate(script):
        act(table, action, key, step)
    table.commit()
    table.insert({c.number: "99" if c.type and c.type.name == "text" else 99 for c in table.relation.live_columns})
    with TemporaryDirectory() as folder:
        CrashingFeed(Path(folder), random.Random(seed)).feed(table.delivered())
        assert replica_rows(Path(folder), FOLDER) == table.expected()
        log = log_rows(Path(folder), FOLDER)
        assert len(log) == table.changes
        assert len({(row["_commit_lsn"], row["_ordinal"]) for row in log}) == table.changes


def history(*, has_key: bool = True) -> ScriptedTable:
    """Write changes that hit every failpoint of the sinks."""
    table = ScriptedTable() if has_key else without_key(ScriptedTable(identity=ReplicaIdentity.FULL))
    table.copy(1, [{1: k, 2: "copied", 3: "B" * k} for k in range(4)])
    table.commit()
    table.update((1,), {2: "changed"}, unchanged=(3,))
    table.update((2,), {1: 12}, unchanged=(3,))
    table.commit()
    table.add_column("extra", "constant")
    table.delete((3,))
    table.commit()
    table.rewrite(1, "text", {k: str(k[0]) for k in table.rows})
    table.commit()
    table.insert({1: "5", 2: "new", 3: None, 4: None})
    return table


def passed_by_history(*, has_key: bool) -> list[Enum]:
    with TemporaryDirectory() as folder:
        observed = CrashAt(0)
        arm(observed)
        try:
            new_lake(Path(folder)).apply(batch(history(has_key=has_key).delivered()))
        finally:
            arm(None)
        return observed.passed


@pytest.mark.feature("X02")
@pytest.mark.feature("X06")
@pytest.mark.parametrize("has_key", [True, False], ids=["key", "whole rows"])
def test_a_crash_at_any_point_of_a_batch_neither_loses_nor_duplicates_changes(tmp_path: Path, *, has_key: bool) -> None:
    points = passed_by_history(has_key=has_key)
    assert set(points) == set(Failpoint) - {Failpoint.CONFIRMED, Failpoint.TABLE_CAUGHT_UP, Failpoint.TABLE_RESUMED}
    for nth in range(1, len(points) + 1):
        table, root = history(has_key=has_key), tmp_path / str(nth)
        arm(CrashAt(nth))
        try:
            with pytest.raises(Crash):
                new_lake(root).apply(batch(table.delivered()))
        finally:
            arm(None)
        new_lake(root).apply(batch(table.delivered()))
        assert replica_rows(root, FOLDER) == table.expected()
        assert len(log_rows(root, FOLDER)) == table.changes


@pytest.mark.feature("X09")
def test_a_batch_that_is_already_applied_makes_no_commit(tmp_path: Path) -> None:
    table = history()
    new_lake(tmp_path).apply(batch(table.delivered()))
    before = {name: DeltaTable(str(tmp_path / FOLDER / name)).version() for name in ("log", "replica")}
    new_lake(tmp_path).apply(batch(table.delivered(start=100), "another outbox"))
    assert before == {name: DeltaTable(str(tmp_path / FOLDER / name)).version() for name in ("log", "replica")}


@pytest.mark.feature("X11")
def test_a_writer_with_an_outdated_snapshot_fails_and_writes_nothing(tmp_path: Path) -> None:
    table = ScriptedTable()
    table.insert({1: 1, 2: "a", 3: None})
    new_lake(tmp_path).apply(batch(table.delivered()))
    uri, app = str(tmp_path / FOLDER / "replica"), f"tidemark:{CAPTURE}:{DATABASE}.{RELATION}:replica"
    overtaken, owner = LakeTable(uri, app), LakeTable(uri, app)
    rows = overtaken.schema.empty_table()
    applied = replace(owner.applied, sequence=Sequence(9))
    owner.append(rows, applied)
    with pytest.raises(TableFenced, match="another writer"):
        overtaken.append(rows, applied)
    assert LakeTable(uri, app).version == owner.version


def test_a_restarted_copy_replaces_the_rows_of_the_interrupted_copy(tmp_path: Path) -> None:
    table = ScriptedTable()
    first = [Row({1: k, 2: "first", 3: None}) for k in range(5)]
    second = [Row({1: k, 2: "second", 3: None}) for k in range(3)]
    table.copy(1, first, complete=False)
    new_lake(tmp_path).apply(batch(table.delivered()))
    lake = new_lake(tmp_path)
    assert lake.positions.tables[DATABASE, RELATION].state is TableState.COPYING
    broken_off = len(table.items)
    table.ordinal = 0  # nothing was written since: the copy has the same LSN
    table.copy(2, second)
    lake.apply(batch(table.delivered()[broken_off:]))
    assert lake.positions.tables[DATABASE, RELATION].state is TableState.LIVE
    assert replica_rows(tmp_path, FOLDER) == table.expected()
    assert [row["note"] for row in log_rows(tmp_path, FOLDER)] == ["second"] * 3


def test_a_second_complete_copy_keeps_the_history_in_the_log(tmp_path: Path) -> None:
    table = ScriptedTable()
    table.copy(1, [{1: 1, 2: "first", 3: None}])
    table.commit()
    table.copy(2, [{1: 1, 2: "second", 3: None}])
    new_lake(tmp_path).apply(batch(table.delivered()))
    assert [row["note"] for row in log_rows(tmp_path, FOLDER)] == ["first", "second"]
    assert replica_rows(tmp_path, FOLDER) == table.expected()


@pytest.mark.feature("P06")
def test_a_table_without_a_key_is_log_only(tmp_path: Path) -> None:
    table = ScriptedTable(key=(), identity=ReplicaIdentity.NOTHING)
    table.insert({1: 1, 2: "a", 3: None})
    for number in range(3):
        table.commit()
        if number:
            table.update((), {2: f"b{number}"})
        lake = new_lake(tmp_path)
        lake.apply(batch(table.delivered()))
        position = lake.positions.tables[DATABASE, RELATION]
        assert (position.state, position.replica_version) == (TableState.BLOCKED, -1)
        assert not (tmp_path / FOLDER / "replica").exists()
    assert [row["note"] for row in log_rows(tmp_path, FOLDER)] == ["a", "b1", "b2"]


@pytest.mark.feature("P06")
@pytest.mark.parametrize("crashing", [False, True])
def test_a_table_gets_its_replica_with_its_key_if_it_had_only_inserts(tmp_path: Path, *, crashing: bool) -> None:
    for nth in range(8 if crashing else 1):
        table, root = ScriptedTable(key=(), identity=ReplicaIdentity.NOTHING), tmp_path / str(nth)
        for key in range(3):
            table.insert({1: key, 2: "a", 3: None})
            table.rows = {(key,): row for key, row in enumerate([*table.rows.values()])}
            table.commit()
        new_lake(root).apply(batch(table.delivered()))
        applied = len(table.delivered())
        give_key(table)
        table.update((1,), {2: "b"})
        arm(CrashAt(nth))
        try:
            new_lake(root).apply(batch(table.delivered()[applied:]))
        except Crash:
            pass
        finally:
            arm(None)
        new_lake(root).apply(batch(table.delivered()[applied:]))
        assert new_lake(root).positions.tables[DATABASE, RELATION].state is TableState.LIVE
        assert replica_rows(root, FOLDER) == [{"id": k, "note": "b" if k == 1 else "a", "big": None} for k in range(3)]


def give_key(table: ScriptedTable) -> None:
    table.key, table.identity = (1,), ReplicaIdentity.DEFAULT
    table.rows = {(row[1],): row for row in table.rows.values()}
    table.relation = replace(
        table.relation, replica_identity=ReplicaIdentity.DEFAULT, identity_columns=(1,), primary_key=(1,)
    )
    table.alter(table.relation.columns)


def remove_key(table: ScriptedTable) -> None:
    table.key, table.identity = (), ReplicaIdentity.NOTHING
    table.relation = replace(
        table.relation, replica_identity=ReplicaIdentity.NOTHING, identity_columns=(), primary_key=()
    )
    table.alter(table.relation.columns)
    (row,) = table.rows.values()
    table.rows = {(): row}


@pytest.mark.feature("P06")
def test_the_replica_of_a_table_that_lost_its_key_is_kept_and_stale_until_a_new_copy(tmp_path: Path) -> None:
    table = ScriptedTable()
    table.insert({1: 1, 2: "a", 3: None})
    table.commit()
    new_lake(tmp_path).apply(batch(table.delivered()))
    remove_key(table)
    table.commit()
    new_lake(tmp_path).apply(batch(table.delivered()))
    assert new_lake(tmp_path).positions.tables[DATABASE, RELATION].state is TableState.LIVE
    for note in ("b", "c"):
        table.update((), {2: note})
        table.commit()
        new_lake(tmp_path).apply(batch(table.delivered()))
        position = new_lake(tmp_path).positions.tables[DATABASE, RELATION]
        assert position.state is TableState.STALE
        assert replica_rows(tmp_path, FOLDER) == [{"id": 1, "note": "a", "big": None}]
    give_key(table)
    table.commit()
    table.copy(2, list(table.rows.values()))
    new_lake(tmp_path).apply(batch(table.delivered()))
    assert new_lake(tmp_path).positions.tables[DATABASE, RELATION].state is TableState.LIVE
    assert replica_rows(tmp_path, FOLDER) == table.expected() == [{"id": 1, "note": "c", "big": None}]


def test_a_row_whose_text_key_changes_keeps_its_unchanged_value(tmp_path: Path) -> None:
    table = ScriptedTable()
    table.insert({1: 1, 2: "a", 3: "long"})
    table.commit()
    table.rewrite(1, "text", {(1,): "1"})
    new_lake(tmp_path).apply(batch(table.delivered()))
    table.commit()
    table.update(("1",), {1: "2"}, unchanged=(3,))
    new_lake(tmp_path).apply(batch(table.delivered()))
    assert replica_rows(tmp_path, FOLDER) == table.expected()


def test_rows_that_were_not_copied_are_inserted_once_a_change_contains_all_columns(tmp_path: Path) -> None:
    table = ScriptedTable(rows={(key,): {1: key, 2: "old", 3: "long"} for key in range(1, 5)})
    table.update((1,), {1: 11}, unchanged=(3,))
    table.update((2,), {2: "new"}, unchanged=(3,))
    table.update((3,), {1: 13, 3: "short"})
    table.delete((4,))
    table.commit()
    new_lake(tmp_path).apply(batch(table.delivered()))
    assert replica_rows(tmp_path, FOLDER) == [{"id": 13, "note": "old", "big": "short"}]
    table.copy(1, list(table.rows.values()))
    table.commit()
    new_lake(tmp_path).apply(batch(table.delivered()))
    assert replica_rows(tmp_path, FOLDER) == table.expected()


@pytest.mark.feature("P05")
def test_the_log_contains_the_unchanged_columns_and_the_known_part_of_the_old_row(tmp_path: Path) -> None:
    table = ScriptedTable()
    table.insert({1: 1, 2: "a", 3: "long"})
    table.update((1,), {1: 2, 2: "b"}, unchanged=(3,))
    new_lake(tmp_path).apply(batch(table.delivered()))
    (_, row) = log_rows(tmp_path, FOLDER)
    assert (row["_op"], row["_unchanged"], row["big"], row["_before_kind"]) == ("u", ["big"], None, 1)
    assert row["_old"] == {"id": 1, "note": None, "big": None}


@pytest.mark.feature("P05")
@pytest.mark.parametrize("in_one_batch", [True, False])
def test_the_replica_keeps_a_value_that_an_update_left_unchanged(tmp_path: Path, *, in_one_batch: bool) -> None:
    table = ScriptedTable()
    table.insert({1: 1, 2: "a", 3: "long"})
    table.insert({1: 2, 2: "a", 3: "longer"})
    table.commit()
    if not in_one_batch:
        new_lake(tmp_path).apply(batch(table.delivered()))
    table.update((1,), {2: "b"}, unchanged=(3,))
    table.update((2,), {1: 3}, unchanged=(3,))
    new_lake(tmp_path).apply(batch(table.delivered()))
    assert replica_rows(tmp_path, FOLDER) == [
        {"id": 1, "note": "b", "big": "long"},
        {"id": 3, "note": "a", "big": "longer"},
    ]


def test_a_type_change_keeps_old_values_in_the_log_readable(tmp_path: Path) -> None:
    table = ScriptedTable()
    table.insert({1: 7, 2: "12", 3: None})
    table.commit()
    table.rewrite(1, "text", {(7,): "7"})
    table.commit()
    table.rewrite(2, "int8", {("7",): 12})
    new_lake(tmp_path).apply(batch(table.delivered()))
    rows = log_rows(tmp_path, FOLDER)
    assert [row["id"] for row in rows] == ["7", "7", "7"]
    assert [(row["note"], row["note__string"]) for row in rows] == [(None, "12"), (None, "12"), (12, None)]
    assert replica_rows(tmp_path, FOLDER) == table.expected()


def test_a_dropped_table_is_marked_and_kept(tmp_path: Path) -> None:
    table = ScriptedTable()
    table.insert({1: 1, 2: "a", 3: None})
    table.commit()
    table.cut()
    at = Position(TimelineId(1), Lsn(table.lsn), 1)
    drop = SchemaEvent(at, Lsn(1), DATABASE, Xid(7), SchemaChange.DROP, SchemaEffect.METADATA, table.relation, None)
    lake = new_lake(tmp_path)
    lake.apply(batch([*table.delivered(), Delivered(Sequence(2), drop)]))
    assert lake.positions.tables[DATABASE, RELATION].state is TableState.DROPPED
    assert replica_rows(tmp_path, FOLDER) == table.expected()


def test_names_that_delta_or_the_log_would_reject_are_distinguished(tmp_path: Path) -> None:
    table = ScriptedTable()
    for name in ("ID", "_op", "we\"ird, 'näme'.x", "_old"):
        table.add_column(name)
    table.insert({1: 1, 2: "a", 3: "b", 4: "c", 5: "d", 6: "e", 7: "f"})
    table.commit()
    table.update((1,), {4: "g"}, unchanged=(3, 6))
    lake = new_lake(tmp_path)
    for delivered in table.delivered():
        lake.apply(batch([delivered]))
    assert replica_rows(tmp_path, FOLDER) == [
        {"id": 1, "note": "a", "big": "b", "ID_4": "g", "_op_": "d", "we\"ird, 'näme'.x": "e", "_old_": "f"}
    ]
    assert [row["_op_"] for row in log_rows(tmp_path, FOLDER)] == ["d", "d"]


def test_logical_messages_have_a_separate_log(tmp_path: Path) -> None:
    message = LogicalMessage(
        Position(TimelineId(1), Lsn(500), 0), Lsn(500), DATABASE, Xid(0), False, "app\udcff", b"\0hello"
    )
    for outbox in ("one", "two"):
        new_lake(tmp_path).apply(LakeBatch(outbox, Sequence(3), message.position, [(Sequence(3), message)]))
    rows = DeltaTable(str(tmp_path / f"{DATABASE}/messages")).to_pyarrow_table().to_pylist()
    assert [(row["prefix"], row["content"]) for row in rows] == [("app\ufffd", b"\0hello")]


def test_the_positions_table_contains_the_position_of_every_table_including_quiet_ones(tmp_path: Path) -> None:
    table = ScriptedTable()
    table.insert({1: 1, 2: "a", 3: None})
    lake = new_lake(tmp_path)
    lake.apply(batch(table.delivered()))
    later = Position(TimelineId(1), Lsn(900_000), 1)
    lake.apply(LakeBatch("outbox-1", Sequence(40), later, []))
    again = new_lake(tmp_path)
    assert again.positions.applied == Applied(Sequence(40), later)
    assert again.positions.tables[DATABASE, RELATION].sequence == 1
    assert again.positions.outbox == "outbox-1"


@pytest.mark.feature("U15")
def test_a_position_is_committed_without_rows_and_without_an_empty_file(tmp_path: Path) -> None:
    """Once without any item of the table, once with an event that is no row."""
    table = history()
    new_lake(tmp_path).apply(batch(table.delivered()))
    files = data_files(tmp_path / FOLDER)
    versions = {name: DeltaTable(str(tmp_path / FOLDER / name)).version() for name in ("log", "replica")}
    items = table.delivered()
    end, later = items[-1].sequence, table.next_position()
    new_lake(tmp_path).apply(LakeBatch("outbox-1", Sequence(end + 5), later, []))
    assert new_lake(tmp_path).positions.applied == Applied(Sequence(end + 5), later)
    assert data_files(tmp_path / FOLDER) == files
    assert versions == {name: DeltaTable(str(tmp_path / FOLDER / name)).version() for name in ("log", "replica")}
    table.commit()
    table.alter(table.relation.columns)
    (event,) = table.delivered(start=end + 6)[len(items) :]
    new_lake(tmp_path).apply(batch([event]))
    assert new_lake(tmp_path).positions.applied.sequence == event.sequence
    assert all(pq.read_metadata(path).num_rows for path in data_files(tmp_path))


def data_files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*.parquet") if path.parent.name != "_delta_log"}


def test_databases_with_any_names_have_distinct_folders(tmp_path: Path) -> None:
    table = ScriptedTable()
    table.insert({1: 1, 2: "a", 3: None})
    names = {1: "positions", 2: "..", 3: "a b", 4: "a_b", 5: "A_b", 6: "a-b"}
    (inserted,) = table.delivered()
    assert isinstance(inserted.item, ChangeBatch)
    databases = {Oid(oid): name for oid, name in names.items()}
    lake = Lake(str(tmp_path), IDENTITY, shape_of, constants_of, databases)
    items = [Delivered(Sequence(n), replace(inserted.item, database=Oid(n))) for n in (*names, 7)]
    lake.apply(batch(items))
    folders = sorted(position.folder.split("/")[0] for position in lake.positions.tables.values())
    assert folders == ["7", "A_b-5", "a-b", "a_b", "a_b-4", "positions", "x._"]
    assert {path.name for path in tmp_path.iterdir()} == {*folders, "_events", "_positions"}


def test_a_recreated_database_has_a_separate_folder(tmp_path: Path) -> None:
    table = ScriptedTable()
    table.insert({1: 1, 2: "a", 3: None})
    (inserted,) = table.delivered()
    assert isinstance(inserted.item, ChangeBatch)
    databases = {Oid(1): "shop"}
    for number, renamed in ((1, {}), (2, {}), (3, {Oid(1): "old", Oid(2): "old"})):
        databases |= {Oid(number): "shop"} | renamed
        lake = Lake(str(tmp_path), IDENTITY, shape_of, constants_of, databases)
        lake.apply(batch([Delivered(Sequence(number), replace(inserted.item, database=Oid(number)))]))
    folders = sorted(position.folder.split("/")[0] for position in lake.positions.tables.values())
    assert folders == ["shop", "shop-2", "shop-3"]


@pytest.mark.parametrize("how", ["renamed", "dropped and added"])
def test_a_column_whose_name_changes_only_by_case_keeps_its_first_spelling_in_the_log(tmp_path: Path, how: str) -> None:
    table = ScriptedTable()
    table.rename_column(2, "Note")
    table.insert({1: 1, 2: "a", 3: "b"})
    table.commit()
    if how == "renamed":
        table.rename_column(2, "note")
    else:
        table.drop_column(2)
        table.add_column("note")
    last = table.relation.live_columns[-1].number
    table.update((1,), {1: 2, last: "c"}, unchanged=(2,) if how == "renamed" else ())
    new_lake(tmp_path).apply(batch(table.delivered()))
    assert replica_rows(tmp_path, FOLDER) == table.expected()
    rows = log_rows(tmp_path, FOLDER)
    assert [row["Note"] for row in rows] == ["a", None if how == "renamed" else "c"]
    assert rows[1]["_unchanged"] == (["Note"] if how == "renamed" else None)
    assert rows[1]["_old"] == {"id": 1, "Note": None, "big": None}


def test_columns_with_dots_in_their_names_are_merged(tmp_path: Path) -> None:
    table = ScriptedTable()
    table.rename_column(1, "order.id")
    table.rename_column(2, "a.b")
    table.insert({1: 1, 2: "a", 3: "long"})
    table.commit()
    table.update((1,), {2: "b"}, unchanged=(3,))
    table.update((1,), {1: 2}, unchanged=(3,))
    for delivered in table.delivered():
        new_lake(tmp_path).apply(batch([delivered]))
    assert replica_rows(tmp_path, FOLDER) == table.expected()


def test_old_values_are_not_moved_to_a_column_of_the_table(tmp_path: Path) -> None:
    table = ScriptedTable()
    table.add_column("note__string")
    table.add_column("big__string")
    table.insert({1: 1, 2: "12", 3: "13", 4: "mine", 5: "mine"})
    table.commit()
    table.drop_column(5)
    table.rewrite(2, "int8", {(1,): 12})
    table.rewrite(3, "int8", {(1,): 13})
    new_lake(tmp_path).apply(batch(table.delivered()))
    first = log_rows(tmp_path, FOLDER)[0]
    assert (first["note__string"], first["note__string_"]) == ("mine", "12")
    assert replica_rows(tmp_path, FOLDER) == table.expected()


def test_a_new_state_copies_again_at_any_generation_of_the_old_state(tmp_path: Path) -> None:
    old = ScriptedTable()
    old.copy(1, [{1: 1, 2: "old", 3: None}])
    old.commit()
    old.copy(2, [{1: 1, 2: "old", 3: None}, {1: 2, 2: "old", 3: None}])
    new_lake(tmp_path).apply(batch(old.delivered()))
    table = ScriptedTable()
    table.commit(5000)
    table.copy(1, [{1: 1, 2: "new", 3: None}])
    table.commit()
    table.insert({1: 3, 2: "later", 3: None})
    new_lake(tmp_path).apply(batch(table.delivered(), "outbox-2"))
    assert replica_rows(tmp_path, FOLDER) == table.expected()
    assert [row["note"] for row in log_rows(tmp_path, FOLDER)] == ["old"] * 3 + ["new", "later"]


@pytest.mark.feature("X11")
@pytest.mark.parametrize("other", [{"capture": "other"}, {"system_identifier": SystemIdentifier(78)}])
def test_a_lake_with_the_tables_of_another_capture_is_refused(tmp_path: Path, other: dict[str, str]) -> None:
    table = ScriptedTable()
    table.insert({1: 1, 2: "a", 3: None})
    new_lake(tmp_path).apply(batch(table.delivered()))
    with pytest.raises(LakeOfAnother, match=r"contains the tables of capture 'test' of the cluster 77"):
        Lake(str(tmp_path), replace(IDENTITY, **other), shape_of, constants_of)  # type: ignore[arg-type]


@pytest.mark.feature("X11")
@pytest.mark.parametrize("other", [{"capture": "other"}, {"system_identifier": SystemIdentifier(78)}])
@pytest.mark.parametrize("raced", [False, True])
def test_a_lake_without_tables_belongs_to_its_first_capture(
    tmp_path: Path, other: dict[str, str], *, raced: bool
) -> None:
    def second() -> Positions:
        return Positions(str(tmp_path), replace(IDENTITY, **other))  # type: ignore[arg-type]

    raced_by = second() if raced else None
    Positions(str(tmp_path), IDENTITY).lake_id()  # as a pipeline does at its start
    with pytest.raises(LakeOfAnother, match=r"contains the tables of capture 'test' of the cluster 77, not of "):
        (raced_by or second()).lake_id()


@pytest.mark.feature("X11")
def test_a_second_pipeline_beside_a_running_one_is_refused_and_both_are_named(tmp_path: Path) -> None:
    make_state(tmp_path / "second")
    lake = tmp_path / "lake"
    with LakeLock.acquire(lake, IDENTITY, tmp_path / "first", "spark", ["key"]):
        arguments = ["--state", str(tmp_path / "second"), "--lake", str(lake)]
        done = subprocess.run(
            [sys.executable, "-m", "tidemark.pipeline", *arguments], capture_output=True, text=True, check=False
        )
    assert done.returncode == ExitCode.CONFIG
    first, _, second = done.stderr.partition("; this is ")
    assert f"capture 'test' of the cluster 77 (state {tmp_path / 'first'}, process {os.getpid()} on " in first
    assert f"capture 'test' of the cluster 77 (state {tmp_path / 'second'}, process " in second
    with LakeLock.acquire(lake, IDENTITY, tmp_path / "second", "spark", []) as free:
        assert free.beside is None


@pytest.mark.feature("X11")
def test_each_host_of_a_capture_runs_one_pipeline_and_each_state_runs_one(tmp_path: Path) -> None:
    lake, first, second = tmp_path / "lake", tmp_path / "first", tmp_path / "second"
    with LakeLock.acquire(lake, IDENTITY, first, "spark", ["old", "key"]):
        with LakeLock.acquire(lake, IDENTITY, second, "spark", ["key"]) as beside:
            assert beside.beside is not None
            assert beside.beside.state == str(first)
        for state, keys in ((second, ["other"]), (second, []), (first, ["key"])):
            with pytest.raises(LakeInUse):
                LakeLock.acquire(lake, IDENTITY, state, "another reader", keys)


def test_an_interrupted_copy_of_a_new_state_leaves_the_rows_of_older_copies_in_the_log(tmp_path: Path) -> None:
    old = ScriptedTable()
    old.copy(1, [{1: 1, 2: "old", 3: None}])
    new_lake(tmp_path).apply(batch(old.delivered(start=50)))
    table = ScriptedTable()
    table.commit(5000)
    table.copy(1, [{1: 1, 2: "broken off", 3: None}], complete=False)
    table.commit()
    table.copy(2, [{1: 1, 2: "new", 3: None}])
    new_lake(tmp_path).apply(batch(table.delivered(), "outbox-2"))
    assert [row["note"] for row in log_rows(tmp_path, FOLDER)] == ["old", "new"]
    assert replica_rows(tmp_path, FOLDER) == table.expected()
