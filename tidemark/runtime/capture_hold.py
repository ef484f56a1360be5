"""One capture at a time on a state folder, whoever runs it: it writes the catalog's journal, and spills.

The epoch keeps whoever was replaced out of the state, not out of the files. So a capture holds a lock of its own until
its decode thread has ended; who comes next tries again until then.
"""

from types import TracebackType
from typing import Self

from tidemark.io.locks import AlreadyRunning, RoleLock
from tidemark.io.state_folder import StateFolder
from tidemark.model.errors import Disposition, ExitCode, TidemarkError

_NAME = "capture"


class CaptureBusy(TidemarkError):
    """The capture that was replaced has not ended yet."""

    disposition = Disposition.RETRY
    exit_code = ExitCode.FENCED
    hint = "it ends in seconds; a process that hangs is killed by the other's watchdog"


class CaptureHold:
    """The right to run the capture."""

    def __init__(self, lock: RoleLock) -> None:
        self._lock: RoleLock | None = lock

    @classmethod
    def take(cls, folder: StateFolder) -> Self:
        """Take it; raise `CaptureBusy` where another capture has not ended."""
        try:
            return cls(RoleLock.take(folder, _NAME))
        except AlreadyRunning as error:
            raise CaptureBusy(str(error)) from error

    def release(self) -> None:
        """Let the next one begin; may be called again."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.release()
