"""`cdcctl lake list`, `describe` and `check`."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.integration.lake.test_layout import table
from tests.support.lakes.lakes import CAPTURE, IDENTITY, batch
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable
from tests.support.processes.cdcctl import Done, cdcctl, refused, succeeded
from tidemark.model.change import LogicalMessage, SchemaChange, SchemaEffect, SchemaEvent
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, Oid, TimelineId, Xid
from tidemark.model.position import Position, Sequence
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.report import reading_lines
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.lake_batch import LakeBatch

pytestmark = pytest.mark.feature("L13")
OTHER_DATABASE = Oid(9)


def fill(root: Path, *tables: ScriptedTable, database: Oid = DATABASE) -> Positions:
    """Write the tables into the lake; return its positions."""
    lake = Lake(str(root), IDENTITY, shape_of, constants_of, {DATABASE: "shop", OTHER_DATABASE: "stock"})
    items = [delivered for one in tables for delivered in one.delivered()]
    numbered = [
        replace(one, sequence=Sequence(number), item=replace(one.item, database=database))
        for number, one in enumerate(items, 1)
    ]
    lake.apply(batch(numbered))
    return lake.positions


def lake_command(name: str, root: Path, *arguments: object) -> Done:
    return cdcctl("lake", name, "--lake", root, *map(str, arguments))


def dropped(one: ScriptedTable) -> ScriptedTable:
    one.cut()
    event = SchemaEvent(
        one.next_position(),
        Lsn(one.lsn),
        DATABASE,
        Xid(7),
        SchemaChange.DROP,
        SchemaEffect.METADATA,
        one.relation,
        None,
    )
    one.add_event(event)
    return one


def test_the_list_has_the_folders_positions_and_versions_that_the_lake_records(tmp_path: Path) -> None:
    positions = fill(tmp_path, table(1, "orders"), table(2, "a b"))
    shown = json.loads(succeeded(lake_command("list", tmp_path, "--json")).out)
    assert (shown["capture"], shown["position"]) == (CAPTURE, str(positions.applied.position))
    for found, oid in zip(shown["tables"], (2, 1), strict=True):
        known = positions.tables[DATABASE, Oid(oid)]
        assert (found["table"], found["folder"]) == (known.qualified_name, known.folder)
        assert (found["state"], found["position"]) == ("live", str(known.position))
        for name in ("log", "replica"):
            assert found[name] == DeltaTable(str(tmp_path / known.folder / name)).version()
    lines = "".join(succeeded(lake_command("list", tmp_path)).lines)
    known = positions.tables[DATABASE, Oid(1)]
    assert f"shop.public.orders: live at {known.position}, log 1, replica 1, shop/public/orders" in lines


def test_a_table_is_described_by_its_name_or_folder(tmp_path: Path) -> None:
    fill(tmp_path, dropped(table(1, "orders")), table(2, "orders"))
    fill(tmp_path, table(3, "orders"), database=OTHER_DATABASE)
    for name, folder in (
        ("shop.public.orders", "shop/public/orders-2"), ("stock.public.orders", "stock/public/orders"),
        ("shop/public/orders", "shop/public/orders"),
    ):  # fmt: skip
        shown = json.loads(succeeded(lake_command("describe", tmp_path, name, "--json")).out)
        assert shown["folder"] == folder
        replica = shown["delta_tables"]["replica"]
        assert replica["path"] == str(tmp_path / folder / "replica")
        assert replica["read"] == reading_lines(replica["path"])
        assert [column["source_type"] for column in replica["columns"]] == ["int4", "text", "text"]
    refused(
        lake_command("describe", tmp_path, "orders"), ExitCode.CONFIG, "several tables orders",
        "shop/public/orders-2, stock/public/orders",
    )  # fmt: skip
    refused(lake_command("describe", tmp_path, "shop.public.nothing"), ExitCode.CONFIG, "has no table")
    lines = "".join(succeeded(lake_command("describe", tmp_path, "stock.public.orders")).lines)
    assert f"SELECT * FROM delta_scan('{tmp_path}/stock/public/orders/replica');" in lines


def test_a_table_with_any_name_is_described_by_the_name_that_the_list_prints(tmp_path: Path) -> None:
    names = ("Odd Schema", 'Weird "Table".x'), ("a.b", "t"), ("public", "plain")
    fill(tmp_path, *(table(oid, name, namespace) for oid, (namespace, name) in enumerate(names, 1)))
    listed = json.loads(succeeded(lake_command("list", tmp_path, "--json")).out)["tables"]
    printed = {line.partition(": live at ")[0].strip() for line in succeeded(lake_command("list", tmp_path)).lines}
    assert {one["name"] for one in listed} == {
        'shop.Odd Schema."Weird ""Table"".x"',
        'shop."a.b".t',
        "shop.public.plain",
    }
    for one in listed:
        assert any(one["name"] in line for line in printed)
        for text in (one["name"], one["name"].removeprefix("shop."), one["folder"]):
            shown = json.loads(succeeded(lake_command("describe", tmp_path, text, "--json")).out)
            assert (shown["name"], shown["folder"]) == (one["name"], one["folder"])


@pytest.mark.parametrize("command", ["list", "check"])
def test_a_folder_that_is_no_lake_is_refused(tmp_path: Path, command: str) -> None:
    refused(lake_command(command, tmp_path), ExitCode.CONFIG, "is not a lake: it has no _positions")


def check(root: Path, *arguments: str) -> tuple[int, list[str]]:
    """Return the exit code of a check, and the faults that it found."""
    done = lake_command("check", root, "--json", *arguments)
    found = json.loads(done.out)
    faults = [fault for one in found["tables"] for fault in one["faults"]]
    assert (found["checked"], found["faults"]) == (len(found["tables"]), len(faults))
    return done.code, faults


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """Return the folder of the table of a lake with two tables, of which one is dropped and removed."""
    positions = fill(tmp_path, table(1, "orders"), dropped(table(2, "gone")))
    shutil.rmtree(tmp_path / positions.tables[DATABASE, Oid(2)].folder)
    assert check(tmp_path) == (ExitCode.SUCCESS, [])
    assert check(tmp_path, "--read-files") == (ExitCode.SUCCESS, [])
    return tmp_path / positions.tables[DATABASE, Oid(1)].folder


def test_the_check_finds_a_missing_file_and_damaged_bytes(tmp_path: Path, orders: Path) -> None:
    (file,) = (orders / "log").glob("*.parquet")
    content = file.read_bytes()
    file.write_bytes(bytes(len(content)))
    assert check(tmp_path) == (ExitCode.SUCCESS, [])
    code, (fault,) = check(tmp_path, "--read-files")
    assert (code, fault.partition(" is damaged")[0]) == (ExitCode.UNEXPECTED, f"data file {file}")
    file.unlink()
    assert check(tmp_path) == (ExitCode.UNEXPECTED, [f"data file {file} is missing"])
    assert f"{orders}/log: data file {file} is missing" in lake_command("check", tmp_path).out.decode()


def test_the_check_finds_a_change_by_another_writer_and_a_removed_table(tmp_path: Path, orders: Path) -> None:
    DeltaTable(str(orders / "replica")).delete()
    code, (fault,) = check(tmp_path)
    assert code == ExitCode.UNEXPECTED
    assert "was changed by another writer: DELETE at version 2" in fault
    shutil.rmtree(orders / "replica")
    _, (fault,) = check(tmp_path)
    assert "does not exist" in fault


def test_the_check_finds_a_position_that_the_recorded_version_does_not_have(tmp_path: Path, orders: Path) -> None:
    assert orders.exists()
    positions = Positions(str(tmp_path), IDENTITY)
    known = positions.tables[DATABASE, Oid(1)]
    early = replace(known.position, commit_lsn=Lsn(known.position.commit_lsn - 1))
    positions.write("outbox-1", [replace(known, position=early)], positions.applied)
    code, faults = check(tmp_path)
    assert code == ExitCode.UNEXPECTED
    assert faults == [f"version 1 contains {known.position}, but {early} is recorded"] * 2


def test_messages_are_listed_and_checked(tmp_path: Path) -> None:
    at = Position(TimelineId(1), Lsn(500), 0)
    message = LogicalMessage(at, Lsn(500), DATABASE, Xid(0), False, "app", b"hello")
    lake = Lake(str(tmp_path), IDENTITY, shape_of, constants_of, {DATABASE: "shop"})
    lake.apply(LakeBatch("outbox-1", Sequence(1), at, [(Sequence(1), message)]))
    (listed,) = json.loads(succeeded(lake_command("list", tmp_path, "--json")).out)["tables"]
    named = json.loads(succeeded(lake_command("describe", tmp_path, listed["name"], "--json")).out)
    assert (named["name"], named["folder"]) == ("shop.messages", "shop/messages")
    assert (listed["folder"], listed["log"], listed["position"]) == ("shop/messages", 1, str(at))
    shown = json.loads(succeeded(lake_command("describe", tmp_path, "shop/messages", "--json")).out)
    assert shown["delta_tables"]["log"]["path"] == f"{tmp_path}/shop/messages"
    assert check(tmp_path) == (ExitCode.SUCCESS, [])
    DeltaTable(f"{tmp_path}/shop/messages").delete()
    code, (fault,) = check(tmp_path)
    assert (code, "was changed by another writer" in fault) == (ExitCode.UNEXPECTED, True)
