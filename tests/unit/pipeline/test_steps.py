"""The steps of a batch: runs of one relation version, bounded in rows, across groups and transactions."""

from dataclasses import replace

import pytest

from tests.support.lakes.scripted_table import ScriptedTable
from tidemark.model.change import ChangeBatch
from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.sinks.steps import Rows, before, bounds_of, steps


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


def test_the_rows_before_a_position_are_those_that_are_not_at_or_after_it() -> None:
    table = ScriptedTable()
    for key in range(5):
        table.insert({1: key, 2: "new", 3: None})
    table.commit()
    (delivered,) = table.delivered()
    assert isinstance(delivered.item, ChangeBatch)
    first, last = bounds_of(delivered.item)
    counts = []
    for ordinal in range(first.ordinal, last.ordinal + 2):
        found = before(delivered.item, replace(first, ordinal=ordinal))
        counts.append(0 if found is None else found.row_count)
    assert counts == [0, 1, 2, 3, 4, 5]
