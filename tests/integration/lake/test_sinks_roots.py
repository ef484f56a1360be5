"""The replica of a partitioned table without a key, whose partitions have keys: the partitions' keys identify rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.lakes.lakes import IDENTITY, batch, replica_rows
from tests.support.lakes.scripted_table import DATABASE, RELATION, ScriptedTable, column
from tidemark.model.relation import PARTITIONED, TABLEOID_NUMBER
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.sinks.lake import Lake

FOLDER = f"{DATABASE}/public/Orders"
LEAF = 20100


@pytest.mark.feature("P23")
def test_a_new_copy_and_a_truncate_of_a_root_without_a_key_keep_its_replica_live(tmp_path: Path) -> None:
    table = ScriptedTable()
    columns = (*table.relation.columns, column(TABLEOID_NUMBER, "tableoid", "int8"))
    key = (1, TABLEOID_NUMBER)
    of_leaf = replace(table.relation, kind=PARTITIONED, columns=columns, identity_columns=key, primary_key=key)
    of_root = replace(of_leaf, identity_columns=(), primary_key=())
    applied = 0

    def apply_pending() -> TableState:
        nonlocal applied
        lake = Lake(str(tmp_path), IDENTITY, shape_of, constants_of)
        lake.apply(batch(table.delivered()[applied:]))
        applied = len(table.delivered())
        assert replica_rows(tmp_path, FOLDER) == table.expected()
        return lake.positions.tables[DATABASE, RELATION].state

    def change(number: int) -> None:
        table.cut()
        table.relation = of_leaf
        table.insert({1: number, 2: "new", 3: None, TABLEOID_NUMBER: LEAF})
        table.commit()
        table.update((number,), {2: "changed"})
        table.commit()
        table.cut()
        table.relation = of_root

    change(1)
    assert apply_pending() is TableState.LIVE
    table.copy(2, [*table.rows.values(), {1: 2, 2: "copied", 3: None, TABLEOID_NUMBER: LEAF}])
    change(3)
    assert apply_pending() is TableState.LIVE
    table.truncate()
    change(4)
    assert apply_pending() is TableState.LIVE
