"""The view of a rewind."""

from tidemark.model.lsn import format_lsn
from tidemark.wire.state import Rewind
from tidemark_ctl.views.archive_tree import US_PER_S, clock_text


def rewind_text(rewind: Rewind) -> str:
    """Return a rewind as one line."""
    return (
        f"{clock_text(rewind.at_us / US_PER_S)}: timeline {rewind.timeline} from {format_lsn(rewind.fork_lsn)} to "
        f"{format_lsn(rewind.delivered.commit_lsn)} was delivered, but is not part of the node's history; "
        f"resumed at {rewind.resumed_timeline}:{format_lsn(rewind.resumed_lsn)}; {rewind.tables} tables to copy again"
    )
