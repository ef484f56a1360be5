"""Commits that Tidemark writes: read by delta-rs as its own ones, and never in the place of another writer's."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.transaction import AddAction, RemoveAction

from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.position import Position, Sequence
from tidemark.pipeline.delta_log.applied import NOTHING, Applied, read_applied
from tidemark.pipeline.delta_log.commit_files import FileChange, commit_path, write_commit
from tidemark.pipeline.delta_log.commits import has_commit
from tidemark.pipeline.lake.tables import lake_table
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.lake.tables.table_errors import LakeFailed, TableFenced

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])
ROWS = pa.table({"id": [1, 2], "note": ["eins", "ж€\u2028"]}, schema=SCHEMA)
APP = "tidemark:test:table"
APPLIED = Applied(Sequence(7), Position(TimelineId(1), Lsn(5000), 3), 2)


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    made = LakeTable(str(tmp_path / "t"), APP)
    made.create(SCHEMA, NOTHING)
    return made


def names(table: LakeTable) -> list[str]:
    return sorted(path.name for path in (Path(table.uri) / "_delta_log").iterdir())


def test_delta_rs_reads_the_rows_positions_and_history_of_a_commit(table: LakeTable) -> None:
    table.append(ROWS, APPLIED)
    found = DeltaTable(table.uri)
    assert found.to_pyarrow_table() == ROWS
    assert read_applied(found.transaction_version, APP) == APPLIED
    latest = found.history(1)[0]
    assert (latest["version"], latest["operation"], latest["tidemark.position"]) == (1, "WRITE", str(APPLIED.position))
    assert found.get_add_actions(flatten=True)["num_records"].to_pylist() == [2]
    assert LakeTable(table.uri, APP).recorded == table.recorded


def test_delta_rs_continues_after_a_commit(table: LakeTable) -> None:
    table.append(ROWS, NOTHING)
    write_deltalake(
        table.uri, ROWS, mode="append", commit_properties=CommitProperties(app_transactions=[Transaction("other", 1)])
    )
    assert DeltaTable(table.uri).version() == 2
    table = LakeTable(table.uri, APP)
    table.append(ROWS, APPLIED)
    table.overwrite(ROWS.slice(1), APPLIED)
    table.append(ROWS.slice(0, 1), APPLIED)
    assert table.scan().read_all().sort_by("id") == ROWS


def test_added_and_removed_files_replace_each_other_in_one_commit(table: LakeTable) -> None:
    table.append(ROWS, NOTHING)
    (old,) = DeltaTable(table.uri).file_uris()
    table.append(ROWS.slice(1), NOTHING)
    with table.writing(APPLIED) as change:
        change.removed.append(RemoveAction(Path(old).name, True, 5, Path(old).stat().st_size, {}))
    assert DeltaTable(table.uri).to_pyarrow_table() == ROWS.slice(1)
    DeltaTable(table.uri).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert not Path(old).exists()


def test_a_commit_never_replaces_one_of_the_same_version(table: LakeTable) -> None:
    other = LakeTable(table.uri, APP)
    other.append(ROWS, NOTHING)
    with pytest.raises(TableFenced):
        table.append(ROWS, APPLIED)
    assert DeltaTable(table.uri).to_pyarrow_table() == ROWS
    with pytest.raises(FileExistsError):
        write_commit(commit_path(table.uri, 1), FileChange(), {}, {}, 17)
    assert names(table) == [f"{version:020d}.json" for version in (0, 1)]


def test_a_commit_that_cannot_be_written_leaves_no_file(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(LakeFailed, match="Input/output error"):
        table.append(ROWS, APPLIED)
    assert names(table) == [f"{0:020d}.json"]
    assert not has_commit(table.uri, 1)


def test_a_staged_commit_is_invisible(table: LakeTable) -> None:
    table.append(ROWS, NOTHING)
    Path(f"{commit_path(table.uri, 2)}#17").write_text("{", encoding="utf-8")
    assert DeltaTable(table.uri).version() == 1
    table.append(ROWS, APPLIED)
    assert DeltaTable(table.uri).version() == 2


def test_a_commit_is_a_line_of_json_for_each_action(table: LakeTable) -> None:
    path = commit_path(table.uri, 1)
    added = AddAction('a".parquet', 9, {}, 4, True, '{"numRecords":1}')
    write_commit(path, FileChange([added]), {"app:\n": 3}, {"mark": "ж\u2028"}, 17)
    info, transaction, add = (json.loads(line) for line in Path(path).read_bytes().splitlines())
    assert info["commitInfo"]["mark"] == "ж\u2028"
    assert transaction == {"txn": {"appId": "app:\n", "version": 3}}
    assert (add["add"]["path"], add["add"]["stats"]) == (added.path, added.stats)


def test_a_checkpoint_is_made_at_intervals(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_table, "CHECKPOINT_EVERY", 3)
    for _ in range(7):
        table.append(ROWS.slice(0, 1), APPLIED)
    assert [name[:20] for name in names(table) if "checkpoint.p" in name] == [f"{version:020d}" for version in (3, 6)]
    for version in range(6):
        Path(commit_path(table.uri, version)).unlink()
    assert DeltaTable(table.uri).count() == 7
    assert LakeTable(table.uri, APP).recorded == table.recorded
