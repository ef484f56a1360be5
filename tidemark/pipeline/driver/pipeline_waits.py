"""The waits of a pipeline: for space on its disks, for the object store of the lake, and for the outbox server.

Afterwards the query is started again. Meanwhile the service manager is notified, which otherwise considers the process
hung.
"""

import os
from pathlib import Path

from tidemark.io.host.disk import StateFull, is_full
from tidemark.io.host.logs import Log
from tidemark.io.host.systemd import ALIVE, READY, notify
from tidemark.io.process.disk_space import DiskSpace, FullDisks, existing_folder
from tidemark.model.errors import TidemarkError
from tidemark.pipeline.driver.capture_place import SERVER_OUTAGE
from tidemark.pipeline.driver.session import scratch_folders
from tidemark.pipeline.failures import first_reason, named_failure, reports_full_disk
from tidemark.pipeline.lake.tables.table_errors import unavailable_store
from tidemark.pipeline.landing.progress import PipelineProgress
from tidemark.pipeline.landing.settings import Settings
from tidemark.pipeline.source.outbox_port import OutboxPort
from tidemark.pipeline.storage.outage_wait import OutageWait
from tidemark.pipeline.storage.store_wait import StoreWait
from tidemark.pipeline.storage.stores import is_remote

SERVER = "outbox server"  # in the log
LASTS_S = 60.0  # a query that runs this long has found space on the disk; starting one takes seconds
FULL_HINT = "free space on the disks of the state folder, the lake, the checkpoint and Spark's temporary files (/tmp)"


class PipelineWaits:
    """What one pipeline waits for."""

    def __init__(self, settings: Settings, outbox: OutboxPort, progress: PipelineProgress, log: Log) -> None:
        metrics = progress.metrics
        self._settings = settings
        self._progress = progress
        self._disk_space = DiskSpace(full_disks(settings), metrics.disk_full_seconds, log, LASTS_S)
        self._store = StoreWait(settings.lake, metrics.store_wait_seconds, log)
        self._server = OutageWait(SERVER, outbox.head, SERVER_OUTAGE, log, seconds=metrics.server_wait_seconds)

    def include_disk_of(self, local_dir: str | None) -> None:
        """Wait for space on the disk of Spark's temporary files as well."""
        self._disk_space.disks = full_disks(self._settings, local_dir)

    def are_over(self) -> bool:
        """Return whether the query may run, as far as the work has shown; else notify the service manager."""
        if self._has_space() and self._store_answers() and self._server.has_come():
            return True
        notify(READY)
        notify(ALIVE)
        return False

    def _has_space(self) -> bool:
        was_waiting = self._disk_space.is_waiting
        has_space = self._disk_space.has_come()
        if has_space and was_waiting:
            self._progress.record_disk_wait("")
        return has_space

    def _store_answers(self) -> bool:
        was_waiting = self._store.is_waiting
        answers = self._store.has_come()
        if answers and was_waiting:
            self._progress.record_store_wait("")
        return answers

    def begin_after(self, error: Exception, failure: BaseException | None) -> bool:
        """Return whether the query failed because of a disk, store or server that has to be waited for.

        `error`: of the query; `failure`: of its last batch, which Spark reports only as text.
        """
        full = self._full_disk(error, failure)
        if full is not None:
            self._disk_space.record_full_disk(full)
            self._progress.record_disk_wait(self._disk_space.reason)
            return True
        unavailable = unavailable_store(failure or error, self._settings.lake)
        if unavailable is not None:
            self._store.record(unavailable)
            self._progress.record_store_wait(self._store.reason)
            return True
        outage = named_error(error, failure)
        if isinstance(outage, SERVER_OUTAGE):
            self._server.record(outage)
            return True
        return False

    def _full_disk(self, error: Exception, failure: BaseException | None) -> BaseException | None:
        """Return the error of a full disk if that is why the query failed."""
        cause = failure or error
        if is_full(cause):
            return cause
        if isinstance(cause, TidemarkError):
            return None
        if reports_full_disk(str(error)) or not self._disk_space.is_there():  # NB: Java's text is localized
            return StateFull(f"a disk of the pipeline is full: {first_reason(str(error))}", hint=FULL_HINT)
        return None


def named_error(error: Exception, failure: BaseException | None) -> TidemarkError | None:
    """Return why a query failed, if that is an error of ours; Spark reports some only as text."""
    raised = failure or error
    return raised if isinstance(raised, TidemarkError) else named_failure(str(error))


def full_disks(settings: Settings, local_dir: str | None = None) -> FullDisks:
    """Return the disks that the pipeline writes to: of its own files, lake, checkpoint and Spark's temporary files.

    A batch is written to log and replica of its tables, and a merge may rewrite a whole replica.
    """
    folders = [settings.folder, *scratch_folders(os.environ, local_dir)]
    if not is_remote(settings.lake):
        folders.append(Path(settings.lake))
    if "://" not in settings.checkpoint:
        folders.append(Path(settings.checkpoint))
    return FullDisks([existing_folder(folder) for folder in folders], 2 * settings.batch_bytes, rewrites=True)
