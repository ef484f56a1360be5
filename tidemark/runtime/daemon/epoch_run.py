"""The run of a capture under one epoch: beginning the epoch, running the capture, releasing both."""

import gc
import sys

from tidemark.decode.transactions.decoder import OnMarker
from tidemark.engine.progress import Progress
from tidemark.io.host.logs import describe_error
from tidemark.io.state.locking.heartbeat import START_S_MAX, STOP_S_MAX, Slot
from tidemark.model.position import Epoch
from tidemark.runtime.capture.capture import Capture, DecodingStuck
from tidemark.runtime.capture.capture_settings import CaptureSettings
from tidemark.runtime.capture.wal_source import MakeWalSource, cut_spool
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.delivery.following import QueryDeliverer
from tidemark.runtime.replay.diverged import DeadBranchDelivered

SWITCH_S = 0.0005  # how long a computing thread keeps another from the interpreter; Python's own default is 0.005


class EpochRun:
    """Holds a process's capture while it has one; announces long operations to the watchdog."""

    def __init__(self, context: CaptureContext, settings: CaptureSettings, slot: Slot) -> None:
        self.capture: Capture | None = None
        self.epoch: Epoch | None = None  # the last one that was this process's
        self._context = context
        self._settings = settings
        self._slot = slot
        self._stuck: DecodingStuck | None = None

    @property
    def progress(self) -> Progress | None:
        """The watermarks of the capture; None: there is none."""
        return self.capture.progress if self.capture is not None else None

    def begin(
        self,
        epoch: Epoch,
        make_wal_source: MakeWalSource,
        on_marker: OnMarker,
        query_deliverer: QueryDeliverer | None = None,
    ) -> None:
        """Make a capture under `epoch`, and start it; with `query_deliverer` it follows, and delivers nothing."""
        self._context.log.info("epoch acquired", epoch=str(epoch))
        self._context.store.environment.heartbeat.beat(self._slot, ahead_s=START_S_MAX)
        self.epoch = epoch
        self.capture = Capture(
            self._context,
            self._settings,
            epoch,
            make_wal_source,
            on_marker=on_marker,
            query_deliverer=query_deliverer,
            in_daemon=True,
        )
        self.capture.start()
        put_latency_first()

    def release(self) -> None:
        """Stop the capture, if there is one; its unfinished changes are delivered again."""
        capture, self.capture = self.capture, None
        if capture is None:
            return
        self._context.store.environment.heartbeat.beat(self._slot, ahead_s=STOP_S_MAX)
        try:
            capture.stop()
        except DecodingStuck as stuck:
            self._stuck = stuck
            raise
        except Exception as error:  # noqa: BLE001 - the run is over, and the mode defines which process continues
            self._context.log.warning("the capture did not stop cleanly", **describe_error(error))
        del capture
        gc.unfreeze()
        gc.collect()  # its parts refer to each other, and to views of the ring's memory, which must be freed now

    def copies_now(self) -> bool:
        """Release a capture that has delivered everything that waiting copies need: the next one copies them first."""
        if self.capture is None or not self.capture.must_restart:
            return False
        self._context.log.info("restarting capture to copy the tables that waited for the stream")
        self.release()
        return True

    def restarts_after_fork(self, error: BaseException) -> bool:
        """Release a capture that received WAL which never happened; return whether it may restart: none was delivered.

        A lost server may have sent WAL that its standby never had; possibly a part of its last record.
        """
        capture = self.capture
        if capture is None or not isinstance(error, DeadBranchDelivered) or error.fork_lsn is None:
            return False
        self.release()
        if capture.may_have_delivered_after(error.fork_lsn):
            return False
        cut_spool(self._context.store.folder, self._settings.first_copy.copy.spool_bytes, error.fork_lsn)
        self._context.log.warning(
            "discarding WAL that was not delivered: its timeline ended before it",
            at_lsn=error.fork_lsn,
            received_lsn=capture.progress.received_lsn,
        )
        return True

    def check(self) -> None:
        """Raise the error that ends the process, also if it was raised elsewhere before."""
        if self._stuck is not None:
            raise self._stuck

    def stop(self) -> None:
        """Stop the capture, if there is one; raise what keeps it from stopping in order."""
        if self.capture is not None:
            self.capture.stop()


def put_latency_first() -> None:
    """Let threads change sooner, and the collector skip all present objects; to be called for each new capture.

    A full collection visits every object, and a capture has a hundred thousand permanent ones: all threads were stopped
    for a tenth of a second. The code that releases a capture unfreezes them.
    """
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()
