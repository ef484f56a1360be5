"""Decides between branches in an archive: that of the node, and that of another server.

    timeline 1   ────F───────────►
    timeline 2       └───────────►

The node failed over to the server of timeline 2: then the WAL after F on timeline 1 is a dead branch. Or another server
was promoted by mistake and archived into the same folder: then timeline 2 is. The files of both cases are the same, so
the node decides; it is asked again if timeline 2 grows. If it does not answer, or is a standby, then timeline 2 is
followed, as recovery does, if F is after the WAL that was read. Otherwise nothing is delivered: an operator has to
decide.
"""

from contextlib import closing
from dataclasses import dataclass

from tidemark.engine.dead_branch import OtherBranch
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.host.logs import Log
from tidemark.io.node.replication import WalStream
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import SegmentNo, SystemIdentifier, TimelineId, format_lsn
from tidemark.runtime.capture.network import Reached
from tidemark.runtime.replay.diverged import DeadBranchDelivered
from tidemark.wal.segments import TimelineHistory


@dataclass(frozen=True, slots=True)
class _IgnoredBranch:
    timeline: TimelineId
    last: SegmentNo | None  # how far it had come when the node was asked
    followed: TimelineHistory  # instead: that of the node


class ArchiveBranch:
    """The node's decision between the archive's latest timeline and another one."""

    def __init__(self, dsn: str, system_identifier: SystemIdentifier, log: Log) -> None:
        """`dsn`: of the node."""
        self._dsn = dsn
        self._system_identifier = system_identifier
        self._log = log
        self._ignored: _IgnoredBranch | None = None
        self._accepted = TimelineId(0)  # the latest timeline, if it need not be questioned again

    def follow(self, archive: ArchiveFolder, reached: Reached, *, is_delivered: bool) -> None:
        """Make the archive follow the node's history if its latest timeline is not on it.

        Raise `DeadBranchDelivered` unless the history that is followed contains the WAL that was read.
        """
        latest = archive.history.timeline
        last = archive.last_segment(latest)
        if self._ignored is not None and (self._ignored.timeline, self._ignored.last) == (latest, last):
            archive.history = self._ignored.followed
            return
        if archive.history.contains(*reached):
            history = None if latest in (self._accepted, reached.timeline) else self._history_of_primary(reached)
            if history is None or latest in history:
                self._accepted = latest
                return
        else:
            history = self._checked_history(archive, reached, is_delivered=is_delivered)
        if self._ignored is None or self._ignored.timeline != latest:
            self._log.warning(
                "ignoring a timeline of the archive that the node does not follow",
                timeline=reached.timeline,
                ignored_timeline=latest,
                hint=f"another server archived it; move {_files(archive)} out of the archive",
            )
        self._ignored = _IgnoredBranch(latest, last, history)
        archive.history = history

    def _history_of_primary(self, reached: Reached) -> TimelineHistory | None:
        """Return the history of the node; None if it is not a primary with the WAL that was read, or does not answer.

        A standby may have yet to follow its primary to the latest timeline.
        """
        try:
            with closing(WalStream(self._dsn)) as stream:
                here = stream.identify(self._system_identifier)
                history = stream.timeline_history(here.timeline)
                decides = not stream.is_standby() and here.flush_lsn >= reached.lsn and history.contains(*reached)
        except TidemarkError as error:
            self._log.info("following the latest timeline of the archive without the node", error=str(error))
            return None
        return history if decides else None

    def _checked_history(self, archive: ArchiveFolder, reached: Reached, *, is_delivered: bool) -> TimelineHistory:
        """Return the history of the node, which has the WAL that was read; otherwise raise `DeadBranchDelivered`."""
        try:
            with closing(WalStream(self._dsn)) as stream:
                here = stream.identify(self._system_identifier)
                history = stream.timeline_history(here.timeline)
        except TidemarkError as error:
            reason = f"the node, which determines the branch to follow, does not answer: {error}"
            raise _dead_branch(archive, reached, reason, _either(archive), is_delivered=is_delivered) from error
        at = f"the node is on timeline {here.timeline}"
        if reached.timeline not in history:
            raise _dead_branch(archive, reached, at, OtherBranch.hint, is_delivered=is_delivered)
        if not history.contains(*reached):
            raise _dead_branch(archive, reached, at, DeadBranchDelivered.hint, is_delivered=is_delivered)
        if here.flush_lsn < reached.lsn:
            reason = f"{at}, and its WAL ends before that, at {format_lsn(here.flush_lsn)}"
            raise _dead_branch(archive, reached, reason, _either(archive), is_delivered=is_delivered)
        return history


def _dead_branch(
    archive: ArchiveFolder, reached: Reached, reason: str, hint: str, *, is_delivered: bool
) -> DeadBranchDelivered:
    error = DeadBranchDelivered(f"{_difference(archive, reached)}; {reason}", hint=hint)
    error.fork_lsn = None if is_delivered else archive.history.fork_before(*reached)
    return error


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
