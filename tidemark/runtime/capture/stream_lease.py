"""Which threads read and decode the node's stream: one table.

    offer              drained             enter            read
THREADED ───► DRAINING ────────► OFFERED ◄────────► INLINE ◄─────► READING
    ▲             │                 │      leave      │  have read    │ recall
    ├─────────────┴─────────────────┤                 │ recall        ▼
    │            recall             │                 ▼            LEAVING
    │                           give back         RECALLED            │
    └───────────────────────────────┴─────────────────┴───────────────┘
                                             leave, give back     have read

| state    | reads the socket   | decodes            |
|----------|--------------------|--------------------|
| THREADED | network thread     | decode thread      |
| DRAINING | none               | decode thread      |
| OFFERED  | none               | none               |
| INLINE   | none               | application thread |
| READING  | application thread | none               |
| LEAVING  | application thread | none               |
| RECALLED | network thread     | application thread |

`NetworkThread` decides that the stream is quiet, and offers it; `GroupReader` enters, reads and leaves.

Passing a commit from thread to thread costs it some tens of microseconds. While the stream is quiet, the network thread
therefore *offers* the stream: the decode thread decodes the rest, and then the application thread reads and decodes
inline. It leaves to deliver a group, and enters again. It gives the stream back if the socket has a backlog or anything
else than WAL (an error, the end of a timeline). The network thread recalls the stream if the application thread does
not read, for example because it is in a consumer, or because what it decodes takes long: then it continues to decode
while the network thread reads. No event takes reading or decoding from a thread other than the one that reports it. In
each state at most one thread reads and at most one decodes, so there is one order.
"""

import threading
from collections.abc import Callable, Mapping
from enum import Enum

from tidemark.runtime.capture.signal import Signal


class LeaseState(Enum):
    """Which threads read the socket and decode."""

    THREADED = "threaded"
    DRAINING = "draining"
    OFFERED = "offered"
    INLINE = "inline"
    READING = "reading"
    LEAVING = "leaving"
    RECALLED = "recalled"

    __hash__ = object.__hash__  # NB: of an `Enum` it is a Python function, and each commit needs several lookups


class LeaseEvent(Enum):
    """What changes the state, and the thread that reports it."""

    OFFER = "offer"  # network
    DRAINED = "drained"  # decode
    ENTER = "enter"  # application
    READ = "read"  # application
    HAVE_READ = "have read"  # application
    LEAVE = "leave"  # application
    GIVE_BACK = "give back"  # application
    RECALL = "recall"  # network, or the thread that stops the capture

    __hash__ = object.__hash__


NEXT: Mapping[tuple[LeaseState, LeaseEvent], LeaseState] = {
    (LeaseState.THREADED, LeaseEvent.OFFER): LeaseState.DRAINING,
    (LeaseState.DRAINING, LeaseEvent.DRAINED): LeaseState.OFFERED,
    (LeaseState.DRAINING, LeaseEvent.RECALL): LeaseState.THREADED,
    (LeaseState.OFFERED, LeaseEvent.ENTER): LeaseState.INLINE,
    (LeaseState.OFFERED, LeaseEvent.RECALL): LeaseState.THREADED,
    (LeaseState.INLINE, LeaseEvent.READ): LeaseState.READING,
    (LeaseState.INLINE, LeaseEvent.LEAVE): LeaseState.OFFERED,
    (LeaseState.INLINE, LeaseEvent.GIVE_BACK): LeaseState.THREADED,
    (LeaseState.INLINE, LeaseEvent.RECALL): LeaseState.RECALLED,
    (LeaseState.READING, LeaseEvent.HAVE_READ): LeaseState.INLINE,
    (LeaseState.READING, LeaseEvent.RECALL): LeaseState.LEAVING,
    (LeaseState.LEAVING, LeaseEvent.HAVE_READ): LeaseState.THREADED,
    (LeaseState.RECALLED, LeaseEvent.LEAVE): LeaseState.THREADED,
    (LeaseState.RECALLED, LeaseEvent.GIVE_BACK): LeaseState.THREADED,
}
NETWORK_READS = (LeaseState.THREADED, LeaseState.RECALLED)
DECODE_THREAD_DECODES = (LeaseState.THREADED, LeaseState.DRAINING)
APPLICATION_DECODES = (LeaseState.INLINE, LeaseState.RECALLED)
WITHOUT_EFFECT = (LeaseState.INLINE, LeaseState.OFFERED)  # no thread waits for these states, and each commit needs them


class StreamLease:
    """The state, and the two signals that wake the decode thread and the application thread."""

    def __init__(self) -> None:
        self.arrived = Signal()  # the decode thread: WAL arrived, or the stream is its own again
        self.woken = Signal()  # the application thread: a group is queued, or the stream is offered
        self.is_awaited = False  # the application thread waits, and would read inline
        self._state = LeaseState.THREADED
        self._reads = 0  # how often the application thread began to read
        self._interrupt: Callable[[], None] | None = None
        self._lock = threading.Lock()  # NB: taken at each commit, and a condition's own methods are Python
        self._changed = threading.Condition(self._lock)

    @property
    def state(self) -> LeaseState:
        """The present state."""
        return self._state

    @property
    def may_decode(self) -> bool:
        """Return whether the decode thread may decode."""
        return self._state in DECODE_THREAD_DECODES

    @property
    def is_inline(self) -> bool:
        """Return whether the application thread decodes."""
        return self._state in APPLICATION_DECODES

    @property
    def is_recalled(self) -> bool:
        """Return whether the application thread has to end its lease: the network thread reads again."""
        return self._state is LeaseState.RECALLED

    @property
    def may_offer(self) -> bool:
        """Return whether the application thread would read inline, and does not decode; for the network thread."""
        return self.is_awaited and self._state is LeaseState.THREADED

    def offer(self, interrupt: Callable[[], None] | None = None) -> None:
        """Offer the stream; the network thread reads no more. `interrupt` ends a read that waits."""
        self.is_awaited = False
        self._interrupt = interrupt
        self._move(LeaseEvent.OFFER)
        self.arrived.set()

    def drained(self) -> None:
        """Report that the decode thread has decoded everything; if the stream is offered, it decodes no more."""
        if self._move(LeaseEvent.DRAINED) is not None:
            self.woken.set()

    def enter(self) -> bool:
        """Begin to decode in the application thread; false if the stream is not offered."""
        if self._move(LeaseEvent.ENTER) is not None:
            return True
        self.is_awaited = True
        return False

    def begin_read(self) -> bool:
        """Begin to read in the application thread, which has entered; false if the stream was recalled."""
        return self._move(LeaseEvent.READ) is not None

    def end_read(self) -> bool:
        """End the read; false if the stream was recalled meanwhile, which ends the lease, too."""
        return self._move(LeaseEvent.HAVE_READ) is LeaseState.INLINE

    def leave(self) -> None:
        """End a lease of the application thread, which will enter again."""
        self._move(LeaseEvent.LEAVE)

    def give_back(self) -> None:
        """End a lease, and have the network thread and the decode thread continue."""
        self._move(LeaseEvent.GIVE_BACK)

    def is_used_within(self, timeout_s: float) -> bool:
        """Wait for `timeout_s`, or until this thread reads again; return whether the application thread reads."""
        with self._changed:
            reads = self._reads
            is_back = self._changed.wait_for(lambda: self._state in NETWORK_READS, timeout_s)
            return not is_back and (self._state is LeaseState.READING or self._reads != reads)

    def recall(self, timeout_s: float) -> bool:
        """Take the socket back; false if the application thread has not ended its read within `timeout_s`."""
        return self._recall(NETWORK_READS, timeout_s)

    def recall_all(self, timeout_s: float) -> bool:
        """Take the stream back; false if the application thread has not ended its lease within `timeout_s`."""
        return self._recall((LeaseState.THREADED,), timeout_s)

    def _recall(self, states: tuple[LeaseState, ...], timeout_s: float) -> bool:
        self._move(LeaseEvent.RECALL)
        with self._changed:
            return self._changed.wait_for(lambda: self._state in states, timeout_s)

    def _move(self, event: LeaseEvent) -> LeaseState | None:
        """Change the state, and return it; None if the table has no such change."""
        with self._lock:
            state = NEXT.get((self._state, event))
            if state is None:
                return None
            self._state = state
            if state in WITHOUT_EFFECT:
                return state
            if state is LeaseState.READING:
                self._reads += 1
            elif state in NETWORK_READS:
                self._changed.notify_all()
            elif state is LeaseState.LEAVING and self._interrupt is not None:
                self._interrupt()  # under the lock: the stream is not closed before the read ends
        if state is LeaseState.THREADED:
            self.arrived.set()
        return state
