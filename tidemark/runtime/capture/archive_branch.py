"""Decides between two branches in an archive: that of the WAL that was read, and a later timeline without this WAL.

    timeline 1   ────F───────────►   read beyond F
    timeline 2       └───────────►   a later timeline, of a server without the WAL after F

The node failed over to the server of timeline 2: then the WAL after F is a dead branch. Or another server was promoted
by mistake and archived into the same folder: then timeline 2 is. The files of both cases are the same, so the node
decides; it is asked again if timeline 2 grows. If it does not answer, nothing is delivered: an operator has to decide.
"""

from contextlib import closing

from tidemark.engine.dead_branch import OtherBranch
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.host.logs import Log
from tidemark.io.node.replication import WalStream
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import SegmentNo, SystemIdentifier, TimelineId, format_lsn
from tidemark.runtime.capture.network import Reached
from tidemark.runtime.replay.diverged import DeadBranchDelivered


class ArchiveBranch:
    """The node's decision between two branches."""

    def __init__(self, dsn: str, system_identifier: SystemIdentifier, log: Log) -> None:
        """`dsn`: of the node."""
        self._dsn = dsn
        self._system_identifier = system_identifier
        self._log = log
        self._ignored: tuple[TimelineId, SegmentNo | None] | None = None  # a branch, and how far it had come

    def check(self, archive: ArchiveFolder, reached: Reached, *, is_delivered: bool) -> None:
        """Raise unless the node has the WAL that was read, so that the archive's latest timeline can be ignored."""
        latest = archive.history.timeline
        branch = latest, archive.last_segment(latest)
        if branch == self._ignored:
            return
        refusal = self._refusal(archive, reached)
        if refusal is not None:
            reason, hint = refusal
            error = DeadBranchDelivered(f"{_difference(archive, reached)}; {reason}", hint=hint)
            error.fork_lsn = None if is_delivered else archive.history.fork_before(*reached)
            raise error
        if self._ignored is None or self._ignored[0] != latest:
            self._log.warning(
                "ignoring a timeline of the archive that the node does not follow",
                timeline=reached.timeline,
                ignored_timeline=latest,
                hint=f"another server archived it; move {_files(archive)} out of the archive",
            )
        self._ignored = branch

    def _refusal(self, archive: ArchiveFolder, reached: Reached) -> tuple[str, str] | None:
        """Return why the WAL that was read is not on the node's branch, or may not be, and a hint; None if it is."""
        try:
            with closing(WalStream(self._dsn)) as stream:
                here = stream.identify(self._system_identifier)
                history = stream.timeline_history(here.timeline)
        except TidemarkError as error:
            return f"the node, which determines the branch to follow, does not answer: {error}", _either(archive)
        at = f"the node is on timeline {here.timeline}"
        if reached.timeline not in history:
            return at, OtherBranch.hint
        if not history.contains(*reached):
            return at, DeadBranchDelivered.hint
        if here.flush_lsn < reached.lsn:
            return f"{at}, and its WAL ends before that, at {format_lsn(here.flush_lsn)}", _either(archive)
        return None


def _difference(archive: ArchiveFolder, reached: Reached) -> str:
    """Return how the latest timeline differs from the WAL that was read."""
    fork_lsn = archive.history.fork_before(*reached)
    how = "does not descend from" if fork_lsn is None else f"left at {format_lsn(fork_lsn)}"
    return (
        f"timeline {archive.history.timeline} of {archive.folder} {how} timeline {reached.timeline}, which was read up "
        f"to {format_lsn(reached.lsn)}"
    )


def _either(archive: ArchiveFolder) -> str:
    """Return what to do where the node does not decide."""
    latest = archive.history.timeline
    return (
        f"start the archiver again when the node that capture.dsn names answers. If the node is on timeline {latest}: "
        f"stop both daemons and run `cdcctl rewind`. If another server archived timeline {latest}: move "
        f"{_files(archive)} out of the archive, then start the archiver"
    )


def _files(archive: ArchiveFolder) -> str:
    return f"{archive.folder}/{archive.history.timeline:08X}*"
