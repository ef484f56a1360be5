"""A lake under unusual conditions: the widest table, names in any alphabet, a path that refuses writes, two writers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.lakes.lakes import IDENTITY, batch, folder_of, log_rows, replica_rows
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable, column
from tests.support.servers.small_disk import read_only
from tidemark.model.errors import Disposition, Fenced
from tidemark.model.lsn import Oid
from tidemark.pipeline.lake.lake_lock import LakeLock, UnusableLakeFolder
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.lake.tables.table_errors import LakeFailed
from tidemark.pipeline.sinks.lake import Lake

COLUMNS_MAX = 1600  # MaxHeapAttributeNumber (htup_details.h, PG 18)
ALPHABETS = ("Zażółć", "заказы", "παραγγελίες", "订单", "注文テーブル", "주문", "أوامر", "הזמנות", "คำสั่ง", "ऑर्डर", "🐘")


def new_lake(root: Path) -> Lake:
    return Lake(str(root), IDENTITY, shape_of, constants_of)


def by_id(rows: Sequence[Mapping[str, object]]) -> dict[object, Mapping[str, object]]:
    return {row["id"]: row for row in rows}


def test_a_table_of_1600_columns_is_followed(tmp_path: Path) -> None:
    table = ScriptedTable()
    names = [column(number, f"column_{number}", "int4") for number in range(4, COLUMNS_MAX + 1)]
    table.relation = replace(table.relation, columns=(*table.relation.columns, *names))
    row = {number: number for number in range(4, COLUMNS_MAX + 1)}
    for key in (1, 2, 3):
        table.insert({**row, 1: key, 2: "first", 3: None})
    table.commit()
    lake = new_lake(tmp_path)
    lake.apply(batch(table.delivered()))
    landed = len(table.items)
    table.update((1,), {2: "changed", COLUMNS_MAX: None})
    table.delete((2,))
    lake.apply(batch(table.delivered()[landed:]))
    folder = folder_of(table.relation)
    assert by_id(replica_rows(tmp_path, folder)) == by_id(table.expected())
    last = log_rows(tmp_path, folder)[3]
    assert (last["note"], last[f"column_{COLUMNS_MAX}"], last["column_4"]) == ("changed", None, 4)


def test_tables_and_columns_with_names_in_any_alphabet_or_that_differ_by_case_are_kept_apart(tmp_path: Path) -> None:
    tables = [ScriptedTable(oid=Oid(30000 + at), name=name) for at, name in enumerate((*ALPHABETS, "orders", "ORDERS"))]
    lake = new_lake(tmp_path)
    for number, table in enumerate(tables):
        for at, name in enumerate((*ALPHABETS, "ÄPFEL", "äpfel", "Note")):
            table.add_column(f"{name} {number}" if at == 0 else name)
        values = {column.number: f"{number}: {column.name}" for column in table.relation.live_columns}
        table.insert({**values, 1: number})
        table.commit()
        table.update((number,), {2: "changed"})
        lake.apply(batch(table.delivered(start=1 + 1000 * number)))
    folders = {lake.positions.tables[DATABASE, table.oid].folder for table in tables}
    assert len({folder.lower() for folder in folders}) == len(tables)
    assert all(folder.isascii() for folder in folders)
    for number, table in enumerate(tables):
        (row,) = replica_rows(tmp_path, lake.positions.tables[DATABASE, table.oid].folder)
        assert list(row.values()) == list(table.rows[(number,)].values())
        assert len({name.lower() for name in row}) == len(row), "Delta's names are case-insensitive"
        assert set(ALPHABETS[1:]) < row.keys()


def test_a_lake_that_cannot_be_created_or_written_is_named_with_its_cause(tmp_path: Path) -> None:
    lake, state = tmp_path / "lake", tmp_path / "state"
    lake.mkdir()
    with read_only(lake):
        for folder in (lake, lake / "below"):
            with pytest.raises(LakeFailed, match=r"lake.*/_pipeline\.lock: Read-only file system") as raised:
                LakeLock.acquire(folder, IDENTITY, state, "spark", [])
            assert "is writable" in str(raised.value.hint)
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UnusableLakeFolder, match=f"the lake {folder} cannot be a folder: .*/file is a file"):
            LakeLock.acquire(folder, IDENTITY, state, "spark", [])
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    with pytest.raises(UnusableLakeFolder, match=r"the lake .*dangling cannot be a folder: File exists"):
        LakeLock.acquire(tmp_path / "dangling", IDENTITY, state, "spark", [])


def test_a_lake_that_refuses_writes_during_operation_loses_nothing(tmp_path: Path) -> None:
    table, root = ScriptedTable(), tmp_path / "lake"
    table.insert({1: 1, 2: "a", 3: None})
    table.commit()
    lake = new_lake(root)
    lake.apply(batch(table.delivered()))
    landed = len(table.items)
    table.insert({1: 2, 2: "b", 3: None})
    late = batch(table.delivered()[landed:])
    with read_only(root), pytest.raises(LakeFailed, match="Read-only file system") as raised:
        new_lake(root).apply(late)
    assert raised.value.disposition is Disposition.RETRY
    assert "its content is unchanged" in str(raised.value.hint)
    lake = new_lake(root)
    lake.apply(late)
    assert lake.positions.tables[DATABASE, table.oid].state is TableState.LIVE
    assert replica_rows(root, folder_of(table.relation)) == table.expected()


@pytest.mark.feature("X11")
@pytest.mark.parametrize("is_idle", [False, True], ids=["the older writes the same", "the older was idle"])
def test_of_two_pipelines_that_write_one_lake_the_older_ends_and_names_the_cause(
    tmp_path: Path, *, is_idle: bool
) -> None:
    table = ScriptedTable()
    table.insert({1: 1, 2: "a", 3: None})
    table.commit()
    older = new_lake(tmp_path)
    older.apply(batch(table.delivered()))
    landed = len(table.items)
    table.insert({1: 2, 2: "b", 3: None})
    table.commit()
    new_lake(tmp_path).apply(batch(table.delivered()[landed:]))
    if is_idle:
        landed = len(table.delivered())
        table.insert({1: 3, 2: "c", 3: None})
    late = batch(table.delivered()[landed:])
    with pytest.raises(Fenced, match=r"another writer committed to .*/(log|replica|_positions)") as raised:
        older.apply(late)
    assert "two pipelines write to one lake: stop one of them" in str(raised.value.hint)
    new_lake(tmp_path).apply(late)
    folder = folder_of(table.relation)
    assert replica_rows(tmp_path, folder) == table.expected()
    assert len(log_rows(tmp_path, folder)) == table.changes
