"""Changes that wait for a stopped table do not become more expensive with time."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.lakes.aged_logs import lengthen
from tests.support.lakes.scripted_table import ScriptedTable
from tidemark.pipeline.sinks.waiting import COMPACT_EVERY, StoredItem, WaitingItems


@pytest.mark.feature("L02")
def test_waiting_changes_of_a_stopped_table_are_combined_into_fewer_files(tmp_path: Path) -> None:
    uri, table = str(tmp_path / "replica"), ScriptedTable()
    for key in range(3):
        table.insert({1: key, 2: "while stopped", 3: None})
        table.commit()
        WaitingItems(uri, "app").keep(stored(table))
        if not key:
            lengthen(Path(f"{uri}-waiting"), COMPACT_EVERY - 3)
    assert len(DeltaTable(f"{uri}-waiting").file_uris()) == 1
    (portion,) = WaitingItems(uri, "app").portions()
    assert [sequence for sequence, _ in portion] == [sequence for sequence, _ in stored(table)]


def stored(table: ScriptedTable) -> list[StoredItem]:
    return [(delivered.sequence, delivered.item) for delivered in table.delivered()]
