"""The place in a log before which `cdcctl table add` adds changes."""

from pathlib import Path

import pytest

from tests.support.lakes.lakes import CAPTURE, IDENTITY, batch
from tests.support.lakes.scripted_table import DATABASE, RELATION, ScriptedTable, Value
from tidemark.model.change import ChangeBatch, CopyBoundary
from tidemark.model.position import Position
from tidemark.pipeline.earlier.earlier_changes import EarlierChanges
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions import Positions
from tidemark.pipeline.sinks.sinks import Lake
from tidemark.pipeline.sinks.steps import Delivered, bounds_of


def end_of_earlier(root: Path, items: list[Delivered]) -> Position:
    Lake(str(root), IDENTITY, shape_of, constants_of).apply(batch(items))
    positions = Positions(str(root), IDENTITY)
    table = positions.tables[DATABASE, RELATION]
    return EarlierChanges(
        str(root), CAPTURE, positions, table, shapes=shape_of, constants=constants_of, dialects={}
    ).end


@pytest.mark.feature("N05")
@pytest.mark.parametrize("rows", [[], [{1: 1, 2: "copied", 3: "B"}, {1: 2, 2: "copied", 3: "B"}]])
def test_a_commit_that_begins_at_the_lsn_of_a_copy_is_not_added(rows: list[dict[int, Value]], tmp_path: Path) -> None:
    """The copied rows may show it, and follow it in the order of positions."""
    table = ScriptedTable()
    table.copy(1, rows)
    items = list(table.delivered())
    copied = next(one.item.position for one in items if isinstance(one.item, CopyBoundary))
    assert end_of_earlier(tmp_path, items) == Position(copied.timeline, copied.commit_lsn, 0)


@pytest.mark.feature("N05")
def test_changes_are_added_up_to_the_first_one_of_the_log_in_its_transaction(tmp_path: Path) -> None:
    table = ScriptedTable()
    for key in range(3):
        table.insert({1: key, 2: "new", 3: None})
    items = list(table.delivered())
    assert isinstance(items[0].item, ChangeBatch)
    assert end_of_earlier(tmp_path, items) == bounds_of(items[0].item)[0]
