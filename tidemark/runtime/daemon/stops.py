"""The errors of a capture after which the archiver continues instead of ending (docs/design/hand-over.md)."""

from tidemark.engine.handover import Event
from tidemark.model.errors import ConsumerFailed, CorruptWal, Disposition, TidemarkError, WalGap
from tidemark.runtime.capture.network import RingOverflowed
from tidemark.runtime.replay.diverged import DeadBranchDelivered


class NodeOutOfReach(TidemarkError):
    """The archive is ahead of the node's stream, and the stream does not return."""

    disposition = Disposition.FAIL_OVER
    hint = "the log of the sidecar has the reason; realtime returns automatically when it can connect"


_EVENTS: tuple[tuple[type[BaseException], Event], ...] = (
    (RingOverflowed, Event.RING_FULL),
    (ConsumerFailed, Event.CONSUMER_FAILED),
    (WalGap, Event.WAL_REMOVED),
    (CorruptWal, Event.DECODE_FAILED),
    (NodeOutOfReach, Event.OUT_OF_REACH),
)


def event_of(error: BaseException) -> Event | None:
    """Return the stage table's event for an error; None if it ends the process."""
    if isinstance(error, DeadBranchDelivered):  # the archive would raise the same error
        return None
    return next((event for kind, event in _EVENTS if isinstance(error, kind)), None)
