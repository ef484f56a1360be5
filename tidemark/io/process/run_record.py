"""The last end of each process, kept in the state: exit code, reason and time.

A start writes its owner into the state, an end removes it. If a start finds the owner of an earlier run, that run left
no record: it was killed (SIGKILL, a crash, a power cut), or its disk was too full for the record. A process that ends
before it has the lock of its role is not recorded.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tidemark.io.host.clock import SystemClock
from tidemark.io.host.disk import replace_file
from tidemark.io.host.logs import Log, describe_error
from tidemark.io.process.ending import describe_ending
from tidemark.io.process.process_ends import KILLED
from tidemark.io.state.state import StateStore
from tidemark.model.errors import ExitCode, TidemarkError
from tidemark.wire.json_form import JsonForm, JsonMismatch
from tidemark.wire.state.process_log import Owner, ProcessEnd, ProcessLog
from tidemark.wire.state.state_keys import PROCESSES

REASON_CHARACTERS_MAX = 1000  # stored of an error's text
_LOG: JsonForm[ProcessLog] = JsonForm(ProcessLog)


@dataclass(slots=True)
class Run:
    """A recorded run; `reason` is that of an end without an error."""

    reason: str = "stopped"


class ProcessRecord(Protocol):
    """Where the ends of processes are recorded."""

    def change(self, change: Callable[[ProcessLog], ProcessLog]) -> ProcessLog:
        """Change the record; return the former one."""
        ...


@dataclass(frozen=True, slots=True)
class StateRecord:
    """The record in a state."""

    store: StateStore

    def change(self, change: Callable[[ProcessLog], ProcessLog]) -> ProcessLog:
        """Change the record; return the former one."""
        with self.store.transaction(None) as transaction:
            before = transaction.processes()
            transaction.put(PROCESSES, change(before))
        return before


@dataclass(frozen=True, slots=True)
class RecordFile:
    """The record of one role that has no state: a file, changed under the role's lock; a damaged one counts as none."""

    path: Path
    file_mode: int

    def change(self, change: Callable[[ProcessLog], ProcessLog]) -> ProcessLog:
        """Change the record; return the former one."""
        try:
            before = _LOG.read(self.path.read_bytes())
        except (FileNotFoundError, JsonMismatch):
            before = ProcessLog()
        replace_file(self.path, _LOG.write(change(before)), self.file_mode)
        return before


@contextmanager
def recorded(record: ProcessRecord, owner: Owner, log: Log) -> Iterator[Run]:
    """Record that a process runs, and how it ends; a full disk prevents neither start nor end."""
    run = Run()
    before = _record(record, log, lambda known: _with_start(known, owner))
    if before is not None and owner.role in before.running:
        log.warning("the previous run did not record its end", process=before.running[owner.role].pid)
    try:
        yield run
    except Exception as error:
        code, fields = describe_ending(error)
        _record(record, log, lambda known: _with_end(known, owner, code, f"{fields['kind']}: {fields['error']}"))
        raise
    except SystemExit:  # a stop requested while the process waited for space before its work began
        _record(record, log, lambda known: _with_end(known, owner, ExitCode.SUCCESS, run.reason))
        raise
    _record(record, log, lambda known: _with_end(known, owner, ExitCode.SUCCESS, run.reason))


def _record(record: ProcessRecord, log: Log, change: Callable[[ProcessLog], ProcessLog]) -> ProcessLog | None:
    """Change the record; return the former one, None if it could not be changed."""
    try:
        return record.change(change)
    except TidemarkError as error:  # a full disk prevents no process from starting or ending
        log.warning("the end of the run was not recorded in the state", **describe_error(error))
        return None


def _with_start(known: ProcessLog, owner: Owner) -> ProcessLog:
    ends = dict(known.ends)
    if owner.role in known.running:
        ends[owner.role] = ProcessEnd(SystemClock().wall_us(), None, KILLED)
    return ProcessLog({**known.running, owner.role: owner}, ends)


def _with_end(known: ProcessLog, owner: Owner, code: ExitCode, reason: str) -> ProcessLog:
    running = {role: other for role, other in known.running.items() if role != owner.role}
    end = ProcessEnd(SystemClock().wall_us(), int(code), reason[:REASON_CHARACTERS_MAX])
    return replace(known, running=running, ends={**known.ends, owner.role: end})
