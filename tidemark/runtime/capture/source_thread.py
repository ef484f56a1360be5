"""The thread of a WAL source: start, stop, and the report of the first error."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum

from tidemark.model.lsn import Lsn
from tidemark.runtime.capture.signal import Signal

STOP_S = 5.0


class Link(Enum):
    """State of the connection to the source."""

    IDLE = "idle"  # not started
    CONNECTING = "connecting"
    STREAMING = "streaming"
    PAUSED = "paused"
    ENDED = "ended"


class SourceThread(ABC):
    """Receives WAL until it is stopped or fails; sets `arrived` when something came, and at its end."""

    def __init__(self, name: str, arrived: Signal) -> None:
        self._link = Link.IDLE
        self._error: BaseException | None = None
        self._arrived = arrived
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def link(self) -> Link:
        """State of the connection to the source."""
        return self._link

    @property
    def error(self) -> BaseException | None:
        """The error that ended the thread, None if it ended by `stop`."""
        return self._error

    def start(self) -> None:
        """Start at the sink's end."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_S)

    def read_leased(self, timeout_s: float, collect: Callable[[], None]) -> bool:
        """Return false: only this thread itself reads."""
        del timeout_s, collect
        return False

    def drain(self) -> None:  # noqa: B027 - a default, not an omission
        """Do nothing: all received WAL is in the ring already."""

    def maintain(self, lsn: Lsn) -> None:  # noqa: B027 - a default, not an omission
        """Do nothing: there is only the ring."""

    @abstractmethod
    def _work(self) -> None:
        """Receive WAL until `_stopping` is set; raise errors that cannot heal."""

    def _run(self) -> None:
        self._link = Link.CONNECTING
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - the one place: whatever it is, the capture ends with it
            self._error = error
        finally:
            self._link = Link.ENDED
            self._arrived.set()
