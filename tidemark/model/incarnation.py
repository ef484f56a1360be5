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
    """The extent of a state: its epoch, and the last position that it delivered."""

    epoch: Epoch | None = None
    position: Position | None = None

    def covers(self, epoch: Epoch, position: Position | None) -> bool:
        """Return whether a process on a state of this extent may have written this epoch and position into a marker."""
        has_epoch = self.epoch is not None and epoch <= self.epoch
        return has_epoch and (position is None or (self.position is not None and position <= self.position))


@dataclass(frozen=True, slots=True)
class KnownIncarnation:
    """An incarnation in a state's history."""

    incarnation: Incarnation
    role: str
    ended: Extent | None = None  # the state's extent when this one had ended; None: it may be running


@dataclass(frozen=True, slots=True)
class FolderIdentity:
    """The location of a state folder, and the file in it that is never written again."""

    machine: str  # systemd's machine-id; empty where there is none
    path: str
    inode: int
    ctime_ns: int
