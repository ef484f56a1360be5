"""WAL in, committed transactions out: the framer and the decoder as one step, and the way from a node's stream to it.

`WalDecoding` is what every loop of ours turns, live or from an archive. `LiveChanges` is the whole way for one that has
nothing but a DSN and a fresh seed: it needs no state and keeps none.
"""

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from tidemark.decode.decoder import Decoded, Decoder, Journal
from tidemark.decode.ports import SpillPort
from tidemark.decode.transactions import CommittedTransaction
from tidemark.io.node import Node
from tidemark.model.errors import CorruptWal, NodeUnfit, NodeUnreachable
from tidemark.model.lsn import Lsn, TimelineId, format_lsn
from tidemark.model.snapshot import Visibility
from tidemark.runtime.network import WalDiverged
from tidemark.runtime.seeding import (
    POLL_S,
    WAIT_S_DEFAULT,
    Seed,
    SeedObserver,
    SilentObserver,
    Waiting,
    begin_behind,
    decoder_of,
)
from tidemark.runtime.steady_stream import SteadyStream
from tidemark.wal.page import Framer, Invalid, NeedMore, RecordBlock
from tidemark.wal.segments import ReadSegment

MEMORY_BYTES_DEFAULT = 256 << 20  # decode.memory_bytes
HELD_BYTES_MAX = 256 << 20  # of commits before S2 is known


class InvalidWal(CorruptWal):
    """Bytes that are no record, from a source that should have none such."""

    hint = "compare with the node's own WAL by pg_waldump; a stream is cut off by whatever damages it"

    def __init__(self, invalid: Invalid) -> None:
        super().__init__(str(invalid))
        self.invalid = invalid
        self.lsn = invalid.lsn


class WalDecoding:
    """Slices of WAL in, decoded transactions and messages out, in commit order.

    `journal` gets each record that changed a catalog.
    """

    def __init__(self, framer: Framer, decoder: Decoder, timeline: TimelineId, journal: Journal | None = None) -> None:
        self.framer = framer
        self.decoder = decoder
        self.timeline = timeline
        self.records = 0  # ever decoded
        self.record_bytes = 0  # of theirs, padding left out
        self.watch: Callable[[RecordBlock], None] | None = None  # is shown all records before they are decoded
        self._journal = journal

    def feed(self, segment: ReadSegment) -> Iterator[Decoded]:
        """Take a slice; yield what it completes. All of it must be drawn before the next slice comes."""
        if segment.timeline != self.timeline:
            self._follow(segment)
            self.timeline = self.decoder.timeline = segment.timeline
        self.framer.feed(segment.start_lsn, segment.data)
        while not isinstance(block := self.framer.next_block(), NeedMore):
            if isinstance(block, Invalid):
                raise InvalidWal(block)
            if self.watch is not None:
                self.watch(block)
            self.records += len(block)
            self.record_bytes += sum(block.lengths[: len(block)])
            yield from self.decoder.decode_block(block, self._journal)
            if self.decoder.is_halted:
                return

    def _follow(self, segment: ReadSegment) -> None:
        """Go on along another timeline; where it left the last one, a record may have been sent by half."""
        framer = self.framer
        if framer.fed_lsn is None or framer.fed_lsn <= segment.start_lsn:
            framer.follow(segment.timeline)
        elif framer.position > segment.start_lsn:
            raise WalDiverged(
                f"timeline {segment.timeline} begins at {format_lsn(segment.start_lsn)}, "
                f"timeline {self.timeline} was decoded up to {format_lsn(framer.position)}"
            )
        else:
            self.framer = Framer(
                framer.format,
                system_identifier=framer.system_identifier,
                segment_bytes=framer.segment_bytes,
                timeline=segment.timeline,
                start_lsn=segment.start_lsn,
            )


class TooMuchHeld(NodeUnfit):
    """More changes than may be held back committed while older transactions were waited for."""

    hint = "end the older transactions first, or begin at a quieter time"


class LiveChanges:
    """Changes of a running node from a fresh seed on, without any state: what `tail` shows.

    The first change is the first commit that the snapshot S2 does not see (see `tidemark.runtime.seeding`). Until S2
    is known, commits are held back, up to `HELD_BYTES_MAX`. The connection is made again when it breaks; that is safe,
    because a server never sends WAL that a crash could take back.
    """

    def __init__(
        self,
        dsn: str,
        seed: Seed,
        *,
        memory_bytes: int = MEMORY_BYTES_DEFAULT,
        spill: SpillPort | None = None,
        wait_s: float = WAIT_S_DEFAULT,
        observer: SeedObserver | None = None,
        away: Callable[[NodeUnreachable], None] | None = None,
    ) -> None:
        self.seed = seed
        self.snapshot: Visibility | None = None  # S2
        self._dsn = dsn
        self._waiting = Waiting(seed.complete_from, wait_s, observer or SilentObserver())
        self._looked_s = 0.0
        self._stream = SteadyStream(dsn, seed.node.system_identifier, seed.lsn, seed.timeline, away)
        self.begin_lsn = Lsn(0)  # of messages outside transactions
        self._held: list[Decoded] = []
        self._held_bytes = 0
        framer = Framer(
            seed.format,
            system_identifier=seed.node.system_identifier,
            segment_bytes=seed.node.segment_bytes,
            timeline=seed.timeline,
            start_lsn=seed.lsn,
        )
        decoder = decoder_of(seed, memory_bytes=memory_bytes, spill=spill)
        self.decoding = WalDecoding(framer, decoder, seed.timeline)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def decoded_lsn(self) -> Lsn:
        """End of the last record that was decoded."""
        return self.decoding.decoder.decoded_lsn

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    def read(self, wait_s: float) -> Iterator[Decoded]:
        """Yield what the next piece of WAL completes; nothing if none comes within `wait_s`."""
        if self.snapshot is None:
            yield from self._settle()
        segment = self._stream.read(wait_s)
        if segment is None:
            return
        for decoded in self.decoding.feed(segment):
            if self.snapshot is None:
                self._hold(decoded)
            elif self._wanted(decoded, self.snapshot):
                yield decoded

    def _settle(self) -> Iterator[Decoded]:
        """Look if S2 can be had; if so, give out what was held back and S2 does not see."""
        now_s = time.monotonic()
        if now_s - self._looked_s < POLL_S:
            return
        self._looked_s = now_s
        with Node(self._dsn, next(iter(self.seed.databases.values()))) as node:
            snapshot = self._waiting.look(node)
            if snapshot is None:
                return
            self.begin_lsn = node.insert_lsn()
            self.snapshot = begin_behind(node, snapshot, self.seed.complete_from)
        held, self._held, self._held_bytes = self._held, [], 0
        for decoded in held:
            if self._wanted(decoded, self.snapshot):
                yield decoded

    def _hold(self, decoded: Decoded) -> None:
        self._held.append(decoded)
        self._held_bytes += decoded.byte_count if isinstance(decoded, CommittedTransaction) else len(decoded.content)
        if self._held_bytes > HELD_BYTES_MAX:
            raise TooMuchHeld(f"over {HELD_BYTES_MAX} bytes of changes committed while older transactions were open")

    def _wanted(self, decoded: Decoded, snapshot: Visibility) -> bool:
        if isinstance(decoded, CommittedTransaction):
            if snapshot.shows(decoded.end.full_xid, decoded.end.commit_lsn):
                decoded.release()
                return False
            return True
        return decoded.lsn >= self.begin_lsn
