"""Periodic work on the spool: trimming, and the copy of the catalog history.

Trimming comes first, because it may free the space that the copy needs. It uses the current manifest, so WAL that a
rebuilt state would need stays until a later manifest is durable. A spool without a manifest is not trimmed.
"""

from dataclasses import dataclass
from pathlib import Path

from tidemark.io.archive.history_copy import HistoryCopy
from tidemark.io.archive.spool import Spool
from tidemark.io.archive.spool_manifest import NoHistoryCopy, read_manifest
from tidemark.io.archive.trimming import Horizon, Trimmed, horizon_of, trim
from tidemark.io.host.disk import writing
from tidemark.io.host.folder_changes import FolderView
from tidemark.io.process.config import ArchiveConfig
from tidemark.io.state.state import StateStore
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Lsn, SegmentNo, TimelineId
from tidemark.wal.segments import segment_of
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.manifest import Manifest


@dataclass(frozen=True, slots=True)
class MaintainedSpool:
    """The result."""

    horizon: Horizon | None  # WAL below it was removed; None: nothing may be removed yet
    trimmed: Trimmed
    manifest: Manifest | None  # the current one; None as long as the state has no beginning


@dataclass(frozen=True, slots=True)
class _Searched:
    """The folder when it was last searched for segments to remove, and the first segment that was kept."""

    view: FolderView
    first_kept: tuple[TimelineId, SegmentNo]


class SpoolMaintenance:
    """Maintains the configured archive; for the holder of the archiver's lock."""

    def __init__(self, settings: ArchiveConfig, store: StateStore) -> None:
        self._settings = settings
        self._store = store
        self._spool = Spool(Path(settings.folder))
        self._history = HistoryCopy(store, self._spool)
        self._searched: _Searched | None = None

    def maintain(self, read_lsn: Lsn | None = None) -> MaintainedSpool | None:
        """Trim the archive and update its history copy; None, and nothing is changed, if the archive is not ours.

        `read_lsn`: from here it is still to be read for its markers; None: no process reads them.

        Raise `ConfigError` if it is the spool of another cluster or capture. Takes moments, and 0.1 s of
        CPU with 100,000 segments if the folder has changed.
        """
        if not self._settings.folder or not self._spool.is_ours:
            return None
        self._spool.check_owner(self._store.identity.system_identifier)
        before = self._manifest()
        horizon, trimmed = None, Trimmed()
        if before is not None:
            copied_lsn = before.start.restart_lsn
            keep_bytes = self._settings.keep_bytes
            horizon = horizon_of(self._store.view(), keep_bytes=keep_bytes, copied_lsn=copied_lsn, read_lsn=read_lsn)
            if horizon is not None:
                trimmed = self._trim(horizon)
        return MaintainedSpool(horizon, trimmed, self._history.update())

    def _trim(self, horizon: Horizon) -> Trimmed:
        """Trim, unless neither the folder nor the first segment to keep has changed since the last search."""
        before, segment_bytes = self._searched, self._store.identity.segment_bytes
        with writing(self._spool.folder):
            view = FolderView.of(self._spool.folder, before.view if before is not None else None)
        first_kept = horizon.timeline, segment_of(horizon.lsn, segment_bytes)
        if before is not None and before.first_kept == first_kept and before.view.shows(view):
            return Trimmed()
        trimmed = trim(self._spool, horizon, segment_bytes)
        self._searched = _Searched(view, first_kept)
        return trimmed

    def _manifest(self) -> Manifest | None:
        """Return the manifest; a damaged one is written again, and nothing is trimmed by it."""
        try:
            found = read_manifest(self._spool)
        except (NoHistoryCopy, DamagedValue):
            return None
        capture = self._store.identity.capture
        if found.identity.capture != capture:
            raise ConfigError(
                f"{self._spool.folder} is the spool of capture {found.identity.capture!r}, not of {capture!r}",
                hint="give each capture a separate spool: one capture may need WAL that the other does not",
            )
        return found
