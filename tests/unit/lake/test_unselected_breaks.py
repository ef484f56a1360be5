"""The breaks of a log while its table was not selected: each is recorded once, however often the items come."""

from dataclasses import replace

import pytest

from tests.support.lakes.scripted_table import ScriptedTable
from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import SchemaChange, SchemaEffect, SchemaEvent
from tidemark.model.lsn import Lsn, Oid
from tidemark.model.position import Position
from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.lake.faults import NOT_SELECTED, OPEN_END, UNTOUCHED, LogBreak
from tidemark.pipeline.lake.positions.table_position import TablePosition, TableState
from tidemark.pipeline.sinks.steps import Delivered, last_position
from tidemark.pipeline.sinks.targets.table_states import breaks_after
from tidemark.pipeline.sinks.targets.targets import Outcome

pytestmark = pytest.mark.feature("N17")
WRITTEN = Outcome(UNTOUCHED, NOTHING)


class Story(ScriptedTable):
    """A table whose capture ends and begins."""

    def row(self, key: int) -> None:
        self.commit()
        self.insert({1: key, 2: "new", 3: None})
        self.cut()

    def report(self, change: CaptureChange) -> None:
        self.commit()
        self.schema_event(SchemaChange.ALTER, SchemaEffect.METADATA, self.relation, self.relation)
        event = self.items[-1]
        assert isinstance(event, SchemaEvent)
        self.items[-1] = replace(event, capture=change)


def known_after(known: TablePosition | None, items: list[Delivered]) -> TablePosition:
    """Return the position of the table after a batch that has `items`."""
    breaks = breaks_after(known, WRITTEN, items)
    reached = max(last_position(one.item) for one in items)
    position = reached if known is None else max(known.position, reached)
    return TablePosition(
        database=items[0].item.database,
        relation=Oid(1),
        namespace="public",
        name="t",
        folder="f",
        state=TableState.LIVE,
        sequence=items[-1].sequence,
        position=position,
        breaks=breaks,
    )


def story() -> list[Delivered]:
    table = Story()
    table.row(1)
    table.report(CaptureChange.ENDS)
    table.report(CaptureChange.BEGINS)
    table.row(2)
    table.report(CaptureChange.ENDS)
    return table.delivered()


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("repeated", [False, True])
def test_the_breaks_do_not_depend_on_the_batches_and_not_on_repeated_items(size: int, *, repeated: bool) -> None:
    items = story()
    row, _, begins, later, _ = (last_position(one.item) for one in items)
    known: TablePosition | None = None
    for at in range(0, len(items), size):
        known = known_after(known, items[at : at + size])
        if repeated:
            known = known_after(known, items[: at + size])
    assert known is not None
    assert list(known.breaks) == [LogBreak(NOT_SELECTED, row, begins), LogBreak(NOT_SELECTED, later, OPEN_END)]


def test_a_copy_or_a_creation_ends_the_break_and_a_table_without_earlier_changes_has_none() -> None:
    table = Story()
    table.report(CaptureChange.BEGINS)
    table.row(1)
    table.report(CaptureChange.ENDS)
    table.commit()
    table.copy(1, list(table.rows.values()))
    items = table.delivered()
    (gap,) = known_after(None, items).breaks
    assert (gap.reason, gap.is_open) == (NOT_SELECTED, False)
    assert gap.after < gap.to
    assert gap.to in {last_position(one.item) for one in items}


def test_a_break_begins_at_its_event_if_a_copy_is_ahead_of_the_stream() -> None:
    items = story()[:2]
    known = known_after(None, items[:1])
    ahead = replace(known, position=Position(known.position.timeline, Lsn(1 << 40), 0))
    (gap,) = known_after(ahead, items[1:]).breaks
    assert gap == LogBreak(NOT_SELECTED, last_position(items[1].item), OPEN_END)
