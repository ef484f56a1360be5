"""Checks and messages of `cdcctl realtime` if the archive lacks WAL that delivery needs (I16, I31)."""

from concurrent.futures import TimeoutError as NotInTime
from pathlib import Path

from tidemark.io.archive.archive_listing import ArchiveListing
from tidemark.io.archive.archive_progress import has_no_filler
from tidemark.io.process.config import ArchiveConfig
from tidemark.io.state.state import StateStore
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import format_lsn
from tidemark.runtime.daemon.node_requests import NodeRequests

ANSWER_S = 10.0
NOTHING_ARCHIVES = (
    "WARNING: archive_mode is off on the node, so the archiver receives no WAL. Changes that commit from now "
    "on are delivered only if the node still has their WAL at the next `cdcctl realtime on`; WAL that the node "
    "removes before is lost to the capture. Set archive_mode = on and restart the server, or switch realtime "
    "on again soon"
)


def nothing_archives(archive: ArchiveConfig, segment_bytes: int, node_requests: NodeRequests) -> bool:
    """Return whether the server should fill the spool but does not archive; false if that is unknown."""
    try:
        node = node_requests.find_archiving().result(ANSWER_S)
        found = ArchiveListing(Path(archive.folder), segment_bytes).result(ANSWER_S)
    except (TidemarkError, NotInTime):
        return False
    return has_no_filler(node, found, archive.filled_by)


def why_not_from_node(store: StateStore, node_requests: NodeRequests) -> str | None:
    """Return why the sidecar cannot continue with the node's WAL alone; None if it can."""
    start = store.marks().start
    if start is None:
        return "no change has been delivered"
    try:
        has_wal = node_requests.has_wal(start.restart_lsn).result(ANSWER_S)
    except (TidemarkError, NotInTime) as error:
        return str(error) or "the node does not report whether it has the WAL"
    return None if has_wal else f"the node has removed WAL from {format_lsn(start.restart_lsn)} on"
