"""The watermark of each stage. Watermarks never move back, and this order always holds.

in bytes       restart_lsn <= decoded_lsn <= received_lsn
in positions   confirmed <= delivered
"""

from dataclasses import dataclass

from tidemark.model.errors import InternalError
from tidemark.model.lsn import INVALID_LSN, Lsn, format_lsn
from tidemark.model.position import Pointer


@dataclass(slots=True)
class Progress:
    """The watermarks of one capture; each is moved by one thread at a time."""

    received_lsn: Lsn = INVALID_LSN
    decoded_lsn: Lsn = INVALID_LSN
    restart_lsn: Lsn = INVALID_LSN
    flush_lsn: Lsn = INVALID_LSN  # the node's, as last reported
    delivered: Pointer | None = None
    confirmed: Pointer | None = None
    heard_count: int = 0  # of WAL and of reports of the node, since the start
    waits_for_room: str = ""  # why the outbox takes no group at present; "": it does

    def receive(self, lsn: Lsn) -> None:
        """Record that WAL up to `lsn` was received."""
        if lsn < self.received_lsn:
            raise _back("received", self.received_lsn, lsn)
        self.received_lsn = lsn
        self.heard_count += 1

    def hear(self, flush_lsn: Lsn) -> None:
        """Record the node's report of how far its WAL is flushed."""
        self.flush_lsn = flush_lsn
        self.heard_count += 1

    def decode(self, decoded_lsn: Lsn, restart_lsn: Lsn) -> None:
        """Record that WAL up to `decoded_lsn` was decoded; a restart would begin at `restart_lsn`."""
        if decoded_lsn < self.decoded_lsn:
            raise _back("decoded", self.decoded_lsn, decoded_lsn)
        if not restart_lsn <= decoded_lsn <= self.received_lsn:
            raise InternalError(
                f"restart {format_lsn(restart_lsn)}, decoded {format_lsn(decoded_lsn)} and received "
                f"{format_lsn(self.received_lsn)} are out of order"
            )
        self.decoded_lsn, self.restart_lsn = decoded_lsn, restart_lsn

    def deliver(self, pointer: Pointer) -> None:
        """Record that the consumer has received everything up to `pointer`."""
        if self.delivered is not None and pointer.position < self.delivered.position:
            raise InternalError(f"delivered would move back from {self.delivered.position} to {pointer.position}")
        self.delivered = pointer

    def confirm(self, pointer: Pointer) -> None:
        """Record that every target has everything up to `pointer`."""
        if self.confirmed is not None and pointer.position < self.confirmed.position:
            raise InternalError(f"confirmed would move back from {self.confirmed.position} to {pointer.position}")
        if self.delivered is None or pointer.position > self.delivered.position:
            raise InternalError(f"confirmed {pointer.position} would pass delivered {self.delivered}")
        self.confirmed = pointer

    @property
    def lag_bytes(self) -> int:
        """WAL that the node has flushed and that is not decoded."""
        return max(0, self.flush_lsn - self.decoded_lsn)


def _back(name: str, before: Lsn, after: Lsn) -> InternalError:
    return InternalError(f"{name} would move back from {format_lsn(before)} to {format_lsn(after)}")
