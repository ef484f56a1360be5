"""One decoding step, WAL in and committed transactions out: the framer and the decoder, for every decoding loop.

It needs no connection and imports no library for one: an archive is decoded without a server.
"""

from collections.abc import Callable, Iterator

from tidemark.decode.transactions.decoder import Decoded, DecodedRun, Decoder, WriteJournal
from tidemark.decode.transactions.reorder_buffer.committed_run import singly
from tidemark.model.errors import CorruptWal
from tidemark.model.lsn import Lsn, TimelineId, format_lsn
from tidemark.runtime.replay.diverged import DeadBranchDelivered
from tidemark.wal.page import Framer, Invalid, NeedMore, RecordBlock
from tidemark.wal.segments import WalSlice

MEMORY_BYTES_DEFAULT = 256 << 20  # decode.memory_bytes
OnFork = Callable[[Lsn, TimelineId], None]  # the end of a timeline, and the next one


class InvalidWal(CorruptWal):
    """Invalid bytes from a source that should have only valid WAL."""

    hint = "compare with the WAL of the node by pg_waldump; damage ends a stream"

    def __init__(self, invalid: Invalid) -> None:
        super().__init__(str(invalid))
        self.invalid = invalid
        self.lsn = invalid.lsn


class WalDecoding:
    """Slices of WAL in, decoded transactions and messages out, in commit order.

    `journal` receives each record that changed a catalog.
    """

    def __init__(
        self,
        framer: Framer,
        decoder: Decoder,
        timeline: TimelineId,
        journal: WriteJournal | None = None,
        on_fork: OnFork | None = None,
    ) -> None:
        """`timeline`: of the first slice, or that of a position which the WAL leads to; a start may lie before it.

        `on_fork` is called at each change to a later timeline behind the start, before anything of that is decoded.
        """
        self.framer = framer
        framer.leave_out(decoder.quiet)
        self.decoder = decoder
        self.timeline = timeline
        self.records = 0  # decoded so far
        self.record_bytes = 0  # of these records, without padding
        self.watch: Callable[[RecordBlock], None] | None = None  # receives the records before they are decoded
        self._journal = journal
        self._on_fork = on_fork

    def feed(self, wal_slice: WalSlice) -> Iterator[Decoded]:
        """Feed a slice; yield what it completes, one by one. Consume all of it before the next slice."""
        return singly(self.feed_runs(wal_slice))

    def feed_runs(self, wal_slice: WalSlice) -> Iterator[DecodedRun]:
        """Do the same, but yield small transactions in runs."""
        if wal_slice.timeline != self.timeline:
            self._follow(wal_slice)
            is_later = wal_slice.timeline > self.timeline
            # NB: a start may be on the page of a fork, after it: an earlier run or the seed has passed that fork.
            if self._on_fork is not None and is_later and self.framer.position <= wal_slice.start_lsn:
                self._on_fork(wal_slice.start_lsn, wal_slice.timeline)
            self.timeline = self.decoder.timeline = wal_slice.timeline
        self.framer.feed(wal_slice.start_lsn, wal_slice.data)
        while not isinstance(block := self.framer.next_block(), NeedMore):
            if isinstance(block, Invalid):
                raise InvalidWal(block)
            if self.watch is not None:
                self.watch(block)
            self.records += block.record_count
            self.record_bytes += block.byte_count
            yield from self.decoder.decode_runs(block, self._journal)
            self.framer.reuse(block)
            if self.decoder.is_halted:
                return

    def _follow(self, wal_slice: WalSlice) -> None:
        """Continue on another timeline; at its start, part of a record of the last one may have been received."""
        framer = self.framer
        if framer.fed_lsn is None or framer.fed_lsn <= wal_slice.start_lsn:
            framer.follow(wal_slice.timeline)
        elif framer.position > wal_slice.start_lsn:
            raise DeadBranchDelivered(
                f"timeline {wal_slice.timeline} begins at {format_lsn(wal_slice.start_lsn)}, but timeline "
                f"{self.timeline} was decoded up to {format_lsn(framer.position)}"
            )
        else:
            self.framer = Framer(
                framer.format,
                system_identifier=framer.system_identifier,
                segment_bytes=framer.segment_bytes,
                timeline=wal_slice.timeline,
                start_lsn=wal_slice.start_lsn,
            )
            self.framer.leave_out(self.decoder.quiet)
