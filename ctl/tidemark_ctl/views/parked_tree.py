"""How commands display a change that a consumer could not handle. NB: never its values."""

from tidemark.io.parked.parked_table import ParkedTable
from tidemark.io.state.state import StateStore
from tidemark.wire.parked import ParkedChange, SkippedChange
from tidemark_ctl.views.archive_tree import usecs_text
from tidemark_ctl.views.render import Tree


def parked_tree(change: ParkedChange) -> dict[str, Tree]:
    """Return a parked change."""
    return {
        "database": change.database,
        "table": change.table,
        "op": change.op,
        "position": str(change.position),
        "reason": change.reason,
        "parked": usecs_text(change.parked_at_us),
        "failures": change.failures,
        "retry_requested": change.is_requested,
    }


def skipped_text(change: SkippedChange) -> str:
    """Return a skipped change."""
    at = f"{usecs_text(change.at_us)}: {change.op} of {change.table} in {change.database} at {change.position}"
    return f"{at}: {change.reason}"


def left_out_tree(store: StateStore) -> dict[str, Tree]:
    """Return how many changes are parked, and how many were skipped."""
    with store.reading() as transaction:
        table = ParkedTable(transaction)
        return {"parked": table.ledger().count, "skipped": table.skips().count}
