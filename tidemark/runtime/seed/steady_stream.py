"""A node's stream of WAL that survives broken connections, for commands that follow a node in the foreground.

Connecting again is safe: a server never sends WAL that a crash could remove, so the next byte is requested. A standby
that restarts has it again once it has replayed or received it; until then the connection is tried again. A lost
primary may have sent WAL that its successor does not have: the stream then continues at the fork, behind which WAL was
read before, and `WalDecoding` determines whether that was a part of one record, which is dropped, or was decoded.
The daemons have a network thread instead (`tidemark.runtime.capture.network`).
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tidemark.engine.retry import Backoff
from tidemark.io.node.node_errors import StandbyBehind
from tidemark.io.node.replication import StreamEvent, TimelineEnd, WalStream
from tidemark.model.errors import NodeUnreachable
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId, format_lsn
from tidemark.runtime.replay.diverged import DeadBranchDelivered
from tidemark.wal.segments import WalSlice
from tidemark.wal.versions import PAGE_BYTES

RECONNECT_S_MAX = 60.0  # how long a node may be unreachable without a break
REPLAY_S_MAX = 600.0  # of an outage: a standby replays after a restart; twice the default of checkpoint_timeout
RECONNECT_PAUSE_S, RECONNECT_PAUSE_S_MAX = 0.2, 2.0  # the pause doubles


def check_stream(dsn: str, system_identifier: SystemIdentifier) -> None:
    """Raise the error that prevents streaming WAL: pg_hba.conf has separate lines for it, and walsenders are few."""
    with closing(WalStream(dsn)) as stream:
        stream.identify(system_identifier)


@dataclass(slots=True)
class Outage:
    """The time since the first error after the last received event, and its limits; times are seconds of one clock."""

    _since_s: float | None = None
    _unreachable_since_s: float | None = None  # None: no error yet, or the last one came from a standby that is behind

    def failed(self, now_s: float, *, is_behind: bool) -> bool:
        """Record an error; return whether it is the first one of its reason in a row."""
        was_behind = self._unreachable_since_s is None
        is_first = self._since_s is None or is_behind != was_behind
        if self._since_s is None:
            self._since_s = now_s
        if is_behind:
            self._unreachable_since_s = None
        elif is_first:
            self._unreachable_since_s = now_s
        return is_first

    def ended(self) -> None:
        """Record a received event."""
        self._since_s = self._unreachable_since_s = None

    def is_over_limit(self, now_s: float) -> bool:
        """Return whether the outage is longer than is tolerated: changes of the reason do not extend it."""
        unreachable_s = 0.0 if self._unreachable_since_s is None else now_s - self._unreachable_since_s
        return unreachable_s > RECONNECT_S_MAX or (self._since_s is not None and now_s - self._since_s > REPLAY_S_MAX)


class SteadyStream:
    """WAL from the page of `start_lsn` on, along the node's timelines, each up to its fork."""

    def __init__(
        self,
        dsn: str,
        system_identifier: SystemIdentifier,
        start_lsn: Lsn,
        timeline: TimelineId,
        *,
        on_disconnect: Callable[[NodeUnreachable], None] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect at the first read; `on_disconnect` is called each time that an established stream breaks.

        `now` returns seconds, by which an outage is limited.
        """
        self._dsn = dsn
        self._now = now
        self._on_disconnect = on_disconnect
        self._was_connected = False
        self._system_identifier = system_identifier
        self._start_lsn = start_lsn
        self._next_lsn = Lsn(start_lsn // PAGE_BYTES * PAGE_BYTES)
        self._timeline = timeline
        self._stream: WalStream | None = None
        self._backoff = Backoff(RECONNECT_PAUSE_S, RECONNECT_PAUSE_S_MAX)
        self._outage = Outage()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def read(self, wait_s: float) -> WalSlice | None:
        """Return the next slice; None if none arrives within `wait_s`."""
        event = self._event(wait_s)
        if isinstance(event, TimelineEnd):
            self.close()
            self._continue_at(event.next_start_lsn, event.next_timeline)
        elif isinstance(event, WalSlice):
            self._next_lsn = event.end_lsn
            return event
        return None

    def _event(self, wait_s: float) -> StreamEvent | None:
        if pause_s := min(wait_s, self._backoff.wait_s(self._now())):
            time.sleep(pause_s)
            return None
        try:
            if self._stream is None:
                self._stream = WalStream(self._dsn)
                self._find_fork(self._stream)
                ended = self._stream.start(self._next_lsn, self._timeline)
                self._was_connected = True
                if ended is not None:
                    return ended
            event = self._stream.read(wait_s)
        except NodeUnreachable as error:
            self.close()
            if not self._was_connected:
                raise  # an error of the first connection is raised at once
            if not self._may_wait(error):
                raise
            return None
        # NB: silence is no success: a server that cannot stream from our position reports that after the start.
        if event is not None:
            self._outage.ended()
            self._backoff.succeeded()
        return event

    def _may_wait(self, error: NodeUnreachable) -> bool:
        """Return whether to connect again after an error; report the first one of each reason."""
        now_s = self._now()
        if self._outage.failed(now_s, is_behind=isinstance(error, StandbyBehind)) and self._on_disconnect is not None:
            self._on_disconnect(error)
        self._backoff.failed(now_s)
        return not self._outage.is_over_limit(now_s)

    def _find_fork(self, stream: WalStream) -> None:
        """Check that the node is ours, and whether its history left our timeline before the WAL that was received."""
        identity = stream.identify(self._system_identifier)
        if identity.timeline == self._timeline:
            return
        history = stream.timeline_history(identity.timeline)
        fork_lsn = history.fork_before(self._timeline, self._next_lsn)
        if fork_lsn is not None:
            self._continue_at(fork_lsn, history.timeline_at(fork_lsn))

    def _continue_at(self, fork_lsn: Lsn, timeline: TimelineId) -> None:
        """Continue on the next timeline: WAL of the old one may have been sent beyond its end."""
        if fork_lsn < self._start_lsn:
            raise DeadBranchDelivered(
                f"timeline {timeline} begins at {format_lsn(fork_lsn)}, but timeline {self._timeline} is to be read "
                f"from {format_lsn(self._start_lsn)}"
            )
        self._next_lsn, self._timeline = fork_lsn, timeline
