"""What the archiver does for the folder beside reading it: reports it, and tends our own spool (I13).

Tending is keeping a copy of the catalog history there, and removing the WAL that no restart needs, in this order: a
state made anew from the copy needs WAL from where the copy ends.
"""

import time

from tidemark.io.archive_state import ArchiveState
from tidemark.io.history_copy import copy_history
from tidemark.io.logs import describe_error
from tidemark.io.spool import Spool
from tidemark.io.trimming import Trimmed, horizon_of, trim
from tidemark.model.errors import TidemarkError
from tidemark.runtime.archive_report import ArchiveReport
from tidemark.runtime.inflow import Surroundings


class Upkeep:
    """Looks after one archive folder."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._report = ArchiveReport(around)

    def step(self) -> None:
        """Do what is due; a folder that is in trouble is told, and is no reason to stop."""
        found = self._report.step(time.monotonic())
        if found is None or not found.is_ours:
            return
        try:
            self._tend(found)
        except TidemarkError as error:
            self._around.log.warning("the spool cannot be tended", **describe_error(error))

    def _tend(self, found: ArchiveState) -> None:
        spool = Spool(found.folder)
        manifest = copy_history(self._around.store, spool)
        horizon = horizon_of(
            self._around.store.view(),
            keep_bytes=self._around.config.archive.keep_bytes,
            copied_lsn=manifest.start.restart_lsn if manifest is not None else None,
        )
        if horizon is None:
            return
        trimmed = trim(spool, horizon, found.segment_bytes)
        if trimmed != Trimmed():
            self._around.metrics.archive_trimmed.inc(trimmed.file_count)
            self._around.log.info(
                "segments cleared",
                before_lsn=horizon.lsn,
                timeline=horizon.timeline,
                files=trimmed.file_count,
                bytes=trimmed.byte_count,
            )
