"""The view of an archive: existing segments, missing segments, and the delivered pointer among them."""

from datetime import UTC, datetime
from pathlib import Path

from tidemark.io.archive.archive_state import ArchiveState, NoArchive, WalSpan, archive_state
from tidemark.io.process.config import Config
from tidemark.io.state.state_views import StateView
from tidemark.model.commit_time import USECS_PER_SECOND
from tidemark.model.lsn import format_lsn
from tidemark.wire.state.event_logs import Loss
from tidemark_ctl.views.render import Tree

RUNS_SHOWN = 20
HOLES_SHOWN = 20
NAMES_SHOWN = 5


def archive_of(config: Config, view: StateView) -> ArchiveState:
    """List the configured archive."""
    if not config.has_archive:
        raise NoArchive("no archive is configured")
    return archive_state(Path(config.archive.folder), view.identity.segment_bytes)


def archive_tree(state: ArchiveState, view: StateView) -> dict[str, Tree]:
    """Return the view of an archive, by name."""
    return {
        "folder": str(state.folder),
        "owner": "Tidemark: trimmed" if state.is_ours else "others: read, never written",
        "files": state.file_count,
        "bytes": state.byte_count,
        "free_bytes": state.free_bytes,
        "timeline": state.timeline,
        "runs": [f"{run.first} to {run.last}" for run in state.runs[-RUNS_SHOWN:]],
        "end_lsn": None if state.end_lsn is None else format_lsn(state.end_lsn),
        "failing_s": None if state.failing_s is None else round(state.failing_s, 1),
        "given_up": state.given_up,
        "holes": [f"{hole.name}  {time_text(hole.at_s)}  {hole.reason}" for hole in state.holes[-HOLES_SHOWN:]],
        "delivered": _delivered_position(state, view),
    }


def names_text(state: ArchiveState, gap: WalSpan) -> str:
    """Return the names of the segments of a gap: all of them if they are few."""
    names = state.names_in(gap)
    return ", ".join(names) if len(names) <= NAMES_SHOWN else f"{names[0]} to {names[-1]}, {len(names)} segments"


def usecs_text(usecs: int) -> str:
    """Return a wall clock time in microseconds as local time."""
    return time_text(usecs / USECS_PER_SECOND)


def time_text(seconds: float) -> str:
    """Return a wall-clock time in readable form."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _delivered_position(state: ArchiveState, view: StateView) -> str | None:
    """Return the position from which a restart would read."""
    if view.start is None:
        return None
    lsn = view.start.restart_lsn
    gap = state.gap_after(lsn)
    if gap is not None:
        return f"restart at {format_lsn(lsn)}; WAL from {gap} is missing ({names_text(state, gap)})"
    if state.end_lsn is None or lsn >= state.end_lsn:
        return f"restart at {format_lsn(lsn)}, which has not been archived yet"
    return f"restart at {format_lsn(lsn)}; no WAL is missing from there to the end at {format_lsn(state.end_lsn)}"


def loss_text(loss: Loss) -> str:
    """Return a loss as one line."""
    return (
        f"{usecs_text(loss.at_us)}: lost all commits after {loss.after} and before "
        f"{loss.resumed_timeline}:{format_lsn(loss.resumed_lsn)}; WAL from "
        f"{WalSpan(loss.hole_start_lsn, loss.hole_end_lsn)} was "
        f"{f'damaged ({loss.damage})' if loss.damage else 'missing'}; "
        f"{loss.tables} tables to copy again"
    )
