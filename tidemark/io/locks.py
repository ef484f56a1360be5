"""One process a role: an OS lock on a file that names its holder (I38).

The kernel lets the lock go when the holder dies, whatever way; the text is for people and for the error of the second.
"""

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self

from tidemark.io.clock import boot_id, host_name, own_start_ticks
from tidemark.io.disk import writing
from tidemark.io.state_folder import StateFolder
from tidemark.model.errors import Fenced
from tidemark.wire.state import Owner

_TEXT_BYTES_MAX = 4096


class AlreadyRunning(Fenced):
    """Another process holds the role's lock."""

    hint = "stop it first; `cdcctl status` says what it does"


@dataclass(frozen=True, slots=True)
class RoleLock:
    """A lock that is held."""

    owner: Owner
    _descriptor: int

    @classmethod
    def take(cls, folder: StateFolder, role: str) -> Self:
        """Take the lock of `role`; raise `AlreadyRunning`, naming the holder, where it is taken."""
        path = folder.lock(role)
        with writing(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, folder.file_mode)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, _TEXT_BYTES_MAX, 0).decode(errors="replace") or "unknown"
            os.close(descriptor)
            raise AlreadyRunning(f"a {role} runs on {folder.root} already: {holder}") from None
        owner = Owner(role, host_name(), boot_id(), os.getpid(), own_start_ticks())
        try:
            with writing(path):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(asdict(owner)).encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(owner, descriptor)

    @staticmethod
    def holder(folder: StateFolder, role: str) -> str | None:
        """Return who holds the lock of `role`, as text; None where nobody does."""
        path = folder.lock(role)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.pread(descriptor, _TEXT_BYTES_MAX, 0).decode(errors="replace") or "unknown"
        finally:
            os.close(descriptor)
        return None

    def release(self) -> None:
        """Let go."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.release()
