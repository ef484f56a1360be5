"""The input of the ring: the node alone, or, around a first copy, the spool first and then the node.

    node ─► network thread ─► ring                             (direct)
    node ─► network thread ─► spool ─► feed thread ─► ring     (during the copy, and until the spool is read)

The change from the second to the first happens at one LSN: the spool's end, when all of it is in the ring. The spool is
kept until no restart needs it.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from tidemark.engine.ring import Ring
from tidemark.io.host.logs import Log
from tidemark.io.state.wal_spool import WalSpool
from tidemark.model.lsn import Lsn
from tidemark.runtime.capture.network import NetworkThread, WalSink
from tidemark.runtime.capture.signal import Signal
from tidemark.runtime.capture.source_thread import Link
from tidemark.wal.segments import SLICE_BYTES_MAX

SPACE_POLL_S = 0.02  # how often a full ring, or the spool's end, is checked
STOP_S = 5.0
WARN_SHARES = (0.5, 0.75, 0.9)  # of the spool: each is logged once
MakeNetwork = Callable[[WalSink], NetworkThread]


class WalInput(Protocol):
    """Fills the ring until it is stopped."""

    @property
    def error(self) -> BaseException | None:
        """The first error, if there is one."""

    @property
    def link(self) -> Link:
        """State of the connection to the node."""

    def start(self) -> None:
        """Start to receive."""

    def read_leased(self, timeout_s: float, collect: Callable[[], None]) -> bool:
        """Read WAL into the ring in the application thread, which has the stream's lease."""

    def drain(self) -> None:
        """Move WAL that waits outside of the ring into it: decoding begins."""

    def maintain(self, lsn: Lsn) -> None:
        """Maintain the storage beside the ring; no restart begins before `lsn`."""

    def stop(self) -> None:
        """End all threads and connections."""


class SpooledInput:
    """The spool first, then the node."""

    def __init__(self, spool: WalSpool, ring: Ring, arrived: Signal, make_network: MakeNetwork, log: Log) -> None:
        self._error: BaseException | None = None
        self._spool = spool
        self._ring = ring
        self._arrived = arrived
        self._make_network = make_network
        self._log = log
        self._network = make_network(spool)
        self._is_direct = False
        self._warned_share = 0.0
        self._draining = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    @property
    def error(self) -> BaseException | None:
        """The first error."""
        return self._error or self._network.error

    @property
    def link(self) -> Link:
        """State of the connection to the node."""
        return self._network.link

    def start(self) -> None:
        """Receive into the spool; the ring gets nothing before `drain`."""
        self._network.start()

    def read_leased(self, timeout_s: float, collect: Callable[[], None]) -> bool:
        """Read from the node in the application thread; only the direct connection is ever offered."""
        return self._network.read_leased(timeout_s, collect)

    def drain(self) -> None:
        """Begin to feed the ring."""
        self._draining.set()
        self._thread.start()

    def stop(self) -> None:
        """End all threads and connections."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_S)
        self._network.stop()
        self._spool.close()

    def maintain(self, lsn: Lsn) -> None:
        """Check the spool; remove what no restart at or after `lsn` needs, once the node feeds the ring itself."""
        self._warn()
        if self._draining.is_set() and not self._thread.is_alive():
            self._spool.drop_below(lsn)

    def _warn(self) -> None:
        """Warn in time that the spool fills up: nothing frees it before the end of the copy."""
        used_bytes = self._spool.capacity - self._spool.free_bytes
        share = max((share for share in WARN_SHARES if used_bytes >= share * self._spool.capacity), default=0.0)
        if share > self._warned_share:
            self._warned_share = share
            self._log.warning(
                "the copy spool for received WAL fills up; when it is full, further WAL stays on the node, "
                "which may remove it",
                used_bytes=used_bytes,
                setting="copy.spool_bytes",
                setting_bytes=self._spool.capacity,
            )

    def _run(self) -> None:
        try:
            spooling = True
            while not self._stopping.is_set():
                # NB: the spool may reach behind a fork that is recorded only at the node: that WAL would be delivered.
                if self._network.is_located and self._move():
                    continue
                if self._ring.write_lsn < self._spool.write_lsn:
                    self._stopping.wait(SPACE_POLL_S)  # the ring is full
                elif spooling:
                    self._network.stop()  # then once more: WAL that arrived meanwhile
                    # NB: a disk that hangs may delay it for longer than `stop` waits, and only one thread may receive.
                    spooling = self._network.link is not Link.ENDED
                else:
                    self._go_direct()
                    return
        except BaseException as error:  # noqa: BLE001 - the one place: whatever it is, the capture ends with it
            self._error = error
        finally:
            self._arrived.set()

    def _move(self) -> bool:
        if self._ring.free_bytes < SLICE_BYTES_MAX:
            return False
        wal_slice = self._spool.read(self._ring.write_lsn)
        if wal_slice is None:
            return False
        self._ring.put(wal_slice)
        self._arrived.set()
        return True

    def _go_direct(self) -> None:
        if self._network.error is not None:
            return
        self._log.info("the stream has caught up with the copy spool", at_lsn=self._ring.write_lsn)
        self._network = self._make_network(self._ring)
        self._is_direct = True
        if not self._stopping.is_set():
            self._network.start()
