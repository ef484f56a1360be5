"""Decodes slices of WAL into groups of changes, and writes the catalog history, in whichever thread calls it.

Order: a catalog-relevant record is in the journal before any change that depends on it is returned; the application
thread makes the journal durable before it delivers.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tidemark.decode.catalog.databases import DatabaseMirrors
from tidemark.decode.catalog.history import Base, OpenTransactionStart
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.transactions.decoder import Decoder
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.engine.base_schedule import BaseSchedule
from tidemark.io.host.logs import Log
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.history_files import HistoryWriter
from tidemark.model.change import ChangeGroup
from tidemark.model.commit_time import NSECS_PER_USEC
from tidemark.model.lsn import INVALID_LSN, Lsn, TimelineId
from tidemark.model.position import Pointer, Position
from tidemark.runtime.capture.heartbeats import with_heartbeats
from tidemark.runtime.replay.decode_run import WalDecoding
from tidemark.wal.page import Framer
from tidemark.wal.record import RawRecord, Record
from tidemark.wal.segments import WalSlice

CheckFork = Callable[[TimelineId, Lsn, TimelineId], None]  # the timeline that is left, where, and for which
LEFT_OUT_HINT = (
    "capture it with a separate state folder (cdcctl init --database NAME --state OTHER); a state that was "
    "created with the former name in seed.databases follows such a rename"
)


class WalReader:
    """Slices of WAL in, groups of changes out; writes the journal and the bases. It has no thread."""

    def __init__(
        self,
        framer: Framer,
        decoder: Decoder,
        builder: GroupBuilder,
        history: HistoryWriter,
        mirrors: DatabaseMirrors,
        *,
        check_fork: CheckFork,
        base_distance_bytes_max: int,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self.decoder = decoder
        self._check_fork = check_fork
        self.horizon_lsn = INVALID_LSN  # set by the owner: no restart begins before it
        self._decoding = WalDecoding(framer, decoder, decoder.timeline, self._journal, self._leave_timeline)
        self._builder = builder
        self._history = history
        self._mirrors = mirrors
        self._base_schedule = BaseSchedule(history.index.bases, base_distance_bytes_max)
        self._metrics = metrics
        self._log = log
        self._records_reported = 0
        self.cpu_s = 0.0  # processor time used so far, as the owner counts it
        self._segment_began_s = 0.0  # of it
        self._spilled_bytes = 0
        self._journal_bytes = 0
        self._databases_reported = 0  # value of `DatabaseMirrors.readings` at the last group with databases
        self._databases_logged = 0
        self._left_out: set[str] = set()

    def feed(self, wal_slice: WalSlice) -> Iterator[ChangeGroup]:
        """Decode the next slice; return the groups that became full."""
        for decoded in self._decoding.feed_runs(wal_slice):
            if isinstance(decoded, CommittedRun):
                yield from map(self._with_databases, self._builder.add_run(decoded))
            elif isinstance(decoded, CommittedTransaction):
                yield from map(self._with_databases, self._builder.add_transaction(decoded))
            else:
                yield from map(self._with_databases, self._builder.add_message(decoded, self.decoder.restart_lsn))

    @property
    def open_transactions(self) -> int:
        """How many transactions have not ended, for people: another thread may change it meanwhile."""
        return self.decoder.transactions.open_count

    def flush(self, *, also_empty: bool) -> ChangeGroup | None:
        """Return the collected changes as a group; `also_empty`: also a group that has only its position."""
        group = self._builder.flush() if self._builder.byte_count or also_empty else None
        return group and self._with_databases(group)

    @property
    def is_collecting(self) -> bool:
        """Return whether there are changes that are in no group yet."""
        return self._builder.byte_count > 0

    @property
    def record_bytes(self) -> int:
        """How much WAL was decoded, in bytes of records."""
        return self._decoding.record_bytes

    @property
    def is_halted(self) -> bool:
        """Return whether a marker has halted decoding: later WAL is not decoded."""
        return self.decoder.is_halted

    def idle_group(self) -> ChangeGroup:
        """Return a group without changes that states how far decoding is."""
        here = Position(self.decoder.timeline, self.last_record_lsn, 0)
        return self._with_databases(ChangeGroup(here, Pointer(here, self.decoder.restart_lsn), (), (), 0, 0))

    def heartbeat_group(self, after: Position) -> ChangeGroup | None:
        """Return a group with heartbeats behind `after`; None while decoding has not reached it."""
        wall_us, idle = time.time_ns() // NSECS_PER_USEC, self.idle_group()
        group = with_heartbeats(idle, after, sorted(self._mirrors.known()), wall_us)
        if group is None:
            self.repeat_databases(idle)
        return group

    def repeat_databases(self, group: ChangeGroup) -> None:
        """Add the databases of a group that is not delivered to the next one."""
        if group.databases:
            self._databases_reported = 0

    def _with_databases(self, group: ChangeGroup) -> ChangeGroup:
        """Add the captured databases if they changed. They may be ahead of the group, never behind it."""
        if self._databases_reported == self._mirrors.readings:
            return group
        self._databases_reported = self._mirrors.readings
        return replace(group, databases=self._mirrors.known())

    def _log_databases(self) -> None:
        """Log, once each, the selected databases that are not followed."""
        self._databases_logged = self._mirrors.readings
        left_out = self._mirrors.left_out_by_name()
        for name in left_out.keys() - self._left_out:
            self._log.warning(
                "a database is not captured",
                database=name,
                reason=left_out[name],
                hint=LEFT_OUT_HINT,
            )
        self._left_out = set(left_out)

    def write_base(self) -> None:
        """Save the mirrors as they are now."""
        decoder = self.decoder
        open_now = tuple(OpenTransactionStart(known.xid, known.first_lsn) for known in decoder.transactions)
        system_identifier = self._decoding.framer.system_identifier
        assert system_identifier is not None, "no page was read"
        base = Base(
            system_identifier=system_identifier,
            timeline=decoder.timeline,
            lsn=decoder.decoded_lsn,
            major=self._mirrors.shared.store.format.major,
            next_xid=decoder.transactions.next_xid,
            mirrors=self._mirrors,
            open_transactions=open_now,
            top_of=decoder.transactions.top_of,
        )
        began_s = time.thread_time()
        written = self._history.write_base(base, decoder.restart_lsn)
        self._history.prune(self.horizon_lsn, self._base_schedule.surplus)
        write_s = time.thread_time() - began_s
        # NB: `cpu_s` includes it later, and it must not count as the time of decoding.
        self._base_schedule.record_base(written, write_s, self.cpu_s + write_s)
        self._metrics.catalog_base_bytes.inc(written.byte_count)

    def _leave_timeline(self, fork_lsn: Lsn, next_timeline: TimelineId) -> None:
        """Cut off what an earlier run decoded of the timeline behind the fork: it was not delivered, and is dead."""
        self._check_fork(self.decoder.timeline, fork_lsn, next_timeline)
        if self._history.cut_behind(fork_lsn):
            self._base_schedule.restart(self._history.index.bases)
            self._log.warning(
                "the catalog history is cut at a fork, because WAL after the fork was decoded", at_lsn=fork_lsn
            )

    def _journal(self, record: Record | RawRecord) -> None:
        self._history.append(record, self.decoder.timeline, self.decoder.transactions.top(record.xid))

    @property
    def read_lsn(self) -> Lsn:
        """The LSN up to which WAL was read."""
        return self._decoding.framer.fed_lsn or INVALID_LSN

    @property
    def last_record_lsn(self) -> Lsn:
        """Where the last decoded record begins; invalid before the first."""
        return self.decoder.last_lsn

    def maintain(self, wal_slice: WalSlice) -> None:
        """Do the work due after a slice that no change has to wait for: report progress, and save a base."""
        if self._databases_logged != self._mirrors.readings:
            self._log_databases()
        self._metrics.records.inc(self._decoding.records - self._records_reported)
        self._records_reported = self._decoding.records
        segment_bytes = self._decoding.framer.segment_bytes
        if segment_bytes and (read := wal_slice.end_lsn // segment_bytes - wal_slice.start_lsn // segment_bytes):
            self._metrics.segments.inc(read)
            self._metrics.segment_seconds.observe(self.cpu_s - self._segment_began_s)
            self._segment_began_s = self.cpu_s
        if spilled := self.decoder.transactions.spilled_bytes - self._spilled_bytes:
            self._metrics.spilled.inc(spilled)
            self._spilled_bytes += spilled
        if written := self._history.written_bytes - self._journal_bytes:
            self._metrics.journal_bytes.inc(written)
            self._journal_bytes += written
        # NB: until then some open transactions would be listed with a later first LSN than they have.
        may_write = self.decoder.has_reached_from_lsn and not self._mirrors.is_growing
        if may_write and self._base_schedule.is_due(self.decoder.decoded_lsn, self.cpu_s):
            self.write_base()
