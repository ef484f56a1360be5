"""One process for each role: an OS lock on a file that names its holder (I38).

The kernel releases the lock when the holder dies in any way; the text names the holder for people and the watchdog. It
is a lock of the open file (fcntl(2), F_OFD_SETLK) and not flock(2), because only that can be queried without being
taken: a query must not refuse a process that starts at the same moment.
"""

import json
import os
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self

from tidemark.io.host.clock import boot_id, host_name, own_start_ticks
from tidemark.io.host.disk import writing
from tidemark.io.host.file_locks import is_file_locked, lock_file, read_holder, write_holder
from tidemark.io.state.process_folder import ProcessFolder
from tidemark.model.errors import Fenced, StateError
from tidemark.wire.state.process_log import Owner


class AlreadyRunning(Fenced):
    """Another process has the role's lock."""

    hint = "stop it first; see `cdcctl status`"


class AlreadyHeld(AlreadyRunning):
    """This process itself has the role's lock."""


@dataclass(frozen=True, slots=True)
class LockStatus:
    """A role's lock as another process sees it."""

    is_locked: bool
    owner: Owner | None  # named in the file: a former holder if the lock is free; None: no holder yet


@dataclass(frozen=True, slots=True)
class RoleLock:
    """An acquired lock."""

    owner: Owner
    _descriptor: int

    @classmethod
    def acquire(cls, folder: ProcessFolder, role: str) -> Self:
        """Acquire the lock of `role`; raise `AlreadyRunning` with its holder, or `AlreadyHeld`, if it is held."""
        path = folder.lock(role)
        with writing(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, folder.file_mode)
        try:
            lock_file(descriptor)
        except BlockingIOError:
            holder = _text(descriptor)
            os.close(descriptor)
            owner = _parse_owner(holder)
            article = "an" if role[0] in "aeiou" else "a"
            where = f"process {owner.pid} on {owner.host}" if owner is not None else holder
            kind = AlreadyHeld if owner == _this_process(role) else AlreadyRunning
            raise kind(f"{article} {role} already runs on {folder.root}: {where}") from None
        except OSError as error:
            os.close(descriptor)
            hint = "keep the state folder on a local disk with a file system that supports open file description locks"
            raise StateError(f"{path} cannot be locked: {error.strerror}", hint=hint) from error
        owner = _this_process(role)
        try:
            with writing(path):
                write_holder(descriptor, json.dumps(asdict(owner)).encode())
        except BaseException:
            os.close(descriptor)
            raise
        return cls(owner, descriptor)

    @staticmethod
    def holder(folder: ProcessFolder, role: str) -> str | None:
        """Return the holder of the lock of `role`, as text; None if it is free."""
        is_locked, text = _read_lock(folder, role)
        return text if is_locked else None

    @staticmethod
    def status(folder: ProcessFolder, role: str) -> LockStatus:
        """Return whether the lock of `role` is held, and the owner in its file."""
        is_locked, text = _read_lock(folder, role)
        return LockStatus(is_locked, _parse_owner(text))

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def _this_process(role: str) -> Owner:
    return Owner(role, host_name(), boot_id(), os.getpid(), own_start_ticks())


def _read_lock(folder: ProcessFolder, role: str) -> tuple[bool, str]:
    try:
        descriptor = os.open(folder.lock(role), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False, ""
    try:
        return is_file_locked(descriptor), _text(descriptor)
    finally:
        os.close(descriptor)


def _text(descriptor: int) -> str:
    return read_holder(descriptor).decode(errors="replace") or "unknown"


def _parse_owner(text: str) -> Owner | None:
    """Return the owner in a lock file; None if the text is incomplete or not ours."""
    try:
        stored = json.loads(text)
        owner = Owner(stored["role"], stored["host"], stored["boot_id"], stored["pid"], stored["start_ticks"])
    except (ValueError, KeyError, TypeError):
        return None
    numbers = isinstance(owner.pid, int) and isinstance(owner.start_ticks, int)
    return owner if numbers else None
