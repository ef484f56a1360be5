"""The start of a lake at an outbox that has lost its first values: with the oldest value that there is."""

from tidemark.model.errors import ConfigError
from tidemark.pipeline.landing.landing import LakePositions
from tidemark.pipeline.landing.settings import Settings
from tidemark.pipeline.source.outbox_port import OutboxPort

LATE_HINT = (
    "replicas need a copy: cdcctl table recopy TABLE; logs begin with the first change that comes, and have a break "
    "before it"
)


class LakeGone(ConfigError):
    """A lake without anything in it, whose reader has confirmed values that the outbox does not have any more."""

    hint = "mount or restore the lake; a new lake needs a new reader (--reader), which begins with the oldest value"


def note_late_begin(positions: LakePositions, outbox: OutboxPort, settings: Settings) -> None:
    """Note it in the positions of a lake in which nothing was written yet; the reader is registered.

    Raises `LakeGone` if the reader has written a lake before.
    """
    trimmed = outbox.ledger().trimmed
    if positions.outbox or positions.begins_late or not trimmed:
        return
    reader = outbox.registered(settings.reader)
    if reader is not None and reader.has_confirmed:
        raise LakeGone(
            f"there is no lake at {settings.lake}, but reader {settings.reader!r} has confirmed the values up to "
            f"{reader.applied}, of which the outbox has those after {trimmed}: the lake was deleted or is not mounted, "
            "or the reader belongs to another one"
        )
    positions.begins_late = f"the lake begins with value {trimmed + 1} of the outbox: earlier ones had been trimmed"
