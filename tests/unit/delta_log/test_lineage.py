"""The check of a Delta table against its record, when it is opened: what makes it diverge, stop, or nothing."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake

from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.delta_log.lineage import NEVER_WRITTEN, Recorded, TableDiverged, TableStopped
from tidemark.pipeline.lake.tables.lake_table import LakeTable

APP = "tidemark:test:replica"
SCHEMA = pa.schema([("id", pa.int64())])
ROWS = pa.table([[1, 2]], schema=SCHEMA)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def make(uri: str, schema: pa.Schema = SCHEMA) -> LakeTable:
    table = LakeTable(uri, APP)
    table.create(schema, NOTHING)
    return table


def reopened(uri: str, recorded: Recorded) -> None:
    LakeTable(uri, APP, recorded)


def append(uri: str) -> None:
    write_deltalake(uri, ROWS, mode="append")


def compact(uri: str) -> None:
    table = LakeTable(uri, APP)
    table.append(ROWS, NOTHING)
    table.append(ROWS, NOTHING)
    DeltaTable(uri).optimize.compact()


def set_harmless_property(uri: str) -> None:
    DeltaTable(uri).alter.set_table_properties({"delta.checkpointInterval": "7"})


def add_column(uri: str) -> None:
    DeltaTable(uri).alter.add_columns([Field.from_arrow(pa.field("extra", pa.int64()))])


def copy_transactions(uri: str) -> None:
    transaction = Transaction(f"{APP}:sequence", 5)
    properties = CommitProperties(app_transactions=[transaction])
    DeltaTable(uri).alter.set_table_properties({"delta.checkpointInterval": "7"}, commit_properties=properties)


def test_a_table_that_was_never_written_and_does_not_exist_is_as_recorded(uri: str) -> None:
    reopened(uri, NEVER_WRITTEN)


def test_a_missing_table_that_was_written_has_diverged(uri: str) -> None:
    recorded = make(uri).recorded
    shutil.rmtree(uri)
    with pytest.raises(TableDiverged, match="does not exist; its recorded version is 0"):
        reopened(uri, recorded)


def test_an_unchanged_table_is_as_recorded(uri: str) -> None:
    recorded = make(uri).recorded
    reopened(uri, recorded)
    reopened(uri, Recorded(recorded.version))  # written before ids and tokens were recorded
    reopened(uri, replace(recorded, token=None))


def test_a_recreated_table_has_diverged(uri: str) -> None:
    recorded = make(uri).recorded
    shutil.rmtree(uri)
    make(uri)
    with pytest.raises(TableDiverged, match="it has another id"):
        reopened(uri, recorded)


def test_an_older_copy_of_a_table_has_diverged(uri: str) -> None:
    table = make(uri)
    shutil.copytree(uri, f"{uri}-copy")
    table.append(ROWS, NOTHING)
    shutil.rmtree(uri)
    shutil.move(f"{uri}-copy", uri)
    with pytest.raises(TableDiverged, match="it has version 0, but version 1 was written"):
        reopened(uri, table.recorded)
    LakeTable(uri, APP).append(ROWS, NOTHING)  # as many commits as recorded, but others
    with pytest.raises(TableDiverged, match="it does not contain the last commit of this pipeline"):
        reopened(uri, table.recorded)


def test_commits_of_this_pipeline_that_are_not_recorded_are_accepted(uri: str) -> None:
    table = make(uri)
    recorded = table.recorded
    table.append(ROWS, NOTHING)
    reopened(uri, recorded)
    reopened(uri, NEVER_WRITTEN)


@pytest.mark.parametrize("maintenance", [compact, set_harmless_property])
def test_maintenance_by_another_writer_is_accepted(uri: str, maintenance: Callable[[str], None]) -> None:
    table = make(uri)
    recorded = table.recorded
    maintenance(uri)
    reopened(uri, recorded)
    latest = LakeTable(uri, APP)
    set_harmless_property(uri)
    reopened(uri, latest.recorded)  # no commit of Tidemark after the recorded one


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (append, "was changed by another writer: WRITE"),
        (add_column, "at version 1: columns differ: extra"),
        (copy_transactions, "which sets Tidemark's application transactions"),
    ],
)
def test_a_table_that_another_writer_changed_has_diverged(uri: str, change: Callable[[str], None], reason: str) -> None:
    recorded = make(uri).recorded
    change(uri)
    with pytest.raises(TableDiverged, match=reason):
        reopened(uri, recorded)


def test_before_marks_application_transactions_identified_commits(uri: str) -> None:
    recorded = make(uri).recorded
    copy_transactions(uri)
    reopened(uri, Recorded(recorded.version))


def test_an_empty_table_that_another_writer_created_has_diverged(uri: str) -> None:
    DeltaTable.create(uri, SCHEMA)
    with pytest.raises(TableDiverged, match="was created by another writer"):
        reopened(uri, NEVER_WRITTEN)


def test_a_table_with_a_new_commit_that_cannot_be_read_has_diverged(uri: str) -> None:
    table = make(uri)
    recorded = table.recorded
    table.append(ROWS, NOTHING)
    table.append(ROWS, NOTHING)
    table.delta.create_checkpoint()
    (Path(uri) / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(TableDiverged, match="the commit of version 1 cannot be read"):
        reopened(uri, recorded)


def test_a_property_that_restricts_writes_stops_a_table(uri: str) -> None:
    recorded = make(uri).recorded
    DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(TableStopped, match=r"the property delta\.appendOnly restricts writes; undo it with ALTER"):
        reopened(uri, recorded)


def test_columns_are_checked_for_restrictions_only_after_another_writer_changed_properties(uri: str) -> None:
    table = make(uri, pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    recorded = table.recorded
    reopened(uri, recorded)
    DeltaTable(uri).create_write_transaction([], "append", DeltaTable(uri).schema())  # changes no row
    reopened(uri, recorded)
    set_harmless_property(uri)
    with pytest.raises(TableStopped, match="NOT NULL of column id restricts writes"):
        reopened(uri, recorded)
