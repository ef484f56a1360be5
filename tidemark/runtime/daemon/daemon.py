"""The loop of both daemons: signals set flags, the loop reads them, beats, runs a step and reports.

If systemd listens (Type=notify), each step reports the actual state: READY once the work has begun, WATCHDOG with each
heartbeat, STOPPING at the end. The loop runs the commands of the control socket that change something, between two
steps: the work has one thread.
"""

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from queue import Empty, Full, Queue
from typing import Protocol

from tidemark.io.host.disk import StateFull, is_full
from tidemark.io.host.logs import Log, describe_error
from tidemark.io.host.systemd import ALIVE, READY, STOPPING, notify
from tidemark.io.process.control import DEADLINE_S, CommandHandler
from tidemark.io.process.disk_space import DiskSpace
from tidemark.io.process.stop_signals import call_at_stop_signals
from tidemark.io.state.locking.heartbeat import START_S_MAX, STOP_S_MAX, WATCHDOG_S_MIN, HeartbeatFile, Slot
from tidemark.model.errors import StateError
from tidemark.wire.control import Json

STEP_S = 0.2
QUIET_STEP_S = WATCHDOG_S_MIN / 2  # while the work is quiet: a step costs as much as several commits
COMMANDS_MAX = 8


class Busy(StateError):
    """The loop did not run a command in time."""

    hint = "the request may still be executed: see `cdcctl status`, then try again"


class Work(Protocol):
    """The work of a daemon, one step at a time."""

    def start(self) -> None:
        """Begin."""

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing was under way in the last step: the next one may come later."""

    def step(self) -> None:
        """Check everything, do what is due; raise what ends the process, or has to wait for space on the disk."""

    def pause(self) -> None:
        """Release everything in memory: the disk is full. The next step begins again."""

    def stop(self) -> None:
        """End in order."""

    def commands(self) -> Mapping[str, CommandHandler]:
        """Return the commands of the control socket; the loop runs them."""

    def status(self) -> Mapping[str, Json]:
        """Return the status; called by any thread."""


class Daemon:
    """Runs a piece of work until it has to end."""

    def __init__(self, work: Work, beat: HeartbeatFile, slot: Slot, *, log: Log, disk_space: DiskSpace) -> None:
        self._work = work
        self._disk_space = disk_space
        self._is_started = False
        self._beat = beat
        self._slot = slot
        self._log = log
        self._woken = threading.Event()
        self._is_over = False
        self._reason = "stop command"
        self._commands: Queue[Callable[[], None]] = Queue(COMMANDS_MAX)

    def run(self) -> None:
        """Run; return after a requested stop, raise the error that ended the work."""
        call_at_stop_signals(lambda number: self._end(number.name))
        error: BaseException | None = None
        try:
            self._beat.beat(self._slot, ahead_s=START_S_MAX)
            self._loop()
        except BaseException as raised:
            error = raised
            raise
        finally:
            notify(STOPPING)
            self._beat.beat(self._slot, ahead_s=STOP_S_MAX)
            self._log.info("stopping", reason=self._reason if error is None else type(error).__name__)
            self._stop_work(error)

    @property
    def reason(self) -> str:
        """Why it ended, if no error ended it."""
        return self._reason

    def handlers(self) -> Mapping[str, CommandHandler]:
        """Return the commands of the control socket."""
        own: dict[str, CommandHandler] = {"status": self._status, "stop": self._stop_command}
        return own | {name: self._run_by_loop(handler) for name, handler in self._work.commands().items()}

    def _loop(self) -> None:
        while not self._is_over:
            if self._is_started or self._disk_space.is_waiting:
                self._beat.beat(self._slot)
                notify(ALIVE)
            self._work_on()
            while True:
                try:
                    command = self._commands.get_nowait()
                except Empty:
                    break
                command()
            if self._woken.wait(QUIET_STEP_S if self._is_started and self._work.is_quiet else STEP_S):
                self._woken.clear()

    def _work_on(self) -> None:
        """Run a step of the work, or its start, unless it waits for space on the disk."""
        if not self._disk_space.has_come():
            return
        try:
            if self._is_started:
                self._work.step()
            else:
                self._work.start()
        except (StateFull, OSError) as error:
            if not is_full(error):
                raise
            self._disk_space.record_full_disk(error)
            self._work.pause()
            notify(READY)  # or the service manager would consider it hung
            return
        if not self._is_started:
            self._is_started = True
            notify(READY)
            self._log.info("ready")
            self._woken.set()  # the first step is not delayed

    def _stop_work(self, error: BaseException | None) -> None:
        try:
            self._work.stop()
        except Exception as raised:
            # The first error is the one to report; if there is none, this one is. Changes that a full disk keeps from
            # becoming durable come again at the next start.
            if is_full(raised):
                self._log.warning("the disk is full while the daemon stops", **describe_error(raised))
            elif error is None:
                raise

    def _run_by_loop(self, handler: CommandHandler) -> CommandHandler:
        def run_in_loop(request: dict[str, Json]) -> Mapping[str, Json]:
            answer: Future[Mapping[str, Json]] = Future()

            def run() -> None:
                try:
                    answer.set_result(handler(request))
                except Exception as error:  # noqa: BLE001 - it is the caller's
                    answer.set_exception(error)

            try:
                self._commands.put_nowait(run)
                self._woken.set()
                return answer.result(DEADLINE_S)
            except (Full, NotInTime):
                raise Busy(f"the {self._slot.name.lower()} did not answer within {DEADLINE_S} s") from None

        return run_in_loop

    def _stop_command(self, _request: dict[str, Json]) -> Mapping[str, Json]:
        self._end(self._reason)
        return {"stopping": True}

    def _end(self, reason: str) -> None:
        self._reason = reason
        self._is_over = True
        self._woken.set()

    def _status(self, _request: dict[str, Json]) -> Mapping[str, Json]:
        return {"pid": os.getpid(), "waits_for_room": self._disk_space.reason or None, **self._work.status()}
