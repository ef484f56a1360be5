"""Requests to the node beside the stream: markers, segment switches, the end of its WAL.

They run in the thread of `NodeQueries`, one at a time.
"""

import math
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tidemark.engine.incarnations import names_writer
from tidemark.engine.marking import WalMark
from tidemark.io.archive.archive_listing import ArchiveListing
from tidemark.io.archive.archive_progress import reached_lsn
from tidemark.io.archive.archive_state import NoArchive
from tidemark.io.host.logs import Log, describe_error
from tidemark.io.node.node import Node, NodeArchiving
from tidemark.io.node.node_errors import PermissionMissing
from tidemark.io.node.node_queries import NodeQueries
from tidemark.io.node.replication import NodeIdentity
from tidemark.io.node.wal_end import node_identity
from tidemark.io.process.config import Config
from tidemark.io.state.state import StateStore
from tidemark.model.errors import NodeUnfit
from tidemark.model.incarnation import Incarnation
from tidemark.model.lsn import INVALID_LSN, Lsn, TimelineId, parse_lsn
from tidemark.model.message_prefix import MARKER_PREFIX
from tidemark.model.position import Epoch, Pointer, Sequence
from tidemark.runtime.daemon.counting import RequestCounts
from tidemark.wal.segments import segment_of, segment_start
from tidemark.wire.marker import Instance, Marker, MarkerKind, write_marker

ARRIVAL_S = 10.0  # for the archive's folder to show which segments have arrived
SWITCH_WAIT_S, SWITCH_WAIT_S_MAX = 0.1, 30.0  # before a waiting switch is tried again: each attempt lists the folder
GRANT_SWITCH_HINT = (
    "as a superuser of the node, in the database of capture.dsn, or of markers.dsn if that is set: GRANT EXECUTE ON "
    "FUNCTION pg_switch_wal() TO the role of the DSN"
)


class NoMarkersOnStandby(NodeUnfit):
    """Markers are to be written to a standby, which accepts none: delivery works without them."""

    hint = (
        "set markers.dsn to the primary: several hosts with target_session_attrs=read-write also find it after "
        "a promotion"
    )


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The settings that requests to the node read."""

    captured_dsn: str
    markers_dsn: str  # of the primary, to which markers are written
    archive_folder: str  # empty: there is no archive

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the settings of a configuration."""
        captured_dsn = config.capture.dsn
        return cls(captured_dsn, config.markers.dsn or captured_dsn, config.archive.folder)


class NodeRequests(NodeQueries):
    """Runs requests until it is closed."""

    def __init__(
        self,
        settings: NodeSettings,
        store: StateStore,
        key: bytes,
        incarnation: Incarnation | None = None,
        *,
        counts: RequestCounts,
        log: Log,
    ) -> None:
        """`key`: signs markers; `incarnation`: of the daemon that writes them, if it is one."""
        super().__init__(settings.captured_dsn, store.identity.system_identifier)
        self._settings = settings
        self._store = store
        self._key = key
        self._counts = counts
        self._log = log
        self._incarnation = incarnation
        self.has_read_start = False  # the daemon, its own start marker (`tidemark.engine.incarnations.names_writer`)
        self._may_switch = True
        self._late_lsn = INVALID_LSN  # of a switch that waits for the last segment: the WAL that it has to complete
        self._late_wait_s, self._late_at_s = 0.0, math.inf
        self._reported_left_out = False

    def find_node(self) -> Future[NodeIdentity]:
        """Query the end of the node's WAL, over the connection that would stream it."""
        return self._submit(lambda: node_identity(self._captured_dsn, self._system_identifier))

    def find_timeline(self) -> Future[TimelineId | None]:
        """Query the timeline on which the captured node writes; None: it is a standby, and writes on none."""
        return self._submit(self._timeline)

    def switch_if_moved(self, earlier: WalMark | None) -> Future[WalMark]:
        """Switch the segment if anything was written since `earlier`; return the node's LSN from before."""
        return self._submit(lambda: self._switch_if_moved(earlier))

    def write(
        self, kind: MarkerKind, epoch: Epoch, pointer: Pointer | None, *, sequence: int = 0, reason: str = ""
    ) -> Future[Lsn]:
        """Write a marker; return the end of its record."""
        identity = self._store.identity
        instance = Instance(identity.system_identifier, identity.capture)
        is_named = names_writer(is_start=kind is MarkerKind.START, has_read_start=self.has_read_start)
        writer = self._incarnation if is_named else None
        marker = Marker(kind, instance, epoch, Sequence(sequence), pointer, reason, writer)
        return self._submit(lambda: self._write(marker))

    def find_archiving(self) -> Future[NodeArchiving]:
        """Query the state of the node's archiving."""
        return self._submit(lambda: self._markers_node().archiving())

    def switch_segment(self) -> Future[bool]:
        """Switch the WAL segment, if that is granted; return whether it was done.

        Not before the last one has arrived in the archive (I31): then it is done later, unless this process ends.
        """
        return self._submit(self._switch_segment)

    def _late_s(self) -> float | None:
        return None if self._late_at_s == math.inf else max(0.0, self._late_at_s - time.monotonic())

    def _markers_node(self) -> Node:
        return self._session(self._settings.markers_dsn)

    def _timeline(self) -> TimelineId | None:
        if self._session(self._captured_dsn).is_in_recovery():
            return None
        return node_identity(self._captured_dsn, self._system_identifier).timeline

    def _primary(self) -> Node:
        node = self._markers_node()
        if node.is_in_recovery():
            raise NoMarkersOnStandby(f"{node.where} is a standby")
        return node

    def _write(self, marker: Marker) -> Lsn:
        try:
            content = write_marker(marker, self._key)
            ((end_lsn,),) = self._primary().query(
                "SELECT pg_logical_emit_message(true, %s, %s::bytea)::text", (MARKER_PREFIX, content)
            )
        except NoMarkersOnStandby as error:
            self._report_left_out(error)
            raise
        except Exception:
            self._counts.markers_failed.inc()
            raise
        self._counts.markers_written.inc(marker.kind.value)
        return parse_lsn(str(end_lsn))

    def _report_left_out(self, error: NoMarkersOnStandby) -> None:
        if not self._reported_left_out:
            self._reported_left_out = True
            self._log.warning("no markers are written", **describe_error(error))

    def _mark(self) -> WalMark:
        ((record_bytes, snapshot),) = self._markers_node().query(
            "SELECT wal_bytes, pg_current_snapshot()::text FROM pg_stat_wal"
        )
        return WalMark(int(str(record_bytes)), str(snapshot))

    def _switch_if_moved(self, earlier: WalMark | None) -> WalMark:
        # NB: from before the switch: a commit just behind that is in the next segment, and has to be detected.
        mark = self._mark()
        if earlier is None or mark.has_moved_since(earlier):
            self._switch_segment()
        return mark

    def _switch_segment(self) -> bool:
        if self._markers_node().is_in_recovery() or not (self._may_switch or self._is_granted_by_now()):
            return False
        ((lsn_text,),) = self._markers_node().query("SELECT pg_current_wal_insert_lsn()::text")
        if not self._have_arrived_before(parse_lsn(str(lsn_text))):
            self._late_lsn = parse_lsn(str(lsn_text))
            self._late_wait_s = min(SWITCH_WAIT_S_MAX, 2 * self._late_wait_s or SWITCH_WAIT_S)
            self._late_at_s = time.monotonic() + self._late_wait_s
            return False
        self._late_wait_s, self._late_at_s = 0.0, math.inf
        try:
            self._markers_node().query("SELECT pg_switch_wal()")
        except PermissionMissing as error:
            self._may_switch = False
            self._log.warning(
                "segment switches are not granted: in archive mode, changes arrive when the server itself "
                "switches segments",
                **describe_error(error) | {"hint": GRANT_SWITCH_HINT},
            )
            return False
        self._counts.segment_switches.inc()
        return True

    def _work_late(self) -> None:
        """Try a switch again that waits for the last segment to arrive, unless that segment was completed otherwise."""
        if time.monotonic() < self._late_at_s:
            return
        try:
            ((lsn_text,),) = self._markers_node().query("SELECT pg_current_wal_insert_lsn()::text")
            if self._segment_begin(parse_lsn(str(lsn_text))) > self._late_lsn:
                self._late_wait_s, self._late_at_s = 0.0, math.inf
            else:
                self._switch_segment()
        except Exception:  # noqa: BLE001 - nobody asked: it is tried again
            self._late_at_s = time.monotonic() + SWITCH_WAIT_S_MAX
            self._forget_nodes()

    def _segment_begin(self, lsn: Lsn) -> Lsn:
        segment_bytes = self._store.identity.segment_bytes
        return segment_start(segment_of(lsn, segment_bytes), segment_bytes)

    def _have_arrived_before(self, insert_lsn: Lsn) -> bool:
        """Return whether all segments before the current one are in the archive, or no longer needed.

        If archiving is broken, each switch would only add a segment to what the node keeps.
        """
        folder, store = self._settings.archive_folder, self._store
        if not folder:
            return True
        begin_lsn, start = self._segment_begin(insert_lsn), store.marks().start
        if store.archiving().on_lsn >= begin_lsn:
            return True  # all earlier ones were completed while archive_mode was off, and may never arrive
        if start is not None and start.restart_lsn >= begin_lsn:
            return True
        try:
            found = ArchiveListing(Path(folder), store.identity.segment_bytes).result(ARRIVAL_S)
        except NoArchive:
            return False
        return reached_lsn(found) >= begin_lsn

    def _is_granted_by_now(self) -> bool:
        """Check whether the missing grant exists now; once for each wanted switch (`archive.switch_s`)."""
        self._may_switch = self._markers_node().archiving().may_switch
        if self._may_switch:
            self._log.info("segment switches are now granted")
        return self._may_switch
