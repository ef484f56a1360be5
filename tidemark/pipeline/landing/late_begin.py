"""The start of a lake at an outbox that has lost its first values: with the oldest value that there is."""

from tidemark.pipeline.landing.landing import LakePositions
from tidemark.pipeline.source.outbox_port import OutboxPort

LATE_HINT = (
    "replicas need a copy: cdcctl table recopy TABLE; logs begin with the first change that comes, and have a break "
    "before it"
)


def note_late_begin(positions: LakePositions, outbox: OutboxPort) -> None:
    """Note it in the positions of a lake in which nothing was written yet; the reader is registered."""
    trimmed = outbox.ledger().trimmed
    if positions.outbox or positions.begins_late or not trimmed:
        return
    positions.begins_late = f"the lake begins with value {trimmed + 1} of the outbox: earlier ones had been trimmed"
