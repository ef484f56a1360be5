"""Where a recovery to a moment ends: an LSN or a time, with the rules of PostgreSQL's recovery targets.

An LSN includes the records that begin before it (`recovery_target_inclusive = off`). A time excludes the first commit
or abort after it, in the order of WAL, and everything that follows (`recovery_target_time`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from tidemark.decode.catalog.transactions import precedes
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.model.commit_time import CommitTime
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import XID_MASK, FullXid, Lsn, format_lsn
from tidemark.runtime.replay.archive_blocks import archived_blocks, of_rmgr
from tidemark.runtime.replay.commit_times import TransactionTimes
from tidemark.runtime.replay.offline import ArchiveEndsEarly
from tidemark.wal.rmgr import RM_STANDBY, standby

Progressed = Callable[[], None]  # is called while WAL and pages are read, and may raise an error to end that


def do_nothing() -> None:
    """Let the reading continue."""


class BeforeBackupEnd(ConfigError):
    """A moment before the end of the backup."""

    hint = "choose a later moment, or an earlier backup: during a backup its files are of different moments"


@dataclass(frozen=True, slots=True)
class RecoveryTarget:
    """The LSN before which records count, and the moment that was given."""

    lsn: Lsn
    moment: Lsn | CommitTime

    def __str__(self) -> str:
        return str(self.moment) if isinstance(self.moment, CommitTime) else format_lsn(self.moment)


def recovery_target(archive: ArchiveFolder, start_lsn: Lsn, moment: Lsn | CommitTime) -> RecoveryTarget:
    """Return where recovery from `start_lsn`, the redo LSN of a backup, would end."""
    if not isinstance(moment, CommitTime):
        return RecoveryTarget(moment, moment)
    after = CommitTime(moment.us + 1)
    latest: CommitTime | None = None
    end_lsn = start_lsn
    for block in archived_blocks(archive, start_lsn):
        ends = TransactionTimes(block)
        found = ends.first_from(after)
        if found is not None:
            return RecoveryTarget(found.lsn, moment)
        if ends:
            latest = ends.end(len(ends) - 1).time
        end_lsn = block.end_lsn
    ended = "without a transaction" if latest is None else f"with a transaction of {latest}"
    raise ArchiveEndsEarly(f"{archive.folder} ends at {format_lsn(end_lsn)} {ended}, and contains none after {moment}")


def settled_target(archive: ArchiveFolder, from_lsn: Lsn, below: FullXid, progress: Progressed) -> RecoveryTarget:
    """Return the first LSN from `from_lsn` on at which all transactions below an xid are known to have ended."""
    end_lsn = from_lsn
    for block in archived_blocks(archive, from_lsn):
        progress()
        for index in of_rmgr(block, len(block), RM_STANDBY):
            running = standby.parse(block.record(index))
            if running is not None and not precedes(running.oldest_running_xid, below & XID_MASK):
                return RecoveryTarget(Lsn(block.lsns[index]), Lsn(block.lsns[index]))
        end_lsn = block.end_lsn
    raise ArchiveEndsEarly(
        f"{archive.folder} ends at {format_lsn(end_lsn)}, before it shows that transactions below {below} have ended"
    )
