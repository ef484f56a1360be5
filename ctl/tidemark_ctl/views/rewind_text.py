"""How `cdcctl` shows a rewind."""

from tidemark.model.lsn import format_lsn
from tidemark.wire.state import Rewind
from tidemark_ctl.views.archive_tree import US_PER_S, clock_text


def rewind_text(told: Rewind) -> str:
    """Return a rewind in a line."""
    return (
        f"{clock_text(told.at_us / US_PER_S)}: timeline {told.timeline} from {format_lsn(told.fork_lsn)} to "
        f"{format_lsn(told.delivered.commit_lsn)} was delivered, but is not part of the node's history; "
        f"resumed at {told.resumed_timeline}:{format_lsn(told.resumed_lsn)}; {told.tables} tables to copy again"
    )
