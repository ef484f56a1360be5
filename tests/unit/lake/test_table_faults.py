"""Quiet tables cost nothing in a batch: after each change of the tables they are searched for faults once."""

from collections.abc import ItemsView
from dataclasses import replace
from pathlib import Path

from tests.support.lakes.lakes import IDENTITY, batch
from tests.support.lakes.scripted_table import DATABASE, RELATION, ScriptedTable
from tidemark.model.position import Sequence
from tidemark.pipeline.lake.faults import Fault, FaultKind
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition
from tidemark.pipeline.sinks.lake import Lake


class CountedTables(dict[TableId, TablePosition]):
    """Counts how often all tables are looked at."""

    searches = 0

    def items(self) -> ItemsView[TableId, TablePosition]:  # type: ignore[override]
        self.searches += 1
        return super().items()


def test_the_tables_of_a_lake_are_searched_for_faults_once_until_they_change(tmp_path: Path) -> None:
    lake, table = Lake(str(tmp_path), IDENTITY, shape_of, constants_of), ScriptedTable()
    table.insert({1: 1, 2: "new", 3: None})
    table.cut()
    lake.apply(batch(table.delivered()))
    tables = lake.positions.tables = CountedTables(lake.positions.tables)
    for _ in range(3):
        assert (lake.paused, lake.deferred) == ({}, {})
        assert lake.contained == lake.positions.applied.sequence
    assert tables.searches == 1
    known = tables[DATABASE, RELATION]
    fault = Fault(FaultKind.PAUSED, "a reason", known.position, Sequence(1))
    lake.positions.tables = {**tables, (DATABASE, RELATION): replace(known, log=replace(known.log, fault=fault))}
    assert (lake.paused, lake.contained) == ({(DATABASE, RELATION): 1}, 1)
