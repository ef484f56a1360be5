"""Dropped tables: a batch of other tables costs the same with many of them, and their rows in `_positions` stay."""

import gc
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.lakes.lakes import Crash, CrashAt, batch, replica_rows
from tests.support.lakes.scripted_table import DATABASE
from tests.support.lakes.swapped_tables import SwappedTables
from tests.support.processes.python_calls import counted_calls
from tidemark.io.host.failpoints import arm
from tidemark.pipeline.lake.positions import position_files, positions
from tidemark.pipeline.lake.positions.positions import FOLDER as POSITIONS
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.lake.report import OpenedLake, checked
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.storage import stores

SETTLED_AT_ONCE, ROWS_MAX = 8, 16
FEW, MANY = SETTLED_AT_ONCE, 4 * SETTLED_AT_ONCE
VERY_MANY = 25 * SETTLED_AT_ONCE
BATCHES = 5  # the least calls of these count
CALLS_MAX = 0.8  # that each dropped table may add: 1.3 were added once; a thread that begins meanwhile makes 90 calls


pytestmark = pytest.mark.feature("L10")


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few dropped tables fill several files."""
    monkeypatch.setattr(positions, "SETTLED_AT_ONCE", SETTLED_AT_ONCE)
    monkeypatch.setattr(position_files, "ROWS_MAX", ROWS_MAX)


def test_a_batch_of_another_table_costs_the_same_with_many_dropped_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(position_files, "ROWS_MAX", VERY_MANY)
    swapped, calls, sizes = SwappedTables(tmp_path), [], []
    for count in (FEW, VERY_MANY - FEW):
        swapped.swap(count)
        swapped.change()
        totals = []
        for _ in range(BATCHES):
            before = swapped.files()
            with counted_calls() as counted:
                swapped.change()
            totals.append(counted.total)
        calls.append(min(totals))
        sizes.append(sum(size for path, size in swapped.files().items() if path not in before))
    assert swapped.states() == {"live": 1, "dropped": VERY_MANY}
    assert (calls[1] - calls[0]) / (VERY_MANY - FEW) <= CALLS_MAX
    assert sizes[1] <= sizes[0] * 1.1, "bytes that a batch writes into _positions"


def test_the_check_of_a_lake_reads_the_log_of_each_delta_table_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped = SwappedTables(tmp_path)
    swapped.swap(FEW)
    opened, looked_up = list[str](), list[str]()

    class CountedTable(DeltaTable):
        """Counts the operations that read a whole log."""

        def __init__(self, uri: str, version: int | None, storage_options: dict[str, str] | None) -> None:
            opened.append(uri)
            super().__init__(uri, version=version, storage_options=storage_options)

        def transaction_version(self, app_id: str) -> int | None:
            looked_up.append(app_id)
            found: int | None = super().transaction_version(app_id)
            return found

    lake = OpenedLake(swapped.root)
    monkeypatch.setattr(stores, "DeltaTable", CountedTable)
    found = checked(lake, reads_files=False)
    assert (found["checked"], found["faults"]) == (2 * (1 + FEW), 0)
    assert (len(opened), len(set(opened)), looked_up) == (2 * (1 + FEW), 2 * (1 + FEW), [])


def test_nothing_of_dropped_tables_stays_open_or_in_the_settings_of_maintenance(tmp_path: Path) -> None:
    swapped = SwappedTables(tmp_path)
    swapped.swap(MANY)
    gc.collect()
    opened = [one for one in gc.get_objects() if isinstance(one, LakeTable) and one.uri.startswith(swapped.root)]
    folders = {f"{swapped.folder(table)}/{name}" for table in swapped.dropped for name in ("log", "replica")}
    assert not [table.uri for table in opened if table.uri.removeprefix(f"{swapped.root}/") in folders]
    assert set(swapped.lake.take_finished()) == folders
    assert not folders & swapped.lake.upkeep.keys()


def test_rows_of_dropped_tables_are_in_few_files(tmp_path: Path) -> None:
    swapped = SwappedTables(tmp_path)
    for _ in range(5):
        swapped.swap(SETTLED_AT_ONCE)
    assert len(swapped.files()) == 1 + 3
    assert swapped.states() == {"live": 1, "dropped": 5 * SETTLED_AT_ONCE}


def test_a_start_finds_the_dropped_tables_in_their_files(tmp_path: Path) -> None:
    swapped = SwappedTables(tmp_path)
    swapped.swap(MANY)
    swapped.reopen()
    assert len(swapped.lake.positions.tables) == 1
    assert len(swapped.lake.positions.recorded) == 1 + MANY
    before = swapped.files()
    swapped.change()
    assert len(before.keys() & swapped.files().keys()) == len(before) - 1


def test_a_dropped_table_that_exists_again_continues_in_its_folder(tmp_path: Path) -> None:
    swapped = SwappedTables(tmp_path)
    swapped.swap(MANY)
    table = swapped.dropped[7]
    folder = swapped.lake.positions.recorded[DATABASE, table.oid].folder
    swapped.lake.apply(batch(swapped.create_again(table)))
    assert swapped.states() == {"live": 2, "dropped": MANY - 1}
    known = swapped.lake.positions.tables[DATABASE, table.oid]
    assert (known.folder, known.state) == (folder, TableState.LIVE)
    assert [row["id"] for row in replica_rows(tmp_path, folder)] == [2], "as a table that was created without rows"
    assert DeltaTable(str(tmp_path / folder / "log")).to_pyarrow_table().num_rows == 2
    swapped.reopen()
    swapped.change()
    assert swapped.states() == {"live": 2, "dropped": MANY - 1}


@pytest.mark.parametrize("nth", range(1, 12))
def test_a_kill_while_rows_become_settled_or_return_loses_no_row(tmp_path: Path, nth: int) -> None:
    swapped = SwappedTables(tmp_path)
    swapped.swap(FEW)
    table = swapped.dropped[3]
    items = swapped.create_again(table)
    crash = CrashAt(nth)
    arm(crash)
    try:
        swapped.lake.apply(batch(items))
    except Crash:
        pass
    finally:
        arm(None)
    swapped.reopen()
    swapped.lake.apply(batch(items))
    assert swapped.states() == {"live": 2, "dropped": FEW - 1}
    assert len(swapped.lake.positions.tables) == 2


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("is_maintenance", [False, True])
def test_all_rows_are_written_again_after_another_writer(
    tmp_path: Path, *, is_open: bool, is_maintenance: bool
) -> None:
    swapped = SwappedTables(tmp_path)
    swapped.swap(MANY)
    table = DeltaTable(str(tmp_path / POSITIONS))
    if is_maintenance:
        table.optimize.compact()
    else:
        table.delete("state = 'dropped'")
    if not is_open:
        swapped.reopen()
    assert len(swapped.lake.positions.recorded) == 1 + MANY
    for _ in range(2):
        swapped.change()
        assert swapped.states() == {"live": 1, "dropped": MANY}
    assert len(swapped.lake.positions.tables) == 1, "they are settled again"
