"""`cdcctl check`: writes a marker into the WAL and follows it through every leg of the path (I44).

    node ──► capture ──┬─► consumer ──► readers     while the sidecar delivers
      └────► archive ──┘                            while the archiver does; it meets the marker in either mode

A leg that cannot pass the marker, because its process is dead or hangs, is broken at once; every other leg has until
the deadline. Legs behind a broken leg only wait: the first broken leg is the one to repair. The marker is a message in
a separate transaction, so that delivery passes it like any other: by its position.
"""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from tidemark.io.archive.archive_progress import has_no_filler, unrecorded
from tidemark.io.archive.archive_state import ArchiveState
from tidemark.io.archive.spool_access import ServerCannotArchive, spool_access_error
from tidemark.io.host.clock import NS_PER_S, boot_ns
from tidemark.io.node.node import NodeArchiving
from tidemark.io.process.config import ArchiveConfig
from tidemark.io.state.reader_holds import active_readers
from tidemark.io.state.state import StateStore
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import Lsn, TimelineId, format_lsn
from tidemark.model.mode import Role, Stage
from tidemark.model.position import Epoch, Sequence
from tidemark.runtime.daemon.node_requests import NodeRequests
from tidemark.wire.control import Json
from tidemark.wire.marker import MarkerKind
from tidemark_ctl.requests.realtime_switch import slow_archiving
from tidemark_ctl.requests.waiting import Echo, PolledAnswer, WaitReport
from tidemark_ctl.views.lake_tree import waiting_pipelines
from tidemark_ctl.views.processes import Process, send_request
from tidemark_ctl.views.realtime_tree import GIVE_UP_HINT, Observation, missing_text, observe
from tidemark_ctl.views.render import Tree

POLL_S = 0.2
SEQUENCE_BITS = 48  # enough to distinguish any two checks
LOG_HINT = "see its log; `cdcctl status` shows all positions"
ROOM_HINT = "free space on the disk, or let the readers confirm (`cdcctl reader list`), and check again"


class LegName(Enum):
    """The legs, in the order of the output."""

    NODE = "node"
    CAPTURE = "capture"
    ARCHIVE = "archive"
    CONSUMER = "consumer"
    READERS = "readers"


class LegEnd(Enum):
    """The result for a leg."""

    PASSED = "passed"
    BROKEN = "broken"
    WAITS = "waits"  # for an earlier broken leg
    RESTS = "rests"  # not used in this mode or configuration
    PENDING = "pending"


@dataclass(frozen=True, slots=True)
class Leg:
    """The present result for one leg."""

    verdict: LegEnd
    reason: str = ""
    hint: str = ""
    after_s: float | None = None


class _SentMarker(NamedTuple):
    sequence: Sequence
    end_lsn: Lsn
    boot_ns: int  # at the request


class EndToEndCheck:
    """One check."""

    def __init__(
        self,
        store: StateStore,
        node_requests: NodeRequests,
        archive: ArchiveConfig,
        *,
        watchdog_s: float,
        deadline_s: float,
        echo: Echo,
    ) -> None:
        self._store = store
        self._configured = archive
        self._watchdog_s = watchdog_s
        self._node_requests = node_requests
        self._deadline_s = deadline_s
        self._archiving = PolledAnswer(node_requests.find_archiving)
        self._wait_report = WaitReport(echo)
        self._legs = dict.fromkeys(LegName, Leg(LegEnd.PENDING))
        self._due: Sequence | None = None  # a reader that has confirmed this has everything before the marker

    def run(self) -> Mapping[LegName, Leg]:
        """Write the marker, follow it, return every leg."""
        end_s = time.monotonic() + self._deadline_s
        observed = self._observe()
        written = self._write(observed)
        if written is not None:
            self._judge(observed, written)
            while (leg := self._pending()) is not None and time.monotonic() < end_s:
                reason = self._legs[leg].reason or "the marker has not arrived there"
                self._wait_report.report(
                    leg.value, f"waiting at most {self._deadline_s:g} s for leg {leg.value}: {reason}"
                )
                time.sleep(POLL_S)
                observed = self._observe()
                self._judge(observed, written)
        self._close(observed)
        return self._legs

    def _observe(self) -> Observation:
        return observe(self._store, self._configured, self._watchdog_s)

    def _pending(self) -> LegName | None:
        """Return the first leg that can still pass."""
        return next((name for name, leg in self._legs.items() if leg.verdict is LegEnd.PENDING), None)

    def _write(self, observed: Observation) -> _SentMarker | None:
        """Write the marker into the WAL, and request a segment switch if an archive is configured."""
        began_ns, sequence = boot_ns(), Sequence(secrets.randbits(SEQUENCE_BITS))
        horizon, term = observed.view.horizon, observed.view.term
        epoch = term.epoch if term is not None else Epoch(TimelineId(1), 0)
        pointer = horizon.pointer if horizon is not None else None
        request = self._node_requests.write(MarkerKind.CHECK, epoch, pointer, sequence=sequence)
        try:
            end_lsn = request.result(self._deadline_s)
        except TidemarkError as error:
            self._legs[LegName.NODE] = Leg(LegEnd.BROKEN, f"no marker can be written: {error}", error.hint)
            return None
        except TimeoutError:
            reason = f"the node did not write a marker within {self._deadline_s:g} s"
            self._legs[LegName.NODE] = Leg(LegEnd.BROKEN, reason, "check that the node answers SQL")
            return None
        self._legs[LegName.NODE] = Leg(
            LegEnd.PASSED, f"the marker ends at {format_lsn(end_lsn)}", after_s=_since(began_ns)
        )
        if observed.archive is not None:
            self._node_requests.switch_segment()
        return _SentMarker(sequence, end_lsn, began_ns)

    def _judge(self, observed: Observation, written: _SentMarker) -> None:
        """Check all legs that can still pass; a leg that passed or is broken does not change."""
        for name, found in (
            (LegName.CAPTURE, self._capture if observed.engine is None else _engine_leg),
            (LegName.ARCHIVE, self._archive),
            (LegName.CONSUMER, self._consumer),
            (LegName.READERS, self._readers),
        ):
            if self._legs[name].verdict not in (LegEnd.PASSED, LegEnd.BROKEN):
                leg = found(observed, written)
                is_new = leg.verdict is LegEnd.PASSED and leg.after_s is None
                self._legs[name] = replace(leg, after_s=_since(written.boot_ns)) if is_new else leg

    def _close(self, observed: Observation) -> None:
        """Decide the pending legs at the deadline: the first one is broken, legs behind it wait."""
        through = _leg_before_consumer(observed)
        before = {
            LegName.CAPTURE: LegName.NODE,
            LegName.ARCHIVE: LegName.NODE,
            LegName.CONSUMER: through,
            LegName.READERS: LegName.CONSUMER,
        }
        for name, leg in self._legs.items():
            if leg.verdict is LegEnd.PENDING:
                earlier = before[name]
                is_first = self._legs[earlier].verdict in (LegEnd.PASSED, LegEnd.RESTS)
                closed = replace(leg, verdict=LegEnd.BROKEN) if is_first else _waits_for(earlier)
                self._legs[name] = closed

    # --- the legs

    def _capture(self, observed: Observation, written: _SentMarker) -> Leg:
        """Check whether the sidecar's decode thread has read the marker in the stream."""
        stage, process = observed.view.stage, observed.sidecar
        if stage is Stage.HELD:
            return Leg(LegEnd.RESTS, "an operator switched realtime off")
        if not process.is_running or process.hangs:
            return _broken_process(process)
        if not _goes_through_sidecar(observed):
            return Leg(LegEnd.RESTS, f"the archiver delivers: the stage is {stage.value}")
        passed = self._passed_by(Role.SIDECAR, written)
        if passed is not None:
            return passed
        answer = send_request(self._store.folder, Role.SIDECAR, "status") or {}
        return Leg(LegEnd.PENDING, *_unread(answer))

    def _archive(self, observed: Observation, written: _SentMarker) -> Leg:
        """Check whether the archiver has read the marker in the archive, also if it does not deliver."""
        if observed.archive is None:
            return Leg(LegEnd.RESTS, "no archive is configured")
        node = self._archiving.latest()
        user = node.server if isinstance(node, NodeArchiving) and node.is_on else None
        access_error = observed.access_error or spool_access_error(self._configured, user)
        if access_error is not None:
            return Leg(LegEnd.BROKEN, f"the server cannot fill the spool: {access_error}", ServerCannotArchive.hint)
        if not observed.archiver.is_running or observed.archiver.hangs:
            return _with_missing(_broken_process(observed.archiver), observed)
        passed = self._passed_by(Role.ARCHIVER, written)
        if (
            passed is None
            and isinstance(observed.archive, ArchiveState)
            and self._has_no_filler(node, observed.archive)
        ):
            return Leg(
                LegEnd.BROKEN,
                f"archive_mode is off on the node: no program fills {observed.archive.folder}",
                "set archive_mode and archive_command as cdcctl init prints them and restart the server; or "
                'set archive.filled_by = "pg_receivewal" and run pg_receivewal',
            )
        return passed or _with_missing(self._archive_late(observed.archive, written), observed)

    def _has_no_filler(self, node: NodeArchiving | TidemarkError | None, archive: ArchiveState) -> bool:
        """Return whether the server should fill our spool but does not archive, and no program has filled it."""
        if not isinstance(node, NodeArchiving) or archive.runs:
            return False
        return has_no_filler(node, archive, self._configured.filled_by)

    def _archive_late(self, archive: ArchiveState | TidemarkError, written: _SentMarker) -> Leg:
        """Return why the archiver has not read the marker yet."""
        if not isinstance(archive, ArchiveState):
            return Leg(LegEnd.PENDING, str(archive), archive.hint)
        if archive.end_lsn is not None and archive.end_lsn >= written.end_lsn:
            return Leg(LegEnd.PENDING, "the marker is archived, but the archiver has not read it", LOG_HINT)
        at = f"the segment of {format_lsn(written.end_lsn)} is not in {archive.folder}"
        node = self._archiving.latest()
        reason, hint = _late_by(node, archive, written.end_lsn) if isinstance(node, NodeArchiving) else ("", "")
        return Leg(LegEnd.PENDING, f"{at}{reason}", hint or "see archive_command, pg_stat_archiver, and the node's log")

    def _consumer(self, observed: Observation, written: _SentMarker) -> Leg:
        """Check whether the delivered position has passed the marker, which the delivering process must have read.

        The LSN alone does not show it: what was delivered of a lost branch can be beyond the marker.
        """
        delivered = observed.view.delivered
        is_past = delivered is not None and delivered.pointer.position.commit_lsn >= written.end_lsn
        is_read = self._legs[_leg_before_consumer(observed)].verdict in (LegEnd.PASSED, LegEnd.RESTS)
        if delivered is not None and is_past and is_read:
            self._due = delivered.sequence
            return Leg(LegEnd.PASSED, f"delivered {delivered.pointer.position}")
        if not observed.sidecar.is_running and not observed.archiver.is_running:
            return Leg(LegEnd.WAITS, "neither process runs: nothing is delivered")
        if observed.view.stage.deliverer is Role.ARCHIVER and not observed.archiver.is_running:
            return _waits_for(LegName.ARCHIVE)
        if observed.view.stage is Stage.FOLLOWER:
            return Leg(LegEnd.RESTS, "the node is a standby: this capture delivers nothing")
        at = f"delivered is {delivered.pointer.position}" if delivered is not None else "no change has been delivered"
        ledger = observed.view.ledger
        full = f"; the outbox has {ledger.byte_count} of {observed.view.identity.outbox_bytes_max} bytes"
        place = "but the marker has not been read" if is_past else f"before the marker{full}"
        return Leg(LegEnd.PENDING, f"{at}, {place}", f"{self._deliverer(observed)}: {LOG_HINT}")

    def _readers(self, observed: Observation, written: _SentMarker) -> Leg:
        """Check whether every reader that has not lapsed has confirmed all that was delivered before the marker."""
        del written
        readers = active_readers(observed.view.readers)
        if not readers:
            return Leg(LegEnd.RESTS, "no reader is registered")
        if self._due is None:
            waits = self._legs[LegName.CONSUMER].verdict is LegEnd.WAITS
            return Leg(LegEnd.WAITS if waits else LegEnd.PENDING, "delivery has not reached the marker")
        behind = {name: reader.applied for name, reader in readers.items() if reader.applied < self._due}
        if not behind:
            return Leg(LegEnd.PASSED, f"all have confirmed {self._due}")
        names = ", ".join(f"{name} has confirmed {held}" for name, held in sorted(behind.items()))
        found = waiting_pipelines(self._store.folder.root, behind)
        reasons = "".join(f"; {wait.reader}: {wait.reason}" for wait in found)
        stuck = [name for name in sorted(behind) if all(name != wait.reader for wait in found)]
        hints = [wait.hint for wait in found[:1]]
        if stuck:
            hints.append(
                f"check that the pipeline of {stuck[0]} runs; remove a reader that never returns: "
                f"cdcctl reader drop {stuck[0]}"
            )
        return Leg(LegEnd.PENDING, f"{names} of the due {self._due}{reasons}", "; ".join(hints))

    def _passed_by(self, role: Role, written: _SentMarker) -> Leg | None:
        """Return the passed leg if a process has read the marker, with the time."""
        answer = send_request(self._store.folder, role, "check")
        if answer is None or answer.get("sequence") != written.sequence:
            return None
        return Leg(LegEnd.PASSED, f"read at {answer['lsn']}", after_s=_seconds(answer["met_boot_ns"], written.boot_ns))

    @staticmethod
    def _deliverer(observed: Observation) -> str:
        role = observed.view.stage.deliverer
        return f"the {role.value} delivers" if role is not None else "the sidecar takes over"


def legs_tree(legs: Mapping[LegName, Leg], deadline_s: float, *, as_json: bool) -> Tree:
    """Return every leg with its time and its deadline."""
    if as_json:
        return {
            name.value: {
                "verdict": leg.verdict.value,
                "after_s": leg.after_s,
                "deadline_s": deadline_s,
                "told": leg.reason,
                "hint": leg.hint or None,
            }
            for name, leg in legs.items()
        }
    return {name.value: _leg_text(leg, deadline_s) for name, leg in legs.items()}


def _leg_text(leg: Leg, deadline_s: float) -> str:
    took = f" after {leg.after_s:.2f} of {deadline_s:g} s" if leg.after_s is not None else ""
    return f"{leg.verdict.value}{took}: {leg.reason}"


def _goes_through_sidecar(observed: Observation) -> bool:
    return observed.view.stage in (Stage.REALTIME, Stage.RETURNED)


def _leg_before_consumer(observed: Observation) -> LegName:
    return LegName.CAPTURE if _goes_through_sidecar(observed) else LegName.ARCHIVE


def _late_by(node: NodeArchiving, archive: ArchiveState, end_lsn: Lsn) -> tuple[str, str]:
    """Return why a segment is late, as the end of a sentence, and what to do."""
    lost = unrecorded(archive, node.archived_file, end_lsn)
    if node.failed_file:
        return slow_archiving(node), "the node's log contains the error of its archive_command"
    if not node.is_on:
        return "; archive_mode is off", "set archive_mode, or check that pg_receivewal runs"
    if not node.may_switch:
        grant = (
            "in the database of the DSN: GRANT EXECUTE ON FUNCTION pg_switch_wal() TO the capture's role, or wait for "
            "archive_timeout"
        )
        return slow_archiving(node), grant
    if lost.count:
        reason = f", but the server reports {node.archived_file} as archived: {lost.count} segments from {lost.first}"
        return f"{reason} on never arrived", "archive_command reports success without archiving: see the node's log"
    if not node.archived_file:
        counters = "; the node has never archived a segment, and its counters show no failure"
        hint = (
            "see the node's log: a command that cannot be executed (exit 126 or 127) is not counted. Segments "
            "that were completed while archive_mode was off are not archived"
        )
        return counters, hint
    return "", ""


def _with_missing(leg: Leg, observed: Observation) -> Leg:
    """Add to a leg that has not passed the segments that will not arrive."""
    if not observed.archiving.missing:
        return leg
    return replace(leg, reason=f"{leg.reason}; {missing_text(observed.archiving)}", hint=GIVE_UP_HINT)


def _engine_leg(observed: Observation, written: _SentMarker) -> Leg:
    """Return whether an engine runs; it has no socket to ask, so the delivered position shows its progress."""
    del written
    engine = observed.engine
    assert engine is not None, "the state belongs to one"
    if observed.sidecar.hangs:
        age_s = observed.sidecar.beat_age_s or 0
        return Leg(LegEnd.BROKEN, f"{engine} hangs: its last heartbeat is {age_s:.0f} s old", engine.hint)
    if not engine.is_running:
        return Leg(LegEnd.BROKEN, str(engine), engine.hint)
    return Leg(LegEnd.RESTS, f"{engine} captures and delivers")


def _unread(answer: Mapping[str, Json]) -> tuple[str, str]:
    """Return why a sidecar, by its status, has not read the marker in the stream, and what to do."""
    if reason := answer.get("waits_for_room"):
        return f"the sidecar waits for room: {reason}", ROOM_HINT
    if answer.get("copying"):
        return "the first copy is running, and decoding begins after it", "wait for its end, and check again"
    link = answer.get("link")
    how = f"; its connection to the node is {link}" if link else ""
    return f"the sidecar has not read the marker in the stream{how}", LOG_HINT


def _broken_process(process: Process) -> Leg:
    role = process.role
    if not process.is_running:
        return Leg(LegEnd.BROKEN, f"the {role.value} does not run", process.start_hint)
    kills = "the archiver kills it" if role is Role.SIDECAR else "kill it and start it again"
    reason = f"the {role.value} hangs: its last heartbeat is {process.beat_age_s or 0:.0f} s old"
    return Leg(LegEnd.BROKEN, reason, f"{kills}; cdcctl realtime status")


def _waits_for(name: LegName) -> Leg:
    return Leg(LegEnd.WAITS, f"not reached: it follows leg {name.value}")


def _since(began_ns: int) -> float:
    return round((boot_ns() - began_ns) / NS_PER_S, 3)


def _seconds(met_ns: Json, began_ns: int) -> float:
    assert isinstance(met_ns, int), "the daemon reports this"
    return round((met_ns - began_ns) / NS_PER_S, 3)
