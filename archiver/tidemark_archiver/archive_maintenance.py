"""The archiver's periodic work: the report on the archive, the maintenance of a spool (I13), segment switches (I31)."""

import time
from concurrent.futures import Future
from dataclasses import dataclass

from tidemark.engine.marking import WalMark
from tidemark.io.archive.trimming import FILES_MAX
from tidemark.io.host.logs import describe_error
from tidemark.io.process.config import ArchiveConfig
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import Lsn
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.daemon.archive_report import ArchiveReport
from tidemark.runtime.daemon.archiving_watch import ArchivingWatch
from tidemark.runtime.daemon.node_requests import NodeRequests
from tidemark.runtime.daemon.spool_maintenance import MaintainedSpool, SpoolMaintenance

MAINTENANCE_S = 10.0
CPU_SHARE_MAX = 0.01  # of the maintenance, which lists the spool: 0.1 s of CPU with a hundred thousand segments


def maintenance_pause_s(used_s: float, maintained: MaintainedSpool | None) -> float:
    """Return the time to the next maintenance after one that used `used_s` of CPU: short if segments remain."""
    if maintained is not None and maintained.trimmed.file_count == FILES_MAX:
        return MAINTENANCE_S
    return max(MAINTENANCE_S, used_s / CPU_SHARE_MAX)


class ArchiveMaintenance:
    """Maintains one archive folder."""

    def __init__(self, context: CaptureContext, archive: ArchiveConfig, node_requests: NodeRequests) -> None:
        self._context = context
        self._report = ArchiveReport(context, archive.folder, ArchivingWatch(context, archive, node_requests))
        self._maintenance = SpoolMaintenance(archive, context.store)
        self._not_before_s = 0.0
        self._is_reported = False

    def step(self, read_lsn: Lsn | None) -> None:
        """Do the work that is due; log a faulty folder and continue. `read_lsn`: see `maintain`."""
        now_s = time.monotonic()
        self._report.step(now_s)
        if now_s < self._not_before_s:
            return
        began_s, maintained = time.thread_time(), None
        try:
            maintained = self._maintenance.maintain(read_lsn)
        except TidemarkError as error:
            self._context.metrics.errors.inc()
            if not self._is_reported:  # once: a full disk may last for hours
                self._context.log.warning("the spool cannot be maintained", **describe_error(error))
            self._is_reported = True
            return
        finally:
            self._not_before_s = now_s + maintenance_pause_s(time.thread_time() - began_s, maintained)
        if self._is_reported:
            self._is_reported = False
            self._context.log.info("the spool is maintained again")
        if maintained is None or maintained.horizon is None or not maintained.trimmed.file_count:
            return
        self._context.metrics.archive_trimmed.inc(maintained.trimmed.file_count)
        self._context.log.info(
            "segments cleared",
            before_lsn=maintained.horizon.lsn,
            timeline=maintained.horizon.timeline,
            files=maintained.trimmed.file_count,
            bytes=maintained.trimmed.byte_count,
        )


@dataclass(slots=True)
class ForcedSwitches:
    """Switches segments while the archiver delivers: at most one every `archive.switch_s`, while WAL has moved."""

    node_requests: NodeRequests
    every_s: float
    _wal: WalMark | None = None
    _request: Future[WalMark] | None = None
    _not_before_s: float = 0.0

    def step(self, now_s: float) -> None:
        """Read the answer; send another request if it is time."""
        if self._request is not None and self._request.done():
            if self._request.exception() is None:
                self._wal = self._request.result()
            self._request = None
        if self._request is None and now_s >= self._not_before_s:
            self._not_before_s = now_s + self.every_s
            self._request = self.node_requests.switch_if_moved(self._wal)
