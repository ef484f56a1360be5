"""What a pipeline must know about the capture whose outbox it reads."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CaptureFacts:
    """The state of a capture, as far as a pipeline depends on it."""

    host: str  # of the state folder
    state: str  # path of the state folder on that host
    marker_keys: tuple[str, ...]  # names of the keys with which the daemons were started; they do not reveal the keys
    awaits_promotion: bool  # it follows a standby, and the outbox is empty: a promotion will advance the sequences
