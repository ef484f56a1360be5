"""Which threads read and decode the node's stream: one table.

    offer              drained                  leave
THREADED ───► DRAINING ────────► OFFERED ◄─────────────► INLINE ───► RECALLED
    ▲             │                 │          enter       │  recall      │
    └─────────────┴─────────────────┴──────────────────────┴──────────────┘
       recall          recall                give back         leave, give back

| state    | reads the socket   | decodes            |
|----------|--------------------|--------------------|
| THREADED | network thread     | decode thread      |
| DRAINING | none               | decode thread      |
| OFFERED  | none               | none               |
| INLINE   | application thread | application thread |
| RECALLED | application thread | application thread |

`NetworkThread` decides that the stream is quiet, and offers it; `GroupReader` enters and leaves.

Passing a commit from thread to thread costs it some tens of microseconds. While the stream is quiet, the network thread
therefore *offers* the stream: the decode thread decodes the rest, and then the application thread reads and decodes
inline. It leaves to deliver a group, and enters again. It gives the stream back if the socket has a backlog or anything
else than WAL (an error, the end of a timeline). The network thread recalls the stream if the application thread stays
away, for example in a consumer. In each state at most one thread reads and at most one decodes, so there is one order.
"""

import threading
from collections.abc import Mapping
from enum import Enum

from tidemark.runtime.capture.signal import Signal


class LeaseState(Enum):
    """Which threads read the socket and decode."""

    THREADED = "threaded"
    DRAINING = "draining"
    OFFERED = "offered"
    INLINE = "inline"
    RECALLED = "recalled"


class LeaseEvent(Enum):
    """What changes the state, and the thread that reports it."""

    OFFER = "offer"  # network
    DRAINED = "drained"  # decode
    ENTER = "enter"  # application
    LEAVE = "leave"  # application
    GIVE_BACK = "give back"  # application
    RECALL = "recall"  # network, or the thread that stops the capture


NEXT: Mapping[tuple[LeaseState, LeaseEvent], LeaseState] = {
    (LeaseState.THREADED, LeaseEvent.OFFER): LeaseState.DRAINING,
    (LeaseState.DRAINING, LeaseEvent.DRAINED): LeaseState.OFFERED,
    (LeaseState.DRAINING, LeaseEvent.RECALL): LeaseState.THREADED,
    (LeaseState.OFFERED, LeaseEvent.ENTER): LeaseState.INLINE,
    (LeaseState.OFFERED, LeaseEvent.RECALL): LeaseState.THREADED,
    (LeaseState.INLINE, LeaseEvent.LEAVE): LeaseState.OFFERED,
    (LeaseState.INLINE, LeaseEvent.GIVE_BACK): LeaseState.THREADED,
    (LeaseState.INLINE, LeaseEvent.RECALL): LeaseState.RECALLED,
    (LeaseState.RECALLED, LeaseEvent.LEAVE): LeaseState.THREADED,
    (LeaseState.RECALLED, LeaseEvent.GIVE_BACK): LeaseState.THREADED,
}


class StreamLease:
    """The state, and the two signals that wake the decode thread and the application thread."""

    def __init__(self) -> None:
        self.arrived = Signal()  # the decode thread: WAL arrived, or the stream is its own again
        self.woken = Signal()  # the application thread: a group is queued, or the stream is offered
        self.is_wanted = False  # the application thread waits, and would read inline
        self._state = LeaseState.THREADED
        self._visits = 0  # how often the application thread entered
        self._lock = threading.Lock()  # NB: taken at each commit, and a condition's own methods are Python
        self._changed = threading.Condition(self._lock)

    @property
    def state(self) -> LeaseState:
        """The present state."""
        return self._state

    @property
    def is_inline(self) -> bool:
        """Return whether the application thread reads and decodes."""
        return self._state is LeaseState.INLINE or self._state is LeaseState.RECALLED

    @property
    def may_decode(self) -> bool:
        """Return whether the decode thread may decode."""
        return self._state is LeaseState.THREADED or self._state is LeaseState.DRAINING

    def offer(self) -> None:
        """Offer the stream; the network thread reads no more."""
        self.is_wanted = False
        self._move(LeaseEvent.OFFER)
        self.arrived.set()

    def drained(self) -> None:
        """Report that the decode thread has decoded everything; if the stream is offered, it decodes no more."""
        if self._move(LeaseEvent.DRAINED):
            self.woken.set()

    def enter(self) -> bool:
        """Begin to read and decode in the application thread; false if the stream is not offered."""
        if self._move(LeaseEvent.ENTER):
            self._visits += 1
            return True
        self.is_wanted = True
        return False

    def leave(self) -> None:
        """End a visit of the application thread, which will enter again."""
        self._move(LeaseEvent.LEAVE)

    def give_back(self) -> None:
        """End a visit, and have the network thread and the decode thread continue."""
        self._move(LeaseEvent.GIVE_BACK)
        self.arrived.set()

    def is_used_within(self, timeout_s: float) -> bool:
        """Wait for `timeout_s`, or until the stream is given back; return whether the application thread reads it."""
        with self._changed:
            visits = self._visits
            is_back = self._changed.wait_for(lambda: self._state is LeaseState.THREADED, timeout_s)
            return not is_back and (self.is_inline or self._visits != visits)

    def recall(self, timeout_s: float) -> bool:
        """Take the stream back; false if the application thread has not left within `timeout_s`."""
        self._move(LeaseEvent.RECALL)
        with self._changed:
            is_back = self._changed.wait_for(lambda: self._state is LeaseState.THREADED, timeout_s)
        self.arrived.set()
        return is_back

    def _move(self, event: LeaseEvent) -> bool:
        """Change the state; false if the table has no such change."""
        with self._lock:
            state = NEXT.get((self._state, event))
            if state is None:
                return False
            self._state = state
            if state is LeaseState.THREADED:
                self._changed.notify_all()
            return True
