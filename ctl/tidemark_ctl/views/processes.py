"""The view of the two daemons: the role's lock, the last heartbeat, the control socket."""

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.io.process.control import DEADLINE_S, DaemonUnreachable, request
from tidemark.io.process.process_ends import last_ends
from tidemark.io.state.locking.heartbeat import Slot
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import SERVER, StateFolder
from tidemark.model.errors import ConfigError
from tidemark.model.mode import Role
from tidemark.wire.control import BadRequest, Json
from tidemark.wire.state.process_log import Owner, ProcessEnd
from tidemark.wire.state.values import Term
from tidemark_ctl.views.archive_tree import usecs_text
from tidemark_ctl.views.render import Tree

ANSWER_S = 2 * DEADLINE_S  # the loop has DEADLINE_S to accept a command; after that the socket reports that it did not
NO_CONTENT: Mapping[str, Json] = {}
NOT_NOW = ("Busy", "BadRequest")  # the process is alive, but its loop is busy, or its version does not have the command


class DaemonRefuses(ConfigError):
    """A daemon rejects a command."""


@dataclass(frozen=True, slots=True)
class Process:
    """One of the daemons, as seen by other processes."""

    role: Role
    owner: Owner | None  # the holder of its lock
    is_running: bool  # its lock is held
    beat_age_s: float | None  # age of the last heartbeat; None: its process has ended
    hangs: bool  # the heartbeat is too old
    last_end: ProcessEnd | None  # None: it runs, or never ended

    @property
    def start_hint(self) -> str:
        """Return the command that starts a daemon, after the error that ended it, if one did."""
        name = self.role.value
        command = f"start it: cdcctl run {name}, or systemctl start tidemark-{name}@NAME"
        if self.last_end is None or not self.last_end.exit_code:
            return command
        ended = f"it ended with exit code {self.last_end.exit_code}: {self.last_end.reason}"
        return f"{ended}; see its log, remove the cause, and {command}"

    def delivers(self, term: Term | None) -> bool:
        """Return whether this process has the epoch, is alive, and is responsive."""
        has_epoch = term is not None and term.owner is not None and term.owner == self.owner
        return self.is_running and has_epoch and not self.hangs


def process_now(store: StateStore, role: Role, watchdog_s: float) -> Process:
    """Return the observable state of a daemon."""
    lock = RoleLock.status(store.folder, role.value)
    age_s = store.environment.heartbeat.age_s(Slot[role.name])
    hangs = age_s is not None and age_s > watchdog_s
    last_end = None if lock.is_locked else last_ends(store.folder, store.processes()).get(role.value)
    return Process(role, lock.owner if lock.is_locked else None, lock.is_locked, age_s, hangs, last_end)


def process_tree(process: Process, waits_for_space: str | None = None) -> Tree:
    """Return the view of a daemon."""
    if not process.is_running and process.beat_age_s is None:
        return "not running"
    age_s = process.beat_age_s
    return {
        "pid": process.owner.pid if process.owner is not None else None,
        "heartbeat_age_s": None if age_s is None else round(age_s, 3),
        "hangs": process.hangs,
        **({"waits_for_room": waits_for_space} if waits_for_space else {}),
    }


def server_tree(folder: StateFolder) -> Tree:
    """Return the view of the outbox server."""
    lock = RoleLock.status(folder, SERVER)
    if not lock.is_locked:
        return "not running"
    return {"pid": lock.owner.pid if lock.owner is not None else None}


def waits_for_space(store: StateStore, process: Process) -> str | None:
    """Ask a daemon why it waits for room on a disk or in the outbox; it cannot store that on a full disk."""
    if not process.is_running or process.hangs:
        return None
    answer = send_request(store.folder, process.role, "status")
    reason = answer.get("waits_for_room") if answer is not None else None
    return str(reason) if reason else None


def ends_tree(store: StateStore, *, as_json: bool) -> dict[str, Tree]:
    """Return how each process last ended; None if it never did."""
    ends = last_ends(store.folder, store.processes())
    names = [*(role.value for role in Role), *sorted(ends.keys() - {role.value for role in Role})]
    return {name: _end_tree(ends[name], as_json=as_json) if name in ends else None for name in names}


def _end_tree(end: ProcessEnd, *, as_json: bool) -> Tree:
    at = usecs_text(end.at_us) if end.at_us else None
    if as_json:
        return {"at": at, "exit_code": end.exit_code, "reason": end.reason}
    code = "no exit code" if end.exit_code is None else f"exit code {end.exit_code}"
    return f"{at or 'time not known'}  {code}  {end.reason}"


def send_request(
    folder: StateFolder, role: Role, command: str, content: Mapping[str, Json] = NO_CONTENT
) -> dict[str, Json] | None:
    """Return a daemon's answer; None if it does not answer in time; raise `DaemonRefuses` with its error."""
    try:
        answer = request(folder.socket(role.value), {"command": command, **content}, ANSWER_S)
    except (DaemonUnreachable, BadRequest):
        return None
    if answer.get("ok"):
        return answer
    if answer.get("kind") in NOT_NOW:
        return None
    raise DaemonRefuses(str(answer.get("error")), hint=str(answer.get("hint") or "see `cdcctl realtime status`"))
