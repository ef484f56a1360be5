"""The archiver's periodic work on the archive folder: its report, and the maintenance of a spool (I13)."""

import time

from tidemark.io.host.logs import describe_error
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import Lsn
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.daemon.archive_report import ArchiveReport
from tidemark.runtime.daemon.archiving_watch import ArchivingWatch
from tidemark.runtime.daemon.node_requests import NodeRequests
from tidemark.runtime.daemon.spool_tending import SpoolTender

TEND_S = 10.0


class Upkeep:
    """Maintains one archive folder."""

    def __init__(self, context: CaptureContext, node_requests: NodeRequests) -> None:
        self._context = context
        self._report = ArchiveReport(context, ArchivingWatch(context, node_requests))
        self._tender = SpoolTender(context.config.archive, context.store)
        self._not_before_s = 0.0
        self._is_reported = False

    def step(self, read_lsn: Lsn | None) -> None:
        """Do the work that is due; log a faulty folder and continue. `read_lsn`: see `tend`."""
        now_s = time.monotonic()
        self._report.step(now_s)
        if now_s < self._not_before_s:
            return
        self._not_before_s = now_s + TEND_S
        try:
            tended = self._tender.tend(read_lsn)
        except TidemarkError as error:
            if not self._is_reported:  # once: a full disk may last for hours
                self._context.log.warning("the spool cannot be maintained", **describe_error(error))
            self._is_reported = True
            return
        if self._is_reported:
            self._is_reported = False
            self._context.log.info("the spool is maintained again")
        if tended is None or tended.horizon is None or not tended.trimmed.file_count:
            return
        self._context.metrics.archive_trimmed.inc(tended.trimmed.file_count)
        self._context.log.info(
            "segments cleared",
            before_lsn=tended.horizon.lsn,
            timeline=tended.horizon.timeline,
            files=tended.trimmed.file_count,
            bytes=tended.trimmed.byte_count,
        )
