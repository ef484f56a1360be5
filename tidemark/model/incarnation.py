"""An incarnation: one start of a daemon on a state folder, with a random name that its markers write into the WAL.

Also the location of that folder, which distinguishes it from a copy.
"""

from dataclasses import dataclass
from typing import NewType

from tidemark.model.position import Epoch, Position

Incarnation = NewType("Incarnation", str)
"""16 hexadecimal digits."""
INCARNATION_BYTES = 8


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a state has come: the epoch it counts, and the last position it has delivered."""

    epoch: Epoch | None = None
    position: Position | None = None

    def covers(self, epoch: Epoch, position: Position | None) -> bool:
        """Tell if a process on a state that had come this far may have written these two into a marker."""
        has_epoch = self.epoch is not None and epoch <= self.epoch
        return has_epoch and (position is None or (self.position is not None and position <= self.position))


@dataclass(frozen=True, slots=True)
class KnownIncarnation:
    """One that a state had."""

    incarnation: Incarnation
    role: str
    ended: Extent | None = None  # how far the state had come when this one had ended; None: it may be running


@dataclass(frozen=True, slots=True)
class StatePlace:
    """Where a state folder is, and the file in it that is never written again."""

    machine: str  # systemd's machine-id; empty where there is none
    path: str
    inode: int
    ctime_ns: int
