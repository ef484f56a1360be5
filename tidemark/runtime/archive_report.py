"""What both processes tell of the archive's folder: looked at now and then, since a look lists the whole of it."""

from dataclasses import dataclass
from pathlib import Path

from tidemark.io.archive_state import ArchiveState, archive_state
from tidemark.io.logs import describe_error
from tidemark.model.errors import TidemarkError
from tidemark.model.lsn import Lsn
from tidemark.runtime.inflow import Surroundings

LOOK_S = 5.0


@dataclass(slots=True)
class ArchiveReport:
    """Looks, and sets the gauges."""

    around: Surroundings
    _not_before_s: float = 0.0
    _is_told: bool = False

    def step(self, now_s: float, received_lsn: Lsn | None = None) -> ArchiveState | None:
        """Look, if it is time; `received_lsn`: what the ring has come to, where there is one."""
        config = self.around.config
        if not config.has_archive or now_s < self._not_before_s:
            return None
        self._not_before_s = now_s + LOOK_S
        try:
            found = archive_state(Path(config.archive.folder), self.around.store.identity.segment_bytes)
        except TidemarkError as error:
            if not self._is_told:
                self.around.log.warning("the archive cannot be looked at", **describe_error(error))
            self._is_told = True
            return None
        self._is_told = False
        self._tell(found, received_lsn)
        return found

    def _tell(self, found: ArchiveState, received_lsn: Lsn | None) -> None:
        metrics = self.around.metrics
        metrics.archive_bytes.set(found.byte_count)
        metrics.archive_free.set(found.free_bytes)
        metrics.archive_holes.set(len(found.holes))
        if found.end_lsn is not None:
            metrics.archived_lsn.set(found.end_lsn)
        archived_lsn = found.end_lsn or self._begin_lsn()
        if received_lsn is not None and archived_lsn is not None:
            metrics.archive_lag.set(max(0, received_lsn - archived_lsn) / found.segment_bytes)

    def _begin_lsn(self) -> Lsn | None:
        """Return where the capture began: nothing behind it was ever archived, which is to be seen as a lag, too."""
        beginning = self.around.store.view().beginning
        return beginning.lsn if beginning is not None else None
