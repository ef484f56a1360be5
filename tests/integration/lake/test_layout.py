"""The folders of a lake's tables: by name, with an OID only where two would be one folder."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.lakes.lakes import CAPTURE, IDENTITY, Crash, CrashAt, batch, log_rows, replica_rows
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable
from tidemark.io.host.failpoints import arm
from tidemark.model.change import LogicalMessage, SchemaChange, SchemaEffect, SchemaEvent
from tidemark.model.lsn import Lsn, Oid, TimelineId, Xid
from tidemark.model.position import Position, Sequence
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.lake_batch import LakeBatch

pytestmark = pytest.mark.feature("L13")


def table(oid: int, name: str, namespace: str = "public") -> ScriptedTable:
    """Return a table with one row."""
    made = ScriptedTable(oid=Oid(oid), name=name, lsn=1000 + 10 * oid)
    made.relation = replace(made.relation, namespace=namespace)
    made.insert({1: 1, 2: name, 3: None})
    return made


def lake(root: Path, databases: Mapping[Oid, str] | None = None) -> Lake:
    return Lake(str(root), IDENTITY, shape_of, constants_of, {DATABASE: "shop"} if databases is None else databases)


def feed(root: Path, *tables: ScriptedTable) -> dict[int, str]:
    """Write the tables into the lake, in this order; return the recorded folders."""
    fed = lake(root)
    items = [delivered for one in tables for delivered in one.delivered()]
    numbered = [replace(one, sequence=Sequence(number)) for number, one in enumerate(items, 1)]
    fed.apply(batch(numbered))
    for one in tables:
        folder = fed.positions.tables[DATABASE, one.oid].folder
        assert replica_rows(root, folder) == one.expected()
        assert len(log_rows(root, folder)) == one.changes
    return folders(root)


def folders(root: Path) -> dict[int, str]:
    return {of[1]: known.folder for of, known in lake(root).positions.tables.items()}


def test_a_table_is_in_a_folder_of_its_database_and_schema(tmp_path: Path) -> None:
    found = feed(tmp_path, table(1, "orders"), table(2, "orders", "archive"), table(3, "a/b %"), table(4, "заказы"))
    assert found == {
        1: "shop/public/orders", 2: "shop/archive/orders", 3: "shop/public/a_b__", 4: "shop/public/xn--80aatcn8h",
    }  # fmt: skip


def test_names_that_would_share_a_folder_get_an_oid_in_stream_order(tmp_path: Path) -> None:
    names = ((1, "Orders"), (2, "orders"), (3, "a/b"), (4, "a_b"), (5, "a%b"), (6, "ORDERS-2"))
    found = feed(tmp_path, *(table(oid, name) for oid, name in names), table(7, "orders", "Public"))
    assert [Path(found[oid]).name for oid in range(1, 8)] == [
        "Orders", "orders-2", "a_b", "a_b-4", "a_b-5", "ORDERS-2-6", "orders-7",
    ]  # fmt: skip
    assert found[7] == "shop/Public/orders-7"


def test_a_table_that_is_recreated_under_its_name_does_not_continue_in_the_folder_of_the_first(tmp_path: Path) -> None:
    first = table(1, "orders")
    first.cut()
    dropped = SchemaEvent(
        first.next_position(), Lsn(first.lsn), DATABASE, Xid(7), SchemaChange.DROP, SchemaEffect.METADATA,
        first.relation, None,
    )  # fmt: skip
    first.add_event(dropped)
    assert feed(tmp_path, first, table(2, "orders")) == {1: "shop/public/orders", 2: "shop/public/orders-2"}
    assert lake(tmp_path).positions.tables[DATABASE, Oid(1)].state is TableState.DROPPED


def test_a_renamed_table_keeps_its_folder_and_its_old_name_is_taken(tmp_path: Path) -> None:
    first = table(1, "orders")
    feed(tmp_path, first)
    before, first.relation = first.relation, replace(first.relation, name="old_orders", namespace="archive")
    first.cut()
    first.add_event(
        SchemaEvent(
            first.next_position(), Lsn(first.lsn), DATABASE, Xid(7), SchemaChange.ALTER, SchemaEffect.METADATA,
            before, first.relation,
        )
    )  # fmt: skip
    assert feed(tmp_path, first, table(2, "orders")) == {1: "shop/public/orders", 2: "shop/public/orders-2"}
    assert lake(tmp_path).positions.tables[DATABASE, Oid(1)].qualified_name == "archive.old_orders"


def test_a_lake_of_an_earlier_version_keeps_its_layout(tmp_path: Path) -> None:
    at = Position(TimelineId(1), Lsn(1), 0)
    existing = TablePosition(
        DATABASE, Oid(1), "public", "orders", "shop/1-public.orders", TableState.LIVE, Sequence(0), at
    )
    fed = lake(tmp_path)
    fed.positions.write("outbox-1", [existing], fed.positions.applied)
    assert feed(tmp_path, table(1, "orders"), table(2, "a b")) == {1: "shop/1-public.orders", 2: "shop/2-public.a_b"}


@pytest.mark.parametrize("point", [Failpoint.LOG_APPENDED, Failpoint.REPLICA_CHANGED, Failpoint.TABLES_DONE])
def test_a_repeated_batch_finds_the_folders_that_a_killed_one_created(tmp_path: Path, point: Failpoint) -> None:
    tables = [table(1, "Orders"), table(2, "orders"), table(3, "orders", "PUBLIC")]
    observed = CrashAt(0)
    arm(observed)
    feed(tmp_path / "observed", *tables)
    arm(CrashAt(1 + observed.passed.index(point)))
    with pytest.raises(Crash):
        feed(tmp_path / "lake", *tables)
    arm(None)
    assert not lake(tmp_path / "lake").positions.tables
    found = feed(tmp_path / "lake", *tables)
    assert [Path(found[oid]).name for oid in (1, 2, 3)] == ["Orders", "orders-2", "orders-3"]
    written = {str(path.parents[1].relative_to(tmp_path / "lake")) for path in tmp_path.glob("lake/*/*/*/*/_delta_log")}
    assert written == set(found.values())


def test_a_folder_with_a_table_of_another_writer_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "shop" / "public" / "orders" / "log"
    write_deltalake(str(other), pa.table({"id": [1]}))
    assert feed(tmp_path, table(1, "orders")) == {1: "shop/public/orders-1"}
    assert DeltaTable(str(other)).version() == 0


def test_a_folder_whose_commit_log_a_full_disk_left_empty_is_used(tmp_path: Path) -> None:
    for name in ("log", "replica"):
        (tmp_path / "shop/public/orders" / name / "_delta_log").mkdir(parents=True)
        (tmp_path / "shop/public/orders" / name / "_delta_log/00000000000000000000.json.tmp").touch()
    assert feed(tmp_path, table(16500, "orders")) == {16500: "shop/public/orders"}


def test_no_table_is_below_the_folder_of_the_messages(tmp_path: Path) -> None:
    message = LogicalMessage(Position(TimelineId(1), Lsn(500), 0), Lsn(500), DATABASE, Xid(0), False, CAPTURE, b"hello")
    lake(tmp_path).apply(LakeBatch("outbox-1", Sequence(0), message.position, [(Sequence(0), message)]))
    found = feed(tmp_path, table(1, "orders", "messages"), table(2, "orders", "xMessages"))
    assert found == {0: "shop/messages", 1: "shop/xmessages/orders", 2: "shop/xMessages/orders-2"}
    assert DeltaTable(str(tmp_path / "shop/messages")).to_pyarrow_table().num_rows == 1
