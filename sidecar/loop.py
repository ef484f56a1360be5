"""The sidecar's loop: signals set flags, the loop reads them; twice a second it beats, looks and reports.

systemd is told the truth at each step, where it listens (Type=notify): READY once the threads run, STOPPING at the end.
"""

import os
import signal
import socket
import threading
from collections.abc import Mapping
from types import FrameType

from tidemark.io.control import Handler
from tidemark.io.heartbeat import HeartbeatFile, Slot
from tidemark.io.logs import Log
from tidemark.model.lsn import format_lsn
from tidemark.runtime.capture import Capture
from tidemark.wire.control import Json

BEAT_S = 0.5


class Loop:
    """Runs a capture until it has to end."""

    def __init__(self, capture: Capture, beat: HeartbeatFile, log: Log) -> None:
        self._capture = capture
        self._beat = beat
        self._log = log
        self._stop = threading.Event()
        self._reason = "stop command"

    def run(self) -> None:
        """Run; return after a stop that was asked for, raise the error that ended the capture."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._capture.start()
        notify("READY=1")
        self._log.info("ready")
        error: BaseException | None = None
        try:
            while error is None and not self._stop.wait(BEAT_S):
                self._beat.beat(Slot.SIDECAR)
                error = self._capture.poll()
        finally:
            notify("STOPPING=1")
            self._log.info("stopping", reason=self._reason if error is None else type(error).__name__)
            self._stop_capture(error)
        if error is not None:
            raise error

    def handlers(self) -> Mapping[str, Handler]:
        """Return what the control socket can be asked for."""
        return {"status": self._status, "stop": self._stop_command}

    def _stop_capture(self, error: BaseException | None) -> None:
        try:
            self._capture.stop()
        except Exception:
            # The first error is the one to tell; where there is none, this one is.
            if error is None:
                raise

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._reason = signal.Signals(number).name
        self._stop.set()

    def _stop_command(self, _request: dict[str, Json]) -> Mapping[str, Json]:
        self._stop.set()
        return {"stopping": True}

    def _status(self, _request: dict[str, Json]) -> Mapping[str, Json]:
        status = self._capture.status()
        progress = status.progress
        return {
            "pid": os.getpid(),
            "link": status.link.value,
            "copying": status.copying,
            "ring_used_bytes": status.ring_used_bytes,
            "ring_high_water_bytes": status.ring_high_water_bytes,
            "ring_bytes": status.ring_bytes,
            "queue_bytes": status.queue_bytes,
            "open_transactions": status.open_transactions,
            "received_lsn": format_lsn(progress.received_lsn),
            "decoded_lsn": format_lsn(progress.decoded_lsn),
            "lag_bytes": progress.lag_bytes,
            "delivered": str(progress.delivered.position) if progress.delivered else None,
            "confirmed": str(progress.confirmed.position) if progress.confirmed else None,
        }


def notify(state: str) -> None:
    """Tell systemd, if it listens (sd_notify(3))."""
    path = os.environ.get("NOTIFY_SOCKET")
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.sendto(state.encode(), "\0" + path[1:] if path.startswith("@") else path)
