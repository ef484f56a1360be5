"""Change logs as Iceberg tables: exactly once with any interruption, and equal to the log in Delta's format."""

import os
import random
import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import snapshot as update_snapshot
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import LongType, StringType
from sqlalchemy.exc import OperationalError

from tests.integration.lake.test_sinks import FOLDER, STEPS, history, new_lake
from tests.support.faults.power_loss import SyncedDisk, Unsynced
from tests.support.lakes.iceberg import duckdb_rows, iceberg_lake, iceberg_rows, iceberg_table, without_types
from tests.support.lakes.lakes import IDENTITY, Crash, CrashAt, CrashingFeed, batch, log_rows
from tests.support.lakes.scripted_table import DATABASE, RELATION, Row, ScriptedTable, act
from tidemark.io.host.failpoints import arm
from tidemark.model.change import LogicalMessage
from tidemark.model.errors import Disposition
from tidemark.model.lsn import Lsn, Oid, SystemIdentifier, Xid
from tidemark.model.position import Sequence
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.iceberg import catalog
from tidemark.pipeline.iceberg.catalog import open_catalog
from tidemark.pipeline.iceberg.expiry import ORPHANS_KEPT_S, SnapshotExpiry
from tidemark.pipeline.iceberg.iceberg_lake import IcebergLake
from tidemark.pipeline.iceberg.iceberg_table import IcebergLogFormat, IcebergTable
from tidemark.pipeline.iceberg.snapshot_summary import IcebergTableChanged
from tidemark.pipeline.iceberg.translated import UnfitForIceberg, translated
from tidemark.pipeline.lake.layout import shape_of
from tidemark.pipeline.lake.positions.positions import LakeOfAnother
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.lake.tables.table_errors import LakeFailed, LakeFull, TableFenced
from tidemark.pipeline.sinks.lake_batch import LakeBatch
from tidemark.pipeline.sinks.rows.logshape import OLD

BACK = st.tuples(st.just("retype back"), st.just(0))
APP = f"tidemark:test:{DATABASE}.{RELATION}:log"


class CrashingIcebergFeed(CrashingFeed):
    """Feeds a lake of Iceberg tables."""

    def open_lake(self) -> IcebergLake:
        return iceberg_lake(self.root)


def test_a_log_equals_that_in_deltas_format_after_any_crashes_repeats_and_new_outboxes() -> None:
    crashes = []

    @settings(max_examples=8, phases=(Phase.explicit, Phase.generate))
    @given(st.lists(STEPS | BACK, min_size=6, max_size=18), st.integers(0, 1 << 32))
    def check(script: list[tuple[str, int]], seed: int) -> None:
        table = ScriptedTable()
        for step, (action, key) in enumerate(script):
            act(table, action, key, step)
        table.commit()
        table.insert({c.number: "99" if c.type and c.type.name == "text" else 99 for c in table.relation.live_columns})
        with TemporaryDirectory() as folder:
            delta, iceberg = Path(folder, "delta"), Path(folder, "iceberg")
            new_lake(delta).apply(batch(table.delivered()))
            feed = CrashingIcebergFeed(iceberg, random.Random(seed))
            feed.feed(table.delivered())
            crashes.extend(feed.crashes)
            found = iceberg_rows(iceberg, FOLDER)
            assert [without_types(row) for row in found] == [without_types(row) for row in log_rows(delta, FOLDER)]
            assert len({(row["_commit_lsn"], row["_ordinal"]) for row in found}) == len(found) == table.changes

    check()
    assert crashes


@pytest.mark.feature("L14")
def test_a_crash_at_any_point_neither_loses_nor_duplicates_changes_and_other_programs_read_the_same(
    tmp_path: Path,
) -> None:
    observed = CrashAt(0)
    arm(observed)
    try:
        iceberg_lake(tmp_path / "0").apply(batch(history().delivered()))
    finally:
        arm(None)
    assert {*observed.passed} >= {Failpoint.LOG_APPENDED, Failpoint.LOG_RESHAPED, Failpoint.TABLES_DONE}
    for nth in range(1, len(observed.passed) + 1):
        table, root = history(), tmp_path / str(nth)
        arm(CrashAt(nth))
        try:
            with pytest.raises(Crash):
                iceberg_lake(root).apply(batch(table.delivered()))
        finally:
            arm(None)
        lake = iceberg_lake(root)
        lake.apply(batch(table.delivered()))
        rows = iceberg_rows(root, FOLDER)
        assert len({(row["_commit_lsn"], row["_ordinal"]) for row in rows}) == len(rows) == table.changes
    assert duckdb_rows(root, FOLDER) == iceberg_rows(root, FOLDER)
    assert lake.positions.tables[DATABASE, RELATION].state is TableState.LIVE


def test_a_restarted_copy_replaces_the_rows_of_the_interrupted_copy(tmp_path: Path) -> None:
    table = ScriptedTable()
    first = [Row({1: k, 2: "first", 3: None}) for k in range(5)]
    second = [Row({1: k, 2: "second", 3: None}) for k in range(3)]
    table.copy(1, first, complete=False)
    lake = iceberg_lake(tmp_path)
    lake.apply(batch(table.delivered()))
    assert lake.positions.tables[DATABASE, RELATION].state is TableState.COPYING
    broken_off = len(table.items)
    table.ordinal = 0  # nothing was written since: the copy has the same LSN
    table.copy(2, second)
    iceberg_lake(tmp_path).apply(batch(table.delivered()[broken_off:]))
    assert [row["note"] for row in iceberg_rows(tmp_path, FOLDER)] == ["second"] * 3
    assert duckdb_rows(tmp_path, FOLDER) == iceberg_rows(tmp_path, FOLDER)


def test_a_writer_with_an_outdated_snapshot_fails_and_writes_nothing(tmp_path: Path) -> None:
    lake_with_a_row(tmp_path)
    overtaken, owner = opened(tmp_path), opened(tmp_path)
    rows = owner.schema.empty_table()
    owner.append(rows, replace(owner.applied, sequence=Sequence(9)))
    with pytest.raises(TableFenced, match="another writer"):
        overtaken.append(rows, replace(owner.applied, sequence=Sequence(8)))
    assert opened(tmp_path).applied.sequence == 9


def test_rows_of_another_writer_end_the_pipeline_and_name_the_snapshot(tmp_path: Path) -> None:
    table = lake_with_a_row(tmp_path)
    foreign = iceberg_table(tmp_path, FOLDER)
    foreign.append(foreign.scan().to_arrow())
    snapshot = foreign.current_snapshot()
    assert snapshot is not None
    table.insert({1: 2, 2: "b", 3: None})
    with pytest.raises(IcebergTableChanged, match=rf"another writer: snapshot {snapshot.snapshot_id}") as refusal:
        iceberg_lake(tmp_path).apply(batch(table.delivered()))
    assert refusal.value.disposition is Disposition.HALT


def test_a_table_is_continued_after_it_was_rolled_back_to_the_named_snapshot(tmp_path: Path) -> None:
    table = lake_with_a_row(tmp_path)
    foreign = iceberg_table(tmp_path, FOLDER)
    for _ in range(2):
        foreign.append(foreign.scan().to_arrow())
    table.insert({1: 2, 2: "b", 3: None})
    with pytest.raises(IcebergTableChanged) as refusal:
        iceberg_lake(tmp_path).apply(batch(table.delivered()))
    named = re.search(r"rollback_to_snapshot\((\d+)\)", refusal.value.hint)
    assert named is not None
    iceberg_table(tmp_path, FOLDER).manage_snapshots().rollback_to_snapshot(int(named[1])).commit()
    iceberg_lake(tmp_path).apply(batch(table.delivered()))
    assert [row["id"] for row in iceberg_rows(tmp_path, FOLDER)] == [1, 2]


def test_no_snapshot_is_named_if_none_of_tidemark_is_left(tmp_path: Path) -> None:
    table = lake_with_a_row(tmp_path)
    foreign = iceberg_table(tmp_path, FOLDER)
    foreign.append(foreign.scan().to_arrow())
    own, _ = foreign.snapshots()
    foreign.maintenance.expire_snapshots().by_id(own.snapshot_id).commit()
    table.insert({1: 2, 2: "b", 3: None})
    with pytest.raises(IcebergTableChanged) as refusal:
        iceberg_lake(tmp_path).apply(batch(table.delivered()))
    assert refusal.value.hint == IcebergTableChanged.hint


def test_rows_of_another_writer_that_come_during_a_batch_are_noticed_by_the_commit(tmp_path: Path) -> None:
    lake_with_a_row(tmp_path)
    own, foreign = opened(tmp_path), iceberg_table(tmp_path, FOLDER)
    foreign.append(foreign.scan().to_arrow())
    with pytest.raises(IcebergTableChanged, match="another writer"):
        own.append(own.schema.empty_table(), own.applied)


def drop_note(update: UpdateSchema) -> None:
    update.delete_column("note")


def rename_note(update: UpdateSchema) -> None:
    update.rename_column("note", "remark")


def promote_key(update: UpdateSchema) -> None:
    update.update_column("id", LongType())


def add_field_of_the_old_row(update: UpdateSchema) -> None:
    update.add_column((OLD, "own"), StringType())


@pytest.mark.feature("L14")
@pytest.mark.parametrize(
    ("change", "names"),
    [(drop_note, "note"), (rename_note, "note, remark"), (promote_key, "id"), (add_field_of_the_old_row, OLD)],
)
def test_columns_that_another_writer_changes_end_the_pipeline_and_are_named(
    tmp_path: Path, change: Callable[[UpdateSchema], None], names: str
) -> None:
    table = lake_with_a_row(tmp_path)
    with iceberg_table(tmp_path, FOLDER).update_schema() as update:
        change(update)
    table.insert({1: 2, 2: "b", 3: None})
    with pytest.raises(IcebergTableChanged, match=rf"changed by another writer: its columns differ \({names}\)"):
        iceberg_lake(tmp_path).apply(batch(table.delivered()))


def test_columns_that_another_writer_changes_during_a_batch_are_noticed_by_the_next_and_comments_are_free(
    tmp_path: Path,
) -> None:
    table = lake_with_a_row(tmp_path)
    with iceberg_table(tmp_path, FOLDER).update_schema() as update:
        update.update_column("note", doc="of a user")
    table.insert({1: 2, 2: "b", 3: None})
    table.add_column("more")
    table.insert({1: 3, 2: "c", 3: None, 4: "d"})
    iceberg_lake(tmp_path).apply(batch(table.delivered()))
    own = opened(tmp_path)
    with iceberg_table(tmp_path, FOLDER).update_schema() as update:
        update.delete_column("more")
    own.append(own.schema.empty_table(), own.applied)  # Iceberg lets it pass
    with pytest.raises(IcebergTableChanged, match=r"its columns differ \(more\)"):
        opened(tmp_path)


def test_a_table_that_was_rolled_back_is_not_continued(tmp_path: Path) -> None:
    table = lake_with_a_row(tmp_path)
    first = iceberg_table(tmp_path, FOLDER).current_snapshot()
    assert first is not None
    table.insert({1: 2, 2: "b", 3: None})
    iceberg_lake(tmp_path).apply(batch(table.delivered()))
    iceberg_table(tmp_path, FOLDER).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    table.insert({1: 3, 2: "c", 3: None})
    with pytest.raises(IcebergTableChanged, match="rolled back, recreated or restored"):
        iceberg_lake(tmp_path).apply(batch(table.delivered()))


def test_a_table_that_was_dropped_from_the_catalog_is_named(tmp_path: Path) -> None:
    table = lake_with_a_row(tmp_path)
    open_catalog(str(tmp_path)).drop_table(tuple(FOLDER.split("/")))
    table.insert({1: 2, 2: "b", 3: None})
    with pytest.raises(IcebergTableChanged, match=r"the table 16384\.public\.Orders is not in the catalog") as refusal:
        iceberg_lake(tmp_path).apply(batch(table.delivered()))
    assert refusal.value.disposition is Disposition.HALT  # it does not come back by itself


def test_retries_of_pyiceberg_that_another_program_allows_are_turned_off_again(tmp_path: Path) -> None:
    lake_with_a_row(tmp_path)
    with iceberg_table(tmp_path, FOLDER).transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "4"})
    opened(tmp_path)
    assert iceberg_table(tmp_path, FOLDER).properties["commit.retry.num-retries"] == "0"


def test_another_captures_lake_is_refused(tmp_path: Path) -> None:
    lake_with_a_row(tmp_path)
    other = replace(IDENTITY, system_identifier=SystemIdentifier(78))
    with pytest.raises(LakeOfAnother, match="capture 'test' of the cluster 77, not of 'test' of 78"):
        IcebergLake(str(tmp_path), other, shape_of, {}, SnapshotExpiry(1.0, lambda: 0.0))


def test_a_lake_that_disappears_is_not_begun_anew(tmp_path: Path) -> None:
    table, root = ScriptedTable(), tmp_path / "lake"
    lake = iceberg_lake(root)
    root.rename(tmp_path / "elsewhere")
    table.insert({1: 1, 2: "a", 3: None})
    with pytest.raises(LakeFailed, match="is missing: the lake is not mounted"):
        lake.apply(batch(table.delivered()))


def test_messages_are_a_table_of_their_database(tmp_path: Path) -> None:
    table = ScriptedTable()
    at = table.next_position()
    message = LogicalMessage(at, Lsn(5), DATABASE, Xid(7), True, "prefix", b"\xff")
    for _ in range(2):
        iceberg_lake(tmp_path).apply(LakeBatch("outbox-1", Sequence(1), at, [(Sequence(1), message)]))
    (row,) = iceberg_table(tmp_path, f"{DATABASE}/messages").scan().to_arrow().to_pylist()
    assert (row["prefix"], row["content"], row["_seq"]) == ("prefix", b"\xff", 1)


def test_a_table_keeps_few_snapshots_and_no_file_that_none_names(tmp_path: Path) -> None:
    table = ScriptedTable()
    for number in range(9):
        table.insert({1: number, 2: "a", 3: None})
        table.commit()
        iceberg_lake(tmp_path, keep_s=-1, snapshots_max=4).apply(batch(table.delivered()))
    found = iceberg_table(tmp_path, FOLDER)
    assert len(found.metadata.snapshots) < 4
    assert [row["id"] for row in duckdb_rows(tmp_path, FOLDER)] == list(range(9))
    assert unnamed_files(tmp_path) == set()


def test_files_of_expired_snapshots_stay_for_their_time(tmp_path: Path) -> None:
    table = ScriptedTable()
    for number in range(6):
        table.insert({1: number, 2: "a", 3: None})
        table.commit()
        iceberg_lake(tmp_path, snapshots_max=2).apply(batch(table.delivered()))
    assert len(iceberg_table(tmp_path, FOLDER).metadata.snapshots) == 1
    assert unnamed_files(tmp_path)


def test_the_files_of_an_interrupted_copy_are_deleted_once_their_deletion_expires(tmp_path: Path) -> None:
    table = ScriptedTable()
    table.copy(1, [Row({1: k, 2: "first", 3: None}) for k in range(5)], complete=False)
    iceberg_lake(tmp_path).apply(batch(table.delivered()))
    data = {*(tmp_path / FOLDER / "data").glob("*.parquet")}
    table.ordinal = 0
    table.copy(2, [Row({1: 1, 2: "second", 3: None})])
    for number in range(7, 10):
        table.commit()
        table.insert({1: number, 2: "a", 3: None})
        iceberg_lake(tmp_path, keep_s=-1, snapshots_max=2).apply(batch(table.delivered()[1:]))
    assert data
    assert not data & {*(tmp_path / FOLDER / "data").glob("*.parquet")}
    assert [row["note"] for row in duckdb_rows(tmp_path, FOLDER)] == ["second", "a", "a", "a"]


def test_data_files_that_a_killed_pipeline_left_are_deleted_after_days(tmp_path: Path) -> None:
    table = lake_with_a_row(tmp_path)
    (file,) = (tmp_path / FOLDER / "data").glob("*.parquet")
    old, young = (file.with_name(f"00000-0-{name}.parquet") for name in ("old", "young"))
    for orphan, age_s in ((old, ORPHANS_KEPT_S + 60), (young, ORPHANS_KEPT_S - 60)):
        shutil.copy(file, orphan)
        os.utime(orphan, (time.time() - age_s,) * 2)
    os.utime(file, (0, 0))
    for number in range(2, 5):
        table.commit()
        table.insert({1: number, 2: "a", 3: None})
        iceberg_lake(tmp_path, snapshots_max=2).apply(batch(table.delivered()))
    assert (old.exists(), young.exists(), file.exists()) == (False, True, True)
    assert [row["id"] for row in duckdb_rows(tmp_path, FOLDER)] == [1, 2, 3, 4]


def test_the_files_of_a_foreign_deletion_stay_after_a_rollback(tmp_path: Path) -> None:
    table = lake_with_a_row(tmp_path)
    foreign = iceberg_table(tmp_path, FOLDER)
    last = foreign.current_snapshot()
    assert last is not None
    foreign.delete("_seq >= 0")
    foreign.manage_snapshots().rollback_to_snapshot(last.snapshot_id).commit()
    for number in range(2, 7):
        table.commit()
        table.insert({1: number, 2: "a", 3: None})
        iceberg_lake(tmp_path, keep_s=-1, snapshots_max=2).apply(batch(table.delivered()))
    assert [row["id"] for row in duckdb_rows(tmp_path, FOLDER)] == [1, 2, 3, 4, 5, 6]


def test_a_snapshot_that_a_tag_names_stays_readable(tmp_path: Path) -> None:
    table = lake_with_a_row(tmp_path)
    tagged = iceberg_table(tmp_path, FOLDER).current_snapshot()
    assert tagged is not None
    iceberg_table(tmp_path, FOLDER).manage_snapshots().create_tag(tagged.snapshot_id, "audit").commit()
    for number in range(2, 7):
        table.commit()
        table.insert({1: number, 2: "a", 3: None})
        iceberg_lake(tmp_path, keep_s=-1, snapshots_max=2).apply(batch(table.delivered()))
    assert iceberg_table(tmp_path, FOLDER).scan(snapshot_id=tagged.snapshot_id).to_arrow().num_rows == 1


def test_a_table_keeps_no_schema_that_no_snapshot_has(tmp_path: Path) -> None:
    table = ScriptedTable()
    for number in range(6):
        table.add_column(f"c{number}")
        table.insert({c.number: number if c.number == 1 else "a" for c in table.relation.live_columns})
        table.commit()
        iceberg_lake(tmp_path, snapshots_max=2).apply(batch(table.delivered()))
    assert len(iceberg_table(tmp_path, FOLDER).metadata.schemas) <= 3
    assert len(duckdb_rows(tmp_path, FOLDER)) == 6


def test_expired_snapshots_of_tidemark_leave_the_position_to_the_properties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake_with_a_row(tmp_path)
    foreign = iceberg_table(tmp_path, FOLDER)
    own = foreign.current_snapshot()
    assert own is not None
    # What a compaction of another program leaves; pyiceberg itself makes none.
    monkeypatch.setattr(update_snapshot, "update_snapshot_summaries", lambda summary, **_: summary)
    with (
        foreign.transaction() as transaction,
        update_snapshot._FastAppendFiles(  # noqa: SLF001 - it has no other way to make such a snapshot
            operation=Operation.REPLACE, transaction=transaction, io=foreign.io
        ),
    ):
        pass
    monkeypatch.undo()
    foreign.maintenance.expire_snapshots().by_id(own.snapshot_id).commit()
    table.insert({1: 2, 2: "b", 3: None})
    iceberg_lake(tmp_path).apply(batch(table.delivered()))
    assert [row["id"] for row in iceberg_rows(tmp_path, FOLDER)] == [1, 2]


def test_a_pipeline_whose_positions_another_one_has_written_ends(tmp_path: Path) -> None:
    older = iceberg_lake(tmp_path)
    lake_with_a_row(tmp_path)
    other = ScriptedTable(oid=Oid(20001), name="Others")
    other.insert({1: 1, 2: "a", 3: None})
    with pytest.raises(TableFenced, match="another writer committed to the catalog"):
        older.apply(batch(other.delivered()))


def test_a_catalog_that_another_program_locks_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "LOCK_WAIT_S", 0)
    table = lake_with_a_row(tmp_path)
    lake = iceberg_lake(tmp_path)
    table.insert({1: 2, 2: "b", 3: None})
    with sqlite3.connect(tmp_path / "catalog.db") as locking:
        locking.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LakeFailed, match="database is locked"):
            lake.apply(batch(table.delivered()))
        with pytest.raises(LakeFailed, match="database is locked"):
            iceberg_lake(tmp_path)
    iceberg_lake(tmp_path).apply(batch(table.delivered()))
    assert len(iceberg_rows(tmp_path, FOLDER)) == 2


def test_a_full_disk_of_the_catalog_is_waited_for() -> None:
    full = sqlite3.OperationalError("database or disk is full")
    with pytest.raises(LakeFull, match="the catalog"), translated("the catalog"):
        raise OperationalError("INSERT", {}, full)


def test_a_table_that_iceberg_cannot_store_is_named(tmp_path: Path) -> None:
    table = ScriptedTable()
    table.add_column("_old.id")  # Iceberg finds columns by their path, and `_old` has a column `id`
    table.insert({1: 1, 2: "a", 3: None, 4: "x"})
    with pytest.raises(UnfitForIceberg, match="public/Orders: ") as refusal:
        iceberg_lake(tmp_path).apply(batch(table.delivered()))
    assert refusal.value.disposition is Disposition.HALT


def test_a_lake_that_disappears_between_two_queries_is_not_begun_anew(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    known = iceberg_lake(root).positions.lake_id()
    root.rename(tmp_path / "elsewhere")
    expiry = SnapshotExpiry(1.0, lambda: 0.0)
    with pytest.raises(LakeFailed, match="is missing"):
        IcebergLake(str(root), IDENTITY, shape_of, {}, expiry, lake_id=known)
    assert not root.exists()
    iceberg_lake(root)
    with pytest.raises(LakeFailed, match="another one is mounted"):
        IcebergLake(str(root), IDENTITY, shape_of, {}, expiry, lake_id=known)


@pytest.mark.parametrize("name", ["a?b", "a%41b", "a b#c"])
def test_the_path_of_a_lake_may_have_any_character(tmp_path: Path, name: str) -> None:
    lake_with_a_row(tmp_path / name)
    assert [row["id"] for row in iceberg_rows(tmp_path / name, FOLDER)] == [1]


def test_databases_and_schemas_with_dots_have_tables_of_their_own(tmp_path: Path) -> None:
    first, second = ScriptedTable(), ScriptedTable(oid=Oid(20001))
    second.relation = replace(second.relation, namespace="b.c")
    lake = IcebergLake(
        str(tmp_path), IDENTITY, shape_of, {DATABASE: "a.b", Oid(5): "a"}, SnapshotExpiry(1.0, lambda: 0.0)
    )
    first.relation = replace(first.relation, namespace="c")
    for table, note in ((first, "of a.b"), (second, "of a")):
        table.insert({1: 1, 2: note, 3: None})
    moved = [replace(one, item=replace(one.item, database=Oid(5))) for one in second.delivered(start=2)]
    lake.apply(batch(first.delivered()))
    lake.apply(batch(moved))
    assert [row["note"] for row in iceberg_rows(tmp_path, "a.b/c/Orders")] == ["of a.b"]
    assert [row["note"] for row in iceberg_rows(tmp_path, "a/b.c/Orders")] == ["of a"]


def test_a_table_that_positions_lack_after_a_crash_is_not_continued_as_another_one(tmp_path: Path) -> None:
    table = ScriptedTable()
    table.insert({1: 1, 2: "a", 3: None})
    iceberg_lake(tmp_path)
    arm(lambda point: crash() if point is Failpoint.TABLES_DONE else None)
    try:
        with pytest.raises(Crash):
            iceberg_lake(tmp_path).apply(batch(table.delivered()))
    finally:
        arm(None)
    other = ScriptedTable(oid=Oid(20001))
    other.insert({1: 2, 2: "b", 3: None})
    iceberg_lake(tmp_path).apply(batch(other.delivered()))
    assert [row["id"] for row in iceberg_rows(tmp_path, f"{FOLDER}-20001")] == [2]


def crash() -> None:
    raise Crash


def unnamed_files(root: Path) -> set[str]:
    """Return the manifests, and lists of them, that no snapshot names."""
    found = iceberg_table(root, FOLDER)
    named = {one.manifest_path for snapshot in found.snapshots() for one in snapshot.manifests(found.io)}
    named |= {snapshot.manifest_list for snapshot in found.snapshots()}
    return {str(path) for path in (root / FOLDER / "metadata").glob("*.avro")} - named


@pytest.mark.parametrize("unsynced", list(Unsynced))
def test_a_loss_of_power_takes_nothing_back_that_the_catalog_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unsynced: Unsynced
) -> None:
    root, table = tmp_path / "lake", history()
    disk = SyncedDisk(root, monkeypatch)
    iceberg_lake(root).apply(batch(table.delivered()))
    present = disk.after_power_loss(tmp_path / "after", unsynced)
    (present / "catalog.db").write_bytes((root / "catalog.db").read_bytes())  # SQLite syncs its commits itself
    root.rename(tmp_path / "before")
    present.rename(root)  # the tables' files have absolute paths
    assert len(iceberg_rows(root, FOLDER)) == table.changes
    iceberg_lake(root).apply(batch(table.delivered()))
    assert len(iceberg_rows(root, FOLDER)) == table.changes


def lake_with_a_row(root: Path) -> ScriptedTable:
    table = ScriptedTable()
    table.insert({1: 1, 2: "a", 3: None})
    iceberg_lake(root).apply(batch(table.delivered()))
    return table


def opened(root: Path) -> IcebergTable:
    name = tuple(FOLDER.split("/"))
    return IcebergTable(IcebergLogFormat(open_catalog(str(root)), name, f"{root}/{FOLDER}", APP, None, {}))
