"""The paused tables of a lake: how much of the outbox they keep, and how a resumed table catches up.

A paused table keeps its changes in the outbox, which is therefore not trimmed beyond them. If they exceed a bound, the
table *diverges*: its changes are given up, and it needs a new copy. A table that the operator resumes reads its changes
from the outbox in *slices* between two batches, so that other tables wait for one slice at most. So does a table of
which a new copy begins, unless only its replica is paused: that continues with the copy.
"""

from collections.abc import Callable, Sequence

from tidemark.io.host.failpoints import passed
from tidemark.io.readers.accepted_breaks import log_key
from tidemark.io.readers.outbox import OutboxTrimmed
from tidemark.model.change import CopyBoundary
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.faults import FaultKind
from tidemark.pipeline.landing.behind.slices import KeptBytes, table_slice
from tidemark.pipeline.landing.capture_port import CapturePort
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.lake_batch import LakeItem
from tidemark.pipeline.source.outbox_port import OutboxPort


class PausedTables:
    """The paused tables of one reader's lake; used by one thread at a time."""

    def __init__(self, outbox: OutboxPort, capture: CapturePort, reader: str, bytes_max: int) -> None:
        self._outbox = outbox
        self._capture = capture
        self._reader = reader
        self._bytes_max = bytes_max
        self._kept = KeptBytes(outbox)

    def close_old_requests(self, lake: Lake) -> None:
        """Remove the requests for tables that are not paused."""
        paused = {log_key(*of) for of in lake.paused}
        for key in self._capture.resume_requests(self._reader):
            if key not in paused:
                self._capture.close_request(self._reader, key)

    def give_up_oldest(self, lake: Lake) -> None:
        """Give up the changes of the tables that were paused first, as long as the outbox keeps too much for them."""
        while (paused := lake.paused) and lake.positions.outbox == self._outbox.outbox_id:
            oldest = min(paused.values())
            reason = self._excess(oldest, lake.positions.applied.sequence)
            if not reason:
                return
            lake.give_up([of for of, after in paused.items() if after == oldest], reason)

    def resume_copied(self, lake: Lake, items: Sequence[LakeItem]) -> None:
        """Request that the tables with a paused log are resumed of which a new copy begins; called before the batch.

        A replica that is paused alone continues with the copy, in the batch.
        """
        copied = {
            (item.database, item.relation.oid) for _, item in items if isinstance(item, CopyBoundary) and item.begin
        }
        tables = lake.positions.tables
        for of in copied & lake.paused.keys():
            if tables[of].log.is_faulty(FaultKind.PAUSED):
                self._capture.request_resume(self._reader, log_key(*of))

    def resume(self, lake: Lake, report: Callable[[], None]) -> bool:
        """Let each table that the operator resumed catch up by one slice; return whether there was one.

        `report` runs before a request is closed: the waiting command then reads the result.
        """
        if not lake.paused:
            return False
        keys = set(self._capture.resume_requests(self._reader))
        requested = [of for of in lake.paused if log_key(*of) in keys]
        if not requested or lake.positions.outbox != self._outbox.outbox_id:
            return False
        for of in requested:
            after = lake.paused[of]
            try:
                items, upto = table_slice(self._outbox, of, after, lake.positions.applied.sequence)
            except OutboxTrimmed:
                lake.give_up([of], "the outbox no longer contains its changes")
                items, upto = [], lake.positions.applied.sequence
            lake.catch_up(of, items, upto)
            passed(Failpoint.TABLE_RESUMED)
            report()
            if lake.paused.get(of, after) == after:  # it continues, or it failed again
                self._capture.close_request(self._reader, log_key(*of))
        return True

    def _excess(self, after: OutboxSequence, upto: OutboxSequence) -> str:
        """Return why the outbox does not keep the values after `after` any longer; "" if it does."""
        try:
            kept = self._kept.measure(after, upto)
        except OutboxTrimmed:
            return "the outbox no longer contains its changes"
        if kept <= self._bytes_max:
            return ""
        return f"the outbox kept {kept} bytes for it, more than the {self._bytes_max} of --paused-bytes"
