"""`cdcctl realtime on|off`: requests the switch, or makes it itself if no sidecar runs, and waits until it is complete.

    off   complete: stage held, and the archiver has an epoch and delivers
    on    complete: stage realtime, and the sidecar has an epoch

The command reads the remaining steps from the state repeatedly, so any process may do a part of the switch: a second
`cdcctl`, the archiver's watchdog, a sidecar that answered too late.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tidemark.engine.handover import Effect, Event, move
from tidemark.io.archive.archive_listing import ArchiveListing
from tidemark.io.host.clock import boot_ns
from tidemark.io.host.logs import Log
from tidemark.io.node.node import NodeArchiving
from tidemark.io.process.config import ArchiveConfig, Config, RealtimeConfig, WatchdogConfig
from tidemark.io.process.marker_key import KeysDiffer
from tidemark.io.process.watchdog import Condition, Watch
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.overtaken import OvertakenState
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_views import StateMarks
from tidemark.io.state.switching import Switched
from tidemark.model.errors import ConfigError, Fenced, TidemarkError
from tidemark.model.lsn import format_lsn
from tidemark.model.mode import Role, Stage
from tidemark.runtime.daemon.counting import Uncounted
from tidemark.runtime.daemon.node_requests import NodeRequests
from tidemark.runtime.daemon.stage_transition import Perform, StageTransition, write_stop_marker
from tidemark_ctl.requests.waiting import POLL_S, Echo, NotComplete, PolledAnswer, WaitReport
from tidemark_ctl.requests.without_archive import NOTHING_ARCHIVES, nothing_archives, why_not_from_node
from tidemark_ctl.views.processes import Process, process_now, send_request
from tidemark_ctl.views.realtime_tree import GIVE_UP_HINT, missing_text

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tidemark.model.lsn import Lsn

REQUEST_AGAIN_S = 5.0  # interval of requests for a failed return: an operator waits for it
MARKER_S = ANSWER_S = 10.0
EVENT = {"on": Event.OPERATOR_ON, "off": Event.OPERATOR_OFF}


class CannotSwitch(ConfigError):
    """A switch that cannot be completed."""


class SidecarHangs(Fenced):
    """The sidecar holds its lock and does not respond."""

    hint = "kill it with `cdcctl realtime off --force`, or start the archiver, whose watchdog kills it"


@dataclass(frozen=True, slots=True)
class SwitchSettings:
    """The settings that a switch reads."""

    archive: ArchiveConfig
    realtime: RealtimeConfig
    watchdog: WatchdogConfig
    return_lag_bytes_max: int

    @classmethod
    def of(cls, config: Config, segment_bytes: int) -> Self:
        """Return the settings of a configuration, for a node with such segments."""
        return cls(config.archive, config.realtime, config.watchdog, config.return_lag_bytes_max(segment_bytes))


class RealtimeSwitch:
    """One switch by an operator."""

    def __init__(
        self,
        store: StateStore,
        settings: SwitchSettings,
        node_requests: NodeRequests,
        log: Log,
        *,
        deadline_s: float,
        echo: Echo,
    ) -> None:
        self._settings = settings
        self._store = store
        self._node_requests = node_requests
        self._echo = echo
        self._wait_report = WaitReport(echo)
        self._transition = StageTransition(store, self._effects, Uncounted(), log)
        self._pending: list[Future[Lsn] | Future[bool] | None] = []  # requests to the node made by effects
        self._deadline_s = deadline_s
        self._end_s = time.monotonic() + deadline_s
        self._watch = Watch.configured(self._store.environment, Role.SIDECAR, settings.watchdog)
        self._node = PolledAnswer(node_requests.find_node)
        self._archiving = PolledAnswer(node_requests.find_archiving)
        self._requested_s = 0.0

    # --- off

    def off(self, *, force: bool) -> None:
        """Switch realtime off; `force`: kill a sidecar that hangs."""
        if self._marks().stage is not Stage.HELD:
            move(self._marks().stage, Event.OPERATOR_OFF)
            self._check_archive("no process could deliver")
            if nothing_archives(self._settings.archive, self._store.identity.segment_bytes, self._node_requests):
                self._echo(NOTHING_ARCHIVES)
        while self._marks().stage is not Stage.HELD:
            self._check_time("off", "the sidecar has not stopped")
            sidecar = self._process(Role.SIDECAR)
            if not sidecar.is_running:
                self._move_without_sidecar("off")
            elif sidecar.hangs or send_request(self._store.folder, Role.SIDECAR, "realtime-off") is None:
                self._check_sidecar_answers(force=force)
        self._await_archiver()
        self._report_delay()

    def _check_sidecar_answers(self, *, force: bool) -> None:
        """Wait for a sidecar that does not answer: it starts, ends or hangs."""
        if self._watch.condition(boot_ns()) is not Condition.HUNG:
            self._wait_report.report(
                "silent", "the sidecar does not answer at its socket: waiting until it answers, or counts as hung"
            )
        elif force:
            self._echo("the sidecar hangs: killing it")
            if not self._watch.kill_process():
                raise SidecarHangs(
                    "the sidecar hangs and could not be killed", hint="run this as root, or as the user of the sidecar"
                )
        elif self._process(Role.ARCHIVER).is_running:
            self._wait_report.report("hung", "the sidecar hangs: waiting until the archiver's watchdog kills it")
        else:
            raise SidecarHangs("the sidecar hangs, and no archiver runs that would kill it")
        time.sleep(POLL_S)

    def _await_archiver(self) -> None:
        while True:
            marks, archiver = self._marks(), self._process(Role.ARCHIVER)
            if marks.stage is not Stage.HELD:
                raise NotComplete(f"another command switched meanwhile: the stage is {marks.stage.value}")
            if not archiver.is_running:
                self._echo("realtime is off; nothing is delivered until the archiver is started: cdcctl run archiver")
                return
            if archiver.delivers(marks.term) and self._is_active():
                return
            if archiver.hangs:
                missing = f"waiting for {_hung_text(archiver)}"
                self._check_time("off", missing)
                self._wait_report.report("hung archiver", missing)
            else:
                self._check_time("off", "the archiver has not begun to deliver; see its log")
                self._wait_report.report("archiver", "waiting for the archiver to take over")
            time.sleep(POLL_S)

    def _report_delay(self) -> None:
        """Print why changes may be late from now on: the archiver can be active without receiving WAL."""
        try:
            ArchiveListing(Path(self._settings.archive.folder), self._store.identity.segment_bytes).result(ANSWER_S)
            late = self._slow_text(self._node_requests.find_archiving().result(ANSWER_S))
        except (TidemarkError, TimeoutError) as error:
            late = f": {str(error) or 'the node does not report the state of its archiving'}"
        if late:
            self._echo(f"changes may be delivered late{late}")

    def _is_active(self) -> bool:
        answer = send_request(self._store.folder, Role.ARCHIVER, "status")
        return answer is not None and answer.get("role") == "active"

    # --- on

    def on(self) -> None:
        """Switch realtime on."""
        if self._is_on(self._marks()):
            return
        move(self._marks().stage, Event.OPERATOR_ON)
        if self._marks().stage is not Stage.REALTIME:
            self._check_archive("the return to realtime needs it")
            if not self._process(Role.ARCHIVER).is_running:
                self._check_sidecar_can_continue()
            if self._process(Role.SIDECAR).is_running:
                self._check_keys()
        self._request_return()
        while not self._is_on(marks := self._marks()):
            if marks.stage is Stage.HELD:
                raise NotComplete("another command switched realtime off meanwhile")
            self._check_time("on", self._missing_step(marks)[1])
            if not self._process(Role.SIDECAR).is_running:
                raise self._sidecar_not_running()
            if marks.stage is Stage.RETURNING:
                self._check_keys()
            self._wait_report.report(*self._missing_step(marks))
            if marks.stage is Stage.ARCHIVE and time.monotonic() - self._requested_s >= REQUEST_AGAIN_S:
                self._request_return()
            time.sleep(POLL_S)

    def _check_sidecar_can_continue(self) -> None:
        """Raise unless the sidecar runs and the node has the WAL: then it can continue without the archive."""
        message = "the archiver does not run, but must deliver the older changes before realtime begins"
        missing = self._missing_text()
        hint = GIVE_UP_HINT if missing else self._process(Role.ARCHIVER).start_hint
        if not self._process(Role.SIDECAR).is_running:
            raise CannotSwitch(f"{message}{missing}", hint=hint)
        prevented_by = why_not_from_node(self._store, self._node_requests)
        if prevented_by is not None:
            raise CannotSwitch(f"{message}; {prevented_by}{missing}", hint=hint)
        wait_s = self._settings.realtime.archive_wait_s
        self._echo(
            "the archiver does not run, but the node has the WAL: the sidecar continues from it after "
            f"{wait_s:g} s (realtime.archive_wait_s) without progress{missing}"
        )

    def _missing_text(self) -> str:
        archiving = self._store.archiving()
        return f"; {missing_text(archiving)}" if archiving.missing else ""

    def _is_on(self, marks: StateMarks) -> bool:
        return marks.stage is Stage.REALTIME and self._process(Role.SIDECAR).delivers(marks.term)

    def _request_return(self) -> None:
        while True:
            self._requested_s = time.monotonic()
            if not self._process(Role.SIDECAR).is_running:
                if self._marks().stage is Stage.HELD:
                    self._move_without_sidecar("on")
                raise self._sidecar_not_running()
            if send_request(self._store.folder, Role.SIDECAR, "realtime-on") is not None:
                return
            self._check_time("on", "the sidecar does not answer at its socket")
            self._wait_report.report("silent", "the sidecar does not answer at its socket: waiting until it answers")
            time.sleep(POLL_S)

    def _sidecar_not_running(self) -> NotComplete:
        again = "" if self._settings.realtime.automatic_return else ", then run `cdcctl realtime on` again"
        return NotComplete(
            f"realtime is switched on, but the sidecar does not run: the stage is {self._marks().stage.value}",
            hint=self._process(Role.SIDECAR).start_hint + again,
        )

    def _missing_step(self, marks: StateMarks) -> tuple[str, str]:
        """Return what a return waits for, as a keyword and as a sentence."""
        if marks.stage is Stage.REALTIME:
            return "epoch", "waiting for the sidecar to take an epoch"
        if marks.stage is Stage.RETURNED:
            return "sidecar", "waiting for the sidecar to take over"
        archiver = self._process(Role.ARCHIVER)
        if not archiver.is_running:
            without = f"for {self._settings.realtime.archive_wait_s:g} s without progress, if the node has the WAL"
            message = f"waiting for the archiver, which no longer runs, or {without}; {archiver.start_hint}"
            return "archiver", f"{message}{self._missing_text()}"
        if archiver.hangs:
            return "hung archiver", f"waiting for {_hung_text(archiver)}"
        if marks.stage is Stage.RETURNING:
            why = f"{self._archiving_text()}{self._missing_text()}"
            return "marker", f"waiting for the archiver to reach the try-start marker{why}"
        return "lag", f"waiting for the sidecar to request its return: {self._lag_text(marks)}"

    def _lag_text(self, marks: StateMarks) -> str:
        """Return the archiver's distance to the node and the permitted distance."""
        answered = self._node.latest()
        if isinstance(answered, TidemarkError):
            return f"the node does not answer ({answered})"
        if answered is None or marks.delivered is None:
            return "querying the position of the node"
        behind = max(0, answered.flush_lsn - marks.delivered.pointer.position.commit_lsn)
        allowed = self._settings.return_lag_bytes_max
        if behind <= allowed:
            return "the lag of the archiver is small enough"
        return f"the archiver is {behind} bytes behind {format_lsn(answered.flush_lsn)}; at most {allowed} are allowed"

    def _archiving_text(self) -> str:
        """Return why the marker's segment may be archived late."""
        answered = self._archiving.latest()
        return self._slow_text(answered) if isinstance(answered, NodeArchiving) else ""

    def _slow_text(self, node: NodeArchiving) -> str:
        """Return why WAL reaches the archive late or not at all, as the end of a sentence."""
        fills = self._settings.archive.filled_by == "archive_command"
        return ": archive_mode of the node is off" if fills and not node.is_on else slow_archiving(node)

    # --- without a sidecar

    def _move_without_sidecar(self, direction: str) -> None:
        """Switch under the sidecar's lock, so that no sidecar starts; return if the state changed meanwhile."""
        stage, event = self._marks().stage, EVENT[direction]
        # An archiver that delivers continues under its epoch, which remains valid.
        fences = direction == "off" and stage.deliverer is not Role.ARCHIVER
        try:
            with RoleLock.acquire(self._store.folder, Role.SIDECAR.value) as lock:
                new_owner = replace(lock.owner, role="cdcctl") if fences else None
                switched = self._transition.move(event, new_owner=new_owner, only_from=stage)
        except OvertakenState:
            raise
        except Fenced:
            return  # a sidecar was started, or the archiver was faster; the caller reads the state again
        self._echo(f"the sidecar does not run: moved from {switched.before.value} to {switched.after.value} without it")
        self._await_node()

    def _effects(self, switched: Switched) -> Perform:
        """Return the effects for a sidecar that does not run: it has no capture to stop and none to return."""
        return {
            Effect.STOP_CAPTURE: lambda: None,
            Effect.WRITE_STOP_MARKER: lambda: self._pending.append(
                write_stop_marker(self._store, self._node_requests, switched)
            ),
            Effect.SWITCH_SEGMENT: lambda: self._pending.append(self._node_requests.switch_segment()),
            Effect.RETURN_SOON: lambda: None,
        }

    def _await_node(self) -> None:
        """Wait until the stop marker is written: a process on another host can only read the marker."""
        pending, self._pending = self._pending, []
        try:
            for request in pending:
                if request is not None:
                    request.result(MARKER_S)
        except (TidemarkError, TimeoutError) as error:
            self._echo(
                f"no stop marker was written, only the state records the stop: {str(error) or 'the node is slow'}"
            )

    # --- observations

    def _marks(self) -> StateMarks:
        return self._store.marks()

    def _process(self, role: Role) -> Process:
        return process_now(self._store, role, self._settings.watchdog.watchdog_s)

    def _check_archive(self, why: str) -> None:
        if not self._settings.archive.folder:
            raise CannotSwitch(
                f"no archive is configured: {why}",
                hint="set archive.folder; docs/operate.md describes how the node fills it",
            )

    def _check_keys(self) -> None:
        if not self._store.marker_keys().are_one:
            raise KeysDiffer

    def _check_time(self, direction: str, missing: str) -> None:
        if time.monotonic() >= self._end_s:
            stage = self._marks().stage.value
            raise NotComplete(
                f"realtime is not {direction} after {self._deadline_s:g} s: {missing}; the stage is {stage}"
            )


def _hung_text(archiver: Process) -> str:
    """Name an archiver that hangs, and the remedy: no process of Tidemark kills it."""
    pid = archiver.owner.pid if archiver.owner is not None else None
    return f"the archiver, which hangs: check the mount of its archive, or kill process {pid} and {archiver.start_hint}"


def slow_archiving(node: NodeArchiving) -> str:
    """Return why WAL reaches the archive late, as the end of a sentence."""
    if node.failed_file:
        return f": the node's archive_command fails with {node.failed_file}"
    if node.may_switch:
        return ""
    until = (
        f"after archive_timeout = {node.timeout_s} s, or when it is full"
        if node.timeout_s
        else "only when it is full, because archive_timeout is off"
    )
    return f": EXECUTE on pg_switch_wal() is not granted, so a segment is archived {until}"
