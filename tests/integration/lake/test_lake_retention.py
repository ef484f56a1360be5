"""Settings of the lake's tables by pattern: how long rows of logs, and replaced files, are kept."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.support.lakes.lakes import IDENTITY, batch, log_rows, replica_rows
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable
from tidemark.io.host.clock import SystemClock
from tidemark.io.process.config_loading import parse_config
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig
from tidemark.model.change import ChangeBatch
from tidemark.model.lsn import Lsn, Oid, TimelineId
from tidemark.model.position import Position, Sequence
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState
from tidemark.pipeline.landing.settings_check import unmatched_patterns
from tidemark.pipeline.sinks import table_writes
from tidemark.pipeline.sinks.lake import Lake

pytestmark = pytest.mark.feature("L15")
DAY_US = 86_400_000_000
FOLDER = f"{DATABASE}/public/Orders"
KEEPS_DAYS = 3


def committed(table: ScriptedTable, key: int, age_days: float) -> None:
    """Insert a row in a transaction of that age."""
    table.commit()
    table.insert({1: key, 2: "a", 3: None})
    table.cut()
    item = table.items[-1]
    assert isinstance(item, ChangeBatch)
    at = item.rows.schema.get_field_index("_commit_time")
    time_us = SystemClock().wall_us() - int(age_days * DAY_US)
    values = pa.array([time_us] * item.rows.num_rows, item.rows.schema.field(at).type)
    rows = item.rows.set_column(at, item.rows.schema.field(at), values)
    table.items[-1] = ChangeBatch(item.database, item.relation, rows)


def fed(
    root: Path, table: ScriptedTable, pattern: str = "Order*", *, log_keep_days: int = 0, file_keep_hours: int = 0
) -> Lake:
    settings = LakeTableConfig(pattern, log_keep_days, file_keep_hours)
    config = LakeConfig((settings, LakeTableConfig("*.*", log_keep_days=1)))
    lake = Lake(str(root), IDENTITY, shape_of, constants_of, config=config)
    lake.apply(batch(table.delivered()))
    return lake


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ScriptedTable:
    """Return a table with transactions of several ages; its log and replica are maintained in each batch."""
    monkeypatch.setattr(table_writes, "EXPIRE_EVERY", 1)
    made = ScriptedTable()
    for key, age_days in enumerate((10, KEEPS_DAYS + 0.1, KEEPS_DAYS - 0.1, 0)):
        committed(made, key, age_days)
    made.truncate()
    committed(made, 9, 0)
    return made


def test_old_rows_of_a_log_are_deleted_and_the_position_and_replica_stay(tmp_path: Path, table: ScriptedTable) -> None:
    lake = fed(tmp_path, table, log_keep_days=KEEPS_DAYS)
    assert [row["id"] for row in log_rows(tmp_path, FOLDER)] == [2, 3, None, 9], "the TRUNCATE has no time"
    assert replica_rows(tmp_path, FOLDER) == table.expected()
    version = lake.positions.tables[DATABASE, table.oid].log_version
    assert version == DeltaTable(str(tmp_path / FOLDER / "log")).version()
    committed(table, 10, 0)
    again = fed(tmp_path, table, log_keep_days=KEEPS_DAYS)  # neither repeated nor taken for a foreign change
    assert [row["id"] for row in log_rows(tmp_path, FOLDER)] == [2, 3, None, 9, 10]
    assert again.positions.tables[DATABASE, table.oid].state is TableState.LIVE


def test_the_first_pattern_that_matches_decides(tmp_path: Path, table: ScriptedTable) -> None:
    fed(tmp_path / "without", table)
    assert len(log_rows(tmp_path / "without", FOLDER)) == table.changes
    fed(tmp_path / "other", table, "orders", log_keep_days=KEEPS_DAYS)  # names are case-sensitive
    assert [row["id"] for row in log_rows(tmp_path / "other", FOLDER)] == [3, None, 9]


def test_replaced_files_are_kept_for_the_longer_time(tmp_path: Path, table: ScriptedTable) -> None:
    for hours, kept in ((0, 1), (30, 30)):
        fed(tmp_path / str(hours), table, file_keep_hours=hours)
        for name in ("log", "replica"):
            properties = DeltaTable(str(tmp_path / str(hours) / FOLDER / name)).metadata().configuration
            assert properties["delta.deletedFileRetentionDuration"] == f"interval {kept} hours"


def test_a_pattern_that_matches_no_table_is_named() -> None:
    text = "".join(f"[[lake.tables]]\npattern = '{pattern}'\n" for pattern in ("a*", "orders", "archive.*", "ab"))
    config = parse_config(text, {}, where="test.toml").lake
    at = Position(TimelineId(1), Lsn(1), 0)
    known = [
        TablePosition(DATABASE, Oid(1), "public", name, name, TableState.LIVE, Sequence(1), at)
        for name in ("ab", "orders")
    ]
    assert unmatched_patterns(config, known) == ["archive.*", "ab"]
    assert unmatched_patterns(config, []) == []
