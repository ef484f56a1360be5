"""When the sidecar restarts its capture for requested copies: once that loses nothing (`tidemark.runtime.recopying`).

A restart reads WAL from the restart LSN on. Where a transaction has been open for long, the node may have removed that:
without an archive the restart would then be the capture's end. So the node is asked before the capture is stopped.
"""

from concurrent.futures import Future

from tidemark.io.clock import SystemClock
from tidemark.io.logs import describe_error
from tidemark.model.errors import NodeUnreachable
from tidemark.model.lsn import INVALID_LSN, Lsn, format_lsn
from tidemark.model.position import Epoch
from tidemark.runtime.capture import Capture
from tidemark.runtime.recopying import Recopying
from tidemark.runtime.service import Means

LOOK_S = 5.0  # how often the node is asked again

Asked = Future[bool]


class WalRemoved(NodeUnreachable):
    """WAL that a restart of the capture would read, and that the node has removed."""

    hint = "end the transactions that have been open since, or raise wal_keep_size; the request is kept"


class RecopyRestart:
    """Tells when a running capture is to be stopped, so that the next one copies what is requested."""

    def __init__(self, means: Means) -> None:
        self._recopying = Recopying(means.around.store)
        self._errands = means.errands
        self._log = means.around.log
        self._clock = SystemClock()
        self._asked: Asked | None = None
        self._asked_lsn: Lsn = INVALID_LSN
        self._not_before_s = 0.0
        self._told = ""
        self.waits_for = ""  # why a request that is due is not served yet

    def queue(self, epoch: Epoch) -> None:
        """Queue the requests that are due: a capture is about to begin."""
        self._recopying.queue(epoch)
        self._asked, self.waits_for = None, ""

    def is_due(self, capture: Capture, epoch: Epoch) -> bool:
        """Tell if `capture` is to be stopped now."""
        if capture.status().copying or not self._recopying.step(capture.progress, epoch):
            self._asked, self.waits_for = None, ""
            return False
        if self._asked is None:
            self._ask(capture)
            return False
        if not self._asked.done():
            return False
        asked, self._asked = self._asked, None
        error = asked.exception()
        if error is None and not asked.result():
            start = format_lsn(self._asked_lsn)
            error = WalRemoved(f"the node has removed WAL from {start} on, where a restart of the capture begins")
        if error is None:
            return True
        self._tell(error)
        return False

    def _ask(self, capture: Capture) -> None:
        now_s = self._clock.monotonic_s()
        if now_s >= self._not_before_s and capture.progress.delivered is not None:
            self._not_before_s = now_s + LOOK_S
            self._asked_lsn = capture.progress.delivered.restart_lsn
            self._asked = self._errands.has_wal(self._asked_lsn)

    def _tell(self, error: BaseException) -> None:
        described = describe_error(error)
        self.waits_for = described["error"]
        if self.waits_for != self._told:
            self._told = self.waits_for
            self._log.warning("requested copies wait", **described)
