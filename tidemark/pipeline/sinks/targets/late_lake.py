"""Tables of a lake that begins late: the outbox had lost its first values before the lake was created.

The lake lacks the earlier changes of a table that does not begin with a copy, a CREATE or a TRUNCATE. Its log has a
break before its first change, and its replica counts as diverged until a copy begins.
"""

from collections.abc import Sequence

from tidemark.model.change import Truncation
from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.lake.faults import Fault, FaultKind
from tidemark.pipeline.sinks.steps import Delivered, TableItem, begins_table


def late_begin(begins_late: str, items: Sequence[Delivered]) -> Fault | None:
    """Return the fault of the replica of a new table with these items; None: no change of it is missing.

    `begins_late`: why the lake lacks changes (`Positions.begins_late`).
    """
    if not begins_late or not items or _begins(items[0].item):
        return None
    return Fault(FaultKind.DIVERGED, begins_late, NOTHING.position)


def _begins(item: TableItem) -> bool:
    """Return whether the rows of the table follow from what comes after an item."""
    return begins_table(item) or (isinstance(item, Truncation) and not item.partition)
