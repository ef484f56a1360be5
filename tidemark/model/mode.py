"""Who delivers: the durable mode of a capture (I12)."""

from enum import Enum


class Mode(Enum):
    """The durable mode; `number` is what metrics export and never changes once given."""

    REALTIME = "realtime"  # the sidecar delivers from the stream, the archiver is PASSIVE
    ARCHIVE = "archive"  # the archiver is ACTIVE
    FOLLOWER = "follower"  # on a standby: follows, seeds and journals, delivers nothing

    @property
    def number(self) -> int:
        """The number under which dashboards know the mode."""
        return {"realtime": 1, "archive": 2, "follower": 3}[self.value]


MODE_WHEN_MISSING = Mode.REALTIME
"""What a state folder without a mode means: it was made by `init` and nothing ever switched it."""
