"""The lake as other programs read it: complete commits only, consistent versions, and few files in each table."""

import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.lakes.lakes import CAPTURE, IDENTITY, batch, log_rows, replica_rows
from tests.support.lakes.maintained import maintain, maintenance_of
from tests.support.lakes.scripted_table import DATABASE, RELATION, ScriptedTable, Value
from tidemark.io.process.lake_config import LakeConfig
from tidemark.pipeline.delta_log.applied import read_applied
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.positions import FOLDER as FOLDER_OF_POSITIONS
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.steps import Delivered

FOLDER = f"{DATABASE}/public/Orders"
LOG_APP = f"tidemark:{CAPTURE}:{DATABASE}.{RELATION}:log"
BATCHES = 12
DEADLINE_S = 120.0


def new_lake(root: Path) -> Lake:
    return Lake(str(root), IDENTITY, shape_of, constants_of)


def story() -> tuple[ScriptedTable, list[list[Delivered]], list[list[dict[str, Value]]]]:
    """Return a table, its batches, and its content after each."""
    table, batches, after = ScriptedTable(), [], []
    for n in range(BATCHES):
        table.insert({1: n, 2: "new", 3: None})
        if n > 2:
            table.update((n - 2,), {2: f"changed {n}"})
        table.commit()
        delivered = table.delivered()
        batches.append(delivered[n:])
        after.append([dict(row) for row in table.expected()])
    return table, batches, after


@pytest.mark.feature("X05")
def test_a_reader_finds_complete_batches_and_the_matching_position(tmp_path: Path) -> None:
    _, batches, _ = story()
    done = threading.Event()
    wrong: list[str] = []
    row_counts: set[int] = set()

    def read() -> None:
        while not done.is_set():
            if not DeltaTable.is_deltatable(str(tmp_path / FOLDER / "log")):
                continue
            table = DeltaTable(str(tmp_path / FOLDER / "log"))
            applied = read_applied(table.transaction_version, LOG_APP)
            positions = [(r["_commit_lsn"], r["_ordinal"]) for r in table.to_pyarrow_table().to_pylist()]
            if positions and max(positions) != (applied.position.commit_lsn, applied.position.ordinal):
                wrong.append(f"{max(positions)} in the log, whose position is {applied}")
            row_counts.add(len(positions))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for some in batches:
            new_lake(tmp_path).apply(batch(some))
    finally:
        done.set()
        reader.join(DEADLINE_S)
    assert wrong == []
    assert len(row_counts) > 2


@pytest.mark.feature("X21")
def test_the_positions_table_pairs_each_position_with_the_matching_versions(tmp_path: Path) -> None:
    _, batches, after = story()
    for some in batches:
        new_lake(tmp_path).apply(batch(some))
    positions = DeltaTable(str(tmp_path / FOLDER_OF_POSITIONS))
    for number, expected in enumerate(after, start=1):
        positions.load_as_version(number)
        (row,) = (row for row in positions.to_pyarrow_table().to_pylist() if row["relation"] == RELATION)
        replica = DeltaTable(str(tmp_path / FOLDER / "replica"), version=row["replica_version"])
        assert sorted(replica.to_pyarrow_table().to_pylist(), key=repr) == expected
        log = DeltaTable(str(tmp_path / FOLDER / "log"), version=row["log_version"])
        assert max(r["_commit_lsn"] for r in log.to_pyarrow_table().to_pylist()) == row["commit_lsn"]


def test_maintenance_of_files_keeps_rows_and_position(tmp_path: Path) -> None:
    table, batches, _ = story()
    for some in batches:
        new_lake(tmp_path).apply(batch(some))
        lake = new_lake(tmp_path)
        lake.apply(batch(some))  # a repeated batch finds the position after maintenance, too
        maintain(lake)
    assert replica_rows(tmp_path, FOLDER) == table.expected()
    assert len(log_rows(tmp_path, FOLDER)) == table.changes
    assert len(DeltaTable(str(tmp_path / FOLDER / "log")).file_uris()) < BATCHES


def test_a_table_with_several_commits_a_batch_is_due_when_they_pass_the_number(tmp_path: Path) -> None:
    table, applied_count = ScriptedTable(), 0
    maintenance = maintenance_of(str(tmp_path), LakeConfig(maintain_commits=4))
    for n in range(BATCHES):  # versions 1, 3, 5, ...: none is a multiple
        if n:
            table.truncate()
        table.insert({1: n, 2: "new", 3: None})
        table.commit()
        delivered = table.delivered()
        lake = Lake(str(tmp_path), IDENTITY, shape_of, constants_of, keep_hours=0)
        lake.apply(batch(delivered[applied_count:]))
        maintain(lake, maintenance)
        applied_count = len(delivered)
    assert len(list((tmp_path / FOLDER / "replica").glob("*.parquet"))) < BATCHES / 2
