"""PostgreSQL's snapshots (`pg_snapshot`): which transactions a reader sees.

NB: a standby's pg_snapshot contains the bounds only. The server knows and uses the running xids between them, but does
not report them (`GetSnapshotData` in recovery fills `subxip` alone). The replayed LSN replaces that list.
"""

from dataclasses import dataclass
from typing import Protocol

from tidemark.model.errors import InvalidLsn, TidemarkError
from tidemark.model.lsn import FullXid, Lsn, format_lsn, parse_lsn


class BadSnapshot(TidemarkError):
    """Text that is not a pg_snapshot."""

    hint = "this is not what PostgreSQL prints for pg_current_snapshot()"


class Visibility(Protocol):
    """Which transactions a reader sees, of those that committed."""

    def shows(self, xid: FullXid, commit_lsn: Lsn) -> bool:
        """Return whether the changes of `xid` are visible, given that its commit record begins at `commit_lsn`."""

    def shows_none_from(self, xid: FullXid, commit_lsn: Lsn) -> bool:
        """Return whether no change is visible of `xid` and later xids that commit at or after `commit_lsn`."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All xids before `xmin` have ended, none from `xmax` on is visible; of those between, `running` had not ended."""

    xmin: FullXid
    xmax: FullXid
    running: frozenset[FullXid]

    def sees(self, xid: FullXid) -> bool:
        """Return whether the changes of `xid` are visible, given that it committed."""
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

    def shows(self, xid: FullXid, commit_lsn: Lsn) -> bool:
        """Return whether the changes of `xid` are visible, wherever it committed."""
        del commit_lsn
        return self.sees(xid)

    def shows_none_from(self, xid: FullXid, commit_lsn: Lsn) -> bool:
        """Return whether no change is visible of `xid` and later xids, wherever they commit."""
        del commit_lsn
        return xid >= self.xmax

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(str(xid) for xid in sorted(self.running))}"


@dataclass(frozen=True, slots=True)
class ReplayedSnapshot:
    """A standby's: all xids before `xmin` have ended; others are visible if they committed below `replayed_lsn`."""

    xmin: FullXid
    replayed_lsn: Lsn

    def shows(self, xid: FullXid, commit_lsn: Lsn) -> bool:
        """Return whether the changes of `xid` are visible, given that its commit record begins at `commit_lsn`."""
        return xid < self.xmin or commit_lsn < self.replayed_lsn

    def shows_none_from(self, xid: FullXid, commit_lsn: Lsn) -> bool:
        """Return whether no change is visible of `xid` and later xids that commit at or after `commit_lsn`."""
        return xid >= self.xmin and commit_lsn >= self.replayed_lsn

    def __str__(self) -> str:
        return f"{self.xmin}@{format_lsn(self.replayed_lsn)}"


def parse_visibility(text: str) -> Visibility:
    """Parse a snapshot, or a standby's (`10@0/3000158`)."""
    xmin, separator, lsn = text.partition("@")
    if not separator:
        return parse_snapshot(text)
    try:
        return ReplayedSnapshot(FullXid(int(xmin)), parse_lsn(lsn))
    except (ValueError, InvalidLsn):
        raise BadSnapshot(f"not a snapshot: {text!r}") from None


def parse_snapshot(text: str) -> Snapshot:
    """Parse a snapshot such as `10:20:10,14`."""
    try:
        xmin, xmax, running = text.split(":")
        snapshot = Snapshot(
            FullXid(int(xmin)),
            FullXid(int(xmax)),
            frozenset(FullXid(int(xid)) for xid in running.split(",") if xid),
        )
    except ValueError:
        raise BadSnapshot(f"not a snapshot: {text!r}") from None
    if not all(snapshot.xmin <= xid < snapshot.xmax for xid in snapshot.running) or snapshot.xmin > snapshot.xmax:
        raise BadSnapshot(f"not a snapshot: {text!r}")
    return snapshot
