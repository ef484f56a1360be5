"""The metrics of a running capture, and the log of what it has reached and of the error that ends it."""

from collections.abc import Sequence

from tidemark.decode.catalog.history import Base
from tidemark.engine.progress import Progress
from tidemark.io.host.logs import Log, describe_error
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.history_files import DamagedBase
from tidemark.model.position import Pointer
from tidemark.runtime.capture.capture_settings import CaptureStatus


class CaptureReport:
    """The report of one capture, which starts at the pointer `start`."""

    def __init__(self, start: Pointer, metrics: Metrics, log: Log) -> None:
        self._start = start
        self._metrics = metrics
        self._log = log
        self._is_restored = False

    def damaged_bases(self, damaged: Sequence[DamagedBase], base: Base) -> None:
        """Report the bases of the catalog history that are damaged; the start uses an older one."""
        self._metrics.bases_damaged.set(len(damaged))
        for each in damaged:
            self._log.error(
                "catalog base is damaged; using an older base and the journal",
                base_lsn=each.entry.lsn,
                older_lsn=base.lsn,
                **describe_error(each.error),
            )

    def progress(self, status: CaptureStatus, *, is_host_busy: bool) -> None:
        """Set the metrics."""
        metrics, progress = self._metrics, status.progress
        metrics.ring_used.set(status.ring_used_bytes)
        metrics.ring_high_water.set(status.ring_high_water_bytes)
        metrics.queue_used.set(status.queue_bytes)
        metrics.host_busy.set(is_host_busy)
        metrics.open_transactions.set(status.open_transactions)
        metrics.received_lsn.set(progress.received_lsn)
        metrics.decoded_lsn.set(progress.decoded_lsn)
        metrics.lag_bytes.set(progress.lag_bytes)
        if progress.delivered is not None:
            metrics.delivered_lsn.set(progress.delivered.position.commit_lsn)
        if progress.confirmed is not None:
            metrics.confirmed_lsn.set(progress.confirmed.position.commit_lsn)

    def restored(self, progress: Progress) -> None:
        """Log, once, that the capture has reached the last run's position."""
        begun = self._start
        if not self._is_restored and max(progress.decoded_lsn, begun.restart_lsn) > begun.position.commit_lsn:
            self._is_restored = True
            self._log.info(
                "records restored",
                restart_lsn=begun.restart_lsn,
                restored_lsn=begun.position.commit_lsn,
                delivered=str(begun.position),
            )

    def failure(self, error: BaseException, progress: Progress) -> None:
        """Log the error that ends the capture."""
        self._log.warning(
            "capture failed",
            received_lsn=progress.received_lsn,
            decoded_lsn=progress.decoded_lsn,
            delivered=str(progress.delivered.position) if progress.delivered else None,
            **describe_error(error),
        )

    def stop(self, error: BaseException | None, progress: Progress) -> None:
        """Log how far the capture has come; `error`: of the application thread."""
        report = self._log.info if error is None else self._log.warning
        report(
            "stopped",
            delivered=str(progress.delivered.position) if progress.delivered else None,
            received_lsn=progress.received_lsn,
            decoded_lsn=progress.decoded_lsn,
            **({} if error is None else describe_error(error)),
        )
