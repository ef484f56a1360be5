"""The steps of a batch: runs of one relation version, bounded in rows, across groups and transactions."""

import pytest

from tests.support.lakes.scripted_table import ScriptedTable
from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.sinks.steps import Rows, steps


@pytest.fixture
def table() -> ScriptedTable:
    """Return a table with ten rows, each in a separate transaction and item."""
    made = ScriptedTable()
    for key in range(10):
        made.insert({1: key, 2: "new", 3: None})
        made.cut()
        made.commit()
    return made


@pytest.mark.feature("L09")
def test_all_transactions_of_a_batch_are_one_step(table: ScriptedTable) -> None:
    (step,) = steps(table.delivered(), NOTHING)
    assert isinstance(step, Rows)
    assert step.changes.num_rows == 10


def test_a_step_is_bounded_in_rows_and_the_next_one_continues(
    table: ScriptedTable,
) -> None:
    found = [step for step in steps(table.delivered(), NOTHING, 4) if isinstance(step, Rows)]
    assert [step.changes.num_rows for step in found] == [4, 4, 2]
    assert [step.last for step in found] == sorted(step.last for step in found)
