"""`cdcctl lake` with a lake of Iceberg tables: list, check, and adopt after it was restored as a whole."""

import json
import shutil
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.integration.lake.test_sinks import FOLDER
from tests.support.lakes.iceberg import iceberg_lake, iceberg_rows, iceberg_table
from tests.support.lakes.lakes import CAPTURE, batch
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable
from tests.support.processes.cdcctl import Done, cdcctl, refused, reported, succeeded
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tests.unit.lake.test_unselected_breaks import story
from tidemark.engine.selection import Selection
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.readers.state_capture import StateCapture
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode
from tidemark.pipeline.iceberg.catalog import CATALOG, open_catalog, table_name
from tidemark.pipeline.lake.faults import NOT_SELECTED, OPEN_END, LogBreak
from tidemark.pipeline.landing.portions import ITEMS
from tidemark.pipeline.landing.restored_lake import LakeRestored, check_not_restored
from tidemark.pipeline.sinks.lake_batch import LakeBatch
from tidemark.pipeline.sinks.steps import last_position

GROUPS = 3
READER = "spark"


def lake_command(name: str, root: Path, *arguments: object) -> Done:
    return cdcctl("lake", name, "--lake", root, *map(str, arguments))


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """Return a lake with a log of two rows."""
    table, root = ScriptedTable(), tmp_path / "lake"
    for key in (1, 2):
        table.commit()
        table.insert({1: key, 2: "a", 3: None})
        iceberg_lake(root).apply(batch(table.delivered()))
    return root


@pytest.mark.feature("L14")
def test_the_list_of_an_iceberg_lake_has_the_positions_and_snapshots_that_the_catalog_records(orders: Path) -> None:
    positions, before = iceberg_lake(orders).positions, (orders / "catalog.db").read_bytes()
    shown = json.loads(succeeded(lake_command("list", orders, "--json")).out)
    assert (shown["capture"], shown["position"]) == (CAPTURE, str(positions.applied.position))
    (found,) = shown["tables"]
    snapshot = iceberg_table(orders, FOLDER).current_snapshot()
    assert snapshot is not None
    assert (found["folder"], found["state"], found["log"]) == (FOLDER, "live", snapshot.snapshot_id)
    assert f"{FOLDER}" in "".join(succeeded(lake_command("list", orders)).lines)
    refused(lake_command("describe", orders, FOLDER), ExitCode.CONFIG, "is a lake of Iceberg tables")
    assert (orders / "catalog.db").read_bytes() == before, "nothing is written"


def test_other_programs_find_the_catalog_that_the_hint_names(tmp_path: Path) -> None:
    root, table = tmp_path / "a b#c?d%e", ScriptedTable()
    table.commit()
    table.insert({1: 1, 2: "a", 3: None})
    iceberg_lake(root).apply(batch(table.delivered()))
    _, hint = reported(lake_command("describe", root, FOLDER).err)
    catalog = SqlCatalog(CATALOG, uri=hint.split()[-1], warehouse=str(root))
    assert catalog.load_table(table_name(FOLDER)).scan().count() == 1


@pytest.mark.feature("N17")
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_log_of_a_table_that_was_not_selected_for_a_while_has_a_break(size: int, tmp_path: Path) -> None:
    items = story()
    first, _, begins, later, _ = (last_position(one.item) for one in items)
    for at in range(0, len(items), size):
        iceberg_lake(tmp_path).apply(batch(items[at : at + size]))
    (table,) = json.loads(succeeded(lake_command("list", tmp_path, "--json")).out)["tables"]
    expected = [LogBreak(NOT_SELECTED, first, begins), LogBreak(NOT_SELECTED, later, OPEN_END)]
    assert table["breaks"] == [str(gap) for gap in expected]
    assert len(iceberg_rows(tmp_path, FOLDER)) == 2
    assert faults_of(tmp_path) == ""


def faults_of(root: Path, *arguments: str) -> str:
    done = lake_command("check", root, "--json", *arguments)
    shown = json.loads(done.out)
    assert done.code == (ExitCode.UNEXPECTED if shown["faults"] else ExitCode.SUCCESS)
    (table,) = shown["tables"]
    assert len(table["faults"]) == shown["faults"]
    return "; ".join(table["faults"])


@pytest.mark.feature("L14")
def test_the_check_of_an_iceberg_lake_finds_missing_and_damaged_files_and_changes_by_other_writers(
    orders: Path,
) -> None:
    assert faults_of(orders) == faults_of(orders, "--read-files") == ""
    first, second = sorted((orders / FOLDER).rglob("*.parquet"))
    content = first.read_bytes()
    first.write_bytes(content[:100] + b"\xff" * 200 + content[300:])
    assert faults_of(orders) == ""
    assert f"data file {first} cannot be read" in faults_of(orders, "--read-files")
    first.write_bytes(content[:-1])
    assert f"data file {first} has {len(content) - 1} bytes, but {len(content)} were written" in faults_of(orders)
    first.write_bytes(content)
    aside = second.rename(second.with_suffix(".aside"))
    assert faults_of(orders) == f"data file {second} is missing"
    aside.rename(second)
    table = iceberg_table(orders, FOLDER)
    table.append(table.scan().to_arrow().slice(0, 1))
    assert "was changed by another writer" in faults_of(orders)
    open_catalog(str(orders)).drop_table(tuple(FOLDER.split("/")))
    assert faults_of(orders) == f"{FOLDER} is not in the catalog"


class RestoredIcebergLake:
    """A lake that is fed from an outbox, and that a copy of an earlier time replaces."""

    def __init__(self, root: Path) -> None:
        self.root, self.lake, self.state, self._world = root, root / "lake", root / "state", RandomTables(7)
        make_state(self.state, "0a0b")
        with OutboxReader.open(StateFolder(self.state)) as outbox:
            outbox.register(READER)
        self.feed_and_land()
        self.copied = iceberg_lake(self.lake).positions.applied.sequence
        shutil.copytree(self.lake, root / "copy")
        self.feed_and_land()

    def feed_and_land(self) -> None:
        feed(self.state, self._world.groups(GROUPS))
        self.land()

    def land(self) -> None:
        """Write the new values of the outbox as a pipeline does."""
        with OutboxReader.open(StateFolder(self.state)) as outbox:
            lake = iceberg_lake(self.lake)
            values = list(outbox.read(lake.positions.applied.sequence, outbox.head()))
            items = [(value.header.sequence, value.item()) for value in values if value.header.kind in ITEMS]
            lake.apply(LakeBatch(outbox.outbox_id, outbox.head(), values[-1].header.pointer.position, items))
            outbox.confirm(READER, outbox.head(), outbox.head())

    def restore(self) -> None:
        shutil.rmtree(self.lake)
        shutil.copytree(self.root / "copy", self.lake)

    def check(self) -> None:
        """Check the lake as a pipeline does before it writes."""
        with OutboxReader.open(StateFolder(self.state)) as outbox:
            positions = iceberg_lake(self.lake).positions
            check_not_restored(str(self.lake), positions, outbox, StateCapture(outbox, Selection()), READER)

    def adopt(self) -> Done:
        return lake_command("adopt", self.lake, "--state", self.state, "--yes")

    def exact(self) -> bool:
        """Return whether each log has each change once."""
        tables = iceberg_lake(self.lake).positions.tables
        return all(
            self._rows(tables[DATABASE, table.oid].folder) == table.changes
            for table in self._world.tables
            if table.changes
        )

    def _rows(self, folder: str) -> int:
        rows = iceberg_rows(self.lake, folder)
        assert len({(row["_commit_lsn"], row["_ordinal"]) for row in rows}) == len(rows)
        return len(rows)


@pytest.mark.feature("L14")
def test_a_restored_iceberg_lake_is_written_only_after_it_was_adopted_and_then_contains_every_change_once(
    tmp_path: Path,
) -> None:
    lake = RestoredIcebergLake(tmp_path)
    lake.check()
    assert lake.exact()
    refused(lake.adopt(), ExitCode.CONFIG, "there is nothing to adopt")
    lake.restore()
    with pytest.raises(LakeRestored, match="restored from an older copy"):
        lake.check()
    shown = succeeded(lake.adopt())
    assert f"continues after value {lake.copied} of" in shown.out.decode()
    assert "does not match" not in shown.err
    lake.check()
    lake.land()
    assert lake.exact()
    lake.feed_and_land()
    assert lake.exact()


def test_a_log_that_does_not_match_the_restored_catalog_is_named_before_it_is_adopted(tmp_path: Path) -> None:
    lake = RestoredIcebergLake(tmp_path)
    lake.restore()
    table = next(iter(iceberg_lake(lake.lake).positions.tables.values()))
    next((lake.lake / table.folder).rglob("*.parquet")).unlink()
    shown = lake.adopt()
    assert shown.code == ExitCode.SUCCESS
    assert f"does not match the positions of the lake: {lake.lake}/{table.folder}: data file" in shown.err


def test_a_catalog_that_no_pipeline_has_written_is_refused(tmp_path: Path) -> None:
    open_catalog(str(tmp_path)).close()
    refused(lake_command("list", tmp_path), ExitCode.CONFIG, "is not that of a lake")
