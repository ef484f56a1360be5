"""The sidecar at a node that is, or may become, a standby: it follows, and detects a promotion or demotion (I12).

Only with `standby.follow`; otherwise a standby is a source like a primary. Delivery does not begin before the node has
reported that it is a primary.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial

from tidemark.engine.handover import Event
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.logs import describe_error
from tidemark.io.state.locking.heartbeat import Slot
from tidemark.io.state.state_views import StateMarks
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Lsn, TimelineId, format_lsn
from tidemark.model.mode import Role, Stage
from tidemark.runtime.capture.capture import Capture
from tidemark.runtime.capture.capture_settings import CaptureSettings
from tidemark.runtime.capture.wal_source import WalSettings, followed_from_node
from tidemark.runtime.daemon.epoch_run import EpochRun
from tidemark.runtime.daemon.service import DaemonContext
from tidemark.runtime.daemon.stage_transition import StageTransition
from tidemark.runtime.delivery.following import DelivererMarker
from tidemark.runtime.recovery.promotion import check_start
from tidemark.wire.control import Json
from tidemark.wire.marker import MarkerKind

QUERY_S = 1.0  # interval of queries to the node: the maximum delay until a promotion is noticed


class FollowsNobody(ConfigError):
    """The state follows, but the configuration delivers from standbys."""

    hint = (
        "set standby.follow = true, with the key of the delivering capture in markers.key_file; or create a new "
        "state with cdcctl init"
    )


class Following:
    """The sidecar's work while the node is a standby, and the queries that detect whether it is one."""

    def __init__(
        self,
        daemon: DaemonContext,
        transition: StageTransition,
        *,
        is_enabled: bool,
        capture: CaptureSettings,
        wal: WalSettings,
    ) -> None:
        """`is_enabled`: `standby.follow`."""
        self._daemon = daemon
        self._context = daemon.context
        self._store = daemon.context.store
        self._wal = wal
        self._transition = transition
        self._clock = SystemClock()
        self._run = EpochRun(daemon.context, capture, Slot.SIDECAR)
        self._deliverer_marker: DelivererMarker | None = None  # written by the decode thread
        self._reported_strange = False
        self._timeline_query: Future[TimelineId | None] | None = None
        self._queried_s = 0.0
        self._reported_silent = False
        self._is_enabled = is_enabled
        self._writes_on: TimelineId | None = None  # the timeline on which the node writes, from its last answer
        self._is_standby = False

    @property
    def capture(self) -> Capture | None:
        """The capture that follows, if there is one."""
        return self._run.capture

    @property
    def may_deliver(self) -> bool:
        """Whether the sidecar may deliver: the node is a primary, or `standby.follow` is not set."""
        return not self._is_enabled or self._writes_on is not None

    def poll_node(self) -> None:
        """Query the node at intervals; become a follower if it is a standby."""
        if not self._is_enabled:
            return
        now_s = self._clock.monotonic_s()
        if self._timeline_query is not None and self._timeline_query.done():
            query, self._timeline_query = self._timeline_query, None
            self._record_standby_answer(query)
        elif self._timeline_query is None and now_s - self._queried_s >= QUERY_S:
            self._timeline_query, self._queried_s = self._daemon.node_requests.find_timeline(), now_s
        if self._is_standby and (marks := self._store.marks()).stage is not Stage.FOLLOWER:
            owner = self._daemon.owner
            # NB: the owner of a former start is dead: its consumer may have confirmed more than is recorded.
            is_former = marks.is_fenced_by_own(Role.SIDECAR) and marks.term is not None and marks.term.owner != owner
            self._transition.try_move(Event.DEMOTED, new_owner=owner if is_former else None, only_from=marks.stage)

    def follow(self, marks: StateMarks) -> None:
        """Follow; take over once the node is promoted and all WAL before the promotion is decoded."""
        if not self._is_enabled:
            raise FollowsNobody(f"{self._store.folder.root} follows a standby, but standby.follow is not set")
        self._run.check()
        if self._run.capture is None:
            self._begin()
            return
        error = self._run.capture.poll()
        if error is not None:
            if self._run.restarts_after_fork(error):
                return
            raise error
        assert marks.followed is not None, "the stage is FOLLOWER"
        if self._writes_on is not None and marks.followed.pointer.position.timeline >= self._writes_on:
            check_start(self._store.view())
            self.release()
            self._transition.try_move(Event.PROMOTED, only_from=Stage.FOLLOWER)

    def release(self) -> None:
        """Stop following."""
        self._run.release()
        self._run.check()

    def stop(self) -> None:
        """Stop following; raise the error that prevents an orderly stop."""
        self._run.stop()

    def status(self, marks: StateMarks) -> Mapping[str, Json]:
        """Return the known position of the deliverer."""
        followed = marks.followed
        leader = followed.leader if followed is not None else None
        return {
            "followed": str(followed.pointer.position) if followed is not None else None,
            "can_take_over": followed is not None and followed.has_start,
            "marker_lsn": format_lsn(leader.lsn) if leader is not None else None,
        }

    def _begin(self) -> None:
        self._deliverer_marker = None
        epoch = self._store.begin_epoch(self._daemon.owner, self._context.log)
        self._run.begin(
            epoch,
            partial(followed_from_node, self._context, self._wal),
            self._on_marker,
            lambda: self._deliverer_marker,
        )

    def _record_standby_answer(self, query: Future[TimelineId | None]) -> None:
        error = query.exception()
        if error is not None:
            # The last answer may be outdated: a node that is being demoted does not answer for a while.
            self._writes_on, self._is_standby = None, False
            self._context.metrics.errors.inc()
            if not self._reported_silent:
                self._reported_silent = True
                self._context.log.warning("the node does not report whether it is a standby", **describe_error(error))
            return
        self._reported_silent = False
        self._writes_on = query.result()
        self._is_standby = self._writes_on is None

    def _on_marker(self, lsn: Lsn, content: bytes) -> bool:
        """Read a marker and continue; called by the decode thread."""
        marker = self._daemon.markers.read(lsn, content)
        capture = self._run.capture
        if marker is None or marker.pointer is None or marker.kind is MarkerKind.CHECK or capture is None:
            return False  # `marker_reading` records checks, also at a follower
        position = marker.pointer.position
        # A deliverer on a dead branch may write to the new primary; its positions refer to other WAL.
        if position.timeline == capture.timeline and position.commit_lsn < lsn:
            self._deliverer_marker = DelivererMarker(marker, marker.pointer, lsn)
        elif not self._reported_strange:
            self._reported_strange = True
            self._context.log.warning(
                "a marker with a pointer of another timeline is ignored",
                at_lsn=lsn,
                timeline=capture.timeline,
                position=str(position),
            )
        return False
