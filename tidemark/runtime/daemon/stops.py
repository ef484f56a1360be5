"""The errors of a capture after which the archiver continues instead of ending (docs/design/hand-over.md)."""

from tidemark.engine.handover import Event
from tidemark.model.errors import ConsumerFailed, CorruptWal, Disposition, TidemarkError, WalGap
from tidemark.runtime.capture.network import RingOverflowed
from tidemark.runtime.replay.diverged import WalDiverged


class NodeOutOfReach(TidemarkError):
    """The archive has come past what the node's stream brought, and the stream does not come back."""

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
    """Return what an error is to the mode table; None where it ends the process."""
    if isinstance(error, WalDiverged):  # the archive would tell the same
        return None
    return next((event for kind, event in _EVENTS if isinstance(error, kind)), None)
