"""Reads markers from WAL messages, rejects messages that are not ours, and counts them (I10).

A role that may write WAL messages may write any message under our prefix. So a foreign message is never an error: it is
counted by reason, and the first one of each reason is logged.
"""

from dataclasses import dataclass

from tidemark.io.host.clock import boot_ns
from tidemark.io.host.logs import Log
from tidemark.io.process.metrics import Metrics
from tidemark.model.lsn import Lsn
from tidemark.model.position import Sequence
from tidemark.wire.marker import Ignored, Instance, Marker, MarkerKind, read_marker
from tidemark.wire.state.values import Identity


@dataclass(frozen=True, slots=True)
class CheckMarker:
    """A marker of `cdcctl check`, and when this process met it."""

    sequence: Sequence
    lsn: Lsn
    read_boot_ns: int


class MarkerReader:
    """Reads the markers of one capture."""

    def __init__(self, identity: Identity, key: bytes, metrics: Metrics, log: Log) -> None:
        self._instance = Instance(identity.system_identifier, identity.capture)
        self._key = key
        self._metrics = metrics
        self._log = log
        self._reported: set[Ignored] = set()
        self.last_check: CheckMarker | None = None  # the last one; read by any thread

    def read(self, lsn: Lsn, content: bytes) -> Marker | None:
        """Return the marker at `lsn`; None if the message is not one of ours."""
        if not content:
            return None  # our own flush message: it requests a commit, and has no content
        found = read_marker(content, self._instance, self._key)
        if isinstance(found, Marker):
            self._metrics.markers_read.inc(found.kind.value)
            if found.kind is MarkerKind.CHECK:
                self.last_check = CheckMarker(found.sequence, lsn, boot_ns())
            return found
        self._metrics.markers_ignored.inc(found.name)
        if found not in self._reported:
            self._reported.add(found)
            report = self._log.info if found is Ignored.FOREIGN else self._log.warning
            report("message with the prefix of Tidemark is ignored", at_lsn=lsn, reason=found.value, hint=found.hint)
        return None
