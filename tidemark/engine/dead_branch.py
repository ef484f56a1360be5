"""What a fork means for a capture that delivered beyond it, decided from the node's timeline history alone.

    timeline 1   ──────────────F╌╌╌╌╌╌╌╌╌D        delivered up to D: the node does not have the changes after F
    timeline 2                 └──────────────►   the node

Positions are ordered by timeline first: every commit on the new timeline comes after D, whatever its LSN.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Lsn, TimelineId, format_lsn
from tidemark.model.position import Pointer, Position
from tidemark.wal.segments import TimelineHistory


class OtherBranch(ConfigError):
    """A node whose history does not contain the delivered timeline."""

    hint = (
        "capture.dsn must name the current primary; if the delivered timeline is not in its history, "
        "make a new first copy (cdcctl init in a new state folder, with a new lake)"
    )


@dataclass(frozen=True, slots=True)
class DeadBranch:
    """[fork_lsn, delivered] of a timeline: delivered, or in first copies, but not part of the node's history."""

    timeline: TimelineId
    fork_lsn: Lsn
    delivered: Position
    next_timeline: TimelineId  # the node's timeline after the fork

    @property
    def first(self) -> Position:
        """A position that is greater than all positions before the branch, and not greater than any of the branch."""
        return Position(self.timeline, self.fork_lsn, 0)

    def __str__(self) -> str:
        return f"timeline {self.timeline} from {format_lsn(self.fork_lsn)} to {format_lsn(self.delivered.commit_lsn)}"


def find_dead_branch(history: TimelineHistory, delivered: Position) -> DeadBranch | None:
    """Return the dead part of the delivered timeline; None if the node has everything that was delivered."""
    if delivered.timeline not in history:
        raise OtherBranch(
            f"the node is on timeline {history.timeline}, which does not descend from timeline {delivered.timeline}, "
            f"delivered up to {format_lsn(delivered.commit_lsn)}"
        )
    fork_lsn = history.switch_lsn(delivered.timeline)
    if fork_lsn is None or delivered.commit_lsn < fork_lsn:
        return None
    return DeadBranch(delivered.timeline, fork_lsn, delivered, history.timeline_at(fork_lsn))


def happened(history: TimelineHistory, position: Position) -> bool:
    """Return whether the node's history contains a position."""
    left_lsn = history.switch_lsn(position.timeline)
    return position.timeline in history and (left_lsn is None or position.commit_lsn < left_lsn)


def precedes(history: TimelineHistory, position: Position, branch: DeadBranch) -> bool:
    """Return whether a position is before the branch and in the node's history (not on an earlier dead branch)."""
    return happened(history, position) and position < branch.first


def restart_before(
    history: TimelineHistory, branch: DeadBranch, pointers: Iterable[Pointer], bases: Iterable[tuple[Lsn, Lsn]]
) -> Lsn | None:
    """Return the latest restart LSN for decoding everything that commits after the fork; None if there is none.

    `bases`: the LSN of each catalog base before the fork, and the least first LSN open there. `pointers`: all known
    ones. A transaction that is open at the fork was open at every known point before it, or began after that point.
    """
    known = sorted(bases)
    if not known:
        return None
    earlier = [pointer for pointer in pointers if precedes(history, pointer.position, branch)]
    latest = max(earlier, key=lambda pointer: pointer.position, default=None)
    restart_lsn = max(known[-1][1], latest.restart_lsn if latest is not None else known[-1][1])
    return restart_lsn if restart_lsn >= known[0][0] else None
