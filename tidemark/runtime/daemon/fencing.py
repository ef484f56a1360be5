"""A daemon's part in fencing copies of its state: it judges the markers that it reads, and writes its start marker.

The rule is `tidemark.engine.incarnations`. A process writes its start marker once its capture has decoded what the node
had written when the capture began: until then a marker may show that this state is the older copy, which must not
disturb its rival. If the state is confirmed to be the one that delivers, the start marker is written at once.
"""

import threading
from concurrent.futures import Future

from tidemark.engine.incarnations import Claim, ReadingProcess, Verdict, judge
from tidemark.engine.ports import Clock
from tidemark.engine.progress import Progress
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.logs import describe_error
from tidemark.io.node.replication import NodeIdentity
from tidemark.io.state.incarnations import record_overtaken, record_started
from tidemark.io.state.overtaken import OvertakenState, check_not_overtaken
from tidemark.io.state.state_views import StateMarks
from tidemark.model.incarnation import Incarnation
from tidemark.model.lsn import NO_TIMELINE, Lsn, TimelineId
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.daemon.node_requests import NodeRequests, NoMarkersOnStandby
from tidemark.runtime.recovery.promotion import is_waited_for
from tidemark.wal.versions import PAGE_BYTES
from tidemark.wire.marker import Marker, MarkerKind
from tidemark.wire.state.values import Overtaken

TRY_AGAIN_S = 5.0  # after a node that did not answer, or wrote no marker
FIRST_START = 1  # a start marker's sequence, if it is the first of a process whose state is not confirmed
ANSWERED_MAX = 16  # rivals; each costs one marker


class Fence:
    """Of one process. The thread that reads the WAL calls `check` and `watch`, the daemon's loop the rest."""

    def __init__(
        self,
        context: CaptureContext,
        incarnation: Incarnation,
        node_requests: NodeRequests,
        clock: Clock | None = None,
    ) -> None:
        self._store = context.store
        self._log = context.log
        self._errors = context.metrics.errors
        self._incarnation = incarnation
        self._node_requests = node_requests
        self._clock = clock or SystemClock()
        self._began = self._store.marks().extent  # before this process took its first epoch
        self._start_lsn: Lsn | None = None  # of our own start marker, once it was read
        self._start: Marker | None = None
        self._is_recorded = False  # everything before it is delivered
        self._lock = threading.Lock()
        self._unanswered = False
        self._answered: set[Incarnation] = set()
        self._node_query: Future[NodeIdentity] | None = None
        self._written: Future[Lsn] | None = None
        self._not_before_s = 0.0

    # --- called by the thread that reads

    def check(self, lsn: Lsn, timeline: TimelineId | None, marker: Marker) -> bool:
        """Judge a marker where this process delivers; return whether it is of this state. Raises `OvertakenState`."""
        if marker.kind is MarkerKind.CHECK:
            return False
        if marker.kind is MarkerKind.START and marker.incarnation == self._incarnation and self._start_lsn is None:
            self._start_lsn, self._start = lsn, marker
            self._node_requests.has_read_start = True
            return True
        has_started = self._start_lsn is not None and lsn > self._start_lsn
        return self._judge(lsn, timeline, marker, delivers=True, has_started=has_started)

    def watch(self, lsn: Lsn, timeline: TimelineId | None, marker: Marker) -> None:
        """Judge a marker where this process delivers nothing; not in a follower's state, which others are ahead of."""
        if marker.kind is not MarkerKind.CHECK and not is_waited_for(self._store.marks()):
            self._judge(lsn, timeline, marker, delivers=False, has_started=True)

    def _judge(
        self, lsn: Lsn, timeline: TimelineId | None, marker: Marker, *, delivers: bool, has_started: bool
    ) -> bool:
        known, now = self._store.incarnations()
        began = None if has_started else self._began
        position = marker.pointer.position if marker.pointer is not None else None
        is_first = marker.kind is MarkerKind.START and marker.sequence == FIRST_START
        claim = Claim(marker.incarnation, marker.epoch, position, is_first)
        start_epoch = self._start.epoch if self._start is not None else None
        reader = ReadingProcess(self._incarnation, now, began, known.is_confirmed, start_epoch, delivers=delivers)
        verdict = judge(claim, known.kept, reader)
        if verdict is Verdict.OVERTAKEN:
            assert marker.incarnation is not None, "only a marker with an incarnation makes a claim"
            ahead = Overtaken(
                marker.incarnation, marker.epoch, timeline or NO_TIMELINE, lsn, self._incarnation, now.epoch
            )
            raise OvertakenState(record_overtaken(self._store, ahead))
        if verdict is Verdict.BEHIND and delivers:
            self._record_rival(lsn, marker)
        return verdict is Verdict.OWN or marker.incarnation is None

    def _record_rival(self, lsn: Lsn, marker: Marker) -> None:
        assert marker.incarnation is not None, "only a marker with an incarnation makes a claim"
        with self._lock:
            if marker.incarnation in self._answered or len(self._answered) >= ANSWERED_MAX:
                return
            self._answered.add(marker.incarnation)
            self._unanswered = True
        self._log.warning(
            "read a marker of another copy of this state, or of the host that delivered before: writing a start "
            "marker, which stops that process if it still delivers",
            at_lsn=lsn,
            rival=marker.incarnation,
            rival_epoch=str(marker.epoch),
            incarnation=self._incarnation,
        )

    # --- called by the loop

    def step(self, marks: StateMarks, progress: Progress | None) -> None:
        """Write the start marker when it is due, and again if a rival has to be stopped.

        `progress`: of the capture; None: there is none. Raises `OvertakenState` if any process of this state has met a
        marker that fences it.
        """
        check_not_overtaken(marks.overtaken)
        self._record_started(marks)
        if progress is None:
            if self._node_query is None:
                self._began = marks.extent
            return
        now_s = self._clock.monotonic_s()
        if now_s < self._not_before_s:
            return
        if self._written is not None:
            self._check_written(self._written, marks, now_s)
        elif self._node_query is None:
            self._node_query = self._node_requests.find_node()
        elif self._node_query.done() and self._is_due(progress, self._node_query, now_s):
            self._write(marks)

    def _record_started(self, marks: StateMarks) -> None:
        """Record it once everything before the start marker is delivered: until then another start reads it again."""
        position = marks.extent.position
        if self._start_lsn is None or self._is_recorded or position is None or position.commit_lsn < self._start_lsn:
            return
        record_started(self._store)
        self._is_recorded = True

    def _is_due(self, progress: Progress, query: Future[NodeIdentity], now_s: float) -> bool:
        if self._store.incarnations()[0].is_confirmed:
            return True
        if query.exception() is not None:
            self._errors.inc()
            self._node_query, self._not_before_s = self._node_requests.find_node(), now_s + TRY_AGAIN_S
            return False
        # NB: a page's header may be between the end of the last record and the place where the node continues.
        return progress.decoded_lsn + PAGE_BYTES >= query.result().flush_lsn

    def _check_written(self, written: Future[Lsn], marks: StateMarks, now_s: float) -> None:
        if not written.done():
            return
        error = written.exception()
        if isinstance(error, NoMarkersOnStandby):
            return  # for good: the same answer in every step
        if error is not None:
            self._errors.inc()
            self._log.warning("the start marker was not written", **describe_error(error))
            self._written, self._not_before_s = None, now_s + TRY_AGAIN_S
        elif self._unanswered:
            self._write(marks)

    def _write(self, marks: StateMarks) -> None:
        term, horizon = marks.term, marks.horizon
        if term is None:
            return
        with self._lock:
            self._unanswered = False
        # NB: a rival is answered only after the own start marker was read.
        is_first = self._start_lsn is None and not self._store.incarnations()[0].is_confirmed
        pointer = horizon.pointer if horizon is not None else None
        sequence = FIRST_START if is_first else 0
        self._written = self._node_requests.write(MarkerKind.START, term.epoch, pointer, sequence=sequence)
