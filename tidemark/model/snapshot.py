"""PostgreSQL's snapshots (`pg_snapshot`): which transactions a reader sees."""

from dataclasses import dataclass

from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import FullXid


class BadSnapshot(TidemarkError):
    """Text that is no pg_snapshot."""

    hint = "this is not what PostgreSQL prints for pg_current_snapshot()"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All before `xmin` have ended, none from `xmax` on is seen, and `running` are those between that had not ended."""

    xmin: FullXid
    xmax: FullXid
    running: frozenset[FullXid]

    def sees(self, xid: FullXid) -> bool:
        """Tell if what `xid` did is visible, given that it committed."""
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(str(xid) for xid in sorted(self.running))}"


def parse_snapshot(text: str) -> Snapshot:
    """Return the snapshot that `text` (`10:20:10,14`) describes."""
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
