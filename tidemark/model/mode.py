"""The durable stage of a capture, which decides who delivers, and the mode that contains the stage (I12)."""

from enum import Enum


class Role(Enum):
    """A process that can deliver."""

    SIDECAR = "sidecar"
    ARCHIVER = "archiver"


class Mode(Enum):
    """The mode of a capture, as operators see it."""

    REALTIME = "realtime"  # the sidecar delivers from the stream, the archiver is PASSIVE
    ARCHIVE = "archive"  # the archiver is ACTIVE
    FOLLOWER = "follower"  # on a standby: follows, seeds and journals, delivers nothing


class Stage(Enum):
    """The durable stage: the mode and the step within it. Metrics export `number`, which never changes."""

    REALTIME = "realtime"
    ARCHIVE = "archive"
    HELD = "held"  # ARCHIVE by an operator's request: no automatic return
    RETURNING = "returning"  # a try-start marker was requested; the archiver delivers what commits before it
    RETURNED = "returned"  # the archiver has reached the marker and is PASSIVE
    FOLLOWER = "follower"

    @property
    def mode(self) -> Mode:
        """The mode of this stage."""
        match self:
            case Stage.REALTIME:
                return Mode.REALTIME
            case Stage.FOLLOWER:
                return Mode.FOLLOWER
        return Mode.ARCHIVE

    @property
    def deliverer(self) -> Role | None:
        """The role that delivers."""
        match self:
            case Stage.REALTIME:
                return Role.SIDECAR
            case Stage.RETURNED | Stage.FOLLOWER:
                return None
        return Role.ARCHIVER

    @property
    def worker(self) -> Role | None:
        """The role that may take the epoch, to deliver or to follow."""
        return Role.SIDECAR if self is Stage.FOLLOWER else self.deliverer

    @property
    def number(self) -> int:
        """The number of the stage in metrics and dashboards."""
        return _NUMBERS[self]


_NUMBERS = {
    Stage.REALTIME: 1,
    Stage.ARCHIVE: 2,
    Stage.FOLLOWER: 3,
    Stage.HELD: 4,
    Stage.RETURNING: 5,
    Stage.RETURNED: 6,
}

STAGE_WHEN_MISSING = Stage.REALTIME
"""The stage of a state folder without a stored stage: `init` created it, and no process has switched it."""
